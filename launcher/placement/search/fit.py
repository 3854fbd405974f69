"""Lays the domains along an order of the units, so that their borders fall where little traffic crosses.

Units form a line, and every domain gets a stretch of it, a region. The cut profile is, for each gap between two units,
the weight of all hops that cross it. This is done from the outermost domains inwards. The units of a pod are a region
of the mesh, which has an order of its own for the leaves of the pod: a good order for pods of 128 units, rows perhaps,
is not good for leaves of 12. For every region all orders are tried, quickly; the best ones with more effort.

A profile counts a hop at every cut that it crosses, but a hop costs the same however many domains lie between its
ends. So a profile compares the cuts of one line; to compare lines, the traffic that leaves domains is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from launcher.placement.problem.hops import Graph, Ints
from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.search.line import (
    Partition,
    RoomKind,
    WalkOrder,
    divide_runs,
    find_only_partition,
    partition_by_beam,
    partition_greedily,
    walk,
)

GROUPED_LINES, GROUPED_MAX = 2, 4
"""A domain with at most so many children also tries two of them side by side in one band."""
SPLIT_PRICE = 2
"""The price of a cut through units that one large item could hold, in multiples of a usual unit's traffic."""

Partitioner = Callable[[Sequence[RoomKind], Sequence[int], int], Partition]


# The tree of domains


class DomainNode(Struct, kw_only=True, eq=False):
    """Items `start` to `end` of `DomainTree.items`."""

    start: int
    end: int
    room: int
    """Units for which these items have room."""
    depth: int = 0
    """How far its children are from the root, an index into `DomainTree.level_costs` and `DomainTree.steps`."""
    children: list[DomainNode] = field(default_factory=list)


class DomainTree:
    """The tree of domains for the search: only what affects the cost, as ranges of items.

    Levels that cost nothing are omitted unless a rule names them, and a domain with a single child is merged with it.
    Items in the same innermost domain are equal, so there the tree ends. `is_in_runs`: items hold runs of several
    units.

    `items`: numbers of the problem's items, those of a domain side by side; `root`: the domain of all.
    `levels`: those that count, outermost first; `level_costs[depth]`: of a hop between two of them and what is inside;
    `steps[depth]`: units that a rule keeps together inside one of them, so that it takes a multiple of that many.
    """

    def __init__(self, problem: Problem) -> None:
        level_costs = problem.traffic.level_costs
        bound = {rule.level: rule.class_size for rule in problem.rules}
        self.is_in_runs = int(problem.capacity.max()) > 1
        self.levels = problem.list_levels()
        labels = [problem.labels[level] for level in self.levels]
        items = np.flatnonzero(problem.capacity)
        keys: list[Ints] = [items, *(label[items].astype(np.int64) for label in reversed(labels))]
        self.items = items[np.lexsort(keys)]
        self._cuts = [np.flatnonzero(np.diff(label[self.items], prepend=-1)).tolist() for label in labels]
        self.level_costs = [sum(level_costs[level:]) for level in self.levels]
        self.steps = [max([1, *(bound[deep] for deep in bound if deep >= level)]) for level in self.levels]
        self.capacity = problem.capacity[self.items].astype(np.int64)
        self._ends = [0, *np.cumsum(self.capacity).tolist()]
        self.root = self._build_domain(0, len(self.items), 0)

    def _build_domain(self, start: int, end: int, depth: int) -> DomainNode:
        outer = self.steps[depth - 1] if depth else 1
        while depth < len(self.levels):
            cuts = self._cuts[depth]
            inside = cuts[bisect_left(cuts, start) : bisect_left(cuts, end)]
            if len(inside) > 1:
                ends = [*inside[1:], end]
                children = [self._build_domain(low, high, depth + 1) for low, high in zip(inside, ends, strict=True)]
                room = sum(child.room for child in children)
                return DomainNode(start=start, end=end, room=room // outer * outer, depth=depth, children=children)
            outer = max(outer, self.steps[depth])
            depth += 1
        room = (self._ends[end] - self._ends[start]) // outer * outer
        return DomainNode(start=start, end=end, room=room)

    def list_usual_rooms(self) -> list[int]:
        """For every depth the room of the domain of a usual unit: a hundred single nodes make no usual domain."""
        rooms: list[int] = []
        layer = [self.root]
        for depth in range(len(self.levels)):
            layer = [each for one in layer for each in (one.depth == depth and one.children) or [one]]
            sizes = np.sort([one.room for one in layer])
            rooms.append(max(1, int(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() // 2)])))
        return rooms

    def fill_in_order(self, domain: DomainNode, amount: int) -> list[tuple[int, int]]:
        """Fill every domain before the next: places in `items` and how much each holds."""
        rooms = [child.room for child in domain.children] or self.capacity[domain.start : domain.end].tolist()
        found: list[tuple[int, int]] = []
        for index, room in enumerate(rooms):
            take = min(room, amount)
            if domain.children:
                found += self.fill_in_order(domain.children[index], take)
            else:
                found.append((domain.start + index, take))
            amount -= take
        return found


# Regions on the line


class Region(NamedTuple):
    """The units of a domain, from `start` on."""

    domain: DomainNode
    start: int
    amount: int

    @property
    def end(self) -> int:
        return self.start + self.amount


class SearchContext:
    """The values common to all fits of a problem.

    `coordinates[depth][axis][unit]`: the unit's position for the walk through regions of this depth. Units that must
    stay together, those of a class and those that one item may hold, have the coordinates of the first of them, so they
    are adjacent. `base_rank[unit]`: their order then.
    """

    def __init__(self, problem: Problem, tree: DomainTree, graph: Graph, firsts: Ints | None = None) -> None:
        """`firsts`: if runs of units are laid out, the first unit of each."""
        self.tree, self.graph = tree, graph
        self.grid = problem.traffic.grid
        ranks = np.arange(problem.traffic.block_count) if firsts is None else firsts
        units = np.arange(len(ranks))
        self.room_max = int(problem.capacity.max())
        # Cutting a run is allowed, but a small item must fill the rest: worth some traffic to avoid.
        self.split_price = SPLIT_PRICE * int(graph.weight.sum()) // len(units) if tree.is_in_runs else 0
        coordinates = np.array(np.unravel_index(ranks, self.grid), dtype=np.int64)
        self.coordinates: list[Ints] = []
        for level in tree.levels:
            first = units - units % self.room_max
            outer = [rule.class_of for rule in problem.rules if rule.level >= level]
            if outer:
                first = np.unique(outer[0], return_index=True)[1][outer[0]]
            self.coordinates.append(coordinates[:, first])
        keys: list[Ints] = [units, *(rule.class_of.astype(np.int64) for rule in reversed(problem.rules))]
        base = np.lexsort(keys)
        self.base_rank = np.empty_like(base)
        self.base_rank[base] = units
        self._children_by_room: dict[DomainNode, tuple[list[RoomKind], list[list[DomainNode]]]] = {}
        self._partitions: dict[tuple[object, ...], Partition] = {}  # a regular cluster repeats the same query often

    def price_splits(self, line: Ints) -> Ints:
        """Return for each position the price of a cut before it through units that one item could hold."""
        price = np.zeros(len(line) + 1, dtype=np.int64)
        if self.split_price:
            price[1:-1][(np.diff(line) == 1) & (line[1:] % self.room_max > 0)] = self.split_price
        return price

    def divide_region(self, region: Region, cut: Ints, partition: Partitioner) -> list[Region]:
        """Divide the region among the domain's children: which lies where, and how much each holds."""
        domain, start, amount = region
        if domain not in self._children_by_room:
            rooms: dict[int, list[DomainNode]] = {}
            for child in domain.children:
                if child.room:
                    rooms.setdefault(child.room, []).append(child)
            sizes = [RoomKind(room, len(rooms[room])) for room in sorted(rooms, reverse=True)]
            self._children_by_room[domain] = sizes, [rooms[kind.room] for kind in sizes]
        sizes, alike = self._children_by_room[domain]
        step = self.tree.steps[domain.depth]
        chosen = find_only_partition(sizes, amount, step)
        if chosen is None:
            profile = cut[start : start + amount + 1]
            key = (partition.__name__, *sizes, profile.tobytes())
            chosen = self._partitions.get(key)
            if chosen is None:
                chosen = self._partitions[key] = partition(sizes, profile.tolist(), step)
        waiting = [iter(group) for group in alike]
        shares: list[Region] = []
        for index, take in chosen:
            shares.append(Region(next(waiting[index]), start, take))
            start += take
        return shares

    def reorder_regions(self, regions: list[Region], line: Ints, orders: Sequence[WalkOrder]) -> list[Ints]:
        """Return lines with the units of each region in another order; regions are in the order of the line."""
        places = np.concatenate([np.arange(region.start, region.end) for region in regions])
        owner = np.repeat(np.arange(len(regions)), [region.amount for region in regions])
        units = line[places]
        units = units[np.lexsort((self.base_rank[units], owner))]
        coordinates = self.coordinates[regions[0].domain.depth][:, units]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        coordinates = coordinates - np.minimum.reduceat(coordinates, starts, axis=1)[:, owner]
        turned: list[Ints] = []
        for order in orders:
            copy = line.copy()
            copy[places] = units[walk(coordinates, self.grid, order, owner)]
            turned.append(copy)
        return turned


def compute_profile(graph: Graph, line: Ints) -> Ints:
    """Return for each position x the weight of hops with exactly one end before x; one longer than the line."""
    place = np.empty_like(line)
    place[line] = np.arange(len(line))
    low, high = place[graph.low], place[graph.high]
    # bincount adds up floats, which are exact for integers of this size.
    opens = np.bincount(np.minimum(low, high), graph.weight, len(line))
    closes = np.bincount(np.maximum(low, high), graph.weight, len(line))
    return np.concatenate(([0], np.cumsum(opens - closes).astype(np.int64)))


def _select_inner_hops(graph: Graph, line: Ints, region_at: Ints) -> Graph:
    """Return the traffic that stays inside regions."""
    region_of = np.empty_like(line)
    region_of[line] = region_at
    stays = (region_of[graph.low] == region_of[graph.high]) & (region_of[graph.low] >= 0)
    return Graph(graph.vertex_count, graph.low[stays], graph.high[stays], graph.weight[stays])


def _sum_between_pieces(graph: Graph, line: Ints, region_at: Ints, region_count: int, pieces: list[Region]) -> Ints:
    """Return for each region the traffic between its pieces."""
    piece_at = np.zeros(len(line), dtype=np.int64)
    piece_at[[piece.start for piece in pieces]] = 1
    piece_of, region_of = np.empty_like(line), np.empty_like(line)
    piece_of[line] = np.cumsum(piece_at)
    region_of[line] = region_at
    apart = piece_of[graph.low] != piece_of[graph.high]
    return np.bincount(region_of[graph.low[apart]], graph.weight[apart], region_count).astype(np.int64)


# Layouts


class Outline(NamedTuple):
    """The units on a line, and the outermost domains' regions."""

    cost: int
    """Traffic that leaves the regions, times its cost."""
    line: Ints
    regions: list[Region]


def fill_in_path_order(context: SearchContext) -> Layout:
    """Fill every domain before the next, in the order of paths, as sorting would; the root must have the room."""
    tree, count = context.tree, len(context.base_rank)
    if max(tree.steps, default=1) == 1:
        return np.repeat(tree.items, tree.capacity)[:count].astype(np.int32)
    shares = tree.fill_in_order(tree.root, count)
    layout = np.empty(count, dtype=np.int32)
    items = tree.items[[place for place, _ in shares]]
    layout[np.argsort(context.base_rank)] = np.repeat(items, [take for _, take in shares])
    return layout


def list_outlines(context: SearchContext, orders: Sequence[WalkOrder], careful: int) -> list[Outline]:
    """Return outlines of the outermost domains, the cheapest first, each only once.

    `careful`: how many of those that are the cheapest in a quick try are tried again with more effort.
    """
    root = context.tree.root
    everything = Region(root, 0, len(context.base_rank))
    region_at = np.zeros(everything.amount, dtype=np.int64)
    found: dict[bytes, Outline] = {}

    def attempt(line: Ints, cut: Ints, domain: DomainNode, partition: Partitioner, tries: int) -> int:
        regions = context.divide_region(everything._replace(domain=domain), cut, partition)
        both = [region for region in regions if region.domain.depth == root.depth and region.domain.children]
        if both:
            rest = [region for region in regions if region not in both]
            inside, line = _divide_regions(context, both, line, orders, tries)
            regions = sorted([*rest, *inside], key=lambda region: region.start)
        cost = int(_sum_between_pieces(context.graph, line, region_at, 1, regions)[0])
        cost += int(context.price_splits(line)[[region.start for region in regions]].sum())
        owner = np.empty(len(line), dtype=np.int32)
        owner[line] = np.repeat([region.domain.start for region in regions], [region.amount for region in regions])
        found.setdefault(owner.tobytes(), Outline(cost * context.tree.level_costs[root.depth], line, regions))
        return cost

    glances: list[tuple[int, int, Ints, Ints, DomainNode]] = []
    for line in context.reorder_regions([everything], np.arange(everything.amount), orders):
        cut = compute_profile(context.graph, line) + context.price_splits(line)
        glances.append((attempt(line, cut, root, partition_greedily, 0), len(glances), line, cut, root))
    for _, _, line, cut, _ in sorted(glances, key=lambda glance: glance[:2])[:GROUPED_LINES]:
        for domain in _list_groupings(root):
            glances.append((attempt(line, cut, domain, partition_greedily, 0), len(glances), line, cut, domain))
    for _, _, line, cut, domain in sorted(glances, key=lambda glance: glance[:2])[:careful]:
        attempt(line, cut, domain, partition_by_beam, 1)
    return sorted(found.values(), key=lambda outline: outline.cost)


def _list_groupings(root: DomainNode) -> list[DomainNode]:
    """The same domain with two of its children as one: two side by side allow more than a line of three bands."""
    if not 3 <= len(root.children) <= GROUPED_MAX:
        return []
    found: list[DomainNode] = []
    for pair in combinations(root.children, 2):
        rest = [child for child in root.children if child not in pair]
        room = pair[0].room + pair[1].room
        both = DomainNode(start=pair[0].start, end=pair[1].end, room=room, depth=root.depth, children=[*pair])
        found.append(replace(root, children=[*rest, both]))
    return found


def fit(context: SearchContext, outline: Outline, inner: Sequence[Sequence[WalkOrder]], tries: int) -> Layout | None:
    """A layout with these outermost regions; inside each, domains lie along the best of the orders `inner[depth]`.

    `tries`: how many of the orders, the best of a quick try, are tried with more effort. None if runs are split so
    that the items cannot hold them.
    """
    _, line, regions = outline
    done: list[Region] = []
    while regions:
        done += [region for region in regions if not region.domain.children]
        regions = [region for region in regions if region.domain.children]
        depth = min((region.domain.depth for region in regions), default=0)
        now = [region for region in regions if region.domain.depth == depth]
        later = [region for region in regions if region.domain.depth != depth]
        if now:
            now, line = _divide_regions(context, now, line, inner[depth], tries)
        regions = sorted(now + later, key=lambda region: region.start)
    return _fill(context, done, line)


def _divide_regions(
    context: SearchContext, regions: list[Region], line: Ints, orders: Sequence[WalkOrder], tries: int
) -> tuple[list[Region], Ints]:
    """Divide the regions among their domains' children, each along its best order; return the new line."""
    region_at = np.full(len(line), -1, dtype=np.int64)
    for index, region in enumerate(regions):
        region_at[region.start : region.end] = index
    lines = [line, *context.reorder_regions(regions, line, orders)]
    graph = _select_inner_hops(context.graph, line, region_at)
    prices = [context.price_splits(each) for each in lines]
    cuts = [compute_profile(graph, each) + price for each, price in zip(lines, prices, strict=True)]
    best: dict[int, tuple[int, int, list[Region]]] = {}

    def attempt(number: int, mine: Sequence[int], partition: Partitioner) -> list[int]:
        shares = [context.divide_region(regions[index], cuts[number], partition) for index in mine]
        pieces = [piece for share in shares for piece in share]
        costs: list[int] = _sum_between_pieces(graph, lines[number], region_at, len(regions), pieces).tolist()
        for index, share in zip(mine, shares, strict=True):
            if context.split_price:
                costs[index] += int(prices[number][[piece.start for piece in share[1:]]].sum())
            if index not in best or costs[index] < best[index][0]:
                best[index] = (costs[index], number, share)
        return costs

    glance = np.array([attempt(number, range(len(regions)), partition_greedily) for number in range(len(lines))])
    promising = np.argsort(glance, axis=0, kind="stable")[:tries]
    for number in range(len(lines)):
        mine = np.flatnonzero((promising == number).any(axis=0)).tolist()
        if mine:
            attempt(number, mine, partition_by_beam)
    result = line.copy()
    shared: list[Region] = []
    for index, region in enumerate(regions):
        _, number, share = best[index]
        result[region.start : region.end] = lines[number][region.start : region.end]
        shared += share
    return shared, result


def _fill(context: SearchContext, regions: list[Region], line: Ints) -> Layout | None:
    """Assign the items of the innermost domains in order."""
    tree = context.tree
    layout = np.empty(len(line), dtype=np.int32)
    cut = compute_profile(context.graph, line).tolist() if tree.is_in_runs else []
    for domain, start, amount in regions:
        units = line[start : start + amount]
        if not tree.is_in_runs:
            layout[units] = tree.items[domain.start : domain.start + amount]
        else:
            breaks = (np.flatnonzero(np.diff(units) != 1) + start + 1).tolist()
            runs = [(low, high - low) for low, high in pairwise([start, *breaks, start + amount])]
            taken = divide_runs(tree.capacity[domain.start : domain.end].tolist(), runs, cut)
            if taken is None:
                return None
            for item, first, count in taken:
                layout[line[first : first + count]] = tree.items[domain.start + item]
    return layout
