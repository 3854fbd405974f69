"""Groups from round trips: what is near, what is noise, and what cannot be told."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from launcher.extensions.measure.grouping import Groups, Pair, cut, find_groups

NEAR_S, FAR_S = 0.0001, 0.02


def draw(groups: Groups, spread: float = 0.3, seed: int = 0) -> dict[Pair, float]:
    rng = random.Random(seed)
    group_of = {member: index for index, group in enumerate(groups) for member in group}
    return {
        (one, other): (NEAR_S if group_of[one] == group_of[other] else FAR_S) * rng.lognormvariate(0, spread)
        for one, other in combinations(sorted(group_of), 2)
    }


@pytest.mark.parametrize(
    "groups", [((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 5), (1, 4, 6), (2, 3, 7, 8, 9)), ((0, 3), (1, 2))]
)
def test_groups_come_out_as_they_are(groups: Groups) -> None:
    found = find_groups([member for group in groups for member in group], draw(groups))
    assert found.groups == groups
    assert found.is_consistent
    assert 100 < found.ratio < 400


def test_missing_odd_or_noisy_pairs_make_no_other_group() -> None:
    groups = ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11))
    rng = random.Random(1)
    known = {pair: value for pair, value in draw(groups).items() if rng.random() > 0.33}
    assert find_groups(range(12), known).groups == groups
    groups = ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11))
    assert find_groups(range(12), draw(groups) | {(0, 6): NEAR_S, (2, 9): NEAR_S, (3, 4): FAR_S}).groups == groups
    for seed in range(50):
        found = find_groups(range(12), draw((tuple(range(12)),), 1.5, seed))
        assert len(found.groups) == 1 or not found.is_consistent
    found = find_groups(range(8), draw(((0,), (1, 2, 3, 4, 5, 6, 7))))
    assert len(found.groups) == 1
    assert found.reason == "there are no two groups of several nodes"


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5])
def test_round_trips_that_are_much_alike_are_one_group(spread: float) -> None:
    for seed in range(20):
        found = find_groups(range(16), draw((tuple(range(16)),), spread, seed))
        assert found.groups == (tuple(range(16)),)


def test_the_cut_is_between_two_heaps_and_none_below_the_floor() -> None:
    known = {pair: value / 2000 for pair, value in draw(((0, 1), (2, 3))).items()}
    assert len(find_groups(range(4), known).groups) == 1
    at, distance = cut([1.0, 1.2, 0.8, 5.0, 5.5, 4.5, 5.0])
    assert 1.2 < at < 4.5
    assert distance == pytest.approx(4.0)
