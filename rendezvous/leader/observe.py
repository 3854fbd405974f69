"""What the leader observes: the view that it makes from its copy of the store and from presence.

The records in the store say which members exist and what each reported, but not when. So the time at which a loss, a
failure or a departure was first seen is noted here, on the leader's own clock. A view is made anew for every
observation, from parts that are kept as long as the key behind them is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from rendezvous import records
from rendezvous.policy import budget
from rendezvous.policy.view import MemberView, StatusView, View
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Command, Drain, Member, Seal, Status, Stop
from rendezvous.state.state import Leadership, MemberState, Observations
from rendezvous.stores.contract import KeyValue

Part = TypeVar("Part", MemberView, StatusView)


def note_round(seen: Observations, token: str, assignments: Mapping[str, Assignment]) -> None:
    """Note that the round with this plan token is sealed, and that these members have ranks in it."""
    if token == seen.round_token:
        return
    seen.round_token = token
    seen.contents = {member_id: record.content for member_id, record in assignments.items()}
    seen.ranked = dict.fromkeys(sorted(assignments))
    seen.lost_at, seen.failed_at = {}, {}
    seen.confirmed_gone, seen.fenced = set(), set()
    seen.saved_count, seen.saved_at = -1, -math.inf
    for known in (seen.names, seen.nodes, seen.leaving_at):
        for member_id in [other for other in known if other not in assignments and other not in seen.members]:
            del known[member_id]
    for member_id, record in assignments.items():
        if record.node:
            seen.nodes.setdefault(member_id, record.node)
            seen.names.setdefault(member_id, record.node.rpartition(" ")[0])


def note_fenced(seen: Observations, member_ids: tuple[str, ...], *, is_confirmed_gone: bool) -> None:
    """Note that this leader has deleted these members' keys. `is_confirmed_gone`: no process of them was left."""
    seen.fenced.update(member_ids)
    if is_confirmed_gone:
        seen.confirmed_gone.update(member_ids)


def observe(state: MemberState, leadership: Leadership, now: float) -> View:
    """Make the view of all that is known now."""
    seen, job, keys, read, peers = leadership.seen, leadership.job, state.cache.keys, state.cache.read, state.peers
    members = _observe_members(state, seen, job)
    statuses = _observe_statuses(state, seen, job, now)
    for member_id in seen.ranked:
        if member_id not in members:
            _note_loss(state, seen, member_id, now)
        elif member_id in seen.lost_at:  # it has registered again after an outage of the store
            del seen.lost_at[member_id]
    seal, stop = read(Seal, job.round), read(Stop, job.stop)
    sealed_at = keys.get_first_seen_at(job.round) if seal else 0.0
    if state.settings.grow == "checkpoint":
        _observe_checkpoints(seen, statuses, now)
    own_id = state.member_id
    unreachable_since = {m: at for m, at in peers.unreachable_since.items() if m in members}
    return View(
        own_id=own_id,
        members=members,
        statuses=statuses,
        opened_at=seen.opened_at,
        seal=seal,
        sealed_at=sealed_at,
        active=leadership.active,
        stop=stop,
        stopped_at=keys.get_first_seen_at(job.stop) if stop else 0.0,
        lost_at=seen.lost_at,
        names=seen.names,
        nodes=seen.nodes,
        budget=budget.restore_budget(seal, sealed_at) if seal else budget.RestartBudget(),
        saved_at=seen.saved_at,
        gone=frozenset(m for m in unreachable_since if peers.is_gone(m, members[m].member.presence_address)),
        confirmed_gone=frozenset(seen.confirmed_gone),
        unreachable_since=unreachable_since,
        reached_count=sum(1 for m in members if m != own_id and m in peers.connected),
        others_count=len(members) - (own_id in members),
        no_omission_before=state.outage.no_omission_before,
        unaware_until={m: at for m, at in seen.unaware_until.items() if not peers.is_surely_gone(m)},
        drained=_list_drained(state, job),
        commands=_list_commands(state, job),
        answers=leadership.answers,
        store_address=state.setup.store_owner.presence_address if state.setup.store_owner else "",
    )


def _note_loss(state: MemberState, seen: Observations, member_id: str, now: float) -> None:
    """Note a lost member, and until when its workers may live if it does not know of the loss."""
    if member_id in seen.lost_at:
        return
    seen.lost_at[member_id] = now
    ttl_s = state.settings.lease_ttl_s
    if ttl_s == math.inf or member_id in seen.fenced:
        return
    # One that is still connected when its lease has ended does not know of it: its watchdog runs for another lease. A
    # store that ends one lease early may end several: if the last leader's was among them, the others were connected to
    # that one, and are doubted for a lease's time.
    if member_id in state.peers.connected or now < seen.doubts_until:
        seen.unaware_until[member_id] = now + ttl_s  # it may have renewed its lease until now


def _refresh(
    state: MemberState,
    prefix: str,
    known: dict[str, tuple[KeyValue, Part | None]],
    make_view: Callable[[str, KeyValue], Part | None],
) -> dict[str, Part]:
    """Return the views of all keys under `prefix`, made again where the key has changed."""
    items = {item.key[len(prefix) :]: item for item in state.cache.keys.list_under(prefix)}
    for member_id in known.keys() - items:
        del known[member_id]
    views = {}
    for member_id, item in items.items():
        if member_id not in known or known[member_id][0] is not item:
            known[member_id] = (item, make_view(member_id, item))
        view = known[member_id][1]
        if view is not None:
            views[member_id] = view
    return views


def _observe_members(state: MemberState, seen: Observations, job: records.Keys) -> dict[str, MemberView]:
    def make_view(member_id: str, item: KeyValue) -> MemberView | None:
        member = state.cache.read(Member, item.key)
        if member is None:
            return None
        if member.member_id != member_id:
            state.requests.log(Reason.of("foreign-member", key=item.key, member_id=member.member_id))
            return None
        seen_at = state.cache.keys.get_first_seen_at(item.key)
        view = MemberView(member, item.create_revision, item.mod_revision, seen_at)
        seen.names[member_id], seen.nodes[member_id] = member.node_name, view.node
        return view

    return _refresh(state, job.members, seen.members, make_view)


def _observe_statuses(state: MemberState, seen: Observations, job: records.Keys, now: float) -> dict[str, StatusView]:
    def make_view(member_id: str, item: KeyValue) -> StatusView | None:
        status = state.cache.read(Status, item.key)
        if status is None:
            return None
        has_failed = status.outcome == "failed"
        failed_at = seen.failed_at.setdefault(f"{member_id} {status.plan_token}", now) if has_failed else math.inf
        leaving_at = seen.leaving_at.setdefault(member_id, now) if status.leaving is not None else math.inf
        return StatusView(status, status.failed_revision or item.mod_revision, failed_at, leaving_at)

    return _refresh(state, job.statuses, seen.statuses, make_view)


def _observe_checkpoints(seen: Observations, statuses: Mapping[str, StatusView], now: float) -> None:
    """Note whether more checkpoints were reported since the last observation; the first one shows nothing."""
    own = (statuses[m].status for m in seen.ranked if m in statuses)
    count = sum(status.saved_count for status in own if status.plan_token == seen.round_token)
    if 0 <= seen.saved_count < count:
        seen.saved_at = now
    seen.saved_count = count


def _list_drained(state: MemberState, job: records.Keys) -> dict[str, float]:
    keys = state.cache.keys
    return {
        item.key[len(job.drains) :]: keys.get_first_seen_at(item.key)
        for item in keys.list_under(job.drains)
        if state.cache.read(Drain, item.key) is not None
    }


def _list_commands(state: MemberState, job: records.Keys) -> dict[str, Command]:
    items = sorted(state.cache.keys.list_under(job.commands), key=lambda item: item.create_revision)
    read = ((item.key[len(job.commands) :], state.cache.read(Command, item.key)) for item in items)
    return {token: command for token, command in read if command is not None and not command.is_answered}
