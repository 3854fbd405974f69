"""The records that this agent writes about itself, as a member and as the leader."""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.records import LeaderRecord, Member
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Put


def make_member_record(state: MemberState) -> Member:
    """Make the record of this agent as the member that it is now."""
    node, ttl_s = state.setup.node, state.settings.lease_ttl_s
    return Member(
        member_id=state.member_id,
        node_name=node.node_name,
        boot_id=node.boot_id,
        description=node.description,
        presence_address=node.presence_address,
        worker_port=state.round.worker_port,
        lease_ttl_s=ttl_s if ttl_s < math.inf else 0.0,
    )


def make_leader_put(state: MemberState, job: records.Keys) -> Put:
    """Make the write that names this member as leader, on its own lease."""
    assert state.lease.id is not None
    node = state.setup.node
    leader = LeaderRecord(member_id=state.member_id, node_name=node.node_name, presence_address=node.presence_address)
    return Put(job.leader, state.cache.encode(leader, job.leader), state.lease.id)
