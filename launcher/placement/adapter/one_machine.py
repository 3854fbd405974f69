"""The plan of a job of one machine that limits nothing: every slot has a rank, in order.

No other node joins it, and its mesh fits all slots (`launcher.model.mesh.require_fit`). So there is one world and one
layout. The planner would find the same, and costs a start ten modules more, and the first restart one.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.model.mesh import Mesh
from launcher.placement.adapter.description import Description, NodeAssignment, encode_assignment
from rendezvous.events import MakePlan, PlanReady
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason

LIMITS = {"--nnodes": "1:1"}
"""What `options.list_options` makes of no options on one machine."""


class OneMachinePlanner:
    """The planner for the agreement, in place of `PlannerAdapter`."""

    def __init__(self, mesh: Mesh, description: Description) -> None:
        count = description.slot_count
        ranks = tuple(range(count))
        assignment = NodeAssignment(
            ranks=ranks,
            world_size=count,
            shape=mesh.resolve_shape(count),
            group_rank=0,
            group_world_size=1,
            role_ranks=ranks,
            role_world_size=count,
            master_addr=description.address,
            master_port=description.master_port,
        )
        self._assignment = encode_assignment(assignment)
        self._coordinator = f"{description.address}:{description.master_port}"
        self._world_size = count
        self._reason = Reason.of("placement/all-slots", ranks=count)

    def compute_size(self, members: Sequence[MemberView]) -> Size:
        """Return the world of this machine, or none before it has registered."""
        if not members:
            return Size(0, False, Reason.of("placement/not-joined"))
        return Size(self._world_size, True, self._reason)

    def plan(self, order: MakePlan) -> PlanReady:
        """Give every slot of the only member a rank."""
        (member,) = order.roster
        return PlanReady(
            order.id,
            {member.member_id: self._assignment},
            self._world_size,
            self._coordinator,
            member.member_id,
            reasons=(self._reason,),
            successors=(member.member_id,),
        )
