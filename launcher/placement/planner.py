"""The plan of a round: the largest valid world, the layout that costs least, and the reasons in words.

Three steps. How large is the world (`capacity`)? Which node holds which ranks (`choice`)? And which nodes are spares,
in which order of use? The second step is skipped if one node holds everything, or all nodes are equal and equally far
apart: then no array is needed, and a job of one node starts without the time it takes to load numpy. It is also
skipped where every node has a number that its ranks follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import Tree, build_tree, make_natural_key, resolve_level_costs
from launcher.model.traffic import scale_to_integers
from launcher.placement import shortage
from launcher.placement.capacity import LargestWorld, find_largest_world
from launcher.placement.limits import Costs, Limits, Plan
from launcher.placement.plain import LayoutChoice, choose_by_number, choose_without_search
from launcher.placement.stability import BlockRun, count_moved, find_owners, is_precedent


def plan(nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs, previous: Plan | None) -> Plan:
    """Assign the ranks; with `previous`, move as few coordinates to other nodes as the cost allows.

    Raises UsageError, naming what is missing, when no valid world exists.
    """
    place = build_tree(nodes, limits.levels)
    world = find_largest_world(place.nodes, mesh, limits, place)
    if not world.size:
        raise UsageError(world.reason, world.hint or "add nodes, or ask for fewer nodes or a smaller mesh")
    shape = mesh.resolve_shape(world.size)
    owners = find_owners(previous, mesh, shape) if is_precedent(previous, mesh) else None
    answer = choose_by_number(world) or choose_without_search(world, place, mesh, limits, costs, owners)
    if answer is None:
        # docs/internals/decisions/0007-numpy-in-the-planner.md
        from launcher.placement.choice import choose_layout  # it imports numpy

        answer = choose_layout(world, place, mesh, limits, costs, owners)
    ranks = _assign_ranks(world, answer.runs)
    moved = 0
    if owners is not None:
        stretches = (stretch for run in answer.runs for stretch in _list_stretches(world, run))
        moved = sum(count_moved(owners, node.id, start, end) for node, start, end in stretches)
    spares = _list_spares(world, place, costs, answer.runs)
    reasons = [
        _explain_world(world, place, limits, ranks, spares),
        *_describe_unused(world),
        *_describe_idle_slots(world, ranks),
        *_describe_cost(answer),
        *answer.notes,
    ]
    if previous is not None and owners is None:
        reasons.append("the plan before was made for another mesh, so no rank has a place to keep")
    if owners is not None:
        reasons += _describe_moves(world, place, ranks, owners, moved)
    return Plan(
        shape=shape,
        ranks=ranks,
        spares=tuple(node.id for node in (*spares, *(node for unused in world.unused for node in unused.nodes))),
        moved=moved,
        reasons=tuple(reasons),
        cost=_unscale(answer.cost, answer.scale),
        lower_bound=_unscale(answer.bound, answer.scale),
        unusable={node.id: unused.reason for unused in world.unused for node in unused.nodes}
        if limits.all_or_nothing
        else {},
    )


def _unscale(scaled: int, scale: int) -> int | float:
    return scaled // scale if scaled % scale == 0 else scaled / scale


# The assignment of ranks


def _list_stretches(world: LargestWorld, run: BlockRun) -> list[tuple[Node, int, int]]:
    """Return the nodes of a run, each with its first rank and the one after its last."""
    nodes = world.items[run.item].nodes
    start, length = run.start * world.block_size, run.length * world.block_size // len(nodes)
    return [(node, start + index * length, start + (index + 1) * length) for index, node in enumerate(nodes)]


def _assign_ranks(world: LargestWorld, runs: Sequence[BlockRun]) -> dict[str, tuple[int, ...]]:
    ranks: dict[str, tuple[int, ...]] = {}
    for run in runs:
        for node, start, end in _list_stretches(world, run):
            ranks[node.id] = (*ranks.get(node.id, ()), *range(start, end))
    return ranks


def _list_spares(world: LargestWorld, tree: Tree, costs: Costs, runs: Sequence[BlockRun]) -> list[Node]:
    """Return nodes that could hold ranks and hold none: those that could replace an active item first, nearest first.

    Near means a low cost of hops to all active nodes.
    """
    active: dict[int, int] = {}
    for run in runs:
        active[run.item] = active.get(run.item, 0) + run.length
    spare = [index for index in range(len(world.items)) if index not in active]
    if not spare:
        return []
    level_costs, _ = scale_to_integers(resolve_level_costs(tree.levels, costs.level_costs))
    cost_sums = dict.fromkeys(spare, 0)
    for level_cost, level in zip(level_costs, tree.domains, strict=False):
        inside: dict[int, int] = {}
        for index, length in active.items() if level_cost else ():
            domain = level[world.items[index].position]
            inside[domain] = inside.get(domain, 0) + length
        for index in spare:
            cost_sums[index] -= level_cost * inside.get(level[world.items[index].position], 0)
    lengths = sorted(active.values())
    usual_length = lengths[len(lengths) // 2]
    spare.sort(key=lambda index: (world.items[index].room < usual_length, cost_sums[index], index))
    return [node for index in spare for node in world.items[index].nodes]


# Sentences


def _explain_world(
    world: LargestWorld, tree: Tree, limits: Limits, ranks: dict[str, tuple[int, ...]], spares: Sequence[Node]
) -> str:
    spare = f"; {len(spares)} spare{'s' if len(spares) > 1 else ''}: {shortage.format_nodes(spares)}" if spares else ""
    return shortage.describe_world(world.size, len(ranks), len(tree.nodes), world.reason, limits) + spare


def _describe_unused(world: LargestWorld) -> list[str]:
    shown = world.unused[: shortage.NAMES_MAX]
    sentences = [f"not usable, as {unused.reason}: {shortage.format_nodes(unused.nodes)}" for unused in shown]
    more = sum(len(unused.nodes) for unused in world.unused[len(shown) :])
    return [*sentences, f"not usable for like reasons: {shortage.format_node_count(more)} more"] if more else sentences


def _describe_idle_slots(world: LargestWorld, ranks: dict[str, tuple[int, ...]]) -> list[str]:
    nodes = (node for item in world.items for node in item.nodes if node.id in ranks)
    idle = sum(node.slot_count - len(ranks[node.id]) for node in nodes)
    if not idle:
        return []
    return [f"{idle:,} slots of active nodes stay idle" if idle > 1 else "1 slot of active nodes stays idle"]


def _describe_cost(choice: LayoutChoice) -> list[str]:
    """Describe the cost of the traffic, and its lower bound."""
    if not choice.cost:
        return []
    cost = f"the traffic's cost is {shortage.format_amount(choice.cost, choice.scale)}"
    if choice.bound == choice.cost:
        return [f"{cost}, and no layout of this world has less"]
    least = f"no layout of this world can have less than {shortage.format_amount(choice.bound, choice.scale)}"
    return [f"{cost}; {least}, {shortage.format_percent(choice.cost - choice.bound, choice.cost)} below"]


def _describe_moves(
    world: LargestWorld, tree: Tree, ranks: dict[str, tuple[int, ...]], owners: Sequence[str | None], moved: int
) -> list[str]:
    before = {owner for owner in owners if owner is not None}
    if not before:
        return []
    gone = sorted(before - set(ranks), key=make_natural_key)
    joined = [node for node in tree.nodes if node.id in ranks and node.id not in before]
    changes = [f"without {shortage.join_names(gone)}"] * bool(gone) + [f"with {shortage.format_nodes(joined)}"] * bool(
        joined
    )
    return ["; ".join([f"{moved:,} of {world.size:,} ranks change their node", *changes])]
