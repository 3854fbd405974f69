"""What the benchmark of lost nodes makes of its marks, stamps and times."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import figures, stamped
from benchmarks.agents import NEVER, STEPPED, Agents, Mark, last_s
from benchmarks.failover import summary, table, turns
from benchmarks.pairs import OURS, THEIRS
from benchmarks.trial import FOLLOWER, LEADER, Case


def mark(rank: int, world_size: int, at_s: float, what: str = "began", node: str = "n1", pid: int = 1) -> Mark:
    return Mark(node, rank, world_size, pid, at_s, what)


def test_a_round_is_there_when_its_last_rank_has_begun() -> None:
    marks = [mark(0, 2, 11.0), mark(1, 2, 10.5)]
    assert last_s(marks, 10.0, 2) == 11.0
    assert last_s(marks[:1], 10.0, 2) == NEVER


def test_workers_of_the_round_before_and_of_other_worlds_do_not_count() -> None:
    marks = [mark(0, 2, 9.0), mark(1, 2, 9.1), mark(0, 3, 10.2), mark(0, 2, 10.4)]
    assert last_s(marks, 10.0, 2) == NEVER


def test_who_has_begun_has_not_stepped() -> None:
    marks = [mark(0, 1, 11.0), mark(0, 1, 12.0, STEPPED)]
    assert last_s(marks, 10.0, 1, STEPPED) == 12.0
    assert last_s(marks[:1], 10.0, 1, STEPPED) == NEVER


@pytest.mark.parametrize(
    ("event", "after"),
    [("crash", 4), ("kill", 3), ("partition", 3), ("freeze", 3), ("pause", 3), ("leave", 3), ("join", 5)],
)
def test_the_size_of_the_next_round_follows_from_the_event(event: str, after: int) -> None:
    assert Case(event, 4, "").after == after


@pytest.mark.parametrize(("last_s", "outlived_s"), [(20.5, 0.5), (18.0, -2.0)])
def test_a_life_is_measured_against_the_first_of_the_next_round(
    tmp_path: Path, last_s: float, outlived_s: float
) -> None:
    agents = Agents(OURS, tmp_path, (), notes_lives=True)
    for pid, at_s in ((1, 17.0), (2, last_s), (3, 30.0)):
        (tmp_path / "lives" / f"n1-{pid}").write_text(f"{at_s}")
    # Another node's, and one that came back as a new member, do not matter.
    (tmp_path / "lives" / "n2-4").write_text("40.0")
    lines = ["n1 0 3 1 9.0 began", "n1 1 3 2 9.0 began", "n2 2 3 4 9.0 began", "n1 0 1 3 21.0 began"]
    (tmp_path / "marks").write_text("\n".join(lines) + "\n")
    assert agents.outlived_s("n1", 10.0, 20.0) == outlived_s


def options(*, quick: bool, pairs: int, **others: object) -> argparse.Namespace:
    words = {"events": "crash,kill", "agents": "1,4", "jobs": "idle", "only": None, "limit": 25.0, "watched": 4}
    return argparse.Namespace(quick=quick, pairs=pairs, **{**words, **others})


def test_sides_take_turns_and_torchrun_runs_once_where_it_notices_nothing() -> None:
    found = [(case.figure, side, pair, limit_s) for case, side, pair, limit_s in turns(options(quick=False, pairs=2))]
    assert found == [
        ("crash, 1 agents", OURS, 1, 25.0),
        ("crash, 1 agents", THEIRS, 1, 25.0),
        ("crash, 4 agents", OURS, 1, 25.0),
        ("crash, 4 agents", THEIRS, 1, 25.0),
        ("kill of another node, 4 agents", OURS, 1, 25.0),
        ("kill of another node, 4 agents", THEIRS, 1, 12.0),
        ("kill of the leader's node, 4 agents", OURS, 1, 25.0),
        ("crash, 1 agents", OURS, 2, 25.0),
        ("crash, 1 agents", THEIRS, 2, 25.0),
        ("crash, 4 agents", OURS, 2, 25.0),
        ("crash, 4 agents", THEIRS, 2, 25.0),
        ("kill of another node, 4 agents", OURS, 2, 25.0),
        ("kill of the leader's node, 4 agents", OURS, 2, 25.0),
    ]


def test_the_quick_run_repeats_all_figures_that_have_an_aim() -> None:
    found = list(turns(options(quick=True, pairs=2)))
    assert all(figures.kind(turn.case.figure) for turn in found)
    assert all(figures.kind(turn.case.overlap) for turn in found if turn.case.overlap)
    repeated = {turn.case.figure for turn in found if turn.pair == 2}
    aims = {aim.figure for aim in figures.AIMS if (kind := figures.kind(aim.figure)) and kind.benchmark == "failover"}
    measured = repeated | {turn.case.overlap for turn in found if turn.pair == 2}
    assert aims <= measured
    assert repeated < {turn.case.figure for turn in found}


def test_only_lives_of_idle_workers_on_a_silent_node_are_compared() -> None:
    assert Case("partition", 4, LEADER).overlap == "partition of the leader's node, 4 agents: overlap"
    assert Case("kill", 4, FOLLOWER).overlap == ""
    assert Case("pause", 4, FOLLOWER, "gloo").overlap == ""


def test_what_never_came_has_no_ratio() -> None:
    times = {OURS: dict(enumerate([0.1, 0.3, 0.2])), THEIRS: {0: NEVER}}
    line = summary("kill of another node, 4 agents", times, 30)
    assert "ratio" not in line
    row = "| kill of another node, 4 agents | 0.20 s (0.10 to 0.30; 3) | not in time |  | at most 1 s: reached |"
    assert row in table([line])


def test_the_ratio_is_taken_pair_by_pair() -> None:
    times = {OURS: {1: 1.0, 2: 1.0, 3: 4.0, 4: 9.0}, THEIRS: {3: 10.0, 2: 5.0, 1: 10.0}}
    line = summary("crash, 8 agents", times, 30)
    assert line["ratio"] == {"median": 0.2, "min": 0.1, "max": 0.4}
    assert "at most 0.05 of torchrun: missed" in table([line])


def test_a_torchrun_that_is_not_ready_in_time_counts_as_if_at_the_limit() -> None:
    times = {OURS: {1: 1.0, 2: 1.0, 3: 1.0}, THEIRS: {1: NEVER, 2: 10.0, 3: 10.0}}
    line = summary("crash, 8 agents", times, 20)
    assert line["ratio"]["min"] == 0.05
    assert "never" in table([line])


NOTEBOOK = """\
9.900000 n2 7 ask stop round 1
10.020000 n1 7 ask stop round 2
10.030000 n2 8 told RoundStopped 2 4001
10.040000 n1 7 told RoundStopped 2 4001
10.900000 n3 9 told RoundStopped 2 4001
10.060000 n1 7 answered seal round 3
10.070000 n2 8 does StartRound
10.080000 n1 7 does StartRound
10.090000 n1 7 hears Spawned
10.085000 n2 8 hears Spawned
10.200000 n1 7 ask stop round 3
"""


def test_the_steps_to_a_round_are_those_of_the_slowest_participant() -> None:
    found = stamped.steps(stamped.read(NOTEBOOK), 10.0, 10.15, but="n3")
    assert {name: round(1e3 * value) for name, value in found.items()} == {
        "noticed": 20,
        "stopped": 40,
        "sealed": 60,
        "ordered": 80,
        "started": 90,
    }
    assert list(found) == [*stamped.STEPS]
