"""Rates of links from what arrived."""

from __future__ import annotations

from launcher.extensions.measure.rates import find_exceptions, find_usual, measure_domains
from launcher.extensions.measure.schedule import NOBODY, LoadRound


def test_an_uplink_carries_the_highest_sums_and_one_far_from_the_usual_is_an_exception() -> None:
    round = LoadRound(targets=(2, 3, 0, NOBODY, 5, 4))
    received = {2: 30, 3: 12, 0: 20, 4: 99, 5: 99}
    assert measure_domains([(0, 1), (2, 3), (4, 5)], [(round, received)]) == (42, 42, 0)
    round = LoadRound(targets=(1, 0))
    assert measure_domains([(0,), (1,)], [(round, {0: 100, 1: 96}), (round, {0: 50, 1: 98})]) == (98, 98)
    rates = (40, 41, 20, 0, 39)
    assert find_usual(rates) == 40
    assert find_exceptions(rates, 0.15) == (2,)
    assert find_usual((0, 0)) == 0
