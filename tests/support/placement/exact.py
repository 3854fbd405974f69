"""Whether any layout is cheaper than a given one, answered for certain by a constraint solver (OR-Tools CP-SAT).

The planner's own answers are quick and usually best; how often, only something slow can say. Here the problem is
written down a second time, in booleans, and shares no line with the search: which domain of the innermost level
above the nodes has which unit, for every domain and pair of talking units whether both ends are in it, and, where
nodes have room for several units, whether a unit sits on the same node as the next one. A solver that finds nothing
below a cost and has looked everywhere has proven that cost least.

Three things let it look everywhere in seconds. Equal siblings are taken in the order of their least units. No set
of n units can have more traffic among them than the best one, which is counted over all sets beforehand. And what is
asked for is only a layout cheaper than the one known.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from launcher.placement.problem.hops import Hops
from launcher.placement.problem.problem import Layout, Problem

STEPS_MAX = 10.0  # of the solver's own measure; roughly seconds

Pairs = dict[tuple[int, int], int]


def pairs_of(problem: Problem) -> Pairs:
    """How much every two units send to each other, in scaled numbers."""
    pairs: Pairs = {}
    for part in problem.traffic.parts:
        if isinstance(part, Hops):
            ends = zip(part.low.tolist(), part.high.tolist(), strict=True)
        else:
            every = itertools.combinations(range(problem.traffic.block_count), 2)
            ends = ((low, high) for low, high in every if part.class_of[low] == part.class_of[high])
        for low, high in ends:
            pairs[low, high] = pairs.get((low, high), 0) + part.weight
    return pairs


def most_inside(pairs: Pairs, unit_count: int) -> list[int]:
    """The most traffic that n units can have among themselves, for n from 0: over all 2**unit_count sets."""
    inside: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
    sizes: NDArray[np.int8] = np.zeros(1, dtype=np.int8)
    for unit in range(unit_count):
        # The sets with `unit` as their last: those without it, and what it says to each of their units.
        sets = np.arange(len(inside), dtype=np.int32)
        added = inside.copy()
        for other in range(unit):
            if weight := pairs.get((other, unit)):
                added += weight * (sets >> other & 1)
        inside, sizes = np.concatenate((inside, added)), np.concatenate((sizes, sizes + 1))
    most = np.zeros(unit_count + 1, dtype=np.int64)
    for size in range(unit_count + 1):
        most[size] = inside[sizes == size].max()
    return [int(value) for value in most]


class Model:
    """The booleans of a problem whose items hold at most two units each."""

    def __init__(self, problem: Problem) -> None:
        assert int(problem.capacity.max()) <= 2
        self.problem = problem
        self.unit_count = problem.traffic.block_count
        self.units = range(self.unit_count)
        self.model = cp_model.CpModel()
        self.pairs = pairs_of(problem)
        self.most = most_inside(self.pairs, self.unit_count)
        self.total = sum(self.pairs.values())
        # Levels above the host; without any, the root is the only domain.
        outer = problem.labels[:-1] or (np.zeros(len(problem.capacity), dtype=np.int32),)
        self.domains = [int(level.max()) + 1 for level in outer]
        self.parents = [
            [int(outer[level - 1][np.argmax(outer[level] == domain)]) if level else 0 for domain in range(count)]
            for level, count in enumerate(self.domains)
        ]
        self.rooms = [
            [int(problem.capacity[level == domain].sum()) for domain in range(count)]
            for level, count in zip(outer, self.domains, strict=True)
        ]
        leaf = outer[-1]
        self.singles = [int(np.count_nonzero((leaf == d) & (problem.capacity == 1))) for d in range(self.domains[-1])]
        self.doubles = [int(np.count_nonzero((leaf == d) & (problem.capacity == 2))) for d in range(self.domains[-1])]
        self.holds = self._assignment()
        self.order = [self._order_of_equals(level) for level in range(len(self.domains))]
        self.together = self._pairs_on_a_node()
        self.inside = [self._inside(level) for level in range(len(self.domains))]
        self._rules()

    def _assignment(self) -> list[list[list[cp_model.IntVar]]]:
        """holds[level][domain][unit], each level the sum of the one below."""
        last = len(self.domains) - 1
        holds = [
            [[self.model.new_bool_var(f"{level}.{domain}.{unit}") for unit in self.units] for domain in range(count)]
            for level, count in enumerate(self.domains)
        ]
        for unit in self.units:
            for level in range(last + 1):
                self.model.add_exactly_one(holds[level][domain][unit] for domain in range(self.domains[level]))
            for level in range(last):
                for domain in range(self.domains[level]):
                    below = [d for d, parent in enumerate(self.parents[level + 1]) if parent == domain]
                    self.model.add(sum(holds[level + 1][d][unit] for d in below) == holds[level][domain][unit])
        for level, rooms in enumerate(self.rooms):
            for domain, room in enumerate(rooms):
                self.model.add(sum(holds[level][domain]) <= room)
        return holds

    def _form(self, level: int, domain: int) -> object:
        """Two siblings of the same form are interchangeable."""
        if level == len(self.domains) - 1:
            return self.singles[domain], self.doubles[domain]
        below = [d for d, parent in enumerate(self.parents[level + 1]) if parent == domain]
        return sorted(map(repr, (self._form(level + 1, d) for d in below)))

    def _order_of_equals(self, level: int) -> None:
        """Of equal siblings the one before has a lower unit than any of the next one's."""
        for one, other in itertools.combinations(range(self.domains[level]), 2):
            is_next = not any(
                self._form(level, d) == self._form(level, one) and self.parents[level][d] == self.parents[level][one]
                for d in range(one + 1, other)
            )
            is_equal = self._form(level, one) == self._form(level, other)
            if is_next and is_equal and self.parents[level][one] == self.parents[level][other]:
                for unit in self.units:
                    self.model.add(self.holds[level][other][unit] <= sum(self.holds[level][one][:unit]))

    def _pairs_on_a_node(self) -> list[cp_model.IntVar]:
        """together[unit]: it sits on one node with the next unit."""
        together = [self.model.new_bool_var(f"with next {unit}") for unit in range(self.unit_count - 1)]
        for one, other in itertools.pairwise(together):
            self.model.add_at_most_one(one, other)
        ends: list[list[cp_model.IntVar]] = [[] for _ in self.singles]
        for unit, pair in enumerate(together):
            for leaf in range(len(self.singles)):
                here, there = self.holds[-1][leaf][unit], self.holds[-1][leaf][unit + 1]
                self.model.add_implication(pair, here).only_enforce_if(there)
                self.model.add_implication(pair, there).only_enforce_if(here)
                start = self.model.new_bool_var(f"pair {unit} in {leaf}")
                self.model.add(start >= pair + here - 1)
                self.model.add(start <= pair)
                self.model.add(start <= here)
                ends[leaf].append(start)
        for leaf, pairs in enumerate(ends):
            self.model.add(sum(pairs) <= self.doubles[leaf])
            self.model.add(sum(self.holds[-1][leaf]) - sum(pairs) <= self.singles[leaf] + self.doubles[leaf])
        if self.problem.active_max is not None:
            self.model.add(self.unit_count - sum(together) <= self.problem.active_max)
        self.model.add(self.unit_count - sum(together) >= self.problem.active_min)
        return together

    def _inside(self, level: int) -> cp_model.LinearExpr:
        """The traffic that does not leave the domains of a level."""
        parts = []
        for domain in range(self.domains[level]):
            holds = self.holds[level][domain]
            here = []
            for (low, high), weight in self.pairs.items():
                both = self.model.new_bool_var(f"{level}.{domain}.{low}-{high}")
                self.model.add_implication(both, holds[low])
                self.model.add_implication(both, holds[high])
                self.model.add(both >= holds[low] + holds[high] - 1)
                here.append(weight * both)
            room = min(self.rooms[level][domain], self.unit_count)
            counts = [self.model.new_bool_var(f"{level}.{domain} has {count}") for count in range(room + 1)]
            self.model.add_exactly_one(counts)
            self.model.add(sum(holds) == sum(count * has for count, has in enumerate(counts)))
            self.model.add(sum(here) <= sum(self.most[count] * has for count, has in enumerate(counts)))
            parts += here
        return sum(parts)

    def _rules(self) -> None:
        for rule in self.problem.rules:
            assert rule.level < len(self.domains)
            first: dict[int, int] = {}
            for unit, group in enumerate(rule.class_of.tolist()):
                start = first.setdefault(group, unit)
                for holds in self.holds[rule.level]:
                    self.model.add(holds[unit] == holds[start])

    def cost(self) -> cp_model.LinearExpr:
        """J in scaled numbers."""
        level_costs = self.problem.traffic.level_costs
        on_a_node = sum(self.pairs.get((u, u + 1), 0) * pair for u, pair in enumerate(self.together))
        outer = level_costs[:-1] if len(self.problem.labels) > 1 else (0,)
        found = level_costs[-1] * (self.total - on_a_node)
        return found + sum(cost * (self.total - inside) for cost, inside in zip(outer, self.inside, strict=True))

    def layout(self, solver: cp_model.CpSolver) -> Layout:
        """Units to items, from the leaves they are in."""
        free = [
            {size: np.flatnonzero((self.problem.labels[-2] == leaf) & (self.problem.capacity == size)).tolist()
             for size in (1, 2)}
            for leaf in range(self.domains[-1])
        ]  # fmt: skip
        layout = np.full(self.unit_count, -1, dtype=np.int32)
        with_next = [bool(solver.value(pair)) for pair in self.together] + [False]
        for is_pair in (True, False):
            for unit in self.units:
                if layout[unit] < 0 and with_next[unit] == is_pair:
                    leaf = next(d for d, holds in enumerate(self.holds[-1]) if solver.value(holds[unit]))
                    item = (free[leaf][1] if not is_pair and free[leaf][1] else free[leaf][2]).pop(0)
                    layout[unit : unit + 1 + is_pair] = item
        return layout


def cheaper(problem: Problem, known: int | None) -> tuple[bool, Layout | None]:
    """The best layout that costs less than `known`, or the best of all; None if there is none.

    The first value says whether that is certain, which it is not when the solver has used up its steps.
    """
    model = Model(problem)
    if known is not None:
        model.model.add(model.cost() <= known - 1)
    model.model.minimize(model.cost())
    solver = cp_model.CpSolver()
    # One worker and a limit in steps: the same answer on every machine.
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = STEPS_MAX
    status = solver.solve(model.model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return status == cp_model.OPTIMAL, model.layout(solver)
    return status == cp_model.INFEASIBLE, None
