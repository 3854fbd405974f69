"""Layouts without a search: one node, no traffic, or nodes that are all equal and equally far apart.

Then neither a search nor arrays are needed, so that a job of one node starts without the time it takes to load numpy.
The only decision left is which ranks can stay on their nodes. There is none where the user has numbered the nodes:
ranks follow the numbers at any cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from launcher.model.mesh import Mesh
from launcher.model.topology import Tree, resolve_level_costs
from launcher.model.traffic import make_default_traffic
from launcher.placement.capacity import LargestWorld
from launcher.placement.limits import Costs, Limits
from launcher.placement.stability import NO_ITEM, BlockRun, fill_holes, make_first_fit, tile
from launcher.placement.units import compute_grid
from rendezvous.values import NamedTuple


class LayoutChoice(NamedTuple):
    """The chosen layout; J and its lower bound, both times `scale`; and remarks on it."""

    runs: list[BlockRun]
    cost: int
    bound: int
    scale: int = 1
    notes: tuple[str, ...] = ()


def choose_without_search(
    world: LargestWorld, tree: Tree, mesh: Mesh, limits: Limits, costs: Costs, owners: list[str | None] | None
) -> LayoutChoice | None:
    """Return the layout if no search is needed; None if one is."""
    if limits.all_or_nothing and len(tree.nodes) > 1:
        return None
    unit_count = world.size // world.block_size
    held = _find_held_items(world, owners)
    if limits.nodes_min <= 1:
        able = [index for index, item in enumerate(world.items) if item.room >= unit_count]
        if able:
            best = min(able, key=lambda index: (-held.count(index), world.items[index].room))
            if len(able) == len(world.items) == 1 or all(each in (best, NO_ITEM) for each in held):
                return LayoutChoice([BlockRun(best, 0, unit_count)], 0, 0)
    if limits.within or not limits.is_contiguous:
        return None
    rooms = [item.room for item in world.items]
    level_costs = resolve_level_costs(tree.levels, costs.level_costs)
    is_free = not any(level_costs) or not any(one.weight for one in costs.traffic or make_default_traffic(mesh))
    cost = (0, 1) if is_free else _compute_flat_cost(world, tree, mesh, costs, level_costs)
    if cost is None:
        return None
    pick = make_first_fit(rooms)
    ways: tuple[Callable[[], list[BlockRun] | None], ...] = (
        lambda: fill_holes(held, rooms, pick),
        lambda: tile(held, rooms, pick),
        lambda: _make_runs(world.filling),
    )
    for way in ways if any(item != NO_ITEM for item in held) else ways[-1:]:
        runs = way()
        if runs is None or not limits.nodes_min <= len(runs) <= (limits.nodes_max or len(runs)):
            continue
        if is_free or all(run.length == rooms[run.item] for run in runs):
            return LayoutChoice(runs, cost[0], *cost)
    return None


def _compute_flat_cost(
    world: LargestWorld, tree: Tree, mesh: Mesh, costs: Costs, level_costs: Sequence[int | float]
) -> tuple[int, int] | None:
    """Return J where only leaving a host costs, all are equal and full, and a host's ranks are a box; None elsewhere.

    As a numerator and a denominator.
    """
    from fractions import Fraction  # not needed on one node, where it would delay the start

    positions = [item.position for item in world.items]
    for level_cost, level in zip(level_costs, tree.domains, strict=False):
        if level_cost and any(level[position] != level[positions[0]] for position in positions):
            return None
    room = world.items[0].room
    shape = mesh.resolve_shape(world.size)
    counts = compute_grid(shape, room * world.block_size)
    if counts is None or any(item.room != room for item in world.items):
        return None
    total = Fraction(0)
    for one in costs.traffic or make_default_traffic(mesh):
        axes = [index for index, axis in enumerate(mesh.axes) if axis.name in one.axes]
        size, hosts = 1, 1  # ranks of a group, and hosts that it is spread over
        for index in axes:
            size, hosts = size * shape[index], hosts * counts[index]
        if hosts > 1:
            lead = Fraction(str(one.weight)) * world.size / size  # times groups
            inside = size // hosts
            hops = {
                "ring": Fraction(hosts),
                "line": Fraction(hosts - 1),
                "all": Fraction(size * (size - inside), size - 1),
            }
            total += lead * hops[one.kind]
    total *= Fraction(str(level_costs[-1]))
    return total.numerator, total.denominator


def choose_by_number(world: LargestWorld) -> LayoutChoice | None:
    """Return the layout in the order of the nodes' numbers; None if they have none. Its cost is not computed."""
    numbers = [item.nodes[0].rank for item in world.items]
    if None in numbers:
        return None
    return LayoutChoice(_make_runs(sorted(world.filling, key=lambda piece: numbers[piece[0]] or 0)), 0, 0)


def _make_runs(filling: Iterable[tuple[int, int]]) -> list[BlockRun]:
    runs: list[BlockRun] = []
    for item, length in filling:
        runs.append(BlockRun(item, runs[-1].end if runs else 0, length))
    return runs


def _find_held_items(world: LargestWorld, owners: list[str | None] | None) -> list[int]:
    """Return for every unit the item that held all of its ranks. For single nodes."""
    if owners is None:
        return [NO_ITEM] * (world.size // world.block_size)
    items = {item.nodes[0].id: index for index, item in enumerate(world.items)}
    found: list[int] = []
    for start in range(0, world.size, world.block_size):
        owner = owners[start]
        is_whole = owner is not None and owners[start : start + world.block_size].count(owner) == world.block_size
        found.append(items.get(owner, NO_ITEM) if owner is not None and is_whole else NO_ITEM)
    return found
