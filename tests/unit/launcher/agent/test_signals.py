"""How a node is told to go: by a signal, or by a file."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.agent.signals import FILE_INTERVAL_S, Termination
from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason


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
    "name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGRTMIN+3"]
)
@pytest.mark.parametrize("is_slurm", [False, True], ids=["", "Slurm"])
def test_a_signal_that_nobody_named_is_a_notice(name: str, is_slurm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    number = signal.SIGRTMIN + 3 if "+" in name else signal.Signals[name]
    if is_slurm:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    departure = Termination(resolve().shutdown)
    assert number in departure.signals
    kind = "agent/slurm-end" if is_slurm and name.startswith("SIGUSR") else "agent/signal"
    assert departure.take_signal(number) == LeaveRequest(Reason.of(kind, signal=name), 128 + number)
    # Workers get SIGTERM, or the signal itself where they handle it.
    assert (departure.signum, departure.notice_signum) == (signal.SIGTERM, number)
    assert departure.take_signal(number) is None


def test_signals_that_are_forwarded_ignored_or_faults_are_no_notice() -> None:
    departure = Termination(resolve("--signals-to-handle=SIGUSR1").shutdown)
    told = departure.take_signal(signal.SIGUSR1)
    assert told == LeaveRequest(Reason.of("agent/signal", signal="SIGUSR1"), 128 + signal.SIGUSR1)
    assert (departure.signum, departure.notice_signum) == (signal.SIGUSR1, 0)
    # torchrun's own that is left out has the kernel's default.
    assert not {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT} & {*departure.signals}
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
    without = Termination(resolve().shutdown)
    assert (without.wake_at, without.check(1.0)) == (float("inf"), None)
