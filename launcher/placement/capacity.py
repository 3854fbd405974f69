"""Finds the largest world that the nodes can form, and its nodes.

The world is a whole number of replicas, never part of one: with three nodes left over there are three spares. This
module finds the largest that keeps all limits. It does so by constructing one: node after node is filled with units, in
whole classes where `within` binds axes to a domain. The layout that proves the world possible is rarely the cheapest,
but it is always valid, so the search for a better one can fall back on it, and `assess_feasibility` and `plan` cannot
disagree. Where several units on nodes of different sizes meet a rule that binds units far apart, the count is
conservative rather than exact: see `_list_granularities`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import Tree
from launcher.model.topology import build_tree as tree_of
from launcher.placement import shortage
from launcher.placement.limits import Feasibility, Limits
from launcher.placement.rules import (
    CapacityLayer,
    Constraint,
    build_layers,
    compute_class_size,
    fill,
    is_in_line,
    make_constraints,
)
from launcher.placement.units import (
    Item,
    UnusedNodes,
    choose_block_size,
    compute_grid,
    find_slices,
    find_usual_slot_count,
    list_elastic_sizes,
    require_block_size,
)
from rendezvous.values import NamedTuple


class LargestWorld(NamedTuple):
    """The largest world: `size` ranks in units of `block_size`; size 0 if there is none.

    `items`: what can hold units, in the order of the nodes given. `filling`: a valid layout, as items and how many
    units each takes, class by class. `unused`: nodes that cannot hold any. `reason` is a sentence for either outcome.
    """

    size: int
    block_size: int
    items: tuple[Item, ...]
    filling: tuple[tuple[int, int], ...]
    unused: tuple[UnusedNodes, ...]
    reason: str
    hint: str | None = None

    @property
    def node_count(self) -> int:
        """Active nodes of the filling."""
        return sum(len(self.items[item].nodes) for item, _ in self.filling)


def assess_feasibility(nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> Feasibility:
    """How large a world these nodes could form within the limits; quick, and never raises for too few of them."""
    world = find_largest_world(nodes, mesh, limits)
    if not world.size:
        return Feasibility(world_size=0, node_count=0, is_full=False, reason=world.reason)
    reason = shortage.describe_world(world.size, world.node_count, len(nodes), world.reason, limits)
    is_full = _is_full(world, mesh, limits)
    return Feasibility(world_size=world.size, node_count=world.node_count, is_full=is_full, reason=reason)


def find_largest_world(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None = None) -> LargestWorld:
    """Find the largest whole number of replicas within the limits. `tree`: of these nodes, if the caller has it."""
    if len({node.id for node in nodes}) < len(nodes):
        raise ValueError("two nodes have the same id")
    if not nodes:
        return LargestWorld(0, 1, (), (), (), "no node is present")
    if tree is None and (limits.all_or_nothing or limits.within or len({node.slot_count for node in nodes}) > 1):
        tree = tree_of(nodes, limits.levels)  # else the nodes are equal, and their order changes no number
    try:
        context = _FitContext.of(nodes if tree is None else tree.nodes, mesh, limits, tree)
    except UsageError as error:
        return LargestWorld(0, 1, (), (), (), str(error), error.hint)
    return _find_largest(context)


class _Fit(NamedTuple):
    """A layout in units of `unit`: room of every item, and the items filled."""

    block_size: int
    rooms: Sequence[int]
    filling: list[tuple[int, int]]


class _FitContext(NamedTuple):
    """The values that stay the same while sizes of the elastic axis and block sizes are tried."""

    nodes: Sequence[Node]
    mesh: Mesh
    limits: Limits
    tree: Tree | None
    block_size: int
    items: list[Item]
    unused: list[UnusedNodes]
    constraints: tuple[Constraint, ...]

    @staticmethod
    def of(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None) -> _FitContext:
        """Raises UsageError for a limit that is invalid for this mesh and these nodes."""
        rules = make_constraints(mesh, limits, tree.levels) if tree else ()
        usual = find_usual_slot_count(nodes)
        unused: list[UnusedNodes] = []
        complete: list[tuple[int, tuple[Node, ...]]] = []
        if limits.all_or_nothing and tree:
            complete, unused = find_slices(tree, limits.all_or_nothing)
            usual = complete[0][1][0].slot_count if complete else usual
        unit = choose_block_size(mesh, usual) if limits.block_size is None else limits.block_size
        require_block_size(unit, nodes, mesh, usual if limits.all_or_nothing else None)
        if limits.all_or_nothing:
            room = limits.all_or_nothing.hosts * usual // unit
            items = [Item(members, room, position) for position, members in complete]
        else:
            items = [
                Item((node,), node.slot_count // unit, position)
                for position, node in enumerate(nodes)
                if node.slot_count >= unit
            ]
            small = tuple(node for node in nodes if node.slot_count < unit)
            unused = [UnusedNodes(small, shortage.describe_too_small(unit))] if small else []
        return _FitContext(nodes, mesh, limits, tree, unit, items, unused, rules)

    @property
    def hosts(self) -> int:
        """Nodes of an item."""
        return self.limits.all_or_nothing.hosts if self.limits.all_or_nothing else 1

    @property
    def is_in_runs(self) -> bool:
        """Whether the units of an item are consecutive."""
        return self.limits.is_contiguous or self.limits.all_or_nothing is not None

    @property
    def item_ranks(self) -> int:
        """Ranks that an item takes or leaves as one; 1 if it need not be filled."""
        return self.items[0].room * self.block_size if self.limits.all_or_nothing and self.items else 1


def _find_largest(context: _FitContext) -> LargestWorld:
    mesh, limits = context.mesh, context.limits

    def make_empty(reason: str) -> LargestWorld:
        return LargestWorld(0, context.block_size, tuple(context.items), (), tuple(context.unused), reason)

    if 0 < len(context.items) * context.hosts < limits.nodes_min:
        return make_empty(
            shortage.describe_too_few_nodes(
                context.nodes, context.items, context.unused, mesh, context.block_size, limits
            )
        )
    item_max = None if limits.nodes_max is None else limits.nodes_max // context.hosts
    ranks_max = sum(sorted((item.room for item in context.items), reverse=True)[:item_max]) * context.block_size
    low, high = (limits.elastic_min, limits.elastic_max) if mesh.elastic_axis else (1, 1)
    most = ranks_max // mesh.replica_size
    high = most if high is None else min(high, most)
    if high < low:
        return make_empty(
            shortage.describe_too_few_slots(
                context.nodes, context.items, context.unused, mesh, context.block_size, limits
            )
        )
    found = _find_best_fit(context, low, high)
    if found is None:
        if not list_elastic_sizes(mesh, context.block_size, context.item_ranks, low, high):
            return make_empty(
                shortage.describe_no_even_size(mesh, context.block_size, context.item_ranks, low, high, limits)
            )
        return make_empty(
            shortage.describe_no_room(
                context.items, context.constraints, context.tree, mesh, context.block_size, low, limits
            )
        )
    size, fit = found
    # Rooms in larger units than the limits require may leave a small node without any.
    kept = [index for index, room in enumerate(fit.rooms) if room]
    number = {index: position for position, index in enumerate(kept)}
    items = tuple(context.items[index]._replace(room=fit.rooms[index]) for index in kept)
    small = tuple(node for item, room in zip(context.items, fit.rooms, strict=True) if not room for node in item.nodes)
    unused = [*context.unused, *([UnusedNodes(small, shortage.describe_too_small(fit.block_size))] if small else [])]
    world = LargestWorld(
        size * mesh.replica_size,
        fit.block_size,
        items,
        tuple((number[i], n) for i, n in fit.filling),
        tuple(unused),
        "",
    )
    if world.node_count < limits.nodes_min:
        return make_empty(
            f"mesh {shortage.format_mesh(mesh, size)} makes a world of {world.size:,} ranks on "
            f"{shortage.format_node_count(world.node_count)}, but at least {limits.nodes_min} must be active"
        )
    return world._replace(
        reason=shortage.explain_size(mesh, size, size == high == limits.elastic_max, size < high, limits)
    )


class _Granularity(NamedTuple):
    """A way to count: ranks of a unit, units that each item has room for, and how many of these it takes at once.

    `layers`: the result of `build_layers` for classes of these sizes; often the same for all sizes of the axis.
    """

    block_size: int
    rooms: Sequence[int]
    at_once: int
    layers: dict[tuple[int, ...], list[CapacityLayer]]


def _list_granularities(context: _FitContext) -> list[_Granularity]:
    rooms = [item.room for item in context.items]
    if context.limits.all_or_nothing:
        return [
            _Granularity(context.item_ranks, [1] * len(rooms), 1, {}),
            _Granularity(context.block_size, rooms, rooms[0], {}),
        ]
    cuts = [_Granularity(context.block_size, rooms, 1, {})]
    if context.constraints and context.limits.is_contiguous:
        # Consecutive units on one node may belong to classes that lie far apart, and bind them together. Counted in
        # units as large as a node, each node has one and nothing is bound; a node's further slots stay idle.
        cuts += [
            _Granularity(brick * context.block_size, [int(room >= brick) for room in rooms], 1, {})
            for brick in sorted(set(rooms), reverse=True)
        ]
    return cuts


def _find_best_fit(context: _FitContext, low: int, high: int) -> tuple[int, _Fit] | None:
    """Return the largest size of the elastic axis for which there is a layout."""
    best: tuple[int, _Fit] | None = None
    for cut in _list_granularities(context):
        sizes = list_elastic_sizes(
            context.mesh, cut.block_size, context.item_ranks, low if best is None else best[0] + 1, high
        )
        found = _find_last_fit(context, cut, sizes) if sizes else None
        best = found or best
    return best


def _find_last_fit(context: _FitContext, granularity: _Granularity, sizes: Sequence[int]) -> tuple[int, _Fit] | None:
    """Return the largest of the sizes, which rise, for which there is a layout in this granularity."""
    fits: dict[int, _Fit | None] = {}

    def is_too_large(size: int) -> bool:
        fits[size] = _fit(context, granularity, size)
        return fits[size] is None

    count = len(sizes)
    if is_too_large(sizes[-1]):
        # A smaller world needs less of everything. So there is one largest size that fits, except in rare cases of
        # nodes of several sizes, where this finds one of the sizes that fit.
        count = bisect.bisect_left(sizes, True, key=is_too_large)
    fit = fits[sizes[count - 1]] if count else None
    return (sizes[count - 1], fit) if fit else None


def _fit(context: _FitContext, granularity: _Granularity, size: int) -> _Fit | None:
    """Return a layout of `size` replicas."""
    shape = context.mesh.resolve_shape(size * context.mesh.replica_size)
    counts = compute_grid(shape, granularity.block_size)
    if counts is None:
        return None
    host = len(context.tree.levels) if context.tree else 0
    sizes, domains = [granularity.at_once], []
    for constraint in context.constraints:
        if context.is_in_runs and max(granularity.rooms) > 1 and not is_in_line(constraint, counts):
            return None
        if constraint.level < host:
            assert context.tree is not None
            domains.append([context.tree.domains[constraint.level][item.position] for item in context.items])
            sizes.append(math.lcm(sizes[-1], compute_class_size(constraint, counts)))
        elif context.limits.all_or_nothing is None:
            sizes[0] = compute_class_size(constraint, counts)
        elif not _is_inside_host(context, constraint, shape):
            return None
    key = tuple(sizes)
    if key not in granularity.layers:
        granularity.layers[key] = build_layers(
            [room // sizes[0] * sizes[0] for room in granularity.rooms], domains, sizes[1:]
        )
    filling = _fill_items(context, granularity.layers[key], math.prod(counts))
    return _Fit(granularity.block_size, granularity.rooms, filling) if filling else None


def _is_inside_host(context: _FitContext, constraint: Constraint, shape: tuple[int, ...]) -> bool:
    """Whether no class leaves its host, where the order of the hosts in a whole domain is fixed."""
    counts = compute_grid(shape, context.block_size)
    per_host = context.items[0].room // context.hosts
    return (
        counts is not None and is_in_line(constraint, counts) and per_host % compute_class_size(constraint, counts) == 0
    )


def _fill_items(context: _FitContext, found: Sequence[CapacityLayer], amount: int) -> list[tuple[int, int]] | None:
    """Fill nodes in order; the largest first if those are too many, the smallest first if they are too few."""
    limits = context.limits
    if found[-1].rooms[0] < amount:
        return None

    def is_too_many(filling: list[tuple[int, int]]) -> bool:
        return limits.nodes_max is not None and len(filling) * context.hosts > limits.nodes_max

    filling = fill(found, amount)
    if is_too_many(filling):
        filling = fill(found, amount, lambda room: -room)
        return None if is_too_many(filling) else filling
    if len(filling) * context.hosts < limits.nodes_min:
        smallest = fill(found, amount, lambda room: room)
        return filling if is_too_many(smallest) else smallest
    return filling


def _is_full(world: LargestWorld, mesh: Mesh, limits: Limits) -> bool:
    """Whether nodes like the largest present could not add another replica."""
    if mesh.elastic_axis is None or world.size == (limits.elastic_max or 0) * mesh.replica_size:
        return True
    if limits.nodes_max is None:
        return False
    hosts = len(world.items[0].nodes)
    most = limits.nodes_max // hosts * max(item.room for item in world.items) * world.block_size
    return len(world.items) * hosts >= limits.nodes_max or most < world.size + mesh.replica_size
