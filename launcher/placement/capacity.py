"""How large a world the nodes can form, and on which nodes.

The world is a whole number of replicas, never part of one: with three nodes left over there are three spares. This
module finds the largest that keeps all limits. It decides by laying one out: node after node is filled with units, in
whole classes where `within` binds axes to a domain. The layout that proves the world possible is seldom the cheapest,
but it is always valid, so whoever searches for a better one has it to fall back on, and `feasibility` and `plan` cannot
disagree. Where several units on nodes of different sizes meet a rule that ties units far apart, the count is careful
rather than exact: see `_cuts`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Feasibility, Limits, shortage
from launcher.placement.rules import Bond, Layer, bonds, class_size, fill, is_in_line, layers
from launcher.placement.slices import Item, Unused, slices
from launcher.placement.units import elastic_sizes, grid, require_unit, unit_size, usual_slot_count
from launcher.topology import Tree
from launcher.topology import tree as tree_of
from rendezvous.values import NamedTuple


class World(NamedTuple):
    """The largest world: `size` ranks in units of `unit`; size 0 if there is none.

    `items`: what can hold units, in the order of the nodes given. `filling`: a valid layout, as items and how many
    units each takes, class by class. `unused`: nodes that cannot hold any. `reason` is a sentence for either outcome.
    """

    size: int
    unit: int
    items: tuple[Item, ...]
    filling: tuple[tuple[int, int], ...]
    unused: tuple[Unused, ...]
    reason: str
    hint: str | None = None

    @property
    def node_count(self) -> int:
        """Active nodes of the filling."""
        return sum(len(self.items[item].nodes) for item, _ in self.filling)


def feasibility(nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> Feasibility:
    """How large a world these nodes could form within the limits; quick, and never raises for too few of them."""
    world = largest_world(nodes, mesh, limits)
    if not world.size:
        return Feasibility(world_size=0, node_count=0, is_full=False, reason=world.reason)
    reason = shortage.world(world.size, world.node_count, len(nodes), world.reason, limits)
    is_full = _is_full(world, mesh, limits)
    return Feasibility(world_size=world.size, node_count=world.node_count, is_full=is_full, reason=reason)


def largest_world(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None = None) -> World:
    """The largest whole number of replicas within the limits. `tree`: of these nodes, if the caller has it."""
    if len({node.id for node in nodes}) < len(nodes):
        raise ValueError("two nodes have the same id")
    if not nodes:
        return World(0, 1, (), (), (), "no node is present")
    if tree is None and (limits.whole or limits.within or len({node.slot_count for node in nodes}) > 1):
        tree = tree_of(nodes, limits.levels)  # else the nodes are alike, and their order changes no number
    try:
        yard = _Yard.of(nodes if tree is None else tree.nodes, mesh, limits, tree)
    except UsageError as error:
        return World(0, 1, (), (), (), str(error), error.hint)
    return _largest(yard)


class _Fit(NamedTuple):
    """A layout in units of `unit`: room of every item, and the items filled."""

    unit: int
    rooms: Sequence[int]
    filling: list[tuple[int, int]]


class _Yard(NamedTuple):
    """Everything that stays the same while sizes of the elastic axis and cuts into units are tried."""

    nodes: Sequence[Node]
    mesh: Mesh
    limits: Limits
    tree: Tree | None
    unit: int
    items: list[Item]
    unused: list[Unused]
    bonds: tuple[Bond, ...]

    @staticmethod
    def of(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None) -> _Yard:
        """Raises UsageError for a limit that makes no sense for this mesh and these nodes."""
        rules = bonds(mesh, limits, tree.levels) if tree else ()
        usual = usual_slot_count(nodes)
        unused: list[Unused] = []
        complete: list[tuple[int, tuple[Node, ...]]] = []
        if limits.whole and tree:
            complete, unused = slices(tree, limits.whole)
            usual = complete[0][1][0].slot_count if complete else usual
        unit = unit_size(mesh, usual) if limits.unit is None else limits.unit
        require_unit(unit, nodes, mesh, usual if limits.whole else None)
        if limits.whole:
            room = limits.whole.hosts * usual // unit
            items = [Item(members, room, position) for position, members in complete]
        else:
            items = [
                Item((node,), node.slot_count // unit, position)
                for position, node in enumerate(nodes)
                if node.slot_count >= unit
            ]
            small = tuple(node for node in nodes if node.slot_count < unit)
            unused = [Unused(small, shortage.too_small(unit))] if small else []
        return _Yard(nodes, mesh, limits, tree, unit, items, unused, rules)

    @property
    def hosts(self) -> int:
        """Nodes of an item."""
        return self.limits.whole.hosts if self.limits.whole else 1

    @property
    def is_in_runs(self) -> bool:
        """Whether the units of an item are consecutive."""
        return self.limits.is_contiguous or self.limits.whole is not None

    @property
    def item_ranks(self) -> int:
        """Ranks that an item takes or leaves as one; 1 if it need not be filled."""
        return self.items[0].room * self.unit if self.limits.whole and self.items else 1


def _largest(yard: _Yard) -> World:
    mesh, limits = yard.mesh, yard.limits

    def none(reason: str) -> World:
        return World(0, yard.unit, tuple(yard.items), (), tuple(yard.unused), reason)

    if 0 < len(yard.items) * yard.hosts < limits.nodes_min:
        return none(shortage.too_few_nodes(yard.nodes, yard.items, yard.unused, mesh, yard.unit, limits))
    item_max = None if limits.nodes_max is None else limits.nodes_max // yard.hosts
    ranks_max = sum(sorted((item.room for item in yard.items), reverse=True)[:item_max]) * yard.unit
    low, high = (limits.elastic_min, limits.elastic_max) if mesh.elastic else (1, 1)
    most = ranks_max // mesh.replica_size
    high = most if high is None else min(high, most)
    if high < low:
        return none(shortage.too_few_slots(yard.nodes, yard.items, yard.unused, mesh, yard.unit, limits))
    found = _best_fit(yard, low, high)
    if found is None:
        if not elastic_sizes(mesh, yard.unit, yard.item_ranks, low, high):
            return none(shortage.no_even_size(mesh, yard.unit, yard.item_ranks, low, high, limits))
        return none(shortage.no_room(yard.items, yard.bonds, yard.tree, mesh, yard.unit, low, limits))
    size, fit = found
    # Rooms in larger units than the limits ask for may leave a small node without any.
    kept = [index for index, room in enumerate(fit.rooms) if room]
    number = {index: position for position, index in enumerate(kept)}
    items = tuple(yard.items[index]._replace(room=fit.rooms[index]) for index in kept)
    small = tuple(node for item, room in zip(yard.items, fit.rooms, strict=True) if not room for node in item.nodes)
    unused = [*yard.unused, *([Unused(small, shortage.too_small(fit.unit))] if small else [])]
    world = World(
        size * mesh.replica_size, fit.unit, items, tuple((number[i], n) for i, n in fit.filling), tuple(unused), ""
    )
    if world.node_count < limits.nodes_min:
        return none(
            f"mesh {shortage.sized(mesh, size)} makes a world of {world.size:,} ranks on "
            f"{shortage.count_nodes(world.node_count)}, but at least {limits.nodes_min} must be active"
        )
    return world._replace(reason=shortage.why(mesh, size, size == high == limits.elastic_max, size < high, limits))


class _Cut(NamedTuple):
    """A way to count: ranks of a unit, units that each item has room for, and how many of these it takes at once.

    `layers`: what `layers` counted for classes of these sizes; they are often the same for all sizes of the axis.
    """

    unit: int
    rooms: Sequence[int]
    at_once: int
    layers: dict[tuple[int, ...], list[Layer]]


def _cuts(yard: _Yard) -> list[_Cut]:
    rooms = [item.room for item in yard.items]
    if yard.limits.whole:
        return [_Cut(yard.item_ranks, [1] * len(rooms), 1, {}), _Cut(yard.unit, rooms, rooms[0], {})]
    cuts = [_Cut(yard.unit, rooms, 1, {})]
    if yard.bonds and yard.limits.is_contiguous:
        # Consecutive units on one node may belong to classes that lie far apart, and tie them together. Counted in
        # units as large as a node, each node has one and the ties are gone; what a node has beyond that stays idle.
        cuts += [
            _Cut(brick * yard.unit, [int(room >= brick) for room in rooms], 1, {})
            for brick in sorted(set(rooms), reverse=True)
        ]
    return cuts


def _best_fit(yard: _Yard, low: int, high: int) -> tuple[int, _Fit] | None:
    """The largest size of the elastic axis for which there is a layout."""
    best: tuple[int, _Fit] | None = None
    for cut in _cuts(yard):
        sizes = elastic_sizes(yard.mesh, cut.unit, yard.item_ranks, low if best is None else best[0] + 1, high)
        found = _last_fit(yard, cut, sizes) if sizes else None
        best = found or best
    return best


def _last_fit(yard: _Yard, cut: _Cut, sizes: Sequence[int]) -> tuple[int, _Fit] | None:
    """The largest of the sizes, which rise, for which there is a layout in this cut."""
    fits: dict[int, _Fit | None] = {}

    def fits_not(size: int) -> bool:
        fits[size] = _fit(yard, cut, size)
        return fits[size] is None

    count = len(sizes)
    if fits_not(sizes[-1]):
        # A smaller world asks for less of everything. So what fits and what does not part at one size, but for rare
        # cases of nodes of several sizes, where this finds one of the sizes that fit.
        count = bisect.bisect_left(sizes, True, key=fits_not)
    fit = fits[sizes[count - 1]] if count else None
    return (sizes[count - 1], fit) if fit else None


def _fit(yard: _Yard, cut: _Cut, size: int) -> _Fit | None:
    """A layout of `size` replicas."""
    shape = yard.mesh.shape(size * yard.mesh.replica_size)
    counts = grid(shape, cut.unit)
    if counts is None:
        return None
    host = len(yard.tree.levels) if yard.tree else 0
    sizes, domains = [cut.at_once], []
    for bond in yard.bonds:
        if yard.is_in_runs and max(cut.rooms) > 1 and not is_in_line(bond, counts):
            return None
        if bond.level < host:
            assert yard.tree is not None
            domains.append([yard.tree.domains[bond.level][item.position] for item in yard.items])
            sizes.append(math.lcm(sizes[-1], class_size(bond, counts)))
        elif yard.limits.whole is None:
            sizes[0] = class_size(bond, counts)
        elif not _is_inside_host(yard, bond, shape):
            return None
    key = tuple(sizes)
    if key not in cut.layers:
        cut.layers[key] = layers([room // sizes[0] * sizes[0] for room in cut.rooms], domains, sizes[1:])
    filling = _filling(yard, cut.layers[key], math.prod(counts))
    return _Fit(cut.unit, cut.rooms, filling) if filling else None


def _is_inside_host(yard: _Yard, bond: Bond, shape: tuple[int, ...]) -> bool:
    """Whether no class leaves its host, where the order of the hosts in a whole domain is fixed."""
    counts = grid(shape, yard.unit)
    per_host = yard.items[0].room // yard.hosts
    return counts is not None and is_in_line(bond, counts) and per_host % class_size(bond, counts) == 0


def _filling(yard: _Yard, found: Sequence[Layer], amount: int) -> list[tuple[int, int]] | None:
    """Nodes in order; the largest first if those are too many, the smallest first if they are too few."""
    limits = yard.limits
    if found[-1].rooms[0] < amount:
        return None

    def is_too_many(filling: list[tuple[int, int]]) -> bool:
        return limits.nodes_max is not None and len(filling) * yard.hosts > limits.nodes_max

    filling = fill(found, amount)
    if is_too_many(filling):
        filling = fill(found, amount, lambda room: -room)
        return None if is_too_many(filling) else filling
    if len(filling) * yard.hosts < limits.nodes_min:
        smallest = fill(found, amount, lambda room: room)
        return filling if is_too_many(smallest) else smallest
    return filling


def _is_full(world: World, mesh: Mesh, limits: Limits) -> bool:
    """Whether nodes like the largest present could not add another replica."""
    if mesh.elastic is None or world.size == (limits.elastic_max or 0) * mesh.replica_size:
        return True
    if limits.nodes_max is None:
        return False
    hosts = len(world.items[0].nodes)
    most = limits.nodes_max // hosts * max(item.room for item in world.items) * world.unit
    return len(world.items) * hosts >= limits.nodes_max or most < world.size + mesh.replica_size
