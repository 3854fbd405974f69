"""What the page draws: how the run's time was spent, and its rounds."""

from __future__ import annotations

from msgspec.structs import replace

from launcher.extensions.page.tables import make_tables
from launcher.views.goodput import TimeSpent, compute_goodput
from rendezvous.records import Verdict
from tests.support.page.fake_run import BEGAN, make_report
from tests.support.reasons import because

RUN = make_report(4, 8, 0.0)


def test_the_spans_of_the_bar_are_those_of_goodput() -> None:
    tables = make_tables(RUN, ())
    assert RUN.goodput is not None
    assert (tables["since"], tables["until"]) == (BEGAN, RUN.at)
    spent: dict[str, float] = {}
    for cause, lasted_s, _ in tables["spans"]:
        spent[cause] = spent.get(cause, 0.0) + lasted_s
    assert spent == {"": RUN.goodput.trained_s, **RUN.goodput.lost_s}
    assert [round for cause, _, round in tables["spans"] if not cause] == [1, 2, 3]
    undone = [span for span in tables["spans"] if span[0] == "failure"]
    assert undone == [("failure", 300.0, 0), ("failure", 60.0, 0)], "after the checkpoint, and until the next round"


def test_nothing_is_lost_after_the_end() -> None:
    rounds = (*RUN.rounds[:-1], replace(RUN.rounds[-1], ended_at=BEGAN + 7000, cause="failure"))
    verdict = Verdict(kind="failure", exit_code=1, round=3, reason=because("a worker failed"), ended_at=BEGAN + 7001)
    goodput = compute_goodput(rounds, TimeSpent(until=BEGAN), BEGAN + 7001)
    tables = make_tables(replace(RUN, rounds=rounds, verdict=verdict, phase="ended", goodput=goodput), ())
    assert tables["spans"][-2:] == [("", 3010.0, 3), ("failure", 1.0, 0)]
    assert (tables["until"], tables["round_rows"][0]["cause"]) == (BEGAN + 7001, "failure")


def test_what_was_before_the_rounds_that_are_known_is_left_out() -> None:
    tables = make_tables(replace(RUN, rounds=RUN.rounds[1:], goodput=None), ())
    assert tables["since"] == RUN.rounds[1].began_at
    assert [row["round"] for row in tables["round_rows"]] == [3, 2]
    assert tables["round_rows"][0]["cause"] == ""
    assert make_tables(replace(RUN, rounds=(), goodput=None), ())["spans"] == []
