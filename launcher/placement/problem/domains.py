"""The tree of domains for the search: only what affects the cost, as ranges of items.

Levels that cost nothing are omitted unless a rule names them, and a domain with a single child is merged with it.
Items in the same innermost domain are equal, so there the tree ends, unless items hold several units that need not be
consecutive: then they are its leaves. `is_in_runs`: items hold runs of several units (see `runs`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.problem import Problem

Ints = NDArray[np.int64]


@dataclass(kw_only=True, eq=False)
class DomainNode:
    """Items `start` to `end` of `DomainTree.items`, with `room` units in all.

    `depth`: how far its children are from the root, an index into `DomainTree.level_costs` and `DomainTree.steps`.
    """

    start: int
    end: int
    room: int
    depth: int = 0
    children: list[DomainNode] = field(default_factory=list)


class DomainTree:
    """`items`: numbers of the problem's items, those of a domain side by side; `root`: the domain of all.

    `levels`: those that count, outermost first; `level_costs[depth]`: of a hop between two of them and what is inside;
    `steps[depth]`: units that a rule keeps together inside one of them, so that it takes a multiple of that many.
    """

    def __init__(self, problem: Problem) -> None:
        level_costs = problem.traffic.level_costs
        host = len(level_costs) - 1
        bound = {rule.level: compute_class_size(rule.class_of) for rule in problem.rules}
        is_large = int(problem.capacity.max()) > 1
        self.is_in_runs = is_large and problem.is_contiguous
        self.is_split = is_large and not problem.is_contiguous
        self.levels = [level for level in range(host) if level_costs[level] or level in bound]
        labels = [problem.labels[level] for level in self.levels]
        items = np.flatnonzero(problem.capacity)
        keys: list[Ints] = [items, *(label[items].astype(np.int64) for label in reversed(labels))]
        self.items = items[np.lexsort(keys)]
        if self.is_split:
            self.levels.append(host)
        self.level_costs = [sum(level_costs[level:]) for level in self.levels]
        self.steps = [max([1, *(bound[deep] for deep in bound if deep >= level)]) for level in self.levels]
        self.capacity = problem.capacity[self.items].astype(np.int64)
        self._ends = [0, *np.cumsum(self.capacity).tolist()]
        self._cuts = [np.flatnonzero(np.diff(label[self.items], prepend=-1)).tolist() for label in labels]
        if self.is_split:
            self._cuts.append(list(range(len(self.items))))
        self.root = self._build_domain(0, len(self.items), 0)

    def list_usual_rooms(self) -> list[int]:
        """For every depth the room of the domain of a usual unit: a hundred single nodes make no usual domain."""
        rooms: list[int] = []
        layer = [self.root]
        for depth in range(len(self.levels)):
            layer = [each for one in layer for each in (one.children if one.depth == depth else [one])]
            sizes = np.sort([one.room for one in layer])
            rooms.append(max(1, int(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() // 2)])))
        return rooms

    def fill_in_order(self, amount: int) -> list[tuple[int, int]] | None:
        """Fill every domain before the next: places in `items` and how much each holds; None without the room."""
        if self.root.room < amount:
            return None
        found: list[tuple[int, int]] = []
        todo = [(self.root, amount)]
        while todo:
            domain, amount = todo.pop()
            shares: list[tuple[DomainNode, int]] = []
            for child in domain.children:
                shares.append((child, min(child.room, amount)))
                amount -= shares[-1][1]
            todo += shares[::-1]
            if not domain.children:
                for place in range(domain.start, domain.end):
                    take = min(int(self.capacity[place]), amount)
                    found.append((place, take))
                    amount -= take
        return found

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


def compute_class_size(class_of: NDArray[np.int32]) -> int:
    """Return the units in a class of a rule."""
    return len(class_of) // (int(class_of.max()) + 1)
