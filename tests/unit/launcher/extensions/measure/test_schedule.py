"""Who sends to whom: each to one other, each from one, and never to itself."""

from __future__ import annotations

from collections import Counter

import pytest

from launcher.extensions.measure.schedule import NOBODY, list_asked, make_across_round, make_inside_round

GROUPS = ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9))


def test_in_a_random_round_all_send_to_one_other_and_who_is_left_out_to_none() -> None:
    for turn in range(20):
        targets = make_inside_round(10, [range(10)], 3, turn).targets
        assert sorted(targets) == list(range(10))
        assert all(target != sender for sender, target in enumerate(targets))
    targets = make_inside_round(4, [[0, 1, 3]], 3, 0).targets
    assert targets[2] == NOBODY
    assert 2 not in targets
    made = [make_inside_round(16, [range(16)], 3, turn) for turn in (0, 1, 0)]
    assert made[0] == made[2] != made[1]


@pytest.mark.parametrize("turn", range(20))
def test_across_groups_none_sends_inside_its_own(turn: int) -> None:
    targets = make_across_round(10, [GROUPS], 5, turn).targets
    group_of = {member: index for index, group in enumerate(GROUPS) for member in group}
    assert all(group_of[sender] != group_of[target] for sender, target in enumerate(targets))
    assert sorted(targets) == list(range(10))


def test_across_none_sends_to_its_own_parent_and_inside_all_to_a_mate() -> None:
    targets = make_across_round(10, [((0, 1, 2, 3, 4, 5, 6), (7, 8, 9))], 5, 0).targets
    assert Counter(targets)[NOBODY] == 4
    assert {target for target in targets[:7] if target != NOBODY} == {7, 8, 9}
    parents = (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    for turn in range(20):
        targets = make_across_round(8, parents, 5, turn).targets
        assert all(sender // 4 == target // 4 and sender // 2 != target // 2 for sender, target in enumerate(targets))
    targets = make_inside_round(5, ((0, 2, 4), (1,)), 5, 0).targets
    assert sorted(targets[sender] for sender in (0, 2, 4)) == [0, 2, 4]
    assert targets[1] == targets[3] == NOBODY


@pytest.mark.parametrize("count", [2, 3, 8, 9, 32])
def test_every_pair_is_asked_once_or_by_both(count: int) -> None:
    pairs = Counter(frozenset((own, other)) for own in range(count) for other in list_asked(own, count))
    assert len(pairs) == count * (count - 1) // 2
    assert set(pairs.values()) <= ({1} if count % 2 else {1, 2})
