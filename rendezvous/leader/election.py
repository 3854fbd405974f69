"""Who leads: keep a connection to whoever does, and take the place when it is free or its holder is proven gone.

The leader is whoever holds the leader's key, on the same lease as its own. The seal names successors: when it is
proven that nothing of the leader is left, they take over one after the other, without waiting for its lease. When
the key is simply gone, anybody of the round's roster may try. Who does not belong to it must wait (see `takeover`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rendezvous import records
from rendezvous.events import Answer, ConnectTo, Txn
from rendezvous.records import Command, LeaderRecord, Seal, Spares
from rendezvous.state.own_records import make_leader_put
from rendezvous.state.state import LeaderState, MemberState, TakeoverState
from rendezvous.stores.contract import Compare, Delete, Get, KeyValue, Operation, TxnResult


def begin_membership(state: MemberState) -> None:
    """Lead no more, and know no leader."""
    state.leader = None
    state.election.begin_membership()
    _connect_to(state, None, math.inf)


def note_unaware(state: MemberState, member_ids: Iterable[str], now: float) -> None:
    """The store has ended the leases of these or the own one early, so they may not know of theirs.

    What this member knows of others as a leader is kept, for it may lead again in a moment.
    """
    election, leader = state.election, state.leader
    known = {**election.unaware_until, **(leader.seen.unaware_until if leader is not None else {})}
    election.unaware_until = {member_id: until for member_id, until in known.items() if now < until}
    until = now + state.settings.lease_ttl_s
    election.unaware_until.update((member_id, until) for member_id in member_ids)


def advance(state: MemberState, job: records.Keys, now: float) -> None:
    """Follow who leads, or try to; afterwards `state.leader` says whether it is this member."""
    election, cache = state.election, state.cache
    held, leader, seal = cache.keys.get(job.leader), cache.read(LeaderRecord, job.leader), cache.read(Seal, job.round)
    spares = cache.read(Spares, job.spares)
    if spares is not None and state.member_id in spares.member_ids:
        election.spare_id = state.member_id
    if state.leader is not None and (held is None or held.mod_revision != state.leader.revision):
        note_unaware(state, (), now)
        cache.unwatch(job.members, job.statuses, job.spec, state.setup.current_key)
        state.leader = None
    if leader is None or held is None:
        _elect(state, job, seal, now)
        return
    election.campaign_at, election.takeover = math.inf, None
    if leader.member_id != state.member_id:
        _connect_to(state, leader, now)
        _warn_unreachable(state, leader, now)
        _take_over(state, job, leader, seal, now)
    else:
        _connect_to(state, None, now)
        if state.leader is None:
            verdict_lease = state.requests.make_lease_id()
            state.leader = LeaderState(job, held.mod_revision, verdict_lease, election.unaware_until, now)


def _connect_to(state: MemberState, leader: LeaderRecord | None, now: float) -> None:
    """Keep a presence connection to this leader and to nobody else."""
    election = state.election
    wanted = ConnectTo(leader.member_id, leader.presence_address) if leader else ConnectTo("", "")
    if wanted != election.connected_to:
        election.connected_to, election.connected_at = wanted, now
        state.requests.emit(wanted)


def _warn_unreachable(state: MemberState, leader: LeaderRecord, now: float) -> None:
    """Say once that the leader has never been reached: somebody may want to open a port."""
    election = state.election
    if election.has_warned or not leader.presence_address or state.peers.was_reached(leader.member_id):
        return
    at = election.connected_at + state.settings.isolation_s
    if now < at:
        state.requests.wake_by(at)
        return
    election.has_warned = True
    state.requests.log(
        f"the leader, {leader.node_name}, cannot be reached at {leader.presence_address}: as long as that port is "
        "closed to this node, its loss is noticed when its lease ends, and a store outage stops its workers"
    )


# --- the place is free ---


def _elect(state: MemberState, job: records.Keys, seal: Seal | None, now: float) -> None:
    """Try to lead when it is this member's turn."""
    election = state.election
    if election.campaign_at == math.inf:
        election.campaign_at = now + _compute_campaign_delay_s(state, seal)
        former = election.connected_to.member_id
        note_unaware(state, [former] if state.peers.is_reached(former) else [], now)
    order = find_takeover_request(state, job)
    if now < election.campaign_at:
        state.requests.wake_by(election.campaign_at)
    elif order is not None or seal is None or may_lead(state, job, seal, now):
        _campaign(state, job, order, now)


# docs/internals/decisions/agreement.md#0038-successors-before-other-candidates
def _compute_campaign_delay_s(state: MemberState, seal: Seal | None) -> float:
    """How long to wait before trying: successors one after the other, all others a random time behind them.

    So a leader that has left or whose lease has ended is followed at once, and not by all at the same time. Nobody
    knows here whether a successor is still there.
    """
    order, delay_s = _list_successors(state, seal), state.settings.successor_delay_s
    if state.member_id in order and state.leaving.request is None:
        return order.index(state.member_id) * delay_s
    return len(order) * delay_s + state.rng() * state.settings.election_spread_s


def _list_successors(state: MemberState, seal: Seal | None) -> list[str]:
    """Whom the seal names, without who led last."""
    former = state.election.connected_to.member_id
    return [m for m in seal.successors if m != former] if seal is not None else []


def find_takeover_request(state: MemberState, job: records.Keys) -> KeyValue | None:
    """The request of somebody who knows that the roster is dead, if there is one."""
    for item in state.cache.keys.list_under(job.commands):
        command = state.cache.read(Command, item.key)
        if command is not None and command.kind == "takeover" and not command.answer:
            return item
    return None


def may_lead(state: MemberState, job: records.Keys, seal: Seal, now: float) -> bool:
    """Whether this agent belongs to the roster, or nobody of it can be running any more."""
    election = state.election
    if not state.settings.continues_without_store or _is_in_roster(state, job, seal):
        return True
    from rendezvous.leader import takeover  # not before the first worker

    if election.takeover is None or election.takeover.seal.plan_token != seal.plan_token:
        election.takeover = TakeoverState(seal)
    return election.takeover.is_in_roster or takeover.may_lead(state, election.takeover, job, now)


def _is_in_roster(state: MemberState, job: records.Keys, seal: Seal) -> bool:
    """Whether no outage is held out without this agent's word, whatever member it was when it was counted in.

    A spare that was lost is taken from the list, and from then on nobody waits for its word.
    """
    spares, spare_id = state.cache.read(Spares, job.spares), state.election.spare_id
    return seal.plan_token == state.round.ranked_token or (spares is not None and spare_id in spares.member_ids)


def _campaign(state: MemberState, job: records.Keys, order: KeyValue | None, now: float) -> None:
    consumed: tuple[Operation, ...] = ()
    guards: tuple[Compare, ...] = (Compare(job.leader, "mod", "=", state.cache.keys.get_revision(job.leader)),)
    if order is not None:
        consumed = (Delete(order.key),)
        guards += (Compare(order.key, "mod", "=", order.mod_revision),)
    _write_leader(state, job, "ask to lead", guards, consumed, now)


# --- the holder is proven gone ---


def _take_over(state: MemberState, job: records.Keys, leader: LeaderRecord, seal: Seal | None, now: float) -> None:
    """Take over from a leader of which nothing is left, in the order that the seal names."""
    gone_since = state.peers.get_gone_since(leader.member_id, leader.presence_address)
    order = _list_successors(state, seal)
    if gone_since == math.inf or state.member_id not in order or state.leaving.request is not None:
        return
    at = gone_since + order.index(state.member_id) * state.settings.successor_delay_s
    if now < at:
        state.requests.wake_by(at)
        return
    former, revision = job.make_member_key(leader.member_id), state.cache.keys.get_revision(job.leader)

    def on_reply(answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        old = answer.found[0].first
        guards = (
            Compare(job.leader, "mod", "=", revision),
            Compare(former, "mod", "=", old.mod_revision if old else 0),
        )
        why = f"take over from {leader.node_name}"
        _write_leader(state, job, why, guards, (Delete(former),) if old else (), now)

    state.requests.request("campaign", "read the lost leader's key", Txn((), (Get(former),)), on_reply, now)


# docs/internals/decisions/agreement.md#0012-leadership-identified-by-the-mod-revision
def _write_leader(
    state: MemberState,
    job: records.Keys,
    why: str,
    guards: tuple[Compare, ...],
    besides: tuple[Operation, ...],
    now: float,
) -> None:
    """Put the leader's key on the own lease, if nothing has changed that this was decided on."""
    own, keys = state.own_key, state.cache.keys
    compares = (
        *guards,
        Compare(own, "create", "=", state.membership.revision),
        Compare(job.verdict, "create", "=", 0),
        # Who belongs to the roster may have changed under leaders that have come and gone unseen.
        Compare(job.round, "mod", "=", keys.get_revision(job.round)),
        Compare(job.spares, "mod", "=", keys.get_revision(job.spares)),
    )
    put = make_leader_put(state, job)
    reads = (Get(job.control, prefix=True), Get(own))

    def on_reply(answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        for found, key in zip(answer.found, (job.control, own), strict=True):
            keys.load(found, key, now)
        if not answer.succeeded:
            state.requests.pause("campaign", now)

    state.requests.request("campaign", why, Txn(compares, (put, *besides, *reads), reads), on_reply, now)
