"""What workers leave after a success: how long it is waited for, what is ended at once, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.diagnosis import leftovers
from launcher.diagnosis.leftovers import Leftovers


class Machine:
    """A /proc with some processes below the supervisor, pid 1000."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.sessions: dict[int, int] = {}
        self.said: list[str] = []
        self.killed: list[int] = []
        monkeypatch.setattr(leftovers.kernel, "read_stat", lambda pid: self._read_stat(pid))
        monkeypatch.setattr(leftovers.kernel, "list_descendants", lambda pid: set())
        monkeypatch.setattr(leftovers.kernel, "kill_exactly", lambda pid, check: self.killed.append(pid))
        monkeypatch.setattr(os, "getsid", lambda pid: self.sessions[pid])
        self.names: dict[int, str] = {}
        self.started: dict[int, int] = {}
        self.left = Leftovers(1000, lambda: set(self.names), {77: 4}, 100.0, 20.0, self.said.append, str(folder))

    def _read_stat(self, pid: int) -> SimpleNamespace | None:
        return (
            SimpleNamespace(name=self.names[pid], start_ticks=self.started[pid], is_ending=False)
            if pid in self.names
            else None
        )

    def add(self, pid: int, *words: str, session: int = 77, rank: str = "", file: str = "", name: str = "") -> None:
        self.names[pid], self.sessions[pid], self.started[pid] = name or words[0], session, len(self.started)
        fds = self.folder / str(pid) / "fd"
        fds.mkdir(parents=True)
        (fds / "0").symlink_to("/dev/null")
        if file:
            (fds / "5").symlink_to(file)
        (self.folder / str(pid) / "cmdline").write_text("\0".join((*words, "")))
        (self.folder / str(pid) / "environ").write_text(f"HOME=/root\0RANK={rank}\0" if rank else "HOME=/root\0")

    def advance(self, now: float, *, is_hurried: bool = False) -> float:
        return self.left.advance(now, is_hurried=is_hurried)


def test_one_line_after_a_second_and_one_for_what_is_ended_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, tmp_path)
    machine.add(1, "/usr/bin/python3", "/home/ada/upload.py", "--all")
    machine.add(2, "syncer", session=2, rank="7")
    assert 0 < machine.advance(100.0) < 0.1
    assert machine.said == []
    assert machine.advance(101.0) > 0
    assert machine.advance(105.0) > 0
    assert machine.said == [
        "waiting up to 20 s for what the workers have left: 'python3 upload.py' (pid 1, rank 4), 'syncer' (pid 2, "
        "rank 7)"
    ]
    del machine.names[1]
    assert machine.advance(120.0) == 0
    assert machine.said[1:] == ["ending what the workers have left, after 20 s: 'syncer' (pid 2, rank 7)"]


def test_nothing_is_said_where_all_ends_within_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path)
    machine.add(1, "python", "-c", "x")
    assert machine.advance(100.0) > 0
    machine.names.clear()
    assert machine.advance(100.5) == 0
    assert machine.said == []


@pytest.mark.parametrize("file", ["/dev/nvidia3", "/dev/kfd", "/dev/dri/renderD128", "/dev/accel0", "/dev/vfio/1"])
def test_what_holds_an_accelerator_is_ended_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str) -> None:
    machine = Machine(monkeypatch, tmp_path)
    machine.add(1, "python", "serve.py", session=1, file=file)
    machine.add(2, "cp", file="/tmp/x")
    assert machine.advance(100.0) > 0
    assert machine.advance(100.2) > 0
    assert machine.killed == [1], "the other has its time"
    assert machine.said == ["ending what the workers have left and holds an accelerator: 'python serve.py' (pid 1)"]


def test_a_signal_ends_the_wait_and_the_examiner_is_none_of_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, tmp_path)
    machine.add(3, "mr-supervisor", name="mr-examiner")
    assert machine.advance(100.0) == 0
    machine.add(1, "sleep", "9")
    assert machine.advance(101.5, is_hurried=True) == 0
    assert machine.said == ["ending what the workers have left: 'sleep 9' (pid 1, rank 4)"]


def test_the_oldest_is_named_first_and_one_without_a_command_line_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pids have started over, and a process has no command line while it executes a program."""
    machine = Machine(monkeypatch, tmp_path)
    machine.add(32499, "/bin/sh", "-c", "x")
    machine.add(370, "", name="sleep")
    machine.add(12, " ", name="daemon")
    assert machine.advance(100.0, is_hurried=True) == 0
    assert machine.said == [
        "ending what the workers have left: 'sh' (pid 32499, rank 4), 'sleep' (pid 370, rank 4), 'daemon' (pid 12, "
        "rank 4)"
    ]


@pytest.mark.parametrize(("rank", "said"), [("123456789", ", rank 123456789"), ("9" * 5000, ""), ("x", "")])
def test_a_rank_that_can_be_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str, said: str
) -> None:
    machine = Machine(monkeypatch, tmp_path)
    machine.add(2, "sleep", "9", session=2, rank=rank)
    assert machine.advance(100.0, is_hurried=True) == 0
    assert machine.said == [f"ending what the workers have left: 'sleep 9' (pid 2{said})"]


def test_each_process_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path)
    looks: list[tuple[float, int]] = []
    monkeypatch.setattr(Leftovers, "_holds_device", lambda left, pid: looks.append((now, pid)))
    machine.add(1, "cp")
    for now in (100.0, 100.3, 100.6, 101.0, 101.5):
        if now == 100.6:
            machine.add(2, "cp", session=2)
        machine.advance(now)
    assert looks == [(100.0, 1), (100.6, 2), (101.0, 1)]
