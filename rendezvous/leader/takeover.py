"""Takeover: when a member may lead that does not belong to the roster of the sealed round.

During a store outage a roster may be well and continue its round where no other node can see it: in the store its keys
are simply gone. So a member outside the roster waits until no outage can have lasted that long; or until new agents
have joined from all nodes of the round, since an agent does not join before its predecessor's processes on the same
machine, since the same boot, are gone.

Frequent reads of all members by all such members of a large job would be too much for a store. So only those that
joined first observe the store often; the others check at long intervals whether they are among these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from rendezvous.events import Txn
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Member, Spares
from rendezvous.state.state import MemberState, TakeoverState
from rendezvous.stores.contract import Get, KeyValue, TxnResult

OBSERVERS_MAX = 8  # how many observe often
OBSERVE_PAUSE_S_PER_MEMBER = 0.05  # between two reads of each other one: together they read twenty times per second


def may_lead(state: MemberState, takeover: TakeoverState, now: float) -> bool:
    """Return whether no member of the roster can be running any more; while that is unknown, observe the store."""
    settings = state.settings
    limit_s = settings.outage_limit_s + settings.lease_ttl_s
    if now >= takeover.empty_since + limit_s:
        return True
    state.requests.log_status(
        Reason.of("takeover-put-off", round=takeover.seal.round, limit_s=limit_s), "takeover put off"
    )
    if now >= takeover.observe_at:
        _observe(state, takeover, now)
    else:
        state.requests.wake_by(takeover.observe_at)
    return False


def _observe(state: MemberState, takeover: TakeoverState, now: float) -> None:
    own_id = state.member_id
    assigned = state.job.make_assignments_prefix(takeover.seal.round, takeover.seal.plan_token)
    reads = [Get(state.job.members, prefix=True), Get(assigned + own_id)]
    if takeover.is_among_first and takeover.nodes is None:
        reads.append(Get(assigned, prefix=True))

    def on_reply(answer: TxnResult, now: float) -> None:
        members, own, *rest = (found.items for found in answer.found)
        takeover.is_in_roster = bool(own)  # this member has ranks, but the round was stopped before it read them
        for items in rest:
            takeover.nodes = {item.key.rpartition("/")[2]: _read_node(state, item) for item in items}
        first = sorted(members, key=lambda item: item.create_revision)[:OBSERVERS_MAX]
        takeover.is_among_first = state.job.make_member_key(own_id) in {item.key for item in first}
        if not takeover.is_among_first:
            takeover.empty_since = math.inf
            rest_s = max(len(members) * OBSERVE_PAUSE_S_PER_MEMBER, state.settings.lease_ttl_s)
            takeover.observe_at = now + rest_s * (1 + state.rng())
        elif takeover.nodes is None:
            takeover.observe_at = now
        else:
            # Half a lease: short enough to see a roster that returns and is lost again.
            takeover.observe_at = now + state.settings.lease_ttl_s / 2
            _note_members(state, takeover, takeover.nodes, members, now)

    state.requests.request("campaign", "look for roster", Txn((), tuple(reads)), on_reply, now)


def _read_node(state: MemberState, item: KeyValue) -> str:
    assignment = state.cache.decode(Assignment, item)
    return assignment.node if assignment is not None else ""


def _note_members(
    state: MemberState, takeover: TakeoverState, nodes: Mapping[str, str], members: tuple[KeyValue, ...], now: float
) -> None:
    """Start or stop counting the time; end the wait if a new agent has joined from every node of the round."""
    spares = state.cache.read(Spares, state.job.spares)
    roster = {*nodes, *(spares.member_ids if spares else ())}
    present = {item.key.rpartition("/")[2]: state.cache.decode(Member, item) for item in members}
    if roster & present.keys():
        takeover.empty_since = math.inf
        return
    takeover.empty_since = min(takeover.empty_since, now)
    present_nodes = Counter(f"{record.node_name} {record.boot_id}" for record in present.values() if record is not None)
    round_nodes = Counter(nodes.values())
    if round_nodes and round_nodes <= present_nodes:
        takeover.empty_since = -math.inf
