"""Improves a layout by swaps: two blocks change places, or one moves to a spare place.

A block is a unit, the run of an item, or a line of units in the same domain: swaps of single units would never separate
units with much traffic. The gain of a swap is computed without trying it. For each block and each bin (equal places,
such as the nodes of a leaf) a table has the traffic that the block would keep inside that bin. The best swap between
two bins is then the best leaver of the one and the best leaver of the other, so all pairs of bins are compared at once,
and after a swap only the rows of the two blocks' partners change.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from launcher.placement.problem.hops import Ints, build_graph, list_neighbours
from launcher.placement.problem.problem import Layout, Problem, is_valid

FAR = np.int64(-(1 << 60))
LINE_MAX = 64
SWAPS_MAX = 2000
CELLS_MAX = 1 << 21
"""Blocks times bins: 16 MiB for the table."""


def improve(problem: Problem, layout: Layout) -> Layout:
    """Return a valid layout that costs no more."""
    room = int(problem.capacity.max())
    lines = accumulate(reversed(problem.traffic.grid), mul, initial=1)
    for size in dict.fromkeys(lines) if room == 1 else (1, room, 1):
        if size <= LINE_MAX and size < len(layout):
            found = _descend(problem, layout, size)
            if problem.compute_cost(found) < problem.compute_cost(layout) and is_valid(problem, found):
                layout = found
    return layout


def _descend(problem: Problem, layout: Layout, size: int) -> Layout:
    """Swap blocks of lines of `size` units as long as it helps."""
    segments = _make_segments(problem, layout, size)
    ends, weights = list_neighbours(build_graph(problem.traffic, segments.segment_of))
    if len(segments.room) < 2 or segments.bin_of.size * segments.room.size > CELLS_MAX or not ends.size:
        return layout
    swapper = _Swapper(segments, ends, weights)
    swapper.descend()
    place = np.empty(len(swapper.bin_of), dtype=np.int64)
    place[np.argsort(swapper.bin_of, kind="stable")] = np.arange(len(place))
    offset = np.arange(len(layout)) - segments.first[segments.segment_of]
    improved: Layout = segments.items[place[segments.segment_of], offset].astype(np.int32)
    return improved


class _Segments(NamedTuple):
    """The blocks of a layout: stretches of units; the last ones are dummies, which represent spare places.

    Block `segment_of[unit]` begins at unit `first[block]` and has `length[block]` units, a dummy none. Its place is in
    bin `bin_of[block]`. `items[place]` are the items of a place, as many as it has units: a block of fewer takes the
    first of them. Places of a bin are adjacent and have `room[bin]` units. Blocks move only inside a `zone[bin]`.
    `shared[bin, bin]`: the level costs that a hop between the two does not pay.
    """

    segment_of: Ints
    first: Ints
    length: Ints
    bin_of: Ints
    items: Ints
    room: Ints
    zone: Ints
    shared: Ints


def _make_segments(problem: Problem, layout: Layout, size: int) -> _Segments:
    """Return lines of `size` units as blocks, if in one domain and ending where items end; else the smallest blocks."""
    count, level_costs = len(layout), problem.traffic.level_costs
    capacity = np.minimum(problem.capacity, count).astype(np.int64)
    every = np.arange(len(capacity))
    kept = problem.list_levels()
    keys = np.stack([np.zeros_like(every), *(problem.labels[level] for level in kept)])
    domain = np.unique(keys, axis=1, return_inverse=True)[1].ravel()
    starts = _find_starts(layout, domain[layout], size)
    length = np.diff([*starts.tolist(), count])
    taken = layout[starts]
    # Spare places: the empty items.
    spare = np.flatnonzero((np.bincount(layout, minlength=len(capacity)) == 0) & (capacity > 0))
    # A line moves to a line's place; any other block where there is room for it.
    is_one = layout[starts + length - 1] == taken
    item = np.concatenate((taken, spare)).astype(np.int64)
    room = np.concatenate((np.where(is_one, capacity[taken], length), capacity[spare]))
    bins, bin_of = np.unique(np.stack((domain[item], room)), axis=1, return_inverse=True)
    bin_of = bin_of.ravel().astype(np.int64)
    items = np.repeat(item[:, None], int(room.max()), axis=1)
    for index in np.flatnonzero(~is_one).tolist():
        items[index, : length[index]] = layout[starts[index] : starts[index] + length[index]]
    example = item[np.unique(bin_of, return_index=True)[1]]
    shared = np.zeros((len(example), len(example)), dtype=np.int64)
    for level in kept:
        label = problem.labels[level][example]
        shared += level_costs[level] * (label[:, None] == label)
    bound = [rule.level for rule in problem.rules]
    return _Segments(
        segment_of=np.repeat(np.arange(len(starts)), length),
        first=starts,
        length=np.concatenate((length, np.zeros(len(spare), dtype=np.int64))),
        bin_of=bin_of,
        items=items[np.argsort(bin_of, kind="stable")],
        room=bins[1],
        zone=problem.labels[max(bound)][example].astype(np.int64) if bound else np.zeros(len(example), dtype=np.int64),
        shared=shared,
    )


def _find_starts(layout: Layout, domain: Ints, size: int) -> Ints:
    """Return the first unit of every block."""
    begins = np.diff(layout, prepend=-1) != 0
    if size > 1:
        edge, here = [*begins.tolist(), True], domain.tolist()
        unit = 0
        while unit + size <= len(layout):
            if edge[unit] and edge[unit + size] and len(set(here[unit : unit + size])) == 1:
                begins[unit + 1 : unit + size] = False
                unit += size
            else:
                unit += 1
    return np.flatnonzero(begins)


class _Swapper:
    """The blocks during the descent; `keeps[block, bin]`: traffic times level costs that a block would keep inside."""

    def __init__(self, segments: _Segments, ends: Ints, weights: Ints) -> None:
        self.segments, self.ends, self.weights = segments, ends, weights
        self.segment_count = len(ends)
        self.bin_of = segments.bin_of.copy()
        self.keeps = np.zeros((len(self.bin_of), len(segments.room)), dtype=np.int64)
        for column in range(ends.shape[1]):
            self.keeps[: self.segment_count] += weights[:, column, None] * segments.shared[self.bin_of[ends[:, column]]]
        self.too_large = segments.length[:, None] > segments.room
        self.forbidden = np.nonzero(self.too_large)
        self.apart = segments.zone[:, None] != segments.zone
        self.apart |= np.eye(len(segments.room), dtype=bool)
        self.sizes = np.bincount(self.bin_of, minlength=len(segments.room))
        self.starts = np.cumsum(self.sizes) - self.sizes
        # Blocks in the order of their bins; a swap exchanges two entries.
        self.order = np.argsort(self.bin_of, kind="stable")
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(len(self.order))

    def descend(self) -> None:
        """Swap as long as it helps."""
        batch = max(8, len(self.sizes))
        swaps = SWAPS_MAX
        while swaps > 0:
            # For each block its gain in each bin; for every two bins the gain of the best leaver, and of both.
            gains = self.keeps - self.keeps[np.arange(len(self.bin_of)), self.bin_of][:, None]
            gains[self.forbidden] = FAR
            best = np.maximum.reduceat(gains[self.order], self.starts, axis=0)
            both = best + best.T
            both[self.apart] = FAR
            flat = np.triu(both, 1).ravel()
            done = 0
            for cell in _find_largest(flat, batch).tolist():
                if flat[cell] <= 0 or done >= swaps:
                    break
                gain, one, other = self._find_best_swap(gains, *divmod(cell, len(self.sizes)))
                if gain > 0:
                    self._swap(one, other)
                    done += 1
            swaps -= done
            if not done:
                return

    def _find_best_swap(self, gains: Ints, a: int, b: int) -> tuple[int, int, int]:
        """Return the gain of the best swap found between two bins, and its blocks.

        Two blocks with mutual traffic gain less by a swap than each would alone, so the best leavers of both sides need
        not be the best pair: the best partner of each of them is tried.
        """
        mine, theirs = (self.order[self.starts[each] : self.starts[each] + self.sizes[each]] for each in (a, b))
        one, other = int(mine[gains[mine, b].argmax()]), int(theirs[gains[theirs, a].argmax()])
        first, last = self._compute_gains(one, theirs), self._compute_gains(other, mine)
        if first.max() >= last.max():
            return int(first.max()), one, int(theirs[first.argmax()])
        return int(last.max()), int(mine[last.argmax()]), other

    def _compute_gains(self, one: int, others: Ints) -> Ints:
        """Return the gain if a block changes places with each of some in one other bin."""
        keeps, shared = self.keeps, self.segments.shared
        a, b = self.bin_of[one], self.bin_of[others[0]]
        found: Ints = keeps[one, b] - keeps[one, a] + keeps[others, a] - keeps[others, b]
        found[self.too_large[one, b] | self.too_large[others, a]] = FAR
        if one < self.segment_count:
            between = np.zeros(len(self.bin_of), dtype=np.int64)
            between[self.ends[one]] = self.weights[one]
            found -= between[others] * (shared[a, a] + shared[b, b] - 2 * shared[a, b])
        return found

    def _swap(self, u: int, v: int) -> None:
        a, b = self.bin_of[u], self.bin_of[v]
        change = self.segments.shared[b] - self.segments.shared[a]
        for block, sign in ((u, 1), (v, -1)):
            if block < self.segment_count:
                self.keeps[self.ends[block]] += (sign * self.weights[block])[:, None] * change
        self.bin_of[u], self.bin_of[v] = b, a
        position_u, position_v = self.position[u], self.position[v]
        self.order[position_u], self.order[position_v] = v, u
        self.position[u], self.position[v] = position_v, position_u


def _find_largest(values: Ints, count: int) -> Ints:
    """Return the indices of the `count` largest values, the largest first; of equals the first."""
    least = np.partition(values, -count)[-count] if values.size > count else FAR
    cells = np.flatnonzero(values >= least)
    found: Ints = cells[np.argsort(-values[cells], kind="stable")][:count]
    return found
