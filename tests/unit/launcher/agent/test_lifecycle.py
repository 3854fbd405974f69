"""The processes of a round on one node: what happens to them, and what is done and told about it."""

from __future__ import annotations

import math
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent.lifecycle import (
    VICTIM_WINDOW_S,
    ReportFailed,
    ReportStopped,
    ReportSucceeded,
    Round,
    RoundAction,
    SignalWorkers,
    SweepRound,
    WorkerExit,
)

TERM = signal.SIGTERM
GOOD, BAD, ECHO = (0, False), (1, False), (1, True)


def end(local_rank: int, how: tuple[int, bool]) -> WorkerExit:
    return WorkerExit(local_rank, *how, may_be_victim=how[1])


def ended(*how: tuple[int, bool], workers: int = 2, now: float = 10.0) -> tuple[Round, list[RoundAction]]:
    """A round whose first workers have ended so, and what came out of it."""
    round = Round(1, workers)
    actions: list[RoundAction] = []
    for local_rank, each in enumerate(how):
        actions += round.take_exit(end(local_rank, each), now)
    return round, actions


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ((GOOD,), []),
        ((GOOD, GOOD), [ReportSucceeded()]),
        ((BAD,), [ReportFailed(end(0, BAD))]),
        ((GOOD, BAD), [ReportFailed(end(1, BAD))]),
        ((BAD, GOOD), [ReportFailed(end(0, BAD))]),
        ((BAD, BAD), [ReportFailed(end(0, BAD))]),
        ((ECHO,), []),
        ((ECHO, BAD), [ReportFailed(end(1, BAD))]),
        ((BAD, ECHO), [ReportFailed(end(0, BAD))]),
    ],
)
def test_a_success_is_that_of_all_and_the_first_failure_is_told_once(
    how: tuple[tuple[int, bool], ...], told: list[RoundAction]
) -> None:
    assert ended(*how)[1] == told


def test_a_possible_victim_waits_a_moment_for_the_primary_failure() -> None:
    round, told = ended(ECHO, now=10.0)
    assert (told, round.wake_at) == ([], 10.0 + VICTIM_WINDOW_S)
    assert round.advance(10.0 + VICTIM_WINDOW_S / 2) == []
    assert round.advance(10.0 + VICTIM_WINDOW_S) == [ReportFailed(end(0, ECHO))]
    assert round.wake_at == math.inf


def test_a_second_victim_does_not_lengthen_the_window() -> None:
    round, _ = ended(ECHO, workers=3, now=10.0)
    round.take_exit(end(1, ECHO), 10.2)
    assert round.wake_at == 10.0 + VICTIM_WINDOW_S


def test_a_failure_for_which_nothing_is_left_to_see_is_reported_at_once() -> None:
    last = WorkerExit(1, 1, is_secondary=True)
    round, _ = ended(ECHO, now=10.0)
    assert round.take_exit(last, 10.1) == [ReportFailed(end(0, ECHO))]


def test_the_window_ends_with_what_it_waits_for() -> None:
    round, _ = ended(ECHO, now=10.0)
    assert round.end_window(10.1) == [ReportFailed(end(0, ECHO))]
    assert (round.end_window(10.2), round.wake_at) == ([], math.inf)


def test_without_a_window_its_end_reports_nothing() -> None:
    round = Round(1, 2)
    assert (round.end_window(10.0), round.advance(20.0)) == ([], [])
    stopping, _ = ended(ECHO, now=10.0)
    stopping.stop(TERM, 30.0, 10.1)
    assert (stopping.end_window(10.2), stopping.wake_at) == ([], 40.1)


def test_a_stop_tells_first_what_was_held_back() -> None:
    round, _ = ended(ECHO)
    assert round.stop(TERM, 5.0, 10.1) == [ReportFailed(end(0, ECHO)), SignalWorkers(TERM)]


def test_what_was_held_back_does_not_shorten_the_grace() -> None:
    round, _ = ended(ECHO, now=10.0)
    round.stop(TERM, 30.0, 10.1)
    assert round.wake_at == 40.1
    assert round.advance(11.0) == []


def test_a_stop_signals_once_waits_for_the_grace_and_then_sweeps() -> None:
    round = Round(1, 2)
    assert round.stop(TERM, 5.0, 10.0) == [SignalWorkers(TERM)]
    assert round.stop(TERM, 5.0, 11.0) == []
    assert round.wake_at == 15.0
    assert round.advance(14.9) == []
    assert round.advance(15.0) == [SweepRound()]
    assert round.wake_at == math.inf


@pytest.mark.parametrize(("later_grace_s", "deadline"), [(1.0, 12.0), (60.0, 15.0)])
def test_a_later_stop_can_only_shorten_the_grace(later_grace_s: float, deadline: float) -> None:
    round = Round(1, 2)
    round.stop(TERM, 5.0, 10.0)
    round.stop(TERM, later_grace_s, 11.0)
    assert round.wake_at == deadline


def test_nobody_waits_for_a_grace_that_nobody_uses() -> None:
    round = Round(1, 2)
    round.stop(TERM, 5.0, 10.0)
    assert round.take_exit(end(0, GOOD), 11.0) == []
    assert round.take_exit(end(1, (-TERM, False)), 11.1) == [SweepRound()]


@pytest.mark.parametrize(("how", "grace_s"), [((), 0.0), ((GOOD, GOOD), 5.0)])
def test_a_stop_without_grace_or_without_workers_sweeps_at_once(
    how: tuple[tuple[int, bool], ...], grace_s: float
) -> None:
    round, _ = ended(*how)
    assert round.stop(TERM, grace_s, 10.0) == [SweepRound()]


def test_an_exit_after_the_order_to_stop_is_no_failure() -> None:
    round = Round(1, 2)
    round.stop(TERM, 5.0, 10.0)
    round.take_exit(end(0, BAD), 10.1)
    assert round.failures == []


def test_to_kill_is_to_sweep_whatever_went_before_and_once() -> None:
    round = Round(1, 2)
    round.stop(TERM, 5.0, 10.0)
    assert round.kill() == [SweepRound()]
    assert round.kill() == []
    assert round.stop(TERM, 5.0, 10.1) == []


def test_a_round_is_reported_stopped_once_when_nothing_of_it_is_left() -> None:
    round = Round(1, 2)
    round.kill()
    assert (round.take_gone(), round.take_gone()) == ([ReportStopped()], [])
    assert (round.is_gone, round.live, round.wake_at) == (True, set(), math.inf)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from([GOOD, BAD, ECHO, (-9, False)])),
        st.tuples(st.just("stop"), st.sampled_from([0.0, 1.0, 5.0]), st.none()),
        st.tuples(st.just("kill"), st.none(), st.none()),
        st.tuples(st.just("seen"), st.none(), st.none()),
        st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 10.0]), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(STEPS)
def test_any_round_is_reported_once_and_never_succeeds_after_a_failure(
    steps: list[tuple[str, object, object]],
) -> None:
    round, now, made, live = Round(1, 3), 0.0, list[RoundAction](), {0, 1, 2}
    for what, how, detail in steps:
        if what == "end" and how in live:
            live.remove(how)  # a process ends once
            made += round.take_exit(end(how, detail), now)  # type: ignore[arg-type]
        elif what == "stop":
            made += round.stop(TERM, how, now)  # type: ignore[arg-type]
        elif what == "kill":
            made += round.kill()
        elif what == "seen":
            made += round.end_window(now)
        elif what == "pass":
            now += how  # type: ignore[operator]
            made += round.advance(now)
    kinds = [type(action) for action in made]
    assert kinds.count(ReportSucceeded) + kinds.count(ReportFailed) <= 1
    assert kinds.count(SweepRound) <= 1
    assert kinds.count(SignalWorkers) <= 1
    assert ReportSucceeded not in kinds or not round.failures


def test_a_worker_that_said_why_it_fails_is_the_cause() -> None:
    round, _ = ended(ECHO, workers=3)
    claimed = WorkerExit(1, 76, is_secondary=False, is_claimed=True)
    assert round.take_exit(claimed, 10.1) == [ReportFailed(claimed)]


def test_what_a_worker_said_is_reported_after_the_stop_too() -> None:
    claimed = WorkerExit(0, 76, is_secondary=False, is_claimed=True)
    round = Round(1, 2)
    round.stop(TERM, 5.0, 10.0)
    assert round.take_exit(claimed, 10.1) == [ReportFailed(claimed)]
    assert round.take_exit(WorkerExit(1, 76, is_secondary=False, is_claimed=True), 10.2) == [SweepRound()]
