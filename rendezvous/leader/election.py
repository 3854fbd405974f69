"""Election: keep a connection to the leader, and take over when the leader key is free or the leader is proven gone.

The leader is the member that holds the leader key, on the same lease as its own key. The seal names successors: when it
is proven that no process of the leader is left, they take over one after the other, without waiting for its lease. When
the key is simply gone, any member of the round's roster may try. Other members must wait (see `takeover`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rendezvous.events import ConnectTo, Txn
from rendezvous.reasons import Reason
from rendezvous.records import Command, LeaderRecord, Seal, Spares
from rendezvous.state.state import Leadership, MemberState, TakeoverState
from rendezvous.stores.contract import Compare, Compares, Delete, Get, KeyValue, Operations, TxnResult


def begin_membership(state: MemberState) -> None:
    """Stop leading, and forget the leader."""
    state.leadership = None
    state.election.begin_membership()
    _connect_to(state, None, math.inf)


def note_unaware(state: MemberState, member_ids: Iterable[str], now: float) -> None:
    """The store ended the leases of these members, or the own one, early, so they may not know that they lost theirs.

    What this member knows of others as a leader is kept, because it may lead again in a moment.
    """
    election, leader = state.election, state.leadership
    known = {**election.unaware_until, **(leader.seen.unaware_until if leader is not None else {})}
    election.unaware_until = {member_id: until for member_id, until in known.items() if now < until}
    until = now + state.settings.lease_ttl_s
    election.unaware_until.update((member_id, until) for member_id in member_ids)


def advance(state: MemberState, now: float) -> None:
    """Follow the leader, or try to lead; afterwards `state.leadership` shows whether this member leads."""
    job = state.job
    election, cache = state.election, state.cache
    item, leader, seal = cache.keys.get(job.leader), cache.read(LeaderRecord, job.leader), cache.read(Seal, job.round)
    spares = cache.read(Spares, job.spares)
    if spares is not None and state.member_id in spares.member_ids:
        election.spare_id = state.member_id
    if state.leadership is not None and (item is None or item.mod_revision != state.leadership.revision):
        note_unaware(state, (), now)
        cache.unwatch(job.members, job.statuses, job.spec, state.setup.current_key)
        state.leadership = None
    if leader is None or item is None:
        _elect(state, seal, now)
        return
    election.campaign_at, election.takeover = math.inf, None
    if leader.member_id != state.member_id:
        _connect_to(state, leader, now)
        _warn_unreachable(state, leader, now)
        _take_over(state, leader, seal, now)
    else:
        _connect_to(state, None, now)
        if state.leadership is None:
            verdict_lease = state.requests.make_lease_id()
            state.leadership = Leadership(job, item.mod_revision, verdict_lease, election.unaware_until, now)


def _connect_to(state: MemberState, leader: LeaderRecord | None, now: float) -> None:
    """Keep a presence connection to this leader and to no other member."""
    election = state.election
    action = ConnectTo(leader.member_id, leader.presence_address) if leader else ConnectTo("", "")
    if action != election.connected_to:
        election.connected_to, election.connected_at = action, now
        state.requests.emit(action)


def _warn_unreachable(state: MemberState, leader: LeaderRecord, now: float) -> None:
    """Log once that the leader has never been reached: a port may have to be opened."""
    election = state.election
    if election.has_warned or not leader.presence_address or leader.member_id in state.peers.last:
        return
    warn_at = election.connected_at + state.settings.isolation_s
    if now < warn_at:
        state.requests.wake_by(warn_at)
        return
    election.has_warned = True
    node, address = leader.node_name, leader.presence_address
    state.requests.log(Reason.of("leader-unreachable", node=node, address=address))


# --- no leader ---


def _elect(state: MemberState, seal: Seal | None, now: float) -> None:
    """Try to lead when it is this member's turn."""
    election = state.election
    if election.campaign_at == math.inf:
        election.campaign_at = now + _compute_campaign_delay_s(state, seal)
        former = election.connected_to.member_id
        note_unaware(state, [former] if former in state.peers.connected else [], now)
    takeover_request = find_takeover_request(state)
    if now < election.campaign_at:
        state.requests.wake_by(election.campaign_at)
    elif takeover_request is not None or seal is None or may_lead(state, seal, now):
        _campaign(state, takeover_request, now)


# docs/internals/decisions/agreement.md#0038-successors-before-other-candidates
def _compute_campaign_delay_s(state: MemberState, seal: Seal | None) -> float:
    """Return how long to wait before trying: successors one after the other, all others a random time behind them.

    So a leader that has left or whose lease has ended is followed at once, and not by all at the same time. Whether a
    successor is still alive is not known here.
    """
    successors, delay_s = _list_successors(state, seal), state.settings.successor_delay_s
    if state.member_id in successors and state.leaving.request is None:
        return successors.index(state.member_id) * delay_s
    return len(successors) * delay_s + state.rng() * state.settings.election_spread_s


def _list_successors(state: MemberState, seal: Seal | None) -> list[str]:
    """List the successors that the seal names, without the last leader."""
    former = state.election.connected_to.member_id
    return [m for m in seal.successors if m != former] if seal is not None else []


def find_takeover_request(state: MemberState) -> KeyValue | None:
    """Return the key of a request to take over, made by a person who knows that the roster is dead; None if none."""
    for item in state.cache.keys.list_under(state.job.commands):
        command = state.cache.read(Command, item.key)
        if command is not None and command.kind == "takeover" and not command.is_answered:
            return item
    return None


def may_lead(state: MemberState, seal: Seal, now: float) -> bool:
    """Return whether this agent belongs to the roster, or no member of the roster can be running any more."""
    election = state.election
    if not state.settings.continues_without_store or _is_in_roster(state, seal):
        return True
    from rendezvous.leader import takeover  # not before the first worker

    if election.takeover is None or election.takeover.seal.plan_token != seal.plan_token:
        election.takeover = TakeoverState(seal)
    return election.takeover.is_in_roster or takeover.may_lead(state, election.takeover, now)


def _is_in_roster(state: MemberState, seal: Seal) -> bool:
    """Return whether no outage is held out without this agent's acknowledgement, under any of its member ids.

    A spare that was lost is taken from the list, and from then on its acknowledgement is not awaited.
    """
    spares, spare_id = state.cache.read(Spares, state.job.spares), state.election.spare_id
    return seal.plan_token == state.round.ranked_token or (spares is not None and spare_id in spares.member_ids)


def _campaign(state: MemberState, takeover_request: KeyValue | None, now: float) -> None:
    key = state.job.leader
    guards = [Compare(key, "mod", "=", state.cache.keys.get_revision(key))]
    deletions = []
    if takeover_request is not None:
        deletions.append(Delete(takeover_request.key))
        guards.append(Compare(takeover_request.key, "mod", "=", takeover_request.mod_revision))
    _write_leader(state, "lead", guards, deletions, now)


# --- the leader is proven gone ---


def _take_over(state: MemberState, leader: LeaderRecord, seal: Seal | None, now: float) -> None:
    """Take over from a leader that is proven gone, in the order that the seal names."""
    gone_since = state.peers.get_gone_since(leader.member_id, leader.presence_address)
    successors = _list_successors(state, seal)
    if gone_since == math.inf or state.member_id not in successors or state.leaving.request is not None:
        return
    take_over_at = gone_since + successors.index(state.member_id) * state.settings.successor_delay_s
    if now < take_over_at:
        state.requests.wake_by(take_over_at)
        return
    former_key, revision = state.job.make_member_key(leader.member_id), state.cache.keys.get_revision(state.job.leader)

    def on_reply(answer: TxnResult, now: float) -> None:
        former_member = answer.found[0].first
        guards = (
            Compare(state.job.leader, "mod", "=", revision),
            Compare(former_key, "mod", "=", former_member.mod_revision if former_member else 0),
        )
        _write_leader(state, "take over", guards, (Delete(former_key),) if former_member else (), now)

    state.requests.request("campaign", "read lost leader", Txn((), (Get(former_key),)), on_reply, now)


# docs/internals/decisions/agreement.md#0012-leadership-identified-by-the-mod-revision
def _write_leader(state: MemberState, kind: str, guards: Compares, deletions: Operations, now: float) -> None:
    """Write the leader key on the own lease, if nothing has changed that this was decided on."""
    job = state.job
    own_key, keys = state.own_key, state.cache.keys
    compares = (
        *guards,
        Compare(own_key, "create", "=", state.membership.revision),
        Compare(job.verdict, "create", "=", 0),
        # The roster may have changed under leaders that this member has not seen.
        Compare(job.round, "mod", "=", keys.get_revision(job.round)),
        Compare(job.spares, "mod", "=", keys.get_revision(job.spares)),
    )
    put = state.make_leader_put(job)
    reads = (Get(job.control, prefix=True), Get(own_key))

    def on_reply(answer: TxnResult, now: float) -> None:
        for found, key in zip(answer.found, (job.control, own_key), strict=True):
            keys.load(found, key, now)
        if not answer.succeeded:
            state.requests.pause("campaign", now)

    state.requests.request("campaign", kind, Txn(compares, (put, *deletions, *reads), reads), on_reply, now)
