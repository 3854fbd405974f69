"""Finds the largest world that the nodes can form, and its nodes.

The world is a whole number of replicas, never part of one: with three nodes left over there are three spares. This
module finds the largest that keeps all limits. It does so by constructing one: node after node is filled with units, in
whole classes where `within` binds axes to a domain. The layout that proves the world possible is rarely the cheapest,
but it is always valid, so the search for a better one can fall back on it, and `assess_feasibility` and `plan` cannot
disagree. Where several units on nodes of different sizes meet a rule that binds units far apart, the count is
conservative rather than exact: see `_list_granularities`. What is missing where there is no such world is found by
`shortage`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import Tree, build_tree
from launcher.placement import units
from launcher.placement.limits import Limits, NoWorldError, Run
from rendezvous.policy.view import Size
from rendezvous.reasons import Reason


class LargestWorld(Struct, frozen=True):
    """The largest valid world, and a layout that proves it."""

    supply: units.Supply
    """In the units in which it was counted, with what they leave unused."""
    size: int
    """Ranks."""
    filling: list[Run]
    """A valid layout, class by class."""
    reason: Reason
    """Why it is not larger."""

    @property
    def node_count(self) -> int:
        """Active nodes of the filling."""
        return sum(len(self.supply.items[item].nodes) for item, _ in self.filling)

    def explain(self, present: int) -> Reason:
        """Return the reason of the whole world. `present`: how many nodes there are."""
        count = self.node_count
        is_most = self.supply.limits.nodes_max == count < present
        return Reason.of(
            "placement/world", ranks=self.size, nodes=count, present=present, why=self.reason, is_most=is_most
        )


def assess_feasibility(nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> Size:
    """How large a world these nodes could form within the limits; quick, and never raises for too few of them."""
    try:
        world = find_largest_world(nodes, mesh, limits)
    except NoWorldError as error:
        return Size(0, False, error.reason)
    return Size(world.size, _is_full(world), world.explain(len(nodes)))


def _is_full(world: LargestWorld) -> bool:
    """Whether nodes like the largest present could not add another replica."""
    supply, mesh, limits = world.supply, world.supply.mesh, world.supply.limits
    if mesh.elastic_axis is None or world.size == (limits.elastic_max or 0) * mesh.replica_size:
        return True
    if limits.nodes_max is None:
        return False
    most = limits.nodes_max // supply.hosts * max(item.room for item in supply.items) * supply.block_size
    return len(supply.items) * supply.hosts >= limits.nodes_max or most < world.size + mesh.replica_size


def find_largest_world(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None = None) -> LargestWorld:
    """Find the largest whole number of replicas within the limits. `tree`: of these nodes, if the caller has it.

    Raises NoWorldError, with what is missing, if there is no valid world size.
    """
    if len({node.id for node in nodes}) < len(nodes):
        raise ValueError("two nodes have the same id")
    if not nodes:
        raise NoWorldError(Reason.of("placement/no-node"))
    if tree is None and (limits.all_or_nothing or limits.within or len({node.slot_count for node in nodes}) > 1):
        tree = build_tree(nodes, limits.levels)  # else the nodes are equal, and their order changes no number
    supply = units.make_supply(nodes if tree is None else tree.nodes, mesh, limits, tree)
    item_max = None if limits.nodes_max is None else limits.nodes_max // supply.hosts
    ranks_max = sum(sorted((item.room for item in supply.items), reverse=True)[:item_max]) * supply.block_size
    low, high = (limits.elastic_min, limits.elastic_max) if mesh.elastic_axis else (1, 1)
    most = ranks_max // mesh.replica_size
    high = most if high is None else min(high, most)
    is_short = high < low or len(supply.items) * supply.hosts < limits.nodes_min
    best: tuple[units.Supply, int, list[Run]] | None = None
    for cut in () if is_short else _list_granularities(supply):
        least = low if best is None else best[1] + 1
        sizes = units.list_elastic_sizes(mesh, cut.block_size, supply.item_ranks, least, high)
        found = _find_last_fit(supply, cut, sizes) if sizes else None
        best = (cut, *found) if found else best
    if best is None:
        from launcher.placement.shortage import explain_shortage  # most jobs have a world

        raise NoWorldError(explain_shortage(supply, low, high))
    return _make_world(*best, high)


def _make_world(supply: units.Supply, size: int, filling: list[Run], high: int) -> LargestWorld:
    """Return the world of `size` replicas, of at most `high` for which there are devices. Raises NoWorldError."""
    mesh, limits = supply.mesh, supply.limits
    reason = _explain_size(mesh, size, size == high == limits.elastic_max, size < high, limits)
    world = LargestWorld(supply, size * mesh.replica_size, filling, reason)
    if world.node_count < limits.nodes_min:
        reason = Reason.of(
            "placement/too-few-active",
            mesh=units.format_mesh(mesh, size),
            ranks=world.size,
            nodes=world.node_count,
            least=limits.nodes_min,
        )
        raise NoWorldError(reason)
    return world


def _explain_size(mesh: Mesh, elastic_size: int, is_most_allowed: bool, is_held_back: bool, limits: Limits) -> Reason:
    """Explain the size of the world. `is_held_back`: there are devices for more, but a rule forbids it."""
    if mesh.elastic_axis is None:
        return Reason.of("placement/fixed-size", mesh=str(mesh))
    size = f"{mesh.elastic_axis.name}={elastic_size}" if mesh.given_name else ""
    if is_most_allowed:
        return Reason.of("placement/most-allowed", size=size)
    rules = [f"--within {axis}={level}" for axis, level in limits.within.items()] if is_held_back else []
    rules += [f"--whole {limits.all_or_nothing.level}"] if is_held_back and limits.all_or_nothing else []
    return Reason.of("placement/largest", size=size, rules=tuple(rules))


def _list_granularities(supply: units.Supply) -> Iterator[units.Supply]:
    """Yield the same in the units in which worlds are counted."""
    rooms = sorted({item.room for item in supply.items}, reverse=True)
    if supply.limits.all_or_nothing:
        yield _coarsen(supply, rooms[0])
    yield supply
    if supply.constraints and not supply.limits.all_or_nothing:
        # Consecutive units on one node may belong to classes that lie far apart, and bind them together. Counted in
        # units as large as a node, each node has one and nothing is bound; a node's further slots stay idle.
        yield from (_coarsen(supply, brick) for brick in rooms)


def _coarsen(supply: units.Supply, brick: int) -> units.Supply:
    """Return the same in units of so many of its units, of which an item holds one; a smaller item holds none."""
    block_size = brick * supply.block_size
    items = [replace(item, room=1) for item in supply.items if item.room >= brick]
    small = tuple(node for item in supply.items if item.room < brick for node in item.nodes)
    unused = [*supply.unused, *units.list_too_small(small, block_size)]
    return replace(supply, block_size=block_size, items=items, unused=unused)


def _find_last_fit(supply: units.Supply, cut: units.Supply, sizes: Sequence[int]) -> tuple[int, list[Run]] | None:
    """Return the largest of the sizes, which rise, for which there is a layout; and the layout.

    `cut`: the supply in the units that are counted.
    """
    fillings: dict[int, list[Run] | None] = {}
    known: dict[tuple[int, ...], list[units.CapacityLayer]] = {}

    def is_too_large(size: int) -> bool:
        fillings[size] = _lay_out(supply, cut, known, size)
        return fillings[size] is None

    count = len(sizes)
    if is_too_large(sizes[-1]):
        # A smaller world needs less of everything. So there is one largest size that fits, except in rare cases of
        # nodes of several sizes, where this finds one of the sizes that fit.
        count = bisect.bisect_left(sizes, True, key=is_too_large)
    filling = fillings[sizes[count - 1]] if count else None
    return (sizes[count - 1], filling) if filling else None


def _lay_out(
    supply: units.Supply, cut: units.Supply, known: dict[tuple[int, ...], list[units.CapacityLayer]], size: int
) -> list[Run] | None:
    """Return a layout of `size` replicas.

    `known`: the result of `build_layers` for classes of these sizes; often the same for all sizes of the axis.
    """
    shape = supply.mesh.resolve_shape(size * supply.mesh.replica_size)
    counts = units.compute_grid(shape, cut.block_size)
    if counts is None:
        return None
    host = len(supply.tree.levels) if supply.tree else 0
    rooms = [item.room for item in cut.items]
    sizes, domains = [max(1, cut.item_ranks // cut.block_size)], []
    for constraint in supply.constraints:
        if max(rooms) > 1 and not constraint.is_in_line(counts):
            return None
        if constraint.level < host:
            assert supply.tree is not None
            domains.append([supply.tree.domains[constraint.level][item.position] for item in cut.items])
            sizes.append(math.lcm(sizes[-1], constraint.compute_class_size(counts)))
        elif supply.limits.all_or_nothing is None:
            sizes[0] = constraint.compute_class_size(counts)
        elif not _is_inside_host(supply, constraint, shape):
            return None
    key = tuple(sizes)
    if key not in known:
        rooms = [room // sizes[0] * sizes[0] for room in rooms]
        known[key] = units.build_layers(rooms, domains, sizes[1:])
    return _fill_items(supply, known[key], math.prod(counts))


def _is_inside_host(supply: units.Supply, constraint: units.Constraint, shape: tuple[int, ...]) -> bool:
    """Whether no class leaves its host, where the order of the hosts in a whole domain is fixed."""
    counts = units.compute_grid(shape, supply.block_size)
    if counts is None or not constraint.is_in_line(counts):
        return False
    return supply.items[0].room // supply.hosts % constraint.compute_class_size(counts) == 0


def _fill_items(supply: units.Supply, layers: Sequence[units.CapacityLayer], amount: int) -> list[Run] | None:
    """Fill nodes, in order if that uses a number of them that the limits allow."""
    limits = supply.limits
    if layers[-1].rooms[0] < amount:
        return None

    def is_too_many(filling: list[Run]) -> bool:
        return limits.nodes_max is not None and len(filling) * supply.hosts > limits.nodes_max

    filling = units.fill(layers, amount)
    if is_too_many(filling):  # the largest first, to use fewer
        filling = units.fill(layers, amount, lambda room: -room)
        return None if is_too_many(filling) else filling
    if len(filling) * supply.hosts < limits.nodes_min:  # the smallest first, to use more
        smallest = units.fill(layers, amount, lambda room: room)
        return filling if is_too_many(smallest) else smallest
    return filling
