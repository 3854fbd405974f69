"""The traffic as one weighted graph over blocks of units, each pair once.

`hops.py` keeps hops by communicator, for the explanation. A search needs, for one block, all its partners and the
total traffic with each. A block is a unit, or several that stay together: the run of an item, the units of a class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.hops import Exchange, Traffic

Ints = NDArray[np.int64]

PAIRS_PER_BLOCK = 64
"""An exchange with more pairs than this per unit is left out of the graph, which would be too large; the exact cost
still counts it."""


class Graph(NamedTuple):
    """Pairs of different blocks, each once: `low[i] < high[i]` talk with `weight[i]`."""

    vertex_count: int
    low: Ints
    high: Ints
    weight: Ints


def build_graph(traffic: Traffic, vertex_of: NDArray[np.integer] | None = None) -> Graph:
    """Return the graph of a mesh's units, or of blocks of them (`vertex_of[unit]`, numbered from 0)."""
    ends: list[tuple[NDArray[np.integer], NDArray[np.integer], int]] = []
    ends += [(hops.low, hops.high, hops.weight) for hops in traffic.hops]
    ends += [(*list_pairs(one), one.weight) for one in traffic.exchanges if one.size <= PAIRS_PER_BLOCK]
    if not ends:
        empty = np.zeros(0, dtype=np.int64)
        return Graph(traffic.block_count, empty, empty, empty)
    low = np.concatenate([one[0] for one in ends]).astype(np.int64)
    high = np.concatenate([one[1] for one in ends]).astype(np.int64)
    weight = np.repeat(np.array([one[2] for one in ends], dtype=np.int64), [len(one[0]) for one in ends])
    count = traffic.block_count
    if vertex_of is not None:
        low, high = vertex_of[low].astype(np.int64), vertex_of[high].astype(np.int64)
        count = int(vertex_of.max()) + 1
        low, high = np.minimum(low, high), np.maximum(low, high)
        apart = low != high
        low, high, weight = low[apart], high[apart], weight[apart]
    order = np.argsort(low * count + high, kind="stable")
    low, high, weight = low[order], high[order], weight[order]
    first = np.ones(len(low), dtype=bool)
    first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    starts = np.flatnonzero(first)
    return Graph(count, low[starts], high[starts], np.add.reduceat(weight, starts) if len(starts) else weight)


def list_pairs(exchange: Exchange) -> tuple[Ints, Ints]:
    """Return every two units of the same class."""
    members = np.argsort(exchange.class_of, kind="stable").reshape(-1, exchange.size)
    one, other = np.triu_indices(exchange.size, 1)
    return members[:, one].ravel(), members[:, other].ravel()


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
    found[graph.low, graph.high] = graph.weight
    found[graph.high, graph.low] = graph.weight
    return found
