"""A run's rounds and workers from its events."""

from __future__ import annotations

from launcher.model.errors import describe
from launcher.views import run_events
from launcher.views.goodput import compute_goodput
from launcher.views.timeline import ROUNDS_MAX, RunTimeline
from rendezvous.reasons import Reason
from rendezvous.records import Cause
from tests.support.reasons import because


def start(at: float, number: int, restarts: int = 0) -> run_events.RoundStarted:
    return run_events.RoundStarted(
        at=at, run_id="r", node="n0", round=number, world_size=4, node_count=2, ranks=(0, 1), mesh="dp=4",
        restart_count=restarts, max_restarts=3, waited_s=1.0,
    )  # fmt: skip


Told = run_events.RunEvent | tuple[run_events.RunEvent, Reason]


def end(at: float, number: int, cause: Cause, step: int = -1) -> list[Told]:
    stopping = run_events.RoundStopping(
        at=at - 1, run_id="r", node="n0", round=number, cause=cause, reason="why", mode="kill"
    )
    ended = run_events.RoundEnded(at=at, run_id="r", node="n0", round=number, cause="", reason="", ran_s=1.0, step=step)
    return [(stopping, because("why")), ended]


def follow(*events: Told) -> RunTimeline:
    timeline = RunTimeline()
    for told in events:
        timeline.take(*(told if isinstance(told, tuple) else (told,)))
    return timeline


def test_a_round_has_its_times_and_what_is_waited_for_ends_with_it() -> None:
    timeline = follow(start(10.0, 1), *end(30.0, 1, "loss", step=7), start(31.0, 2, restarts=1))
    first, second = timeline.rounds
    assert (first.began_at, first.ended_at) == (10.0, 30.0)
    assert (first.cause, first.ended, first.step) == ("loss", because("why"), 7)
    assert (second.restart_count, second.ended_at) == (1, 0.0)
    assert timeline.current is second
    assert timeline.end_counts == {"loss": 1}
    waiting = run_events.WaitChanged(at=1.0, run_id="r", node="n0", sentence="waiting for more nodes")
    why = because("waiting for more nodes")
    assert follow((waiting, why)).waiting == why
    assert follow((waiting, why), start(2.0, 1)).waiting is None
    saved = run_events.CheckpointReported(at=15.0, run_id="r", node="n0", round=1)
    timeline = follow(saved, start(10.0, 1), saved)
    assert (timeline.rounds[0].saved_at, timeline.checkpoint_count) == (15.0, 1)


def test_a_failure_names_rank_and_class() -> None:
    failure = run_events.FailureFound(
        at=11.0, run_id="r", node="n0", round=1, rank=1, exit_code=1, failure_class="user code: KeyError",
        error="KeyError: 1",
    )  # fmt: skip
    how = Reason.of("logs/failure", failure_class="user code", why=Reason.of("logs/exception", type="KeyError"))
    timeline = follow(start(10.0, 1), (failure, how), *end(30.0, 1, "failure"))
    first = timeline.rounds[0]
    assert (first.failed_rank, first.failure_class, first.error) == (1, how, "KeyError: 1")
    assert describe(first.failure_class) == "user code: KeyError"
    assert timeline.failure_counts == {"user code": 1}


def test_a_hang_is_shown_until_workers_go_on() -> None:
    common = {"at": 12.0, "run_id": "r", "node": "n0", "round": 1}
    found = run_events.HangReported(**common, kind="unclear", ranks=(), sentence="at 2 lines", details=("rank 0 in a",))
    timeline = follow(start(10.0, 1), found)
    assert (timeline.rounds[0].hang, timeline.hang_count) == (("at 2 lines", "rank 0 in a"), 1)
    timeline.take(run_events.HangEnded(**common, sentence="progress again"))
    assert timeline.rounds[0].hang == ()


def test_workers_are_those_of_the_last_round_and_old_rounds_are_forgotten() -> None:
    born = run_events.WorkerStarted(at=10.5, run_id="r", node="n0", round=1, rank=1, local_rank=1, pid=99)
    died = run_events.WorkerEnded(
        at=12.0, run_id="r", node="n0", round=1, rank=1, local_rank=1, pid=99, outcome="failed", exit_code=-11
    )
    timeline = follow(start(10.0, 1), born, died)
    assert (timeline.workers[1].state, timeline.workers[1].exit_code) == ("failed", -11)
    assert follow(start(10.0, 1), born, died, start(20.0, 2)).workers == {}
    rounds = [
        event for number in range(1, 300) for event in (start(number, number), *end(number + 0.5, number, "loss"))
    ]
    timeline = follow(*rounds)
    assert len(timeline.rounds) == ROUNDS_MAX
    assert timeline.rounds[-1].round == 299
    assert timeline.end_counts == {"loss": 299}
    spent = compute_goodput(timeline.rounds, timeline.before, 299.5)
    assert (spent.trained_s, spent.lost_s) == (299 * 0.5, {"loss": 298 * 0.5}), "their time stays counted"
