"""What the benchmark of lost nodes makes of its marks and notebooks, and whose turn it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import figures, steps
from benchmarks.failover import STEPPED, Agents, Mark, last_s, list_cases, list_turns
from benchmarks.runs import NEVER, OURS, SIDES, THEIRS


def mark(rank: int, world_size: int, at_s: float, what: str = "began", node: str = "n1", pid: int = 1) -> Mark:
    return Mark(node, rank, world_size, pid, at_s, what)


@pytest.mark.parametrize(
    ("marks", "world_size", "what", "found"),
    [
        ([mark(0, 2, 11.0), mark(1, 2, 10.5)], 2, "began", 11.0),
        ([mark(0, 2, 11.0)], 2, "began", NEVER),
        ([mark(0, 2, 9.0), mark(1, 2, 9.1), mark(0, 3, 10.2), mark(0, 2, 10.4)], 2, "began", NEVER),
        ([mark(0, 1, 11.0), mark(0, 1, 12.0, STEPPED)], 1, STEPPED, 12.0),
        ([mark(0, 1, 11.0)], 1, STEPPED, NEVER),
    ],
)
def test_a_round_is_there_when_its_last_rank_has(marks: list[Mark], world_size: int, what: str, found: float) -> None:
    assert last_s(marks, 10.0, world_size, what) == found


@pytest.mark.parametrize(("last_s", "outlived_s"), [(20.5, 0.5), (18.0, -2.0)])
def test_a_life_is_measured_against_the_first_of_the_next(tmp_path: Path, last_s: float, outlived_s: float) -> None:
    agents = Agents(OURS, tmp_path, (), "")
    for pid, at_s in ((1, 17.0), (2, last_s), (3, 30.0)):
        (tmp_path / "lives" / f"n1-{pid}").write_text(f"{at_s}")
    # Another node's, and one that came back as a new member, do not matter.
    (tmp_path / "lives" / "n2-4").write_text("40.0")
    lines = ["n1 0 3 1 9.0 began", "n1 1 3 2 9.0 began", "n2 2 3 4 9.0 began", "n1 0 1 3 21.0 began"]
    (tmp_path / "marks").write_text("\n".join(lines) + "\n")
    assert agents.outlived_s("n1", 10.0, 20.0) == outlived_s


def test_sides_take_turns_and_the_quick_run_repeats_what_has_an_aim() -> None:
    cases = list(list_cases(["crash", "kill"], [1, 4], ["idle"]))
    found = [(case.figure, side, pair, limit_s) for case, side, pair, limit_s in list_turns(cases, 2, SIDES, 25.0)]
    assert found == [
        (figure, side, pair, 25.0)
        for pair in (1, 2)
        for figure, side in (
            ("crash, 1 agents", OURS),
            ("crash, 1 agents", THEIRS),
            ("crash, 4 agents", OURS),
            ("crash, 4 agents", THEIRS),
            ("kill of another node, 4 agents", OURS),
            ("kill of another node, 4 agents", THEIRS),
            ("kill of the leader's node, 4 agents", OURS),
        )
    ]
    found = list(list_turns([], 2, SIDES, 25.0))
    assert all(figures.kind(turn.case.figure) for turn in found)
    assert all(figures.kind(turn.case.overlap) for turn in found if turn.case.overlap)
    repeated = {turn.case.figure for turn in found if turn.pair == 2}
    aims = {aim.figure for aim in figures.AIMS if (kind := figures.kind(aim.figure)) and kind.benchmark == "failover"}
    measured = repeated | {turn.case.overlap for turn in found if turn.pair == 2}
    assert aims <= measured
    assert repeated < {turn.case.figure for turn in found}


NOTEBOOK = """\
9.900000 n2 noticed
10.020000 n1 noticed
10.030000 n2 stopped
10.040000 n1 stopped
10.900000 n3 stopped
10.060000 n1 sealed
10.070000 n2 ordered
10.080000 n1 ordered
10.090000 n1 started
10.085000 n2 started
10.200000 n1 noticed
"""


def test_the_steps_to_a_round_are_those_of_the_slowest_participant() -> None:
    found = steps.find_steps(NOTEBOOK, 10.0, 10.15, but="n3")
    assert [*found] == [*steps.STEPS] == ["noticed", "stopped", "sealed", "ordered", "started"]
    assert [round(1e3 * value) for value in found.values()] == [20, 40, 60, 80, 90]
