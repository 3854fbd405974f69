"""Groups that fit a node and are split all the same, because their size does not divide the node's devices.

Ranks stay together on a node in units that divide its devices evenly, so that none is idle. With tp=7 on 8 GPUs that
is a unit of one rank: all 8 GPUs have work, and most tp groups reach over two nodes. Units of 7 would keep each group
on one node and leave a GPU of each idle. Neither is right for every job, so the choice stays with the user, who has to
know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from launcher.model.mesh import Axis, Mesh
from launcher.model.node import Node
from launcher.placement.capacity import find_largest_world
from launcher.placement.limits import Costs, Limits, NoWorldError, Plan
from launcher.placement.planner import plan as make_plan
from launcher.placement.units import choose_block_size, find_usual_slot_count
from rendezvous.reasons import Reason


def explain_split_groups(
    plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs | None = None
) -> Reason | None:
    """Explain the groups of the innermost axes that would fit a node and that the plan splits; None if there are none.

    With a block size of the user's, or with whole domains, there is no choice, and none are found. The other choice is
    one unit for each group; its J is told if there are `costs`.
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
    holders = Counter(group for ranks in plan.ranks.values() for group in {rank // size for rank in ranks})
    split_count = sum(count > 1 for count in holders.values())
    if not split_count:
        return None
    return Reason.of(
        "placement/split-groups",
        axes=",".join(f"{axis.name}={axis.size}" for axis in axes if axis.size != 1),
        devices=slot_count,
        split=split_count,
        groups=len(holders),
        ranks=size,
        then=_explain_unsplit(plan, nodes, mesh, replace(limits, block_size=size), costs),
    )


def _explain_unsplit(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs | None) -> Reason:
    """Explain what there would be with each of the groups on one node, as these limits require."""
    try:
        world = find_largest_world(nodes, mesh, limits)
    except NoWorldError as error:
        return Reason.of("placement/none-unsplit", why=error.reason)
    return Reason.of(
        "placement/unsplit",
        ranks=world.size,
        nodes=world.node_count,
        now_ranks=plan.world_size,
        now_nodes=len(plan.ranks),
        cost=float(make_plan(nodes, mesh, limits, costs, None).cost) if costs else 0.0,
        now_cost=float(plan.cost),
    )
