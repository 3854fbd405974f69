"""How a node is told to go: by a signal or by a file."""

from __future__ import annotations

import signal
from pathlib import Path

from launcher.agent.signals import FILE_INTERVAL_S, Termination
from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line
from rendezvous.events import LeaveRequest


def resolve(*words: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), {}, "python")


def test_a_preemption_signal_sends_sigterm_and_others_are_passed_on() -> None:
    departure = Termination(resolve("--preemption-signal=SIGUSR1"))
    assert "SIGUSR1" in departure.signals
    assert departure.take_signal(signal.SIGUSR1) == LeaveRequest("SIGUSR1 announces a preemption", 128 + signal.SIGUSR1)
    assert departure.signum == signal.SIGTERM
    assert departure.take_signal(signal.SIGTERM) is None
    departure = Termination(resolve())
    assert departure.take_signal(signal.SIGHUP) == LeaveRequest("stopped by SIGHUP", 129)
    assert departure.signum == signal.SIGHUP


def test_a_preemption_file_is_looked_for_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "going"
    departure = Termination(resolve(f"--preemption-file={file}"))
    assert departure.check_file(10.0) is None
    assert departure.wake_at == 10.0 + FILE_INTERVAL_S
    file.touch()
    assert departure.check_file(10.5) is None
    assert departure.check_file(11.0) == LeaveRequest(f"{file} announces a preemption", 143)
    assert departure.check_file(20.0) is None
    assert departure.wake_at == float("inf")


def test_without_a_file_nothing_is_looked_for() -> None:
    assert Termination(resolve()).wake_at == float("inf")
    assert Termination(resolve()).check_file(1.0) is None
