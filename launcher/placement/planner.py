"""The plan of a round: the largest valid world, the layout that costs least, and the reasons in words.

Three questions in turn. How large is the world (`capacity`)? Who holds which ranks (`choice`)? And who is left over, in
which order would they be taken? Where the second question answers itself, because one node holds everything, or all
nodes are alike and equally far apart, it is not put: then no array is needed, and a job of one node starts without
the time it takes to load numpy. Nor where every node brings a number that its ranks are to follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan, shortage
from launcher.placement.capacity import World, largest_world
from launcher.placement.plain import Choice, by_number, plain
from launcher.placement.stability import Run, holders, is_precedent, moved_count
from launcher.topology import Tree, natural, tolls_of, tree
from launcher.traffic import in_integers


def plan(nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs, previous: Plan | None) -> Plan:
    """Who gets which ranks; with `previous`, as few coordinates change their node as the cost allows.

    Raises UsageError, naming what is missing, when no valid world exists.
    """
    place = tree(nodes, limits.levels)
    world = largest_world(place.nodes, mesh, limits, place)
    if not world.size:
        raise UsageError(world.reason, world.hint or "add nodes, or ask for fewer nodes or a smaller mesh")
    shape = mesh.shape(world.size)
    owners = holders(previous, mesh, shape) if is_precedent(previous, mesh) else None
    answer = by_number(world) or plain(world, place, mesh, limits, costs, owners)
    if answer is None:
        from launcher.placement.choice import choose  # it brings numpy along

        answer = choose(world, place, mesh, limits, costs, owners)
    ranks = _ranks(world, answer.runs)
    moved = 0
    if owners is not None:
        stretches = (stretch for run in answer.runs for stretch in _stretches(world, run))
        moved = sum(moved_count(owners, node.id, start, end) for node, start, end in stretches)
    spares = _spares(world, place, costs, answer.runs)
    reasons = [
        _why(world, place, limits, ranks, spares),
        *_unused(world),
        *_idle(world, ranks),
        *_price(answer),
        *answer.notes,
    ]
    if previous is not None and owners is None:
        reasons.append("the plan before was made for another mesh, so no rank has a place to keep")
    if owners is not None:
        reasons += _moves(world, place, ranks, owners, moved)
    return Plan(
        shape=shape,
        ranks=ranks,
        spares=tuple(node.id for node in (*spares, *(node for unused in world.unused for node in unused.nodes))),
        moved=moved,
        reasons=tuple(reasons),
        cost=_number(answer.cost, answer.scale),
        lower_bound=_number(answer.bound, answer.scale),
        unusable={node.id: unused.reason for unused in world.unused for node in unused.nodes} if limits.whole else {},
    )


def _number(scaled: int, scale: int) -> int | float:
    return scaled // scale if scaled % scale == 0 else scaled / scale


# Who gets what


def _stretches(world: World, run: Run) -> list[tuple[Node, int, int]]:
    """The nodes of a run, each with its first rank and the one after its last."""
    nodes = world.items[run.item].nodes
    start, length = run.start * world.unit, run.length * world.unit // len(nodes)
    return [(node, start + index * length, start + (index + 1) * length) for index, node in enumerate(nodes)]


def _ranks(world: World, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    ranks: dict[str, tuple[int, ...]] = {}
    for run in runs:
        for node, start, end in _stretches(world, run):
            ranks[node.id] = (*ranks.get(node.id, ()), *range(start, end))
    return ranks


def _spares(world: World, place: Tree, costs: Costs, runs: Sequence[Run]) -> list[Node]:
    """Nodes that could hold ranks and hold none: those that can take an active item's place first, nearest first.

    Near is what has little toll to pay to all who are active.
    """
    active: dict[int, int] = {}
    for run in runs:
        active[run.item] = active.get(run.item, 0) + run.length
    spare = [index for index in range(len(world.items)) if index not in active]
    if not spare:
        return []
    tolls, _ = in_integers(tolls_of(place.levels, costs.tolls))
    toll_sums = dict.fromkeys(spare, 0)
    for toll, level in zip(tolls, place.domains, strict=False):
        inside: dict[int, int] = {}
        for index, length in active.items() if toll else ():
            domain = level[world.items[index].position]
            inside[domain] = inside.get(domain, 0) + length
        for index in spare:
            toll_sums[index] -= toll * inside.get(level[world.items[index].position], 0)
    lengths = sorted(active.values())
    usual_length = lengths[len(lengths) // 2]
    spare.sort(key=lambda index: (world.items[index].room < usual_length, toll_sums[index], index))
    return [node for index in spare for node in world.items[index].nodes]


# In words


def _why(world: World, place: Tree, limits: Limits, ranks: dict[str, tuple[int, ...]], spares: Sequence[Node]) -> str:
    spare = f"; {len(spares)} spare{'s' if len(spares) > 1 else ''}: {shortage.names(spares)}" if spares else ""
    return shortage.world(world.size, len(ranks), len(place.nodes), world.reason, limits) + spare


def _unused(world: World) -> list[str]:
    shown = world.unused[: shortage.NAMES_MAX]
    sentences = [f"not usable, as {unused.reason}: {shortage.names(unused.nodes)}" for unused in shown]
    more = sum(len(unused.nodes) for unused in world.unused[len(shown) :])
    return [*sentences, f"not usable for like reasons: {shortage.count_nodes(more)} more"] if more else sentences


def _idle(world: World, ranks: dict[str, tuple[int, ...]]) -> list[str]:
    nodes = (node for item in world.items for node in item.nodes if node.id in ranks)
    idle = sum(node.slot_count - len(ranks[node.id]) for node in nodes)
    if not idle:
        return []
    return [f"{idle:,} slots of active nodes stay idle" if idle > 1 else "1 slot of active nodes stays idle"]


def _price(answer: Choice) -> list[str]:
    """What the traffic costs, next to what it must cost."""
    if not answer.cost:
        return []
    cost = f"the traffic's cost is {shortage.amount(answer.cost, answer.scale)}"
    if answer.bound == answer.cost:
        return [f"{cost}, and no layout of this world has less"]
    least = f"no layout of this world can have less than {shortage.amount(answer.bound, answer.scale)}"
    return [f"{cost}; {least}, {shortage.percent(answer.cost - answer.bound, answer.cost)} below"]


def _moves(
    world: World, place: Tree, ranks: dict[str, tuple[int, ...]], owners: Sequence[str | None], moved: int
) -> list[str]:
    before = {owner for owner in owners if owner is not None}
    if not before:
        return []
    gone = sorted(before - set(ranks), key=natural)
    joined = [node for node in place.nodes if node.id in ranks and node.id not in before]
    changes = [f"without {shortage.listed(gone)}"] * bool(gone) + [f"with {shortage.names(joined)}"] * bool(joined)
    return ["; ".join([f"{moved:,} of {world.size:,} ranks change their node", *changes])]
