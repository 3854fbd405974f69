"""The traffic of a mesh between units, as arrays.

Ranks are assigned in units, aligned runs of ranks on one node, so what counts is the traffic between units.
A unit is a box of the mesh: whole inner axes and perhaps a part of the next. Then all units communicate alike, and a
communicator is either hops between pairs of units (ring, line), or an exchange among all units of a class (all).

Weights are integers throughout: those of the user times `Traffic.scale`, which makes sums exact and the same on
every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.traffic import Communicator, scale_to_integers
from launcher.placement.units import compute_grid

BlockArray = NDArray[np.int32]


class Hops(NamedTuple):
    """Ring and line: unordered pairs of different units; `weight` is one number, the same for every pair.

    It is scaled, and counts all rank hops that run between the two units, in either direction. A ring of two units
    has two hops, so its pair stands here twice.
    """

    communicator: Communicator
    low: BlockArray
    high: BlockArray
    weight: int


class Exchange(NamedTuple):
    """All: every two units of the same class exchange `weight` (scaled, both directions, all their ranks).

    `class_of[unit]` numbers the classes from 0; each has `size` units.
    """

    communicator: Communicator
    class_of: BlockArray
    size: int
    weight: int


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The traffic of all units. `grid`: units along each axis of the mesh, whose product is `block_count`.

    `level_costs`: scaled, of each level from the outermost, the host's last. A cost in scaled numbers divided by
    `scale` is J in the user's numbers.
    """

    grid: tuple[int, ...]
    block_size: int
    hops: tuple[Hops, ...]
    exchanges: tuple[Exchange, ...]
    level_costs: tuple[int, ...]
    scale: int

    @property
    def block_count(self) -> int:
        return math.prod(self.grid)


def compute_box(shape: Sequence[int], block_size: int) -> tuple[int, ...] | None:
    """Return the ranks of a unit along each axis, or None if runs of `block_size` ranks are no boxes of this mesh."""
    counts = compute_grid(shape, block_size)
    return None if counts is None else tuple(size // count for size, count in zip(shape, counts, strict=True))


def make_traffic(
    shape: Sequence[int],
    axes: Sequence[str],
    block_size: int,
    communicators: Sequence[Communicator],
    level_costs: Sequence[int | float],
) -> Traffic:
    """Return the traffic of a mesh of `shape` with these axes, in units of `block_size` ranks.

    `level_costs`: per level, outermost first, the host's last. Raises ValueError if a unit is no box.
    """
    sides = compute_box(shape, block_size)
    if sides is None:
        raise ValueError(f"{block_size} consecutive ranks are no box of a mesh of shape {tuple(shape)}")
    counts = tuple(size // side for size, side in zip(shape, sides, strict=True))
    position = {name: index for index, name in enumerate(axes)}
    talking = [one for one in communicators if one.weight > 0]
    weights, weight_scale = scale_to_integers([one.weight for one in talking])
    whole_costs, cost_scale = scale_to_integers(level_costs)
    sizes = [math.prod(shape[position[axis]] for axis in one.axes) for one in talking]
    shares = math.lcm(
        1, *(size - 1 for size, one in zip(sizes, talking, strict=True) if one.kind == "all" and size > 1)
    )
    units = np.arange(math.prod(counts), dtype=np.int32).reshape(counts)
    hops: list[Hops] = []
    exchanges: list[Exchange] = []
    for one, weight, size in zip(talking, weights, sizes, strict=True):
        inside = math.prod(sides[position[axis]] for axis in one.axes)
        if inside == size:
            continue  # never leaves a unit
        lines = _list_lines(units, [position[axis] for axis in one.axes])
        # The ranks of a group in one unit are consecutive, so a group has one hop from unit to unit.
        parallel = block_size // inside
        if one.kind == "all":
            class_of = np.empty(units.size, dtype=np.int32)
            class_of[lines] = np.arange(len(lines), dtype=np.int32)[:, None]
            pair = 2 * parallel * inside * inside * weight * (shares // (size - 1))
            exchanges.append(Exchange(one, class_of, lines.shape[1], pair))
        else:
            hops.append(_make_hops(one, lines, parallel * weight * shares))
    return Traffic(
        grid=counts,
        block_size=block_size,
        hops=tuple(hops),
        exchanges=tuple(exchanges),
        level_costs=whole_costs,
        scale=weight_scale * cost_scale * shares,
    )


def _list_lines(units: BlockArray, along: Sequence[int]) -> BlockArray:
    """Return the units of each group as a row, in the order of its ranks."""
    across = [axis for axis in range(units.ndim) if axis not in along]
    size = math.prod(units.shape[axis] for axis in along)
    return np.ascontiguousarray(units.transpose(*across, *along).reshape(-1, size))


def _make_hops(one: Communicator, lines: BlockArray, weight: int) -> Hops:
    start, end = lines[:, :-1].ravel(), lines[:, 1:].ravel()
    if one.kind == "ring":
        start, end = np.concatenate((start, lines[:, 0])), np.concatenate((end, lines[:, -1]))
    return Hops(one, np.minimum(start, end), np.maximum(start, end), weight)
