"""The search against optima that an exact solver has proven; `make slow WHAT=optima` proves them again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.problem import Problem, is_valid
from launcher.placement.search.explore import explore
from tests.support.placement.optima import missed, stored

ALL = stored()
LAYOUTS_MAX = 3000


def test_the_search_finds_the_proven_optima() -> None:
    # One of six; `make slow WHAT=optima` tries all of them.
    assert missed(ALL[::6]) == []


def test_exploring_on_from_the_optimum_does_not_lose_it() -> None:
    one = next(each for each in ALL if each.name == "within-128")
    problem = one.problem()
    found = explore(problem, [np.array(one.layout, dtype=np.int32)], beam_width=24, steps=120, target=0)
    assert found is not None
    assert problem.compute_cost(found) == one.optimum


def test_every_stored_layout_is_valid_and_costs_what_is_stored() -> None:
    for one in ALL:
        problem, layout = one.problem(), np.array(one.layout, dtype=np.int32)
        assert is_valid(problem, layout), one.name
        assert problem.compute_cost(layout) == one.optimum, one.name


def test_the_lower_bound_is_above_no_optimum_and_meets_some() -> None:
    ratios = []
    for one in ALL:
        assert one.optimum
        ratios.append(compute_lower_bound(one.problem()) / one.optimum)
    assert max(ratios) <= 1
    assert ratios.count(1) >= 5
    assert sum(ratios) / len(ratios) > 0.5


def test_the_set_is_of_many_sizes_and_kinds() -> None:
    assert len(ALL) >= 300
    assert len({len(one.nodes) for one in ALL}) >= 15
    assert {one.name.split("-")[0] for one in ALL} == {"pipeline", "fixed", "context", "experts", "wide", "within"}
    assert sum(max(len(sizes) for sizes in one.leaves.values()) > 1 for one in ALL) > len(ALL) * 0.9
    assert sum(any(16 in sizes for sizes in one.leaves.values()) for one in ALL) > len(ALL) // 10
    assert len({str(one) for one in ALL}) == len(ALL)


def all_layouts(problem: Problem) -> Iterator[list[int]]:
    """Every valid layout, once for those that only differ in which of equal nodes of a leaf has what."""
    leaf = problem.labels[-2]

    def onward(begun: list[int]) -> Iterator[list[int]]:
        if len(begun) == problem.traffic.block_count:
            yield begun
            return
        seen = set()
        for item, room in enumerate(problem.capacity.tolist()):
            kind = int(leaf[item]), room
            if item not in begun and kind not in seen:
                seen.add(kind)
                for length in range(1, min(room, problem.traffic.block_count - len(begun)) + 1):
                    yield from onward([*begun, *[item] * length])

    return onward([])


def costs(problem: Problem, layouts: NDArray[np.int32]) -> NDArray[np.int64]:
    """J of many layouts, from the pairs of units that talk."""
    found = np.zeros(len(layouts), dtype=np.int64)
    for labels, level_cost in zip(problem.labels, problem.traffic.level_costs, strict=True):
        where = labels[layouts]
        for hops in problem.traffic.hops:
            found += level_cost * hops.weight * (where[:, hops.low] != where[:, hops.high]).sum(axis=1)
        for exchange in problem.traffic.exchanges:
            low, high = np.triu_indices(problem.traffic.block_count, 1)
            is_pair = exchange.class_of[low] == exchange.class_of[high]
            leaving = where[:, low[is_pair]] != where[:, high[is_pair]]
            found += level_cost * exchange.weight * leaving.sum(axis=1)
    return found


def test_the_smallest_optima_are_those_of_trying_everything() -> None:
    tried = 0
    for one in ALL:
        problem = one.problem()
        if problem.traffic.block_count > 6 or problem.rules:
            continue
        layouts = []
        for layout in all_layouts(problem):
            layouts.append(layout)
            if len(layouts) > LAYOUTS_MAX:
                break
        else:
            assert costs(problem, np.array(layouts, dtype=np.int32)).min() == one.optimum, one.name
            tried += 1
    assert tried >= 10
