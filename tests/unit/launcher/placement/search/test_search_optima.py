"""The search against optima that an exact solver has proven; `make slow WHAT=optima` proves them again."""

from __future__ import annotations

import numpy as np

from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.problem import is_valid
from launcher.placement.search.explore import explore
from tests.support.placement.optima import missed, stored

ALL = stored()
LAYOUTS_MAX = 3000


def test_the_search_finds_proven_optima_which_are_valid_and_above_the_bound() -> None:
    # One of six; `make slow WHAT=optima` tries all of them.
    assert missed(ALL[::6]) == []
    one = next(each for each in ALL if each.name == "within-128")
    problem = one.problem()
    found = explore(problem, [np.array(one.layout, dtype=np.int32)], beam_width=24, steps=120, target=0)
    assert found is not None
    assert problem.compute_cost(found) == one.optimum
    for one in ALL:
        problem, layout = one.problem(), np.array(one.layout, dtype=np.int32)
        assert is_valid(problem, layout), one.name
        assert problem.compute_cost(layout) == one.optimum, one.name
    ratios = []
    for one in ALL:
        assert one.optimum
        ratios.append(compute_lower_bound(one.problem()) / one.optimum)
    assert max(ratios) <= 1
    assert ratios.count(1) >= 5
    assert sum(ratios) / len(ratios) > 0.5
