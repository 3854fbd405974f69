"""The line on which units are laid out: profiles of cuts, traffic between stretches, and other orders of them.

Units form a line, and every domain gets a stretch of it, a region. The cut profile is, for each gap between two units,
the weight of all hops that cross it. Results are cached, as a regular cluster computes the same repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from launcher.placement.problem.domains import DomainNode, DomainTree
from launcher.placement.problem.graph import Graph, Ints
from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.search.line_partition import Partition, RoomKind, find_only_partition
from launcher.placement.search.orders import WalkOrder, walk

SPLIT_PRICE = 2
"""The price of a cut through units that one large item could hold, in multiples of a usual unit's traffic."""

Partitioner = Callable[[Sequence[RoomKind], Sequence[int], int], Partition]


class Region(NamedTuple):
    """The units of a domain, from `start` on."""

    domain: DomainNode
    start: int
    amount: int

    @property
    def end(self) -> int:
        return self.start + self.amount


class PairTraffic(NamedTuple):
    """Traffic between units."""

    low: Ints
    high: Ints
    weight: Ints


class SearchContext:
    """The values common to all fits of a problem.

    `coordinates[depth][axis][unit]`: the unit's position for the walk through regions of this depth. Units that must
    stay together, those of a class and those that one item may hold, have the coordinates of the first of them, so they
    are adjacent. `base_rank[unit]`: their order then.
    """

    def __init__(self, problem: Problem, tree: DomainTree, graph: Graph, firsts: Ints | None = None) -> None:
        """`firsts`: if runs of units are laid out, the first unit of each."""
        self.tree = tree
        self.hops = PairTraffic(graph.low, graph.high, graph.weight)
        self.grid = problem.traffic.grid
        ranks = np.arange(problem.traffic.block_count) if firsts is None else firsts
        units = np.arange(len(ranks))
        room_max = int(problem.capacity.max()) if problem.is_contiguous else 1
        self.room_max = room_max
        # Cutting a run is allowed, but a small item must fill the rest: worth some traffic to avoid.
        self.split_price = SPLIT_PRICE * int(graph.weight.sum()) // len(units) if tree.is_in_runs else 0
        coordinates = np.array(np.unravel_index(ranks, self.grid), dtype=np.int64)
        self.coordinates: list[Ints] = []
        for level in tree.levels:
            first = units - units % room_max
            outer = [rule.class_of for rule in problem.rules if rule.level >= level]
            if outer:
                first = np.unique(outer[0], return_index=True)[1][outer[0]]
            self.coordinates.append(coordinates[:, first])
        keys: list[Ints] = [units, *(rule.class_of.astype(np.int64) for rule in reversed(problem.rules))]
        base = np.lexsort(keys)
        self.base_rank = np.empty_like(base)
        self.base_rank[base] = units
        self._children_by_room: dict[DomainNode, tuple[list[RoomKind], list[list[DomainNode]]]] = {}
        self.partitions: dict[tuple[object, ...], Partition] = {}

    def compute_cost(self, layout: Layout, problem: Problem) -> int:
        """Return what leaves the domains, times the level costs; J without the host's share."""
        labels = [problem.labels[level][layout] for level in range(len(problem.labels))]
        low, high, weight = self.hops
        apart = (weight[label[low] != label[high]].sum() for label in labels)
        return sum(cost * int(traffic) for cost, traffic in zip(problem.traffic.level_costs, apart, strict=True))

    def price_splits(self, line: Ints) -> Ints:
        """Return for each position the price of a cut before it through units that one item could hold."""
        price = np.zeros(len(line) + 1, dtype=np.int64)
        if self.split_price:
            price[1:-1][(np.diff(line) == 1) & (line[1:] % self.room_max > 0)] = self.split_price
        return price

    def _group_children(self, domain: DomainNode) -> tuple[list[RoomKind], list[list[DomainNode]]]:
        """Return the domain's children by room, the largest first."""
        found = self._children_by_room.get(domain)
        if found is None:
            rooms: dict[int, list[DomainNode]] = {}
            for child in domain.children:
                if child.room:
                    rooms.setdefault(child.room, []).append(child)
            alike = [rooms[room] for room in sorted(rooms, reverse=True)]
            found = self._children_by_room[domain] = [RoomKind(group[0].room, len(group)) for group in alike], alike
        return found

    def divide_region(self, region: Region, cut: Ints, partition: Partitioner) -> list[Region]:
        """Divide the region among the domain's children: which lies where, and how much each holds."""
        domain, start, amount = region
        sizes, alike = self._group_children(domain)
        step = self.tree.steps[domain.depth]
        chosen = find_only_partition(sizes, amount, step)
        if chosen is None:
            profile = cut[start : start + amount + 1]
            # A regular cluster repeats the same query many times.
            key = (partition.__name__, *sizes, profile.tobytes())
            chosen = self.partitions.get(key)
            if chosen is None:
                chosen = self.partitions[key] = partition(sizes, profile.tolist(), step)
        waiting = [iter(group) for group in alike]
        shares: list[Region] = []
        for index, take in chosen:
            shares.append(Region(next(waiting[index]), start, take))
            start += take
        return shares


def reorder_regions(
    context: SearchContext, regions: list[Region], line: Ints, depth: int, orders: Sequence[WalkOrder]
) -> list[Ints]:
    """Return the line with the units of each region in another order; regions are in the order of the line."""
    places = np.concatenate([np.arange(region.start, region.end) for region in regions])
    owner = np.repeat(np.arange(len(regions)), [region.amount for region in regions])
    units = line[places]
    sort = np.lexsort((context.base_rank[units], owner))
    units = units[sort]
    coordinates = context.coordinates[depth][:, units]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    coordinates = coordinates - np.minimum.reduceat(coordinates, starts, axis=1)[:, owner]
    turned: list[Ints] = []
    for order in orders:
        copy = line.copy()
        copy[places] = units[walk(coordinates, context.grid, order, owner)]
        turned.append(copy)
    return turned


def select_inner_hops(hops: PairTraffic, line: Ints, region_at: Ints) -> PairTraffic:
    """Return the traffic that stays inside regions."""
    region_of = np.empty_like(line)
    region_of[line] = region_at
    stays = (region_of[hops.low] == region_of[hops.high]) & (region_of[hops.low] >= 0)
    return PairTraffic(hops.low[stays], hops.high[stays], hops.weight[stays])


def compute_profile(hops: PairTraffic, line: Ints) -> Ints:
    """Return for each position x the weight of hops with exactly one end before x; one longer than the line."""
    place = np.empty_like(line)
    place[line] = np.arange(len(line))
    low, high = place[hops.low], place[hops.high]
    # bincount adds up floats, which are exact for integers of this size.
    opens = np.bincount(np.minimum(low, high), hops.weight, len(line))
    closes = np.bincount(np.maximum(low, high), hops.weight, len(line))
    return np.concatenate(([0], np.cumsum(opens - closes).astype(np.int64)))


def sum_leaving_traffic(
    hops: PairTraffic, line: Ints, region_at: Ints, region_count: int, pieces: list[Region]
) -> Ints:
    """Return for each region the traffic between its pieces."""
    piece_at = np.zeros(len(line), dtype=np.int64)
    piece_at[[piece.start for piece in pieces]] = 1
    piece_of, region_of = np.empty_like(line), np.empty_like(line)
    piece_of[line] = np.cumsum(piece_at)
    region_of[line] = region_at
    apart = piece_of[hops.low] != piece_of[hops.high]
    sums = np.bincount(region_of[hops.low[apart]], hops.weight[apart], region_count)
    return sums.astype(np.int64)
