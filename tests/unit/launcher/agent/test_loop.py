"""The agent's loop, turn by turn, between pieces that do nothing: what parts are told, and what their effects do."""

from __future__ import annotations

import math
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from unittest.mock import Mock

import pytest

from launcher.agent import loop
from launcher.agent.loop import GRACE_LEAST_S, QUIT_LIMIT_S, Agent
from launcher.logs.reports.failures import RootCause
from launcher.model.errors import ShortageError
from launcher.parts import part
from launcher.parts.host import PartHost
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor.messages import Exited, RoundSwept, Spawned, WorkersFenced, WorkerSpec
from rendezvous.events import (
    AnswerCommand,
    CheckpointSaved,
    LeaveRequest,
    NoteReceived,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    SendNote,
    StartRound,
    StopRound,
    WatchdogExpired,
)
from rendezvous.settings import Settings
from tests.support.reasons import because

SHARE = NodeAssignment(
    ranks=(0, 1), world_size=2, shape=(2,), group_rank=0, group_world_size=1, role_ranks=(0, 1), role_world_size=2,
    master_addr="h",
)  # fmt: skip
SPECS = [WorkerSpec(local_rank=rank, argv=("x",), env={}, unset=(), stdout=None, stderr=None) for rank in range(2)]
ROOT = RootCause(text="", exit_code=1, rank=1, failure_class=None, consequence=(None, False))


class Seen:
    """A part that says in `log`, where the kernel's acts are too, what it is told; `asks` are its effects by fact."""

    def __init__(self, log: list[object], asks: Mapping[type, part.Effect]) -> None:
        self._log = log
        self._asks = asks
        self._effects: list[part.Effect] = []
        self.wake_at = math.inf

    def take(self, fact: part.Fact) -> None:
        self._log.append(fact.what)
        if type(fact.what) in self._asks:
            self._effects.append(self._asks[type(fact.what)])
            self.wake_at = -math.inf

    def advance(self, now: float) -> Iterable[part.Effect]:
        effects, self._effects, self.wake_at = self._effects, [], math.inf
        return effects

    def close(self) -> None:
        self._log.append("closed")


class Turns:
    """An agent at `now`. `log`: what happened, in order: facts, and what was ordered of supervisor and agreement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, asks: Mapping[type, part.Effect] | None = None) -> None:
        self.now = 100.0
        self.log: list[object] = []
        monkeypatch.setattr(loop, "read_clock", lambda: self.now)
        self.builder = Mock(**{"read_assignment.return_value": SHARE, "make_specs.return_value": SPECS})
        self.builder.list_log_files.return_value = {}
        self.machine = Mock(is_leader=False, settings=Settings(shutdown_timeout_s=30.0))
        self.driver = Mock(wake_at=0.0, machine=self.machine)
        self.driver.submit.side_effect = lambda event: self.log.append(("submit", event))
        self.channel = Mock(wake_at=math.inf, end_reasons={})
        for name in ("check_saves", "check_heartbeats"):
            getattr(self.channel, name).return_value = {}
        self.channel.request_stop.side_effect = lambda *order: self.log.append(("save by", order[1]))
        self.channel.abort.side_effect = lambda round, ranks, why, now: self.log.append(("abort", *ranks))
        self.channel.signal_workers.side_effect = lambda round, signum, notice: self.log.append(("signal", signum))
        self.supervisor = Mock(wake_at=math.inf)
        for order in ("spawn", "sweep"):
            getattr(self.supervisor, order).side_effect = lambda *_, order=order: self.log.append(order)
        self.termination = Mock(**{"check.return_value": None}, signum=None, notice_signum=0)
        self.termination.leave.side_effect = lambda asked: asked
        self.termination.take_signal.side_effect = lambda signum: LeaveRequest(because("signal"), 128 + signum)
        self.failures = Mock(**{"note.return_value": "own", "set_root_cause.return_value": ROOT})
        parts = PartHost(select.poll(), lambda: self.now, self.log.append)
        parts.add(Seen(self.log, asks or {}))
        node = Mock(
            supervisor=self.supervisor, fork_server=None, membership=Mock(driver=self.driver), pump=None, parts=parts,
            termination=self.termination, spec_builder=self.builder, running=part.RunningRound(),
        )  # fmt: skip
        node.config.hangs.progress_file = None
        self.page = node.shared_page
        self.page.list_claims.return_value, self.page.read_step.return_value = {}, -1
        self.agent = Agent(
            node=node, port=Mock(number=1, **{"is_taken.return_value": False}), worker_channel=self.channel,
            round_log=Mock(**{"advance.return_value": False}), failures=self.failures,
        )  # fmt: skip

    def turn(self, *actions: object, reports: Iterable[object] = (), signals: Iterable[int] = ()) -> list[object]:
        """What happens in a turn with this."""
        self.log.clear()
        self.driver.run.side_effect = [[*actions], *[[]] * 9] if actions else [[]] * 9
        self.supervisor.read_reports.return_value = reports
        self.agent.node.wakeup.take.return_value = signals  # type: ignore[attr-defined]
        self.agent._run_once()
        return [*self.log]

    def begin(self) -> Turns:
        """Start a round of two workers."""
        self.turn(start(1))
        self.turn(reports=(Spawned(1, 0, 41), Spawned(1, 1, 42)))
        return self

    def pass_time(self, seconds: float) -> list[object]:
        self.now += seconds
        return self.turn()


def start(round: int) -> StartRound:
    return StartRound(round=round, restart_count=round - 1, world_size=2, coordinator="h:1", assignment="")


def stop(mode: str = "grace", round: int = 1) -> StopRound:
    return StopRound(round, mode, because("growth"), "growth")


# --- the life of a round, as parts are told of it ---


def test_parts_are_told_of_a_round_before_the_kernel_acts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch)
    assert job.turn(start(1)) == [part.RoundStarting(start(1), SHARE), "spawn"]
    spawned = (Spawned(1, 0, 41), Spawned(1, 1, 42))
    assert job.turn(reports=spawned) == [*spawned]
    assert job.agent.node.running.list_live() == {0: 41, 1: 42}
    assert job.turn(stop()) == [stop(), ("save by", 130.0), ("signal", signal.SIGTERM)]
    assert job.agent.node.running.is_stopping
    ended = [Exited(1, 0, 41, -15, 0.0), Exited(1, 1, 42, -15, 0.0)]
    assert job.turn(reports=ended) == [*ended, "sweep"]
    stopped = RoundStopped(1, 1)
    assert job.turn(reports=(RoundSwept(1),)) == [RoundSwept(1), ("submit", stopped), stopped]
    assert not job.agent.node.running.has_workers


def test_the_end_of_a_round_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Turns(monkeypatch).begin().turn(reports=(Exited(1, 0, 41, 0, 0.0), Exited(1, 1, 42, 0, 0.0)))
    assert told[-2:] == [("submit", RoundSucceeded(1)), RoundSucceeded(1)]
    job = Turns(monkeypatch).begin()
    job.turn(stop("kill"))
    assert job.turn(reports=(RoundSwept(1), RoundSwept(1))).count(RoundStopped(1, 1)) == 1


def test_what_a_success_has_left_is_swept_at_once_where_nothing_is_left_to_look_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A descriptor may be missing for each look, and for the import."""
    for blocked in ("supervisor", "import"):
        job = Turns(monkeypatch).begin()
        job.machine.verdict = Mock(kind="success")
        job.supervisor.list_left.return_value = {77}
        if blocked == "supervisor":
            job.supervisor.list_left.side_effect = OSError(24, "Too many open files")
        else:
            monkeypatch.setitem(sys.modules, "launcher.diagnosis.leftovers", None)
        job.turn(reports=(Exited(1, 0, 41, 0, 0.0), Exited(1, 1, 42, 0, 0.0)))
        assert job.turn(stop())[-1] == "sweep"


def test_the_kernel_needs_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad:
        wake_at = -math.inf

        def take(self, fact: part.Fact) -> None:
            raise KeyError("x")

        advance = close = take

    job = Turns(monkeypatch)
    job.agent.node.parts = PartHost(select.poll(), lambda: job.now, lambda sentence: None)
    job.agent.node.parts.add(Bad())  # type: ignore[arg-type]
    assert job.turn(start(1)) == ["spawn"]


def test_what_the_agreement_says_is_logged_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch)
    log: Mock = job.agent.round_log  # type: ignore[assignment]
    log.advance.side_effect = lambda now: job.log.append("logged")
    assert job.turn(start(1))[-2:] == ["spawn", "logged"]


def test_a_change_of_leadership_and_an_expired_watchdog_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch)
    for is_leader, told in (
        (False, []),
        (True, [part.LeadershipChanged(True)]),
        (True, []),
        (False, [part.LeadershipChanged(False)]),
    ):
        job.machine.is_leader = is_leader
        assert job.turn() == told
    assert job.turn(reports=(WorkersFenced(1),))[-2:] == [("submit", WatchdogExpired()), WatchdogExpired()]


# --- effects ---


def test_what_a_part_asks_of_the_agreement_is_passed_on_and_its_news_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (SendNote("leader", "x"), AnswerCommand("token", "{}"))
    for effect, done in (*((one, ("submit", one)) for one in asked), (part.Publish("news"), "news")):
        job = Turns(monkeypatch, {NoteReceived: effect})
        assert job.turn(NoteReceived("m", "{}")) == [NoteReceived("m", "{}"), done]


def test_a_part_has_this_node_leave_once(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = LeaveRequest(because("the machine goes"), 143)
    job = Turns(monkeypatch, {NoteReceived: leave})
    assert job.turn(NoteReceived("m", "{}"))[1:] == [("submit", leave), leave]
    job.termination.leave.side_effect = lambda asked: None
    assert job.turn(NoteReceived("m", "{}"))[1:] == []


def test_workers_are_ended_only_of_the_round_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, done in ((1, [("abort", 1)]), (2, [])):
        job = Turns(monkeypatch, {NoteReceived: part.EndWorkers(number, (1, 7), "no sign of progress")}).begin()
        assert job.turn(NoteReceived("m", "{}"))[1:] == done


def test_a_grace_ends_before_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for kill_in_s, save_in_s, grace_s in ((20.0, 22.0, 20.0), (1.0, 90.0, GRACE_LEAST_S), (-5.0, math.inf, 30.0)):
        grace = part.LimitGrace(100.0 + kill_in_s, 100.0 + save_in_s)
        job = Turns(monkeypatch, {NoteReceived: grace}).begin()
        job.turn(NoteReceived("m", "{}"))
        assert job.turn(stop())[1] == ("save by", 100.0 + min(grace_s, save_in_s))
        assert "sweep" not in job.pass_time(grace_s - 0.1)
        assert job.pass_time(0.2) == ["sweep"]


def test_a_save_that_is_under_way_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch, {NoteReceived: part.LimitGrace(110.0, 112.0)}).begin()
    job.turn(stop())
    assert job.turn(NoteReceived("m", "{}"))[1:] == [("save by", 110.0)]
    assert job.pass_time(10.0) == ["sweep"]


def fail(job: Turns) -> list[object]:
    """One worker fails, perhaps for want of the other."""
    job.failures.note.return_value = "another"
    job.begin()
    return job.turn(reports=(Exited(1, 1, 42, 1, 0.0),))


def list_failures(log: Iterable[object]) -> list[object]:
    return [one for one in log if isinstance(one, RoundFailed)]


def test_the_report_of_a_possible_victim_waits_for_a_look_or_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch)
    told = fail(job)
    assert told[1:] == [part.VictimSuspected(1)]
    assert list_failures(job.pass_time(0.2)) == []
    assert len(list_failures(job.pass_time(0.2))) == 1


@pytest.mark.parametrize(
    ("number", "is_ending", "count"),
    [(1, False, 1), (2, False, 0), (1, True, 0)],
    ids=["looked at", "another round", "a survivor that is about to end may be the cause"],
)
def test_a_look_ends_a_rounds_wait(number: int, is_ending: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch, {part.VictimSuspected: part.Explained(number)})
    monkeypatch.setattr("launcher.hardware.linux.kernel.read_stat", lambda pid: Mock(is_ending=is_ending))
    assert len(list_failures(fail(job))) == count


def test_nothing_holds_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Turns(monkeypatch, {StopRound: part.Publish("late")}).begin()
    assert late.turn(stop("fence")) == [stop("fence"), "sweep", "late"]
    before = Turns(monkeypatch, {StopRound: part.Publish("before")}).begin()
    assert before.turn(stop())[:2] == [stop(), "before"]


# --- SIGQUIT ---

QUIT = LeaveRequest(because("signal"), 128 + signal.SIGQUIT)


def test_sigquit_ends_the_job_where_no_part_holds_it_or_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch).begin()
    assert job.turn(signals=(signal.SIGQUIT,)) == [part.QuitSignalled(), ("submit", QUIT), QUIT]
    job = Turns(monkeypatch, {part.QuitSignalled: part.HoldQuit(105.0)}).begin()
    job.turn(signals=(signal.SIGQUIT,))
    assert job.turn(signals=(signal.SIGQUIT,)) == [("submit", QUIT), QUIT]


def test_sigquit_waits_for_what_a_part_has_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch, {part.QuitSignalled: part.HoldQuit(105.0), NoteReceived: part.HoldQuit(0.0)}).begin()
    assert job.turn(signals=(signal.SIGQUIT,)) == [part.QuitSignalled()]
    assert job.pass_time(4.9) == []
    job.turn(NoteReceived("m", "{}"))
    assert job.turn() == [("submit", QUIT), QUIT]
    assert job.pass_time(10.0) == []


def test_sigquit_waits_no_longer_than_the_part_or_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for until, waits_s in ((105.0, 5.0), (1e9, QUIT_LIMIT_S)):
        job = Turns(monkeypatch, {part.QuitSignalled: part.HoldQuit(until)}).begin()
        job.turn(signals=(signal.SIGQUIT,))
        assert job.pass_time(waits_s - 0.1) == []
        assert job.pass_time(0.2) == [("submit", QUIT), QUIT]


def test_what_is_shown_ends_the_wait_in_another_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(
        monkeypatch,
        {
            part.QuitSignalled: part.HoldQuit(105.0),
            NoteReceived: part.HoldQuit(0.0),
            part.VictimSuspected: part.Explained(1),
        },
    )
    job.begin()
    job.turn(signals=(signal.SIGQUIT,))
    job.turn(stop("kill"))
    job.turn(reports=(RoundSwept(1),))
    job.turn(NoteReceived("m", "{}"))
    assert job.turn() == [("submit", QUIT), QUIT]


def test_a_failure_that_is_explained_does_not_end_the_wait_of_sigquit(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch, {part.QuitSignalled: part.HoldQuit(105.0), part.VictimSuspected: part.Explained(1)})
    monkeypatch.setattr("launcher.hardware.linux.kernel.read_stat", lambda pid: Mock(is_ending=False))
    job.failures.note.return_value = "another"
    job.begin()
    job.turn(signals=(signal.SIGQUIT,))
    assert len(list_failures(job.turn(reports=(Exited(1, 1, 42, 1, 0.0),)))) == 1
    assert QUIT not in job.turn()


# --- shortages, and the end ---


def test_a_round_without_workers_reports_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch).begin()
    job.page.read_step.return_value = 8
    job.turn(stop("kill"))
    assert RoundStopped(1, 1, 8) in job.turn(reports=(RoundSwept(1),))
    job.builder.make_specs.side_effect = ShortageError("cannot prepare 2 workers: Too many open files")
    job.turn(start(2))
    job.turn(stop("kill", 2))
    assert RoundStopped(2, 1, -1) in job.turn(reports=(RoundSwept(2),))


def test_a_round_that_waits_for_descriptors_shows_nothing_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch).begin()
    job.turn(reports=(Exited(1, 1, 42, 0, 0.0),))
    assert job.agent.node.running.exit_codes == {1: 0}
    job.builder.make_specs.side_effect = ShortageError("cannot prepare 2 workers: Too many open files")
    assert "spawn" not in job.turn(start(2))
    assert (job.agent.node.running.has_workers, job.agent.node.running.exit_codes) == (False, {})
    assert [call[0] for call in job.channel.method_calls if call[0] in ("begin", "end")][-2:] == ["begin", "end"]
    job.builder.make_specs.side_effect = None
    assert job.pass_time(loop.SHORTAGE_PAUSE_S) == ["spawn"]
    assert job.agent.node.running.has_workers


def test_a_checkpoint_that_was_saved_just_before_the_end_of_a_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Turns(monkeypatch)
    job.channel.check_saves.side_effect = math.isinf
    job.begin()
    job.turn(stop("kill"))
    told = job.turn(reports=(RoundSwept(1),))
    assert [type(one) for one in told[1:]] == [tuple, CheckpointSaved, tuple, RoundStopped]


def test_the_sentence_of_a_stop_needs_nothing_that_was_not_loaded_before() -> None:
    """When SIGTERM comes there may be no descriptor left to import it, and workers are to be told why."""
    script = (
        "import sys; from launcher.agent import loop; loop._load_policy(); loaded = {*sys.modules}; "
        "loop.describe(loop.Reason.of('agent/signal', signal='SIGTERM')); print({*sys.modules} - loaded)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"
