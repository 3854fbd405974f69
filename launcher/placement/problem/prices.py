"""The exact cost of filling a hole with each of the free items.

When a node is lost and all others stay, its ranks need a new item. That item pays, for all their traffic with ranks
that have a place, the costs of the levels on the way. Near is usually cheap, but near to which ranks depends on the
traffic: a stage's tensor-parallel half matters more than its pipeline neighbour.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.stability import NO_ITEM

PRICED_MAX = 512
"""Holes that are priced one by one; where more is lost or new, a layout from scratch is as good."""


class Prices:
    """Picks the cheapest item for each hole, and records the picks.

    `held`: unit -> item, NOBODY for the holes.
    """

    def __init__(self, problem: Problem, held: Layout) -> None:
        self._problem = problem
        self._layout = held.copy()
        self._left = PRICED_MAX
        self._partners = _find_partners(problem, held == NO_ITEM)
        self._free = np.zeros(0, dtype=np.int64)
        self._is_uniform = not problem.rules and int(problem.capacity.min()) == int(problem.capacity.max())

    def pick(self, free: Collection[int], start: int, missing: int) -> int:
        """The item for units from `start` on: one that can hold them all, then the cheapest, then the smallest."""
        if not self._left:
            return next(iter(free)) if self._is_uniform else NO_ITEM
        self._left -= 1
        if len(self._free) != len(free):
            self._free = np.fromiter(free, dtype=np.int64, count=len(free))
        items = self._free
        if self._problem.rules:
            items = items[self._find_allowed(start, items)]
            if not len(items):
                return NO_ITEM
        rooms = self._problem.capacity[items].astype(np.int64)
        price = self._compute_prices(items, range(start, start + missing))
        if self._is_uniform:
            best = int(np.argmin(price))
        else:
            fits = rooms >= missing
            best = int(np.lexsort((np.where(fits, rooms, 0), price, np.where(fits, 0, -rooms), ~fits))[0])
        taker = int(items[best])
        self._layout[start : start + min(missing, int(rooms[best]))] = taker
        self._free = self._free[self._free != taker]  # as the caller will do, except for items with room left
        return taker

    def _compute_prices(self, items: NDArray[np.int64], blocks: range) -> NDArray[np.int64]:
        found: dict[int, int] = {}
        for unit in blocks:
            for partner, weight in self._partners.get(unit, ()):
                item = int(self._layout[partner])
                if item != NO_ITEM and partner not in blocks:
                    found[item] = found.get(item, 0) + weight
        if not found:
            return np.zeros(len(items), dtype=np.int64)
        partners = np.array(list(found), dtype=np.int64)
        weights = list(found.values())
        price = np.zeros(len(items), dtype=np.int64)
        for level_cost, labels in zip(self._problem.traffic.level_costs, self._problem.labels, strict=True):
            if level_cost:
                inside = np.zeros(len(labels), dtype=np.int64)
                np.add.at(inside, labels[partners], weights)
                price += level_cost * (sum(weights) - inside[labels[items]])
        return price

    def _find_allowed(self, start: int, items: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return items in the domains of the rest of the hole's classes."""
        allowed = np.ones(len(items), dtype=np.bool_)
        for rule in self._problem.rules:
            mates = self._layout[rule.class_of == rule.class_of[start]]
            mates = mates[mates != NO_ITEM]
            if len(mates):
                labels = self._problem.labels[rule.level]
                allowed &= labels[items] == labels[mates[0]]
        return allowed


def _find_partners(problem: Problem, is_hole: NDArray[np.bool_]) -> dict[int, list[tuple[int, int]]]:
    """Return the partners of each unit of a hole, with the traffic."""
    partners: dict[int, list[tuple[int, int]]] = {}
    if np.count_nonzero(is_hole) > PRICED_MAX:
        is_hole = is_hole & (np.cumsum(is_hole) <= PRICED_MAX)
    for hops in problem.traffic.hops:
        for one, other in ((hops.low, hops.high), (hops.high, hops.low)):
            touching = np.flatnonzero(is_hole[one])
            for unit, partner in zip(one[touching].tolist(), other[touching].tolist(), strict=True):
                partners.setdefault(unit, []).append((partner, hops.weight))
    for exchange in problem.traffic.exchanges:
        order = np.argsort(exchange.class_of, kind="stable").reshape(-1, exchange.size)
        for unit in np.flatnonzero(is_hole).tolist():
            members: Sequence[int] = order[exchange.class_of[unit]].tolist()
            partners.setdefault(unit, []).extend((member, exchange.weight) for member in members if member != unit)
    return partners
