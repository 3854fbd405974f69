"""Symmetric domains: the same rooms in the same arrangement, at all levels below.

Exchanging two with the same parent changes no cost. That has two uses. A search that visits the domains in the order of
their names may find a plan that it would miss with other names; `sort_by_kind` puts them in an order that only depends
on their structure. And a layout from scratch may put stage 0 on one leaf and stage 1 on another, when the reverse would
move no rank; `relabel_domains` gives each domain the place of the equal one that held most of the same units before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.stability import NO_ITEM

Numbers = NDArray[np.int64]


def sort_by_kind(problem: Problem) -> tuple[Problem, Layout]:
    """Return the problem with its items in an order that no name decides, and for each place its item.

    Siblings are sorted from the largest to the smallest; only symmetric ones keep their order.
    """
    keys: list[Numbers] = []
    for level, kinds in zip(problem.labels, _classify_domains(problem), strict=True):
        keys += [kinds[level], level.astype(np.int64)]
    order = np.lexsort(keys[::-1]).astype(np.int32)
    labels = tuple(_renumber(level[order]) for level in problem.labels)
    return replace(problem, capacity=problem.capacity[order], labels=labels), order


def relabel_domains(problem: Problem, layout: Layout, held: Layout) -> Layout:
    """Return a layout of the same cost that keeps as many units on their items as renaming finds, greedily."""
    known = np.flatnonzero(held != NO_ITEM)
    goal = np.zeros(1, dtype=np.int64)  # domain of the layout -> the domain that takes its place, one level up
    above = np.zeros(len(problem.capacity), dtype=np.int64)  # item -> its domain one level up
    for level, kinds in zip(problem.labels, _classify_domains(problem), strict=True):
        labels = level.astype(np.int64)
        count = len(kinds)
        parent = np.zeros(count, dtype=np.int64)
        parent[labels] = above
        new, old = labels[layout[known]], labels[held[known]]
        may = (kinds[new] == kinds[old]) & (goal[parent[new]] == parent[old])
        pairs, overlap = np.unique(new[may] * count + old[may], return_counts=True)
        best_first = pairs[np.lexsort((pairs, -overlap))]
        goal = _match(best_first // count, best_first % count, goal[parent], parent, kinds)
        above = labels
    return goal[layout].astype(np.int32)


def _match(new: Numbers, old: Numbers, wanted_parent: Numbers, parent: Numbers, kinds: Numbers) -> Numbers:
    """Map domain -> domain, one to one: the given pairs as long as both are free, then the others in order."""
    count = len(kinds)
    goal = np.full(count, -1, dtype=np.int64)
    is_taken = np.zeros(count, dtype=np.bool_)
    for one, other in zip(new.tolist(), old.tolist(), strict=True):
        if goal[one] < 0 and not is_taken[other]:
            goal[one] = other
            is_taken[other] = True
    # A domain without a pair stays if it can, and else follows in order among its equals below the same parent.
    stays = (goal < 0) & ~is_taken & (wanted_parent == parent)
    goal[stays] = np.flatnonzero(stays)
    is_taken[stays] = True
    lost = np.flatnonzero(goal < 0)
    free = np.flatnonzero(~is_taken)
    lost = lost[np.lexsort((lost, kinds[lost], wanted_parent[lost]))]
    free = free[np.lexsort((free, kinds[free], parent[free]))]
    goal[lost] = free
    return goal


def _classify_domains(problem: Problem) -> Sequence[Numbers]:
    """Per level, outermost first: domain -> a number that symmetric ones share; of a level's, the largest are first."""
    found: list[Numbers] = []
    labels = problem.labels[-1].astype(np.int64)  # the hosts: one item each
    inner = [(-room,) for room in problem.capacity.tolist()]
    for level in (*problem.labels[-2::-1], None):
        number = {key: index for index, key in enumerate(sorted(set(inner)))}
        kinds = np.array([number[key] for key in inner], dtype=np.int64)
        found.append(kinds)
        if level is None:
            break
        holder = np.zeros(len(kinds), dtype=np.int64)
        holder[labels] = level
        parts: list[list[int]] = [[] for _ in range(int(level.max()) + 1)]
        for domain, kind in zip(holder.tolist(), kinds.tolist(), strict=True):
            parts[domain].append(kind)
        rooms = np.bincount(level, weights=problem.capacity).astype(np.int64).tolist()
        inner = [(-room, *sorted(each)) for room, each in zip(rooms, parts, strict=True)]
        labels = level.astype(np.int64)
    return found[::-1]


def _renumber(labels: Layout) -> Layout:
    """Return adjacent domains, numbered from 0 in their order."""
    return np.cumsum(np.diff(labels, prepend=labels[:1]) != 0, dtype=np.int32)
