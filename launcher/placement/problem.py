"""The search's view of a plan: items with room for units, domains as numbers, traffic as arrays.

An item is what gets units: a node, or a whole domain of nodes where domains are used entirely or not at all.
Items stand in the canonical order of the tree, and a layout says for every unit which item holds it. Names, paths
and devices are left behind here, so what follows can be arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.placement.cost import Labels, cost
from launcher.placement.hops import Traffic

Layout = NDArray[np.int32]
"""unit -> item that holds it."""


class Rule(NamedTuple):
    """Units of one class stay inside one domain of a level.

    `level` is an index into `Problem.labels`; `class_of[unit]` numbers the classes from 0, all of the same size.
    """

    level: int
    class_of: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Which layouts are valid, and what they cost.

    `capacity[item]`: most units it holds. `labels[level][item]`: the item's domain, numbered from 0 within its
    level in the order of the items; levels as in `traffic.tolls`, outermost first, the host's last; a domain lies
    inside one of the level before. `is_contiguous`: the units of an item are consecutive. `active_min` and
    `active_max` bound how many items hold units. An item need not be filled.
    """

    traffic: Traffic
    capacity: NDArray[np.int32]
    labels: tuple[NDArray[np.int32], ...]
    rules: tuple[Rule, ...] = ()
    is_contiguous: bool = True
    active_min: int = 1
    active_max: int | None = None

    def spread(self, layout: Layout) -> list[Labels]:
        """For every level: unit -> domain."""
        return [level[layout] for level in self.labels]

    def cost(self, layout: Layout) -> int:
        """J, in the traffic's scaled numbers."""
        return cost(self.traffic, self.spread(layout))


def fault(problem: Problem, layout: Layout) -> str | None:
    """What makes a layout invalid, or None."""
    if len(layout) != problem.traffic.unit_count:
        return f"{len(layout)} units are placed, not {problem.traffic.unit_count}"
    held = np.bincount(layout, minlength=len(problem.capacity))
    if (held > problem.capacity).any():
        return f"item {int(np.argmax(held > problem.capacity))} holds more than it can"
    active_count = int(np.count_nonzero(held))
    if active_count < problem.active_min or (problem.active_max is not None and active_count > problem.active_max):
        return f"{active_count} items are active"
    if problem.is_contiguous and np.count_nonzero(np.diff(layout)) + 1 != active_count:
        return "the units of an item are not consecutive"
    for rule in problem.rules:
        pairs = np.unique(np.stack((rule.class_of, problem.labels[rule.level][layout])), axis=1)
        if pairs.shape[1] != int(rule.class_of.max()) + 1:
            return f"a class of units lies in several domains of level {rule.level}"
    return None
