"""The traffic of a mesh between units, as arrays, and what a layout of the units costs.

Ranks are assigned in units, aligned runs of ranks on one node. A unit is a box of the mesh: whole inner axes and
perhaps a part of the next. So all units communicate alike, and a communicator is either hops between pairs of units
(ring, line), or an exchange among all units of a class (all). A hop pays the cost of every level at which its ends lie
in different domains. Summed by level: each level's cost times the traffic that leaves that level's domains.

Weights are integers throughout: those of the user times `Traffic.scale`, so sums are exact and the same on every
machine. The search sees the same traffic as a graph: for each unit its partners, whatever the communicator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from launcher.model.traffic import Communicator, scale_to_integers
from launcher.placement.units import compute_grid

BlockArray = NDArray[np.int32]
Ints = NDArray[np.int64]

Labels = NDArray[np.int32]
"""For one level: unit -> number of the domain in which it is placed."""

PAIRS_PER_BLOCK = 64
"""An exchange with more pairs than this per unit is left out of the graph, which would be too large; the exact cost
still counts it."""


class Hops(NamedTuple):
    """Ring and line: unordered pairs of different units; `weight` is one number, the same for every pair.

    It is scaled, and counts all rank hops that run between the two units, in either direction. A ring of two units
    has two hops, so its pair stands here twice. The last `closing` hops run from `high` to `low`, all others upwards.
    """

    communicator: Communicator
    low: BlockArray
    high: BlockArray
    weight: int
    closing: int = 0

    def count_leaving(self, labels: Labels) -> int:
        """Return how many pairs are in two domains of one level."""
        return int(np.count_nonzero(labels[self.low] != labels[self.high]))


class Exchange(NamedTuple):
    """All: every two units of the same class exchange `weight` (scaled, both directions, all their ranks).

    `class_of[unit]` numbers the classes from 0; each has `size` units.
    """

    communicator: Communicator
    class_of: BlockArray
    size: int
    weight: int

    def count_leaving(self, labels: Labels) -> int:
        """Return how many pairs are in two domains of one level."""
        # Pairs of units of a class in the same domain: sum of n (n - 1) / 2 over each domain's n units of it.
        # Sorting, because a table of all classes and domains would not fit into memory for a large cluster.
        keys = self.class_of.astype(np.int64) * (int(labels.max()) + 1) + labels
        together = np.unique(keys, return_counts=True)[1]
        return len(labels) * (self.size - 1) // 2 - int((together * (together - 1) // 2).sum())


class Traffic(Struct, frozen=True, kw_only=True):
    """The traffic of all units."""

    grid: tuple[int, ...]
    """Units along each axis of the mesh, whose product is the number of units."""
    block_size: int
    parts: tuple[Hops | Exchange, ...]
    """Of each communicator that leaves units."""
    level_costs: tuple[int, ...]
    """Scaled, of each level from the outermost, the host's last."""
    scale: int
    """A cost in scaled numbers divided by it is J in the user's numbers."""
    weight_scale: int
    """A weight divided by it is the user's."""

    @property
    def block_count(self) -> int:
        return math.prod(self.grid)

    def compute_cost(self, labels: Sequence[Labels]) -> int:
        """Return J of a layout, scaled. `labels`: per level, outermost first, the host's last, one per level cost."""
        return sum(
            level_cost * part.weight * part.count_leaving(level)
            for level_cost, level in zip(self.level_costs, labels, strict=True)
            if level_cost
            for part in self.parts
        )


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
    counts = compute_grid(shape, block_size)
    if counts is None:
        raise ValueError(f"{block_size} consecutive ranks are no box of a mesh of shape {tuple(shape)}")
    sides = [size // count for size, count in zip(shape, counts, strict=True)]  # of a unit, in ranks
    position = {name: index for index, name in enumerate(axes)}
    talking = [one for one in communicators if one.weight > 0]
    weights, weight_scale = scale_to_integers([one.weight for one in talking])
    whole_costs, cost_scale = scale_to_integers(level_costs)
    sizes = [math.prod(shape[position[axis]] for axis in one.axes) for one in talking]
    shares = math.lcm(
        1, *(size - 1 for size, one in zip(sizes, talking, strict=True) if one.kind == "all" and size > 1)
    )
    units = np.arange(math.prod(counts), dtype=np.int32).reshape(counts)
    parts: list[Hops | Exchange] = []
    for one, weight, size in zip(talking, weights, sizes, strict=True):
        along = [position[axis] for axis in one.axes]
        inside = math.prod(sides[axis] for axis in along)
        if inside == size:
            continue  # never leaves a unit
        # The units of each group as a row, in the order of its ranks.
        across = [axis for axis in range(units.ndim) if axis not in along]
        lines = units.transpose(*across, *along).reshape(-1, size // inside)
        # The ranks of a group in one unit are consecutive, so a group has one hop from unit to unit.
        parallel = block_size // inside
        if one.kind == "all":
            class_of = np.empty(units.size, dtype=np.int32)
            class_of[lines] = np.arange(len(lines), dtype=np.int32)[:, None]
            pair = 2 * parallel * inside * inside * weight * (shares // (size - 1))
            parts.append(Exchange(one, class_of, lines.shape[1], pair))
        else:
            start, end = lines[:, :-1].ravel(), lines[:, 1:].ravel()
            if one.kind == "ring":
                start, end = np.concatenate((start, lines[:, 0])), np.concatenate((end, lines[:, -1]))
            closing = len(lines) if one.kind == "ring" else 0
            low, high = np.minimum(start, end), np.maximum(start, end)
            parts.append(Hops(one, low, high, parallel * weight * shares, closing))
    return Traffic(
        grid=counts,
        block_size=block_size,
        parts=tuple(parts),
        level_costs=whole_costs,
        scale=weight_scale * cost_scale * shares,
        weight_scale=weight_scale * shares,
    )


# The graph for the search


class Graph(NamedTuple):
    """Pairs of different blocks, each once: `low[i] < high[i]` talk with `weight[i]`.

    A block is a unit, or several that stay together: the run of an item, the units of a class.
    """

    vertex_count: int
    low: Ints
    high: Ints
    weight: Ints


def build_graph(
    traffic: Traffic, vertex_of: NDArray[np.integer] | None = None, pairs_max: int = PAIRS_PER_BLOCK
) -> Graph:
    """Return the graph of a mesh's units, or of blocks of them (`vertex_of[unit]`, numbered from 0)."""
    ends: list[tuple[NDArray[np.integer], NDArray[np.integer], int]] = []
    for part in traffic.parts:
        if isinstance(part, Hops):
            ends.append((part.low, part.high, part.weight))
        elif part.size <= pairs_max:
            members = np.argsort(part.class_of, kind="stable").reshape(-1, part.size)
            one, other = np.triu_indices(part.size, 1)
            ends.append((members[:, one].ravel(), members[:, other].ravel(), part.weight))
    empty = np.zeros(0, dtype=np.int64)
    low = np.concatenate([empty, *(one[0] for one in ends)])
    high = np.concatenate([empty, *(one[1] for one in ends)])
    weight = np.concatenate([empty, *(np.full(len(one[0]), one[2]) for one in ends)])
    count = traffic.block_count
    if vertex_of is not None:
        count = int(vertex_of.max()) + 1
        low, high = vertex_of[low].astype(np.int64), vertex_of[high].astype(np.int64)
        low, high = np.minimum(low, high), np.maximum(low, high)
        apart = low != high
        low, high, weight = low[apart], high[apart], weight[apart]
    order = np.argsort(low * count + high, kind="stable")
    low, high, weight = low[order], high[order], weight[order]
    starts = np.flatnonzero(np.diff(low * count + high, prepend=-1))
    return Graph(count, low[starts], high[starts], np.add.reduceat(weight, starts) if len(starts) else weight)


def list_neighbours(graph: Graph) -> tuple[Ints, Ints]:
    """Return for every block a row of its partners, and a row of weights; short rows end in the block itself and 0."""
    start = np.concatenate((graph.low, graph.high))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.concatenate((graph.high, graph.low))[order]
    weight = np.concatenate((graph.weight, graph.weight))[order]
    degree = np.bincount(start, minlength=graph.vertex_count)
    column = np.arange(len(start)) - np.repeat(np.cumsum(degree) - degree, degree)
    width = int(degree.max(initial=0))
    ends = np.repeat(np.arange(graph.vertex_count)[:, None], width, axis=1)
    weights = np.zeros((graph.vertex_count, width), dtype=np.int64)
    ends[start, column] = end
    weights[start, column] = weight
    return ends, weights


def make_matrix(graph: Graph) -> Ints:
    """Return the graph as a symmetric matrix; for small ones."""
    found = np.zeros((graph.vertex_count, graph.vertex_count), dtype=np.int64)
    found[graph.low, graph.high] = found[graph.high, graph.low] = graph.weight
    return found
