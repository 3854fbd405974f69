"""Improves a layout by swaps: two blocks change places, or one moves to a spare place.

A block is a unit, the run of an item, or a line of units in the same domain: swaps of single units would never separate
units with much traffic. The gain of a swap is computed without trying it. For each block and each bin (equal places,
such as the nodes of a leaf) a table has the traffic that the block would keep inside that bin. The best swap between
two bins is then the best leaver of the one and the best leaver of the other, so all pairs of bins are compared at once,
and after a swap only the rows of the two blocks' partners change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launcher.placement.problem.graph import Ints, build_graph, list_neighbours
from launcher.placement.problem.problem import Layout, Problem, find_fault

FAR = np.int64(-(1 << 60))
LINE_MAX = 64
CELLS_MAX = 1 << 21
"""Blocks times bins: 16 MiB for the table."""


class Segments(NamedTuple):
    """The blocks of a layout: stretches of units; the last ones are dummies, which represent spare places.

    Block `block_of[unit]` begins at unit `first[block]` and has `length[block]` units, a dummy none. Its place is in
    bin `where[block]`. `items[place]` are the items of a place, as many as it has units: a block of fewer takes the
    first of them. Places of a bin are adjacent and have `room[bin]` units. Blocks move only inside a `zone[bin]`.
    """

    segment_of: Ints
    first: Ints
    length: Ints
    bin_of: Ints
    items: Ints
    room: Ints
    zone: Ints
    shared: Ints

    def make_layout(self, bin_of: Ints) -> Layout:
        place = np.empty(len(bin_of), dtype=np.int64)
        place[np.argsort(bin_of, kind="stable")] = np.arange(len(bin_of))
        offset = np.arange(len(self.segment_of)) - self.first[self.segment_of]
        layout: Layout = self.items[place[self.segment_of], offset].astype(np.int32)
        return layout


def make_segments(problem: Problem, layout: Layout, size: int) -> Segments:
    """Return lines of `size` units as blocks, if in one domain and ending where items end; else the smallest blocks."""
    count, level_costs = len(layout), problem.traffic.level_costs
    capacity = np.minimum(problem.capacity, count).astype(np.int64)
    bound = [rule.level for rule in problem.rules]
    kept = [level for level in range(len(level_costs) - 1) if level_costs[level] or level in bound]
    labels = [problem.labels[level] for level in kept]
    own = np.full(len(capacity), -1) if problem.is_contiguous else np.where(capacity > 1, np.arange(len(capacity)), -1)
    domain = np.unique(np.stack([*labels, own]), axis=1, return_inverse=True)[1].ravel()
    starts = _find_starts(layout, domain[layout], size, problem.is_contiguous)
    length = np.diff([*starts.tolist(), count])
    held = layout[starts]
    spare = np.repeat(np.arange(len(capacity)), _count_spare(problem, layout, capacity))
    # A line moves to a line's place; any other block where there is room for it.
    is_one = length <= 1 if not problem.is_contiguous else layout[starts + length - 1] == held
    in_runs = problem.is_contiguous
    room = np.concatenate(
        (np.where(is_one & in_runs, capacity[held], length), capacity[spare] if in_runs else spare * 0 + 1)
    )
    keys = np.stack((np.concatenate((domain[held], domain[spare])), room))
    bins, where = np.unique(keys, axis=1, return_inverse=True)
    where = where.ravel()
    order = np.argsort(where, kind="stable")
    items = np.repeat(np.concatenate((held, spare))[:, None], int(room.max()), axis=1).astype(np.int64)
    for index in np.flatnonzero(~is_one).tolist():
        items[index, : length[index]] = layout[starts[index] : starts[index] + length[index]]
    example = np.concatenate((held, spare))[order][np.searchsorted(where[order], np.arange(bins.shape[1]))]
    shared = np.zeros((len(example), len(example)), dtype=np.int64)
    for level, label in zip(kept, labels, strict=True):
        shared += level_costs[level] * (label[example][:, None] == label[example])
    shared += level_costs[-1] * ((own[example][:, None] == own[example]) & (own[example] >= 0))
    return Segments(
        segment_of=np.repeat(np.arange(len(starts)), length),
        first=starts,
        length=np.concatenate((length, np.zeros(len(spare), dtype=np.int64))),
        bin_of=where.astype(np.int64),
        items=items[order],
        room=bins[1],
        zone=problem.labels[max(bound)][example].astype(np.int64) if bound else np.zeros(len(example), dtype=np.int64),
        shared=shared,
    )


def _find_starts(layout: Layout, domain: Ints, size: int, is_contiguous: bool) -> Ints:
    """Return the first unit of every block."""
    begins = np.ones(len(layout), dtype=bool)
    if is_contiguous:
        begins[1:] = np.diff(layout) != 0
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


def _count_spare(problem: Problem, layout: Layout, capacity: Ints) -> Ints:
    """Return the spare places of each item: of one that holds a run, one if it is empty."""
    held = np.bincount(layout, minlength=len(capacity))
    return (held == 0) & (capacity > 0) if problem.is_contiguous else capacity - held


def improve(problem: Problem, layout: Layout, swaps: int = 2000) -> Layout:
    """Return a valid layout that costs no more. `swaps`: at most so many of each kind."""
    room = int(problem.capacity.max())
    sizes = [1]
    if room == 1:
        for side in reversed(problem.traffic.grid):
            sizes.append(sizes[-1] * side)
    elif problem.is_contiguous:
        sizes += [room, 1]
    for size in dict.fromkeys(sizes) if room == 1 else sizes:
        if size <= LINE_MAX and size < len(layout):
            found = _descend(problem, layout, size, swaps)
            if problem.compute_cost(found) < problem.compute_cost(layout) and find_fault(problem, found) is None:
                layout = found
    return layout


def _descend(problem: Problem, layout: Layout, size: int, swaps: int) -> Layout:
    here = make_segments(problem, layout, size)
    ends, weights = list_neighbours(build_graph(problem.traffic, here.segment_of))
    if len(here.room) < 2 or here.bin_of.size * here.room.size > CELLS_MAX or not ends.size:
        return layout
    swapper = _Swapper(here, ends, weights)
    swapper.descend(swaps)
    return here.make_layout(swapper.bin_of)


class _Swapper:
    """The blocks during the descent; `keeps[block, bin]`: traffic times level costs that a block would keep inside."""

    def __init__(self, segments: Segments, ends: Ints, weights: Ints) -> None:
        self.segments, self.ends, self.weights = segments, ends, weights
        self.segment_count = len(ends)
        self.bin_of = segments.bin_of.copy()
        self.keeps = np.zeros((len(self.bin_of), len(segments.room)), dtype=np.int64)
        for column in range(ends.shape[1]):
            self.keeps[: self.segment_count] += weights[:, column, None] * segments.shared[self.bin_of[ends[:, column]]]
        too_large = segments.length[:, None] > segments.room
        self.forbidden = too_large if too_large.any() else None
        self.apart = segments.zone[:, None] != segments.zone
        self.apart |= np.eye(len(segments.room), dtype=bool)
        self.sizes = np.bincount(self.bin_of, minlength=len(segments.room))
        self.starts = np.cumsum(self.sizes) - self.sizes
        # Blocks in the order of their bins; a swap exchanges two entries.
        self.order = np.argsort(self.bin_of, kind="stable")
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(len(self.order))

    def find_leavers(self) -> tuple[Ints, Ints]:
        """Return for each block its gain in each bin; for every two bins the gain of the best leaver."""
        wins = self.keeps - self.keeps[np.arange(len(self.bin_of)), self.bin_of][:, None]
        if self.forbidden is not None:
            wins[self.forbidden] = FAR
        best = np.maximum.reduceat(wins[self.order], self.starts, axis=0)
        return wins, best

    def rate_pairs(self, best: Ints) -> Ints:
        both: Ints = best + best.T
        both[self.apart] = FAR
        return both

    def find_best_swap(self, wins: Ints, a: int, b: int) -> tuple[int, int, int]:
        """Return the gain of the best swap found between two bins, and its blocks.

        Two blocks with mutual traffic gain less by a swap than each would alone, so the best leavers of both sides need
        not be the best pair: the best partner of each of them is tried.
        """
        mine, theirs = self.list_members(a), self.list_members(b)
        one, other = mine[int(wins[mine, b].argmax())], theirs[int(wins[theirs, a].argmax())]
        first, last = self.compute_gains(int(one), theirs), self.compute_gains(int(other), mine)
        if first.max() >= last.max():
            return int(first.max()), int(one), int(theirs[int(first.argmax())])
        return int(last.max()), int(mine[int(last.argmax())]), int(other)

    def list_members(self, a: int) -> Ints:
        return self.order[self.starts[a] : self.starts[a] + self.sizes[a]]

    def compute_gains(self, one: int, others: Ints) -> Ints:
        """Return the gain if a block changes places with each of some in one other bin."""
        keeps, shared = self.keeps, self.segments.shared
        a, b = self.bin_of[one], self.bin_of[others[0]]
        found: Ints = keeps[one, b] - keeps[one, a] + keeps[others, a] - keeps[others, b]
        length, room = self.segments.length, self.segments.room
        found[(length[one] > room[b]) | (length[others] > room[a])] = FAR
        if one < self.segment_count:
            between = np.zeros(len(self.bin_of), dtype=np.int64)
            between[self.ends[one]] = self.weights[one]
            found -= between[others] * (shared[a, a] + shared[b, b] - 2 * shared[a, b])
        return found

    def swap(self, u: int, v: int) -> None:
        a, b = self.bin_of[u], self.bin_of[v]
        change = self.segments.shared[b] - self.segments.shared[a]
        for block, sign in ((u, 1), (v, -1)):
            if block < self.segment_count:
                self.keeps[self.ends[block]] += (sign * self.weights[block])[:, None] * change
        self.bin_of[u], self.bin_of[v] = b, a
        position_u, position_v = self.position[u], self.position[v]
        self.order[position_u], self.order[position_v] = v, u
        self.position[u], self.position[v] = position_v, position_u

    def descend(self, swaps: int) -> None:
        """Swap as long as it helps."""
        batch = max(8, len(self.sizes))
        while swaps > 0:
            wins, best = self.find_leavers()
            both = np.triu(self.rate_pairs(best), 1)
            flat = both.ravel()
            top = np.argsort(-flat, kind="stable")[:batch] if flat.size <= batch * 8 else _find_largest(flat, batch)
            done = 0
            for cell in top.tolist():
                if flat[cell] <= 0 or done >= swaps:
                    break
                a, b = divmod(cell, len(self.sizes))
                gain, one, other = self.find_best_swap(wins, a, b)
                if gain > 0:
                    self.swap(one, other)
                    done += 1
            swaps -= done
            if not done:
                return


def _find_largest(values: Ints, count: int) -> Ints:
    """Return the indices of the `count` largest values, the largest first; of equals the first."""
    least = np.partition(values, -count)[-count] if values.size > count else FAR
    cells = np.flatnonzero(values >= least)
    found: Ints = cells[np.argsort(-values[cells], kind="stable")][:count]
    return found
