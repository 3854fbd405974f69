"""The plan of a round: the largest valid world, the layout that costs least, and the reasons.

Three steps. How large is the world (`capacity`)? Which node holds which ranks (`choice`)? And which nodes are spares,
in which order of use? The second step needs no search if one node holds everything, or all nodes are equal and equally
far apart: then no array is needed, and a job of one node starts without the time it takes to load numpy. The only
decision left is which ranks can stay on their nodes. There is none where the user has numbered the nodes: ranks follow
the numbers at any cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import Tree, build_tree, make_natural_key, resolve_level_costs
from launcher.model.traffic import make_default_traffic, scale_to_integers
from launcher.placement.capacity import LargestWorld, find_largest_world
from launcher.placement.limits import NO_ITEM, Costs, LayoutChoice, Limits, Plan, Run, StepTime, name_some
from launcher.placement.units import compute_grid, explain_unused
from rendezvous.reasons import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fractions import Fraction


def plan(nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs, previous: Plan | None) -> Plan:
    """Assign the ranks; with `previous`, move as few coordinates to other nodes as the cost allows.

    Raises NoWorldError, with what is missing, when no valid world exists.
    """
    tree = build_tree(nodes, limits.levels)
    world = find_largest_world(tree.nodes, mesh, limits, tree)
    shape = mesh.resolve_shape(world.size)
    owners: list[str | None] | None = None
    if previous is not None:
        from launcher.placement.stability import count_moved, find_owners

        owners = find_owners(previous, mesh, shape)
    answer = _choose_by_number(world) or _choose_without_search(world, tree, costs, owners)
    if answer is None:
        # docs/internals/decisions/0007-numpy-in-the-planner.md
        from launcher.placement.choice import choose_layout  # it imports numpy

        answer = choose_layout(world, tree, costs, owners)
    stretches = list(_list_stretches(world, answer.runs))
    ranks = {node.id: tuple(range(start, end)) for node, start, end in stretches}
    moved = sum(count_moved(owners, node.id, start, end) for node, start, end in stretches) if owners else 0
    spares = _list_spares(world, tree, costs, answer.runs)
    unused = {node.id: each.reason for each in world.supply.unused for node in each.nodes}
    cost = _simplify(answer.cost)
    remarks: tuple[str, ...] = ()
    step_time = answer.step_time
    if costs.rates:
        from launcher.model.rates import resolve_rates
        from launcher.placement.explain import compute_step_time  # it imports numpy

        remarks = resolve_rates(costs.rates, tree, costs.level_costs).remarks
        step_time = step_time or compute_step_time(ranks, shape, tree, mesh, costs)
    reason = world.explain(len(tree.nodes))
    if spares:
        reason = reason.add(Reason.of("placement/spares", nodes=name_some([node.id for node in spares])))
    reasons = [
        reason,
        *explain_unused(world.supply.unused),
        *_explain_idle_slots(world, ranks),
        *_explain_cost(answer, cost),
        *_explain_time(step_time),
        *(Reason.of("placement/remark", text=remark) for remark in remarks),
    ]
    if previous is not None and owners is None:
        reasons.append(Reason.of("placement/other-mesh"))
    if owners is not None:
        reasons += _explain_moves(world, tree, ranks, owners, moved)
    return Plan(
        shape=shape,
        ranks=ranks,
        spares=(*(node.id for node in spares), *unused),
        moved=moved,
        reasons=tuple(reasons),
        cost=cost,
        lower_bound=_simplify(answer.bound),
        unusable=unused if limits.all_or_nothing else {},
        step_time=step_time,
    )


def _simplify(number: int | Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def _list_stretches(world: LargestWorld, runs: Iterable[Run]) -> Iterator[tuple[Node, int, int]]:
    """Yield the nodes of the runs, each with its first rank and the one after its last."""
    start = 0
    for item, length in runs:
        nodes = world.supply.items[item].nodes
        for node in nodes:
            end = start + length * world.supply.block_size // len(nodes)
            yield node, start, end
            start = end


def _list_spares(world: LargestWorld, tree: Tree, costs: Costs, runs: Iterable[Run]) -> list[Node]:
    """Return nodes that could hold ranks and hold none: those that could replace an active item first, nearest first.

    Near means a low cost of hops to all active nodes.
    """
    active, items = dict(runs), world.supply.items
    spare = [index for index in range(len(items)) if index not in active]
    if not spare:
        return []
    level_costs, _ = scale_to_integers(resolve_level_costs(tree.levels, costs.level_costs))
    cost_sums = dict.fromkeys(spare, 0)
    for level_cost, level in zip(level_costs, tree.domains, strict=False):
        inside: dict[int, int] = {}
        for index, length in active.items() if level_cost else ():
            domain = level[items[index].position]
            inside[domain] = inside.get(domain, 0) + length
        for index in spare:
            cost_sums[index] -= level_cost * inside.get(level[items[index].position], 0)
    lengths = sorted(active.values())
    usual_length = lengths[len(lengths) // 2]
    spare.sort(key=lambda index: (items[index].room < usual_length, cost_sums[index], index))
    return [node for index in spare for node in items[index].nodes]


# Layouts without a search


def _choose_by_number(world: LargestWorld) -> LayoutChoice | None:
    """Return the layout in the order of the nodes' numbers; None if they have none. Its cost is not computed."""
    numbers = [item.nodes[0].rank for item in world.supply.items]
    if None in numbers:
        return None
    return LayoutChoice(sorted(world.filling, key=lambda run: numbers[run[0]] or 0), 0, 0)


def _choose_without_search(
    world: LargestWorld, tree: Tree, costs: Costs, owners: list[str | None] | None
) -> LayoutChoice | None:
    """Return the layout if no search is needed; None if one is."""
    supply, mesh, limits = world.supply, world.supply.mesh, world.supply.limits
    if limits.all_or_nothing and len(tree.nodes) > 1:
        return None
    unit_count = world.size // supply.block_size
    held = _find_held_items(world, owners)
    if limits.nodes_min <= 1:
        able = [index for index, item in enumerate(supply.items) if item.room >= unit_count]
        if able:
            best = min(able, key=lambda index: (-held.count(index), supply.items[index].room))
            if len(able) == len(supply.items) == 1 or all(each in (best, NO_ITEM) for each in held):
                return LayoutChoice([(best, unit_count)], 0, 0)
    if limits.within or costs.rates:
        return None
    rooms = [item.room for item in supply.items]
    level_costs = resolve_level_costs(tree.levels, costs.level_costs)
    is_free = not any(level_costs) or not any(one.weight for one in costs.traffic or make_default_traffic(mesh))
    cost = 0 if is_free else _compute_flat_cost(world, tree, costs, level_costs)
    if cost is None:
        return None
    for runs in _list_simple_layouts(world, held, rooms):
        if runs is None or not limits.nodes_min <= len(runs) <= (limits.nodes_max or len(runs)):
            continue
        if is_free or all(length == rooms[item] for item, length in runs):
            return LayoutChoice(runs, cost, cost)
    return None


def _list_simple_layouts(world: LargestWorld, held: Sequence[int], rooms: Sequence[int]) -> Iterator[list[Run] | None]:
    if any(item != NO_ITEM for item in held):
        from launcher.placement.stability import fill_holes, make_first_fit, tile

        pick = make_first_fit(rooms)
        yield fill_holes(held, rooms, pick)
        yield tile(held, rooms, pick)
    yield world.filling


def _compute_flat_cost(
    world: LargestWorld, tree: Tree, costs: Costs, level_costs: Sequence[int | float]
) -> Fraction | None:
    """Return J where only leaving a host costs, all are equal and full, and a host's ranks are a box; else None."""
    from fractions import Fraction  # not needed on one node, where it would delay the start

    supply, mesh = world.supply, world.supply.mesh
    positions = [item.position for item in supply.items]
    for level_cost, level in zip(level_costs, tree.domains, strict=False):
        if level_cost and any(level[position] != level[positions[0]] for position in positions):
            return None
    room = supply.items[0].room
    shape = mesh.resolve_shape(world.size)
    counts = compute_grid(shape, room * supply.block_size)
    if counts is None or any(item.room != room for item in supply.items):
        return None
    total = Fraction(0)
    for one in costs.traffic or make_default_traffic(mesh):
        size, hosts = 1, 1  # ranks of a group, and hosts that it is spread over
        for index, axis in enumerate(mesh.axes):
            if axis.name in one.axes:
                size, hosts = size * shape[index], hosts * counts[index]
        if hosts > 1:
            hops = {
                "ring": Fraction(hosts),
                "line": Fraction(hosts - 1),
                "all": Fraction(size * (size - size // hosts), size - 1),
            }
            total += Fraction(str(one.weight)) * world.size / size * hops[one.kind]
    return total * Fraction(str(level_costs[-1]))


def _find_held_items(world: LargestWorld, owners: list[str | None] | None) -> list[int]:
    """Return for every unit the item that held all of its ranks. For single nodes."""
    step = world.supply.block_size
    if owners is None:
        return [NO_ITEM] * (world.size // step)
    items: dict[str | None, int] = {item.nodes[0].id: index for index, item in enumerate(world.supply.items)}
    blocks = (owners[start : start + step] for start in range(0, world.size, step))
    return [items.get(block[0], NO_ITEM) if block.count(block[0]) == len(block) else NO_ITEM for block in blocks]


# Reasons


def _explain_idle_slots(world: LargestWorld, ranks: dict[str, tuple[int, ...]]) -> list[Reason]:
    nodes = (node for item in world.supply.items for node in item.nodes if node.id in ranks)
    idle = sum(node.slot_count - len(ranks[node.id]) for node in nodes)
    return [Reason.of("placement/idle-slots", slots=idle)] if idle else []


def _explain_cost(choice: LayoutChoice, cost: float) -> list[Reason]:
    """Explain the cost of the traffic. A bound that it does not meet says little of the plan, so it is left out."""
    is_least = choice.bound == choice.cost
    return [Reason.of("placement/cost", cost=float(cost), is_least=is_least)] if choice.cost else []


def _explain_time(time: StepTime | None) -> list[Reason]:
    """Explain how long a step's communication takes, and for which link the longest part waits.

    That the only part takes all of an unknown time tells nothing.
    """
    if time is None or not time.seconds or (time.assumed and len(time.parts) == 1):
        return []
    most = max(time.parts, key=lambda part: part.seconds)
    name = most.communicator.name
    if not time.is_absolute:
        share, assumed = most.seconds / (time.seconds + time.overlap), bool(time.assumed)
        return [Reason.of("placement/slowest-link", axes=name, link=most.link, share=share, is_assumed=assumed)]
    return [Reason.of("placement/step-time", step_s=time.seconds, axes=name, link=most.link, part_s=most.seconds)]


def _explain_moves(
    world: LargestWorld, tree: Tree, ranks: dict[str, tuple[int, ...]], owners: Sequence[str | None], moved: int
) -> list[Reason]:
    before = {owner for owner in owners if owner is not None}
    if not before:
        return []
    reason = Reason.of("placement/moved", moved=moved, ranks=world.size)
    if gone := sorted(before - set(ranks), key=make_natural_key):
        reason = reason.add(Reason.of("placement/without", nodes=name_some(gone)))
    if joined := [node.id for node in tree.nodes if node.id in ranks and node.id not in before]:
        reason = reason.add(Reason.of("placement/with", nodes=name_some(joined)))
    return [reason]
