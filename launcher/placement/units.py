"""Units: the runs of ranks that stay together on one node; the items that hold them; and the rules that bind them.

Ranks are not assigned one by one but in units, aligned runs of `block_size` consecutive ranks, so that the innermost
axes, which have most traffic, never leave a node. With tp=8 on nodes of 8 devices a unit is 8 ranks and a node holds
one of them. A unit is always a box of the mesh: whole inner axes and perhaps a part of the next. So all are equal.

An item holds units: a node, or a whole domain of nodes where domains are used entirely or not at all. A TPU slice is
such a domain. Its hosts are wired to each other in a fixed order, so a slice that lacks one host is useless, and inside
a complete one the planner cannot choose the order of the hosts: it is the index in each host's description or, if none
has one, that of the names. For the rest of the planner a slice is one large node.

`within` says "every tp group on one host, every ep group in one NVLink domain". A group inside a domain is inside the
enclosing domains, so these constraints nest: a domain can hold as many whole classes as its parts can, summed up and
rounded down. `build_layers` counts that from the nodes upwards, `fill` assigns units from the top downwards. The units
of a class need not be consecutive: with pp outermost, a pipeline's stages lie far apart. But several units on one node
are consecutive, and so they bind classes together; see `is_in_line`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.ranges import format_ranges
from launcher.model.topology import HOST, Tree
from launcher.placement.limits import NAMES_MAX, AllOrNothing, Limits, NoWorldError, Run, name_some
from rendezvous.reasons import Reason

_HOSTS_MAX = 4  # missing hosts that a reason names


# docs/internals/decisions/0010-placement-units-as-mesh-boxes.md
def choose_block_size(mesh: Mesh, slot_count: int) -> int:
    """Choose the number of ranks that stay together on a node of `slot_count` slots.

    The innermost axes as long as they fit, and of the first that does not fit the largest part that fills the
    node evenly: tp=8 on 8 slots is 8, tp=16 on 8 slots is 8, cp=2,tp=2 on 8 slots is 4, tp=3 on 8 slots is 1.
    The elastic axis ends the unit, as its size is not known yet.
    """
    unit = 1
    for axis in reversed(mesh.axes):
        if axis.size is None:
            break
        part = math.gcd(axis.size, slot_count // unit)
        unit *= part
        if part < axis.size:
            break
    return unit


def find_usual_slot_count(nodes: Iterable[Node]) -> int:
    """Return the slot count of the kind of node that has the most slots in total.

    The block size is chosen for this kind, so neither one machine that lost a GPU nor one that is twice as large
    changes how all others are used.
    """
    slots: dict[int, int] = {}
    for node in nodes:
        slots[node.slot_count] = slots.get(node.slot_count, 0) + node.slot_count
    return max(slots, key=lambda slot_count: (slots[slot_count], slot_count))


def compute_grid(shape: Sequence[int], block_size: int) -> tuple[int, ...] | None:
    """The units along each axis of a mesh of this shape; None if runs of `block_size` ranks are no boxes of it."""
    counts: list[int] = []
    left = block_size
    for size in reversed(shape):
        side = math.gcd(size, left)
        if side < size and side < left:
            return None
        counts.append(size // side)
        left //= side
    return tuple(reversed(counts)) if left == 1 else None


def compute_elastic_part(mesh: Mesh, block_size: int) -> int | None:
    """How far a unit reaches along the elastic axis if that is large; None if it fits the mesh at no size of it."""
    large = [axis.size or block_size for axis in mesh.axes]
    counts = compute_grid(large, block_size)
    if counts is None:
        return None
    return math.prod(block_size // count for axis, count in zip(mesh.axes, counts, strict=True) if axis.size is None)


def format_mesh(mesh: Mesh, elastic_size: int) -> str:
    """Format the mesh with the elastic axis' size in place of the star; "" for one that nobody has named."""
    return mesh.given_name.replace("*", str(elastic_size))


def list_elastic_sizes(mesh: Mesh, block_size: int, multiple: int, low: int, high: int) -> Sequence[int]:
    """Return the sizes of the elastic axis, rising, at which units are boxes and `multiple` ranks divide the world.

    From `low` to `high`; of a mesh without an elastic axis, 1 represents the whole mesh.
    """
    part = compute_elastic_part(mesh, block_size)
    replica = mesh.replica_size
    if mesh.elastic_axis is None:
        return (1,) if part and replica % multiple == 0 and low <= 1 <= high else ()
    if part is None:
        return ()
    step = math.lcm(part, multiple // math.gcd(multiple, replica))
    # Below `part` a unit covers the whole axis and extends into the next; from there on the axis is cut into parts.
    small = [
        size
        for size in range(low, min(high + 1, part))
        if size * replica % multiple == 0 and compute_grid(mesh.resolve_shape(size * replica), block_size)
    ]
    large = range(-(-max(low, part) // step) * step, high + 1, step)
    return [*small, *large] if small else large


def _require_block_size(block_size: int, nodes: Iterable[Node], mesh: Mesh, host_slots: int | None) -> None:
    """Raise NoWorldError for a block size that fits no node or no world of this mesh, with those that would.

    `host_slots`: of the hosts that must be filled entirely, if any.
    """
    most = max(node.slot_count for node in nodes)
    if block_size > most or block_size < 1 or compute_elastic_part(mesh, block_size) is None:
        fitting = tuple(str(unit) for unit in range(1, most + 1) if compute_elastic_part(mesh, unit))
        if block_size > most:
            raise NoWorldError(Reason.of("placement/unit-too-large", unit=block_size, most=most, fitting=fitting))
        raise NoWorldError(Reason.of("placement/unit-uneven", unit=block_size, mesh=str(mesh), fitting=fitting))
    if host_slots is not None and host_slots % block_size:
        raise NoWorldError(Reason.of("placement/unit-leaves-idle", unit=block_size, devices=host_slots))


# Items: nodes, or slices of them


class Item(Struct, frozen=True):
    """A node, or the nodes of a whole domain in the order of their ranks."""

    nodes: tuple[Node, ...]
    room: int
    """Units that it can hold."""
    position: int
    """Of its first node in the tree."""


class UnusedNodes(Struct, frozen=True):
    """Nodes that can hold no units, and the reason."""

    nodes: tuple[Node, ...]
    reason: Reason


class Supply(Struct, frozen=True):
    """What a world can be made of: nodes as items, and the constraints on them, whatever the world's size."""

    nodes: Sequence[Node]
    mesh: Mesh
    limits: Limits
    tree: Tree | None
    """Of the nodes, if anything depends on their domains."""
    block_size: int
    items: list[Item]
    unused: list[UnusedNodes]
    """Nodes that can hold no unit."""
    constraints: tuple[Constraint, ...]

    @property
    def hosts(self) -> int:
        """Nodes of an item."""
        return self.limits.all_or_nothing.hosts if self.limits.all_or_nothing else 1

    @property
    def item_ranks(self) -> int:
        """Ranks that an item takes or leaves as one; 1 if it need not be filled."""
        return self.items[0].room * self.block_size if self.limits.all_or_nothing and self.items else 1


def make_supply(nodes: Sequence[Node], mesh: Mesh, limits: Limits, tree: Tree | None) -> Supply:
    """Raises NoWorldError for a limit that is invalid for this mesh and these nodes."""
    constraints = make_constraints(mesh, limits, tree.levels) if tree else ()
    usual = find_usual_slot_count(nodes)
    unused: list[UnusedNodes] = []
    slices: list[tuple[int, tuple[Node, ...]]] = []
    if limits.all_or_nothing and tree:
        slices, unused = _find_slices(tree, limits.all_or_nothing)
        usual = slices[0][1][0].slot_count if slices else usual
    unit = choose_block_size(mesh, usual) if limits.block_size is None else limits.block_size
    _require_block_size(unit, nodes, mesh, usual if limits.all_or_nothing else None)
    if limits.all_or_nothing:
        room = limits.all_or_nothing.hosts * usual // unit
        items = [Item(members, room, position) for position, members in slices]
    else:
        rooms = [node.slot_count // unit for node in nodes]
        items = [Item((nodes[position],), room, position) for position, room in enumerate(rooms) if room]
        small = tuple(node for node, room in zip(nodes, rooms, strict=True) if not room)
        unused = list_too_small(small, unit)
    return Supply(nodes, mesh, limits, tree, unit, items, unused, constraints)


def list_too_small(nodes: tuple[Node, ...], block_size: int) -> list[UnusedNodes]:
    return [UnusedNodes(nodes, Reason.of("placement/too-small", ranks=block_size))] if nodes else []


def explain_unused(unused: Sequence[UnusedNodes]) -> list[Reason]:
    """Return why these nodes hold no units, the first few of many."""
    told = [
        Reason.of("placement/unused", why=each.reason, nodes=name_some([node.id for node in each.nodes]))
        for each in unused[:NAMES_MAX]
    ]
    more = sum(len(each.nodes) for each in unused[NAMES_MAX:])
    return [*told, Reason.of("placement/more-unused", nodes=more)] if more else told


def _find_slices(
    tree: Tree, all_or_nothing: AllOrNothing
) -> tuple[list[tuple[int, tuple[Node, ...]]], list[UnusedNodes]]:
    """Return the complete domains, each as the position of its first node and its nodes in order; and the others."""
    level = tree.levels.index(all_or_nothing.level)
    members: dict[int, list[int]] = {}
    for position, domain in enumerate(tree.domains[level]):
        members.setdefault(domain, []).append(position)
    complete: list[tuple[str, int, tuple[Node, ...]]] = []
    unused: list[UnusedNodes] = []
    for domain, positions in members.items():
        nodes = tuple(tree.nodes[position] for position in positions)
        name = tree.names[level][domain]
        fault = _find_fault(nodes, level, all_or_nothing, name)
        if fault:
            unused.append(UnusedNodes(nodes, fault))
        else:
            in_order = sorted(nodes, key=lambda node: node.index or 0)  # by name still, where no node has an index
            complete.append((name, positions[0], tuple(in_order)))
    # Slices of two kinds have no common block size: the kind with the most devices in total stays.
    usual = find_usual_slot_count(nodes[0] for _, _, nodes in complete) if complete else 0
    for name, _, nodes in complete:
        if nodes[0].slot_count != usual:
            reason = Reason.of(
                "placement/slice-odd", level=all_or_nothing.level, domain=name, devices=nodes[0].slot_count, usual=usual
            )
            unused.append(UnusedNodes(nodes, reason))
    return [(position, nodes) for _, position, nodes in complete if nodes[0].slot_count == usual], unused


def _find_fault(nodes: Sequence[Node], depth: int, all_or_nothing: AllOrNothing, domain: str) -> Reason | None:
    """Return why these nodes are no complete domain."""
    level, hosts, count = all_or_nothing.level, all_or_nothing.hosts, len(nodes)
    if count == 1 and hosts > 1 and (len(nodes[0].path) <= depth or nodes[0].path[depth] is None):
        return Reason.of("placement/no-level", node=nodes[0].id, level=level)
    indices = sorted(node.index for node in nodes if node.index is not None)
    if count < hosts:
        absent = sorted({*range(hosts)}.difference(indices)) if len(indices) == count else []
        named = [nodes[0].host_pattern.replace("{}", str(index), 1) for index in absent[:_HOSTS_MAX]]
        return Reason.of(
            "placement/slice-incomplete",
            level=level,
            domain=domain,
            present=count,
            hosts=hosts,
            missing=len(absent),
            indices=format_ranges(absent),
            names=tuple(named) if nodes[0].host_pattern else (),
        )
    if count > hosts:
        return Reason.of("placement/slice-oversized", level=level, domain=domain, present=count, hosts=hosts)
    if any(node.slot_count != nodes[0].slot_count for node in nodes):
        counts = tuple(str(node.slot_count) for node in nodes)
        return Reason.of("placement/slice-mixed", level=level, domain=domain, devices=counts)
    if indices and indices != list(range(count)):
        texts = tuple(map(str, indices))
        return Reason.of("placement/slice-numbers", level=level, domain=domain, indices=texts, last=count - 1)
    return None


# Constraints: groups inside one domain of a level


class Constraint(Struct, frozen=True):
    """All units that differ only along `axes` lie in one domain of `level`, an index into levels and host."""

    level: int
    axes: tuple[int, ...]

    def compute_class_size(self, grid: Sequence[int]) -> int:
        """Return the units in a class."""
        return math.prod(grid[axis] for axis in self.axes)

    def is_in_line(self, grid: Sequence[int]) -> bool:
        """Whether the units of a class are consecutive: its axes are the innermost of those that are not 1 long."""
        long = [axis for axis, size in enumerate(grid) if size > 1]
        inside = [axis for axis in long if axis in self.axes]
        return inside == long[len(long) - len(inside) :]


def make_constraints(mesh: Mesh, limits: Limits, levels: Sequence[str]) -> tuple[Constraint, ...]:
    """Return the rules of `within`, innermost first, each with the axes of all rules below it.

    Units inside one leaf are inside one pod as well; and units that share a domain with the same unit share it with
    each other. So a class is the box over all axes that are bound to its level or to a deeper one.
    Raises NoWorldError for a level that no node has, in `limits.within` or in `limits.all_or_nothing`.
    """
    depths = {level: index for index, level in enumerate((*levels, HOST))}
    axes = {axis.name: index for index, axis in enumerate(mesh.axes)}
    floor = len(levels)
    if limits.all_or_nothing:
        floor = depths.get(limits.all_or_nothing.level, floor)
        if floor == len(levels):
            raise _make_level_error(f"--whole {limits.all_or_nothing.level}", limits.all_or_nothing.level, levels)
    bound: dict[int, list[int]] = {}
    for axis, level in limits.within.items():
        option = f"--within {axis}={level}"
        if level not in depths:
            raise _make_level_error(option, level, (*levels, HOST))
        if floor < depths[level] < len(levels):
            reason = Reason.of("placement/inside-whole", option=option, level=level, whole=levels[floor])
            raise NoWorldError(reason)
        bound.setdefault(depths[level], []).append(axes[axis])
    found: list[Constraint] = []
    for depth in sorted(bound, reverse=True):
        inner = found[-1].axes if found else ()
        found.append(Constraint(depth, tuple(sorted({*inner, *bound[depth]}))))
    return tuple(found)


def _make_level_error(option: str, level: str, known: Sequence[str]) -> NoWorldError:
    return NoWorldError(Reason.of("placement/unknown-level", option=option, level=level, known=tuple(known)))


class CapacityLayer(Struct, frozen=True):
    """Domains of one level: units that each has room for, and its parts as indices into the layer below.

    The lowest layer is the items; it has no parts.
    """

    rooms: list[int]
    parts: list[list[int]]


def build_layers(rooms: Sequence[int], domains: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[CapacityLayer]:
    """Return the room in whole classes, from the items up to one last domain that contains everything.

    `rooms`: of the items. `domains[rule][item]`: the item's domain of the rule's level, innermost rule first;
    `sizes[rule]`: units in a class of it, each a multiple of the one before.
    """
    found = [CapacityLayer(list(rooms), [])]
    items = list(range(len(rooms)))  # one item for each domain of the layer so far, to find its next domain
    for labels, size in zip(domains, sizes, strict=True):
        parts: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            parts.setdefault(labels[item], []).append(index)
        below = found[-1].rooms
        inside = [sum(below[part] for part in each) // size * size for each in parts.values()]
        found.append(CapacityLayer(inside, list(parts.values())))
        items = [items[each[0]] for each in parts.values()]
    return [*found, CapacityLayer([sum(found[-1].rooms)], [list(range(len(items)))])]


def fill(found: Sequence[CapacityLayer], amount: int, key: Callable[[int], int] | None = None) -> list[Run]:
    """Return the runs of items, filling domain after domain; `key` of their room orders siblings.

    The units are to be assigned class by class, outermost classes first.
    """
    taken: list[Run] = []

    def take(depth: int, index: int, amount: int) -> None:
        if depth == 0:
            taken.append((index, amount))
            return
        rooms, parts = found[depth - 1].rooms, found[depth].parts[index]
        for part in parts if key is None else sorted(parts, key=lambda part: key(rooms[part])):
            share = min(rooms[part], amount)
            if share:
                take(depth - 1, part, share)
                amount -= share
            if not amount:
                return

    take(len(found) - 1, 0, amount)
    return taken
