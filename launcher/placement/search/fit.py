"""Lays the domains along an order of the units, so that their borders fall where little traffic crosses.

This is done from the outermost domains inwards. The units of a pod are a region of the mesh, which has an order of its
own for the leaves of the pod: a good order for pods of 128 units, rows perhaps, is not good for leaves of 12. For every
region all orders are tried, quickly; the best ones with more effort.

A profile counts a hop at every cut that it crosses, but a hop costs the same however many domains lie between its
ends. So a profile compares the cuts of one line; to compare lines, the traffic that leaves domains is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from launcher.placement.problem.domains import DomainNode
from launcher.placement.problem.graph import Ints
from launcher.placement.problem.problem import Layout
from launcher.placement.search.context import (
    Partitioner,
    Region,
    SearchContext,
    compute_profile,
    reorder_regions,
    select_inner_hops,
    sum_leaving_traffic,
)
from launcher.placement.search.line_partition import partition_by_beam, partition_greedily
from launcher.placement.search.orders import WalkOrder
from launcher.placement.search.runs import cut_up

GROUPED_LINES, GROUPED_MAX = 2, 4
"""A domain with at most so many children also tries two of them side by side in one band."""


class Outline(NamedTuple):
    """The units on a line, and the outermost domains' regions; `cost`: traffic that leaves them, times its cost."""

    cost: int
    line: Ints
    regions: list[Region]


def fill_in_path_order(context: SearchContext) -> Layout | None:
    """Fill every domain before the next, in the order of paths, as sorting would."""
    tree, count = context.tree, len(context.base_rank)
    if not any(step > 1 for step in tree.steps):
        return np.repeat(tree.items, tree.capacity)[:count].astype(np.int32)
    shares = tree.fill_in_order(count)
    if shares is None:
        return None
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
        cost = int(sum_leaving_traffic(context.hops, line, region_at, 1, regions)[0])
        cost += int(context.price_splits(line)[[region.start for region in regions]].sum())
        owner = np.empty(len(line), dtype=np.int32)
        owner[line] = np.repeat([region.domain.start for region in regions], [region.amount for region in regions])
        found.setdefault(owner.tobytes(), Outline(cost * context.tree.level_costs[root.depth], line, regions))
        return cost

    glances: list[tuple[int, int, Ints, Ints, DomainNode]] = []
    for line in reorder_regions(context, [everything], np.arange(everything.amount), root.depth, orders):
        cut = compute_profile(context.hops, line) + context.price_splits(line)
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
        both = DomainNode(
            start=pair[0].start, end=pair[1].end, room=pair[0].room + pair[1].room, depth=root.depth, children=[*pair]
        )
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
    lines = [line, *reorder_regions(context, regions, line, regions[0].domain.depth, orders)]
    hops = select_inner_hops(context.hops, line, region_at)
    prices = [context.price_splits(each) for each in lines]
    cuts = [compute_profile(hops, each) + price for each, price in zip(lines, prices, strict=True)]
    best: list[tuple[int, int, list[Region]] | None] = [None] * len(regions)

    def attempt(number: int, mine: Sequence[int], partition: Partitioner) -> list[int]:
        shares = [context.divide_region(regions[index], cuts[number], partition) for index in mine]
        pieces = [piece for share in shares for piece in share]
        costs: list[int] = sum_leaving_traffic(hops, lines[number], region_at, len(regions), pieces).tolist()
        for index, share in zip(mine, shares, strict=True):
            if context.split_price:
                costs[index] += int(prices[number][[piece.start for piece in share[1:]]].sum())
            known = best[index]
            if known is None or costs[index] < known[0]:
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
    for region, choice in zip(regions, best, strict=True):
        assert choice is not None
        result[region.start : region.end] = lines[choice[1]][region.start : region.end]
        shared += choice[2]
    return shared, result


def _fill(context: SearchContext, regions: list[Region], line: Ints) -> Layout | None:
    """Assign the items of the innermost domains in order; an item of several units is a domain of its own."""
    tree = context.tree
    layout = np.empty(len(line), dtype=np.int32)
    if not tree.is_split and not tree.is_in_runs:
        places = np.concatenate([region.domain.start + np.arange(region.amount) for region in regions])
        positions = np.concatenate([np.arange(region.start, region.end) for region in regions])
        layout[line[positions]] = tree.items[places]
        return layout
    cut = compute_profile(context.hops, line)
    for region in regions:
        places = np.arange(region.domain.start, region.domain.end)
        if not tree.is_in_runs:
            layout[line[region.start : region.end]] = tree.items[region.domain.start]
            continue
        breaks = np.flatnonzero(np.diff(line[region.start : region.end]) != 1) + 1
        bounds = [region.start, *(breaks + region.start).tolist(), region.end]
        runs = [(low, high - low) for low, high in pairwise(bounds)]
        taken = cut_up(tree.capacity[places].tolist(), runs, cut.tolist())
        if taken is None:
            return None
        for item, start, amount in taken:
            layout[line[start : start + amount]] = tree.items[places[item]]
    return layout
