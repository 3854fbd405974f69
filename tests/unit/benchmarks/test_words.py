"""Figures for people, and the minutes of a report: digits, units, and how many pairs there is time for."""

from __future__ import annotations

import pytest

from benchmarks import report, words
from benchmarks.figures import Aim
from benchmarks.report import Step
from benchmarks.runs import NEVER, Spread


@pytest.mark.parametrize(
    ("value", "unit", "digits", "shown"),
    [
        (0.1785, "s", 2, "0.18 s"),
        (0.0131, "s", 3, "13.1 ms"),
        (75.21, "s", 2, "75 s"),
        (17.077, "MiB", 3, "17.1 MiB"),
        (217.44, "MiB", 3, "217 MiB"),
        (3_531_737, "1/s", 2, "3.5 million/s"),
        (551_355, "1/s", 2, "0.55 million/s"),
        (1.1, "1/s", 3, "1.10 per s"),
        (12_340, "B", 2, "12 kB"),
        (9_876_543, "B", 3, "9.88 MB"),
        (8_192, "", 2, "8,192"),
        (7.15625, "", 3, "7.16"),
        (0, "s", 2, "0 s"),
    ],
)
def test_a_quantity_has_a_unit_near_its_size(value: float, unit: str, digits: int, shown: str) -> None:
    assert words.quantity(value, unit, digits) == shown


def test_a_spread_sets_the_digits_and_what_never_came_says_how_long_was_waited() -> None:
    assert words.with_range(Spread(0.3512, 0.3512, 0.3512, 1), "s") == "0.35 s (1)"
    assert words.with_range(Spread(0.1234, 0.08, 0.16, 7), "s") == "0.12 s (0.08 to 0.16; 7)"
    assert words.with_range(Spread(17.077, 17.07, 17.09, 3), "MiB") == "17.1 MiB (17.1 to 17.1; 3)"
    assert words.with_range(Spread(0.05, 0.04, 0.061, 3), "s") == "50 ms (40 to 61; 3)"
    missed = Spread(0.1243, 0.08, 0.16, 7)
    assert words.ratio(missed).startswith("0.12 ")
    assert words.ratio(missed, Aim("", "", ratio=0.12)).startswith("0.124 ")
    assert words.ratio(missed, Aim("", "", ratio=0.1)).startswith("0.12 ")
    late = Spread(NEVER, NEVER, NEVER, 5, late=5, watched_s=12.0)
    assert words.with_range(late, "s") == words.median(late, "s") == "not within 12 s, 5 runs"
    assert words.median(Spread(NEVER, 2.0, NEVER, 3, late=2, watched_s=12.0), "s") == "not within 12 s, 2 of 3 runs"
    assert words.median(Spread(NEVER, NEVER, NEVER, 1, late=1, watched_s=12.0), "s") == "not within 12 s, 1 run"
    assert words.with_range(Spread(2.0, 1.0, NEVER, 3, 1, 20.0), "s") == "2.0 s (1.0 to more than 20; 3)"


@pytest.mark.parametrize(
    ("text", "found"),
    [("20m", 1200), ("90s", 90), ("1h30m", 5400), ("45", 45), ("", None), ("m", None), ("-5m", None), ("1.5h", None)],
)
def test_a_budget_is_written_as_people_write_times(text: str, found: float | None) -> None:
    if found is not None:
        assert report.parse_seconds(text) == found
        return
    with pytest.raises(ValueError, match="is no time such as 20m"):
        report.parse_seconds(text)


@pytest.mark.parametrize(("value", "shown"), [(0.00312, 0.0032), (0.0151, 0.016), (0.02, 0.02), (12.1, 13), (130, 130)])
def test_a_bound_is_rounded_up(value: float, shown: float) -> None:
    assert words.round_up(value) == pytest.approx(shown)


SHORT = Step("short", fixed_s=10, pair_s=10, least=2, wanted=4)
LONG = Step("long", fixed_s=0, pair_s=50, least=1, wanted=4)


def test_steps_that_fit_get_their_fewest_pairs_first_and_cost_no_more_than_the_budget() -> None:
    assert report.plan([SHORT, LONG], 80) == {"short": 2, "long": 1}
    assert report.plan([SHORT, LONG], 130) == {"short": 2, "long": 2}
    assert report.plan([SHORT, LONG], 139) == {"short": 2, "long": 2}
    assert report.plan([SHORT, LONG], 150) == {"short": 4, "long": 2}
    assert report.plan([SHORT, LONG], 10_000) == {"short": 4, "long": 4}
    assert report.plan([step.scale(2.0) for step in (SHORT, LONG)], 160) == report.plan([SHORT, LONG], 80)
    assert report.plan([SHORT, LONG], 40) == {"short": 3}
    assert report.plan([LONG, SHORT], 60) == {"long": 1}
    assert report.plan([SHORT, LONG, SHORT._replace(name="last")], 60) == {"short": 2, "last": 2}
    assert report.plan([SHORT, LONG], 5) == {}
    for budget_s in range(0, 400, 7):
        planned = report.plan([SHORT, LONG], budget_s)
        assert sum(step.seconds(planned[step.name]) for step in (SHORT, LONG) if step.name in planned) <= budget_s
