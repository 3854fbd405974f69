"""The rules that keep groups together: every group of an axis inside one domain of a level.

`within` says "every tp group on one host, every ep group in one NVLink domain". A group inside a domain is inside the
enclosing domains, so the rules nest: a pod has to hold whole classes of all axes bound to pods or to anything smaller.
Counting is then the same at every level: a domain can hold as many whole classes as its parts can, summed up and
rounded down. `build_layers` counts that from the nodes upwards, `fill` assigns units from the top downwards.

The units of a class need not be consecutive: with pp outermost, a pipeline's stages lie far apart. On nodes of one
unit that changes nothing. But several units on one node are consecutive, and so they bind classes together; see
`is_in_line`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.topology import HOST
from launcher.placement.limits import Limits
from rendezvous.values import NamedTuple


class Constraint(NamedTuple):
    """All units that differ only along `axes` lie in one domain of `level`, an index into levels and host."""

    level: int
    axes: tuple[int, ...]


def make_constraints(mesh: Mesh, limits: Limits, levels: Sequence[str]) -> tuple[Constraint, ...]:
    """Return the rules of `within`, innermost first, each with the axes of all rules below it.

    Raises UsageError for an unknown axis or level, in `limits.within` or in `limits.all_or_nothing`.
    """
    depths = {level: index for index, level in enumerate((*levels, HOST))}
    axes = {axis.name: index for index, axis in enumerate(mesh.axes)}
    if limits.all_or_nothing and (limits.all_or_nothing.level not in depths or limits.all_or_nothing.level == HOST):
        known = f"the levels are {', '.join(levels)}" if levels else "no node has a locality path"
        raise UsageError(f"whole {limits.all_or_nothing.level}: there is no such level of domains; {known}")
    floor = depths[limits.all_or_nothing.level] if limits.all_or_nothing else len(levels)
    bound: dict[int, list[int]] = {}
    for axis, level in limits.within.items():
        if axis not in axes:
            raise UsageError(f"within {axis}={level}: mesh {mesh} has no such axis; its axes are {', '.join(axes)}")
        if level not in depths:
            raise UsageError(f"within {axis}={level}: there is no such level; the levels are {', '.join(depths)}")
        if floor < depths[level] < len(levels):
            raise UsageError(
                f"within {axis}={level}: a {level} lies inside a {levels[floor]}, which is used as a whole "
                "in the order of its hosts"
            )
        bound.setdefault(depths[level], []).append(axes[axis])
    found: list[Constraint] = []
    for depth in sorted(bound, reverse=True):
        inner = found[-1].axes if found else ()
        found.append(Constraint(depth, tuple(sorted({*inner, *bound[depth]}))))
    return tuple(found)


def compute_class_size(constraint: Constraint, grid: Sequence[int]) -> int:
    """Return the units in a class."""
    return math.prod(grid[axis] for axis in constraint.axes)


def is_in_line(constraint: Constraint, grid: Sequence[int]) -> bool:
    """Whether the units of a class are consecutive: its axes are the innermost of those that are not 1 long."""
    long = [axis for axis, size in enumerate(grid) if size > 1]
    inside = [axis for axis in long if axis in constraint.axes]
    return inside == long[len(long) - len(inside) :]


class CapacityLayer(NamedTuple):
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
        found.append(
            CapacityLayer(
                [sum(below[part] for part in each) // size * size for each in parts.values()], list(parts.values())
            )
        )
        items = [items[each[0]] for each in parts.values()]
    everything = list(range(len(items)))
    return [*found, CapacityLayer([sum(found[-1].rooms)], [everything])]


def fill(found: Sequence[CapacityLayer], amount: int, key: Callable[[int], int] | None = None) -> list[tuple[int, int]]:
    """Return items and the units of each, filling domain after domain; `key` of their room orders siblings.

    The units are to be assigned class by class, outermost classes first.
    """
    taken: list[tuple[int, int]] = []

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
