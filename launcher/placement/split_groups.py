"""Groups that fit a node and are split all the same, because their size does not divide the node's devices.

Ranks stay together on a node in units that divide its devices evenly, so that none is idle. With tp=7 on 8 GPUs that
is a unit of one rank: all 8 GPUs have work, and most tp groups reach over two nodes. Units of 7 would keep each group
on one node and leave a GPU of each idle. Neither is right for every job, so the choice stays with the user, who has to
know of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.mesh import Axis, Mesh
from launcher.model.node import Node
from launcher.placement.capacity import LargestWorld, find_largest_world
from launcher.placement.limits import Limits, Plan
from launcher.placement.units import choose_block_size, find_usual_slot_count
from rendezvous.reasons import Reason


class SplitGroups(Struct, frozen=True, kw_only=True):
    """Groups of a plan that are on several nodes although they would fit on one."""

    axes: str
    """Of the groups, "tp=7" or "cp=3,tp=2"."""
    group_size: int
    """Ranks of a group."""
    slot_count: int
    """Devices of a node."""
    split_count: int
    """Groups on several nodes in this plan."""
    group_count: int
    """All groups of these axes."""


def find_split_groups(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> SplitGroups | None:
    """Find the groups of the innermost axes that would fit a node, and that the plan splits; None if there are none.

    With a block size of the user's, or with whole domains, there is no choice, and none are found.
    """
    if limits.block_size is not None or limits.all_or_nothing or len(plan.ranks) < 2:
        return None
    slot_count = find_usual_slot_count(nodes)
    size = 1
    axes: list[Axis] = []
    for axis in reversed(mesh.axes):
        if axis.size is None or size * axis.size > slot_count:
            break
        size *= axis.size
        axes.insert(0, axis)
    if choose_block_size(mesh, slot_count) >= size:
        return None
    # All axes of the group are the innermost, so its ranks are consecutive.
    holders: dict[int, int] = {}
    for ranks in plan.ranks.values():
        for group in {rank // size for rank in ranks}:
            holders[group] = holders.get(group, 0) + 1
    split_count = sum(count > 1 for count in holders.values())
    if not split_count:
        return None
    name = ",".join(f"{axis.name}={axis.size}" for axis in axes if axis.size != 1)
    return SplitGroups(
        axes=name, group_size=size, slot_count=slot_count, split_count=split_count, group_count=len(holders)
    )


def find_unsplit_world(split: SplitGroups, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> LargestWorld:
    """Find the largest world with each of these groups on one node; its size is 0 where there is none."""
    return find_largest_world(nodes, mesh, replace(limits, block_size=split.group_size))


def explain_split_groups(split: SplitGroups, plan: Plan, unsplit: LargestWorld, cost: float = 0.0) -> Reason:
    """Explain them, and what the other choice is. `cost`: J of that one, 0 if it is not known."""
    other = Reason.of(
        "placement/unsplit",
        ranks=unsplit.size,
        nodes=unsplit.node_count,
        now_ranks=plan.world_size,
        now_nodes=len(plan.ranks),
        cost=float(cost),
        now_cost=float(plan.cost),
    )
    return Reason.of(
        "placement/split-groups",
        axes=split.axes,
        devices=split.slot_count,
        split=split.split_count,
        groups=split.group_count,
        ranks=split.group_size,
        then=other if unsplit.size else Reason.of("placement/none-unsplit", why=unsplit.reason),
    )
