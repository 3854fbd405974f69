"""How a node is told to go: by a signal, by a file, or by a notice of its cloud."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.agent.signals import FILE_INTERVAL_S, NOTICE_DELAY_S, NOTICE_RETRY_S, Termination
from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line
from launcher.hardware import cloud_firmware
from launcher.hardware.notices import node_notices
from launcher.hardware.notices.notice import LEAD_S, Notice, NoticeChange
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason
from tests.support.reasons import because


def resolve(*words: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), {}, "python")


def test_a_preemption_signal_sends_sigterm_and_others_are_passed_on() -> None:
    departure = Termination(resolve("--preemption-signal=SIGUSR1").shutdown)
    assert signal.SIGUSR1 in departure.signals
    assert departure.take_signal(signal.SIGUSR1) == LeaveRequest(
        Reason.of("agent/preemption-signal", signal="SIGUSR1"), 128 + signal.SIGUSR1
    )
    assert departure.signum == signal.SIGTERM
    assert departure.take_signal(signal.SIGTERM) is None
    departure = Termination(resolve().shutdown)
    assert departure.take_signal(signal.SIGHUP) == LeaveRequest(Reason.of("agent/signal", signal="SIGHUP"), 129)
    assert departure.signum == signal.SIGHUP


@pytest.mark.parametrize(
    "name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR"]
)
def test_a_signal_that_nobody_named_is_a_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = signal.Signals[name]
    for is_slurm in (False, True):
        if is_slurm:
            monkeypatch.setenv("SLURM_JOB_ID", "7")
        departure = Termination(resolve().shutdown)
        assert number in departure.signals
        told = departure.take_signal(number)
        usual = is_slurm and name.startswith("SIGUSR")
        kind = "agent/slurm-end" if usual else "agent/signal"
        assert told == LeaveRequest(Reason.of(kind, signal=name), 128 + number)
        # Workers get SIGTERM, or the signal itself where they handle it.
        assert (departure.signum, departure.notice_signum) == (signal.SIGTERM, number)
        assert departure.take_signal(number) is None


def test_a_real_time_signal_has_a_name_too() -> None:
    departure = Termination(resolve().shutdown)
    told = departure.take_signal(signal.SIGRTMIN + 3)
    assert told == LeaveRequest(Reason.of("agent/signal", signal="SIGRTMIN+3"), 128 + signal.SIGRTMIN + 3)


def test_a_signal_that_is_forwarded_by_request_is_no_notice() -> None:
    departure = Termination(resolve("--signals-to-handle=SIGUSR1").shutdown)
    assert departure.take_signal(signal.SIGUSR1) == LeaveRequest(
        Reason.of("agent/signal", signal="SIGUSR1"), 128 + signal.SIGUSR1
    )
    assert (departure.signum, departure.notice_signum) == (signal.SIGUSR1, 0)
    # torchrun's own that is left out has the kernel's default.
    assert not {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT} & {*departure.signals}


def test_what_is_ignored_or_handled_already_and_faults_are_left_alone() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert signal.SIGUSR1 not in Termination(resolve().shutdown).signals
        assert signal.SIGUSR1 in Termination(resolve("--preemption-signal=SIGUSR1").shutdown).signals
    finally:
        signal.signal(signal.SIGUSR1, before)
    left = {signal.SIGSEGV, signal.SIGABRT, signal.SIGPIPE, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH}
    assert not left & {*Termination(resolve().shutdown).signals}


def test_a_preemption_file_is_looked_for_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "going"
    departure = Termination(resolve(f"--preemption-file={file}").shutdown)
    assert departure.check(10.0) is None
    assert departure.wake_at == 10.0 + FILE_INTERVAL_S
    file.touch()
    assert departure.check(10.5) is None
    assert departure.check(11.0) == LeaveRequest(Reason.of("agent/preemption-file", path=str(file)), 143)
    assert departure.check(20.0) is None
    assert departure.wake_at == float("inf")


def test_without_a_file_nothing_is_looked_for() -> None:
    assert Termination(resolve().shutdown).wake_at == float("inf")
    assert Termination(resolve().shutdown).check(1.0) is None


class Announced:
    """In the place of what watches for notices."""

    label = "AWS"

    def __init__(self) -> None:
        self.changes: list[NoticeChange] = []

    def start(self) -> None:
        pass

    def take_changes(self) -> list[NoticeChange]:
        taken, self.changes = self.changes, []
        return taken

    def take_complaints(self) -> list[str]:
        return []

    def announce(self, left_s: float | None, at: float, *, is_withdrawn: bool = False) -> None:
        notice = Notice(key="spot", what=because("announces an interruption"), ends_node=True, left_s=left_s)
        self.changes.append(NoticeChange(notice=notice, read_at=at, is_withdrawn=is_withdrawn))


def watch(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Termination, Announced]:
    """A node whose cloud's notices are read from time 11 on."""
    announced = Announced()
    monkeypatch.setattr(cloud_firmware, "find_cloud", lambda: "aws")
    monkeypatch.setattr(node_notices, "make_watcher", lambda *_: announced)
    departure = Termination(resolve(*words).shutdown)
    departure.watch_notices(lambda: None, lambda: 0.0)
    assert departure.wake_at == 0.0
    assert departure.check(10.0) is None
    assert departure.wake_at == 10.0 + NOTICE_DELAY_S
    assert departure.check(11.0) is None
    assert departure.wake_at == float("inf")
    return departure, announced


def test_a_notice_makes_the_node_leave_as_sigterm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    departure, announced = watch(monkeypatch)
    announced.announce(120.0, 12.0)
    (update,) = departure.take_notices(12.0)
    assert update.sentence == "AWS announces an interruption in 2 min: this node leaves"
    assert departure.check(12.0) == LeaveRequest(
        Reason.of("hardware/notice", source="AWS", notice=because("announces an interruption")), 143
    )
    assert departure.signum == signal.SIGTERM
    assert departure.check(13.0) is None
    assert departure.wake_at == float("inf")
    assert departure.take_signal(signal.SIGTERM) is None
    assert departure.limit_save(300.0, 12.0)[0] == 118.0


def test_a_notice_of_later_is_acted_on_later_unless_it_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    departure, announced = watch(monkeypatch)
    announced.announce(900.0, 12.0)
    assert departure.take_notices(12.0)[0].leaves
    assert departure.check(12.0) is None
    assert departure.wake_at == 12.0 + 900.0 - LEAD_S
    announced.announce(900.0, 12.0, is_withdrawn=True)
    departure.take_notices(100.0)
    assert departure.check(5000.0) is None
    assert departure.wake_at == float("inf")


def test_a_signal_comes_before_a_notice_of_later(monkeypatch: pytest.MonkeyPatch) -> None:
    departure, announced = watch(monkeypatch)
    announced.announce(900.0, 12.0)
    departure.take_notices(12.0)
    assert departure.take_signal(signal.SIGINT) == LeaveRequest(Reason.of("agent/signal", signal="SIGINT"), 130)
    assert departure.wake_at == float("inf")
    assert departure.check(5000.0) is None
    announced.announce(20.0, 13.0)
    assert departure.take_notices(13.0)[0].sentence.endswith("this node is leaving already")
    assert departure.signum == signal.SIGINT


def test_a_node_that_only_reports_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    departure, announced = watch(monkeypatch, "--notices=report")
    announced.announce(10.0, 12.0)
    assert not departure.take_notices(12.0)[0].leaves
    assert departure.check(12.0) is None
    assert departure.limit_save(30.0, 12.0)[0] == 30.0


def test_notices_that_are_off_are_never_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_notices, "make_watcher", lambda *_: pytest.fail("somebody looks"))
    departure = Termination(resolve("--notices=off").shutdown)
    departure.watch_notices(lambda: None, lambda: 0.0)
    assert departure.wake_at == float("inf")
    assert departure.check(100.0) is None


def test_a_machine_without_room_for_a_thread_reads_its_notices_later(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cloud_firmware, "find_cloud", lambda: "aws")
    monkeypatch.setattr(node_notices, "make_watcher", lambda *_: Announced())
    departure = Termination(resolve().shutdown)
    departure.watch_notices(lambda: None, lambda: 0.0)
    departure.check(10.0)
    with monkeypatch.context() as full:
        full.setattr(Announced, "start", fail)
        for now in (11.0, 11.0 + NOTICE_RETRY_S):
            assert departure.check(now) is None
            assert departure.wake_at == now + NOTICE_RETRY_S
    assert departure.take_notices(32.0) == []
    departure.check(11.0 + 2 * NOTICE_RETRY_S)
    assert departure.wake_at == float("inf")
    assert capfd.readouterr().err == (
        "meshrun: preemption notices cannot be read: RuntimeError: can't start new thread; retrying every 10 s\n"
        "meshrun: preemption notices are now read\n"
    )


@pytest.mark.parametrize(
    ("words", "said"), [((), ""), (("--notices=leave",), "preemption notices cannot be read: no cloud")]
)
def test_that_there_is_no_cloud_is_said_to_who_has_asked(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_notices, "make_watcher", lambda *_: "no cloud")
    departure = Termination(resolve(*words).shutdown)
    departure.watch_notices(lambda: None, lambda: 0.0)
    assert departure.check(1.0) is None
    assert departure.check(2.0) is None
    assert departure.take_notices(2.0) == []
    assert departure.wake_at == float("inf")
    assert said in capfd.readouterr().err
    assert departure.limit_save(30.0, 1.0)[0] == 30.0
