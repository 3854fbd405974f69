"""What an agent's messages become: events, rounds, and what is written of them."""

from __future__ import annotations

import typing
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from launcher.logs.reports.report import WorkerFailure
from launcher.model import mesh as meshes
from launcher.parts.part import Fact, RoundStarting
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor import messages
from launcher.supervisor.messages import Exited, Spawned, SpawnFailed
from launcher.views import run_events
from launcher.views.goodput import compute_goodput
from launcher.views.node.journal import NOT_STARTED, Journal
from launcher.views.run_events import AgentEnded, RoundStopping, RunEvent, decode_event
from rendezvous import __version__, codec, events
from rendezvous.reasons import Reason
from rendezvous.records import Verdict
from tests.support.reasons import because

STARTED = run_events.AgentStarted(
    at=100.0, run_id="r", node="n0", pid=7, version=__version__, worker_count=2, reason="as asked"
)


def start(number: int = 1) -> RoundStarting:
    share = NodeAssignment(
        ranks=(2, 3), world_size=4, shape=(4,), group_rank=1, group_world_size=2, role_ranks=(2, 3), role_world_size=4,
        master_addr="h", master_port=1, summary=Reason.of("spare-leaves"),
    )  # fmt: skip
    return RoundStarting(events.StartRound(number, 0, 0, "token", ""), share)


def test_a_worker_that_cannot_be_started_has_ended_and_published_facts_are_events() -> None:
    run = Run()
    update = run_events.NoticeRead(
        source="AWS", what="announces x", state="announced", leaves=True, left_s=120.0, sentence="AWS announces x: y"
    )
    run.take(update)
    assert run.events[-1] == replace(update, at=110.0, run_id="r", node="n0")
    run = Run()
    run.take(start(), SpawnFailed(1, 1, "no such file", 2))
    ended = run.events[-1]
    assert isinstance(ended, run_events.WorkerEnded)
    assert (ended.rank, ended.outcome, ended.exit_code, ended.sentence) == (3, "failed", NOT_STARTED, "no such file")
    run.take(events.StopRound(1, "kill", because("a worker failed"), "failure"), events.RoundStopped(1, 0))
    workers = run.journal.timeline.workers.values()
    assert [(one.rank, one.pid, one.state, one.sentence) for one in workers] == [(3, 0, "failed", "no such file")]


class Run:
    """A journal, and what it has written."""

    def __init__(self) -> None:
        self.number = 0
        self.events: list[RunEvent] = []
        sink: Any = SimpleNamespace(write=self.events.append)
        self.journal = Journal(STARTED, 3, meshes.parse("dp=*"), [sink])

    def take(self, *messages: object, at: float = 110.0) -> None:
        for message in messages:
            if isinstance(message, (RoundStarting, events.StartRound)):
                self.number = message.start.round if isinstance(message, RoundStarting) else message.round
            self.journal.take(Fact(message, self.number, 0.0, at))

    def list_kinds(self) -> list[type]:
        return [type(event) for event in self.events]


def fail(rank: int, host: str, **more: Any) -> str:
    failure = WorkerFailure(
        rank=rank, local_rank=0, pid=9, exit_code=1, time="", host=host, error_file=None, message=None, **more
    )
    return codec.encode(failure).decode()


@pytest.mark.parametrize(
    ("known", "own", "rank", "log_file"),
    [
        (fail(6, "n3", exception="KeyError: 'x'", log_file="/l/6"), fail(2, "n0"), 6, "/l/6"),
        ("", fail(2, "n0", exception="KeyError: 'x'"), 2, ""),
        ("", "", None, None),
        ("no failure", "", None, None),
    ],
    ids=["the leader knows it", "only this node's", "unknown", "of another program"],
)
def test_the_end_of_a_round_and_of_the_job_name_the_first_failure(
    known: str, own: str, rank: int | None, log_file: str | None
) -> None:
    run = Run()
    run.journal.find_failure = lambda round: known if round == 1 else ""
    run.take(start(), events.RoundFailed(1, 1, False, own))
    run.take(events.StopRound(1, "kill", because("a worker failed"), "failure", ("n3",)), events.RoundStopped(1, 0))
    verdict = Verdict(kind="failure", exit_code=1, round=4, reason=because("spent"), failure=known)
    run.take(events.Exit(1, because("spent"), verdict))
    stopping, *_, ended = (one for one in run.events if isinstance(one, RoundStopping | AgentEnded))
    assert (stopping.round, ended.round) == (1, 4), "later rounds ran without this node"
    root = stopping.root_cause
    assert (root.rank, root.error, root.log_file) == (rank, "KeyError: 'x'", log_file) if root else rank is None
    assert (ended.root_cause is not None) == (log_file == "/l/6")


def test_a_round_that_no_failure_ended_has_no_root_cause() -> None:
    run = Run()
    run.journal.find_failure = lambda round: fail(6, "n3")
    run.take(start(), events.StopRound(1, "grace", because("gone"), "leaving", ("n9",)))
    assert [one.root_cause for one in run.events if isinstance(one, RoundStopping)] == [None]


def test_a_round_is_told_from_its_start_to_its_end_and_the_verdict() -> None:
    run = Run()
    run.take(start(), Spawned(1, 0, 50), Spawned(1, 1, 51))
    run.take(events.StopRound(1, "kill", because("gone"), "loss", ("n9",)), Exited(1, 0, 50, -9, 120.0), at=120.0)
    run.take(Exited(1, 1, 51, -9, 121.0), events.RoundStopped(1, 29500, 8), at=121.0)
    summary, workers = run.journal.timeline.rounds[0], run.journal.timeline.workers.values()
    assert (summary.round, summary.cause, summary.ended) == (1, "loss", because("gone"))
    assert (summary.nodes, summary.step) == (("n9",), 8)
    assert (summary.waited_s, summary.mesh, summary.ranks) == (10.0, "dp=4", (2, 3))
    assert [(one.rank, one.state, one.exit_code) for one in workers] == [(2, "terminated", -9), (3, "terminated", -9)]
    assert [event.ran_s for event in run.events if isinstance(event, run_events.RoundEnded)] == [11.0]
    assert run.journal.assignment is None
    run = Run()
    verdict = Verdict(kind="failure", exit_code=3, round=1, reason=because("no restarts left"))
    run.take(events.LeaveRequest(because("SIGTERM"), 143), events.Exit(3, because("no restarts left"), verdict))
    ended = run.events[-1]
    assert isinstance(ended, run_events.AgentEnded)
    assert (ended.exit_code, ended.verdict, ended.reason) == (3, "failure", "no restarts left")
    assert run.journal.is_leaving


def test_a_repeated_stop_is_one_event_and_a_refused_round_is_stopped_too() -> None:
    run = Run()
    run.take(start(), *[events.StopRound(1, "grace", because("growth"), "growth", ())] * 2)
    assert run.list_kinds().count(run_events.RoundStopping) == 1
    run.take(events.StopRound(1, "kill", because("growth"), "growth", ()))
    assert run.list_kinds().count(run_events.RoundStopping) == 2
    run = Run()
    run.take(start(1), events.StopRound(1, "kill", because("loss"), "loss"), events.RoundStopped(1, 0))
    run.take(events.StartRound(2, 0, 0, "token", "{"), events.StopRound(2, "kill", because("failure"), "failure"))
    assert run.list_kinds().count(run_events.RoundStopping) == 2


def test_messages_of_another_round_and_assignments_that_cannot_be_read_are_not_of_this_one() -> None:
    run = Run()
    run.take(start(2), Spawned(1, 0, 50), Exited(1, 0, 50, 0, 111.0), events.StopRound(1, "kill", because(""), "", ()))
    assert run.list_kinds() == [run_events.AgentStarted, run_events.RoundStarted]
    assert not run.journal.is_stopping
    run = Run()
    run.take(events.StartRound(1, 0, 0, "token", "{"), events.RoundFailed(1, 1, False, ""), events.RoundStopped(1, 0))
    assert run_events.RoundStarted not in run.list_kinds()
    assert run.journal.timeline.rounds == []


def test_what_is_waited_for_is_told_only_while_no_round_runs() -> None:
    run = Run()
    run.take(events.Log(because("waiting for 2 more nodes")))
    assert run.journal.timeline.waiting == because("waiting for 2 more nodes")
    run.take(start(), events.Log(because("round 1 runs")))
    assert run.list_kinds().count(run_events.WaitChanged) == 1
    assert run.journal.timeline.waiting is None


# --- any messages in any order ---

TEXTS = st.text(max_size=4) | st.sampled_from(["{", "kill", "grace", "\ud800\n", "7"])
REASONS = st.builds(Reason, TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=2))
VALUES: dict[object, st.SearchStrategy[object]] = {
    int: st.integers(-2, 4),
    float: st.floats(-10.0, 1e10),
    str: TEXTS,
    bool: st.booleans(),
    Reason: REASONS,
    Reason | None: st.none() | REASONS,
    tuple[str, ...]: st.lists(TEXTS, max_size=2).map(tuple),
    Verdict | None: st.sampled_from([None, Verdict(kind="failure", exit_code=1, reason=because("x"), round=1)]),
}


def list_kinds(module: ModuleType) -> list[type[Struct]]:
    return [
        kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
        and issubclass(kind, Struct)
    ]  # fmt: skip


def make(kind: type[Struct]) -> st.SearchStrategy[Struct]:
    hints = typing.get_type_hints(kind)
    values = {name: VALUES.get(hints[name], st.just("")) for name in kind.__struct_fields__}
    return st.builds(kind, **values | ({"round": st.integers(0, 4)} if "round" in values else {}))


KINDS = [*list_kinds(events), *list_kinds(messages)]
MESSAGES = st.sampled_from([start(1), start(2)]) | st.one_of(*map(make, KINDS))


@given(st.lists(st.tuples(MESSAGES, st.floats(-1e6, 1e10)), max_size=20))
def test_no_message_at_any_time_is_more_than_the_journal_can_take(sequence: list[tuple[object, float]]) -> None:
    run = Run()
    for message, at in sequence:
        run.take(message, at=at)
    for event in run.events:
        assert type(decode_event(run_events.encode_event(event))) is type(event)
    found = compute_goodput(run.journal.timeline.rounds, run.journal.timeline.before, 1e9)
    assert found.trained_s >= 0
    assert all(seconds >= 0 for seconds in found.lost_s.values())
