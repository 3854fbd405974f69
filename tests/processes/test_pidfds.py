"""Killing a process that is no child of the killer, whatever Python, kernel and filter have of pidfds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.hardware.linux import kernel
from tests.support.processes.syscalls import WITHOUT_PIDFDS
from tests.support.processes.tree import REPOSITORY, is_alive
from tests.support.waiting import wait_until

KILL = """
import sys
from launcher.hardware.linux.kernel import kill_exactly
kill_exactly(int(sys.argv[1]), lambda: sys.argv[2] == "it")
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


LACKING = pytest.mark.parametrize("lacking", [None, *WITHOUT_PIDFDS])


def kill(pid: int, what: str, lacking: str | None) -> None:
    before = WITHOUT_PIDFDS[lacking] if lacking else ""
    subprocess.run([sys.executable, "-c", before + KILL, str(pid), what], cwd=REPOSITORY, check=True)


@LACKING
def test_it_is_killed_if_it_is_the_one_that_is_meant(sleeper: subprocess.Popen[bytes], lacking: str | None) -> None:
    kill(sleeper.pid, "another", lacking)
    assert sleeper.poll() is None
    kill(sleeper.pid, "it", lacking)
    assert sleeper.wait(60) == -9


@LACKING
def test_one_that_has_ended_is_no_trouble(lacking: str | None) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        kill(ended.pid, "it", lacking)


def test_a_pid_that_was_given_anew_meanwhile_is_left_alone(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has no pidfds here, and every look finds a process that began later."""
    monkeypatch.setattr(kernel, "_PIDFD_OPEN", 100_000)
    starts = iter(range(1, 10))
    monkeypatch.setattr(kernel, "read_start_time", lambda pid: next(starts))
    kernel.kill_exactly(sleeper.pid, lambda: True)
    assert sleeper.poll() is None


def test_the_numbers_are_those_of_pidfds(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "kill")  # what would take over if the second number were wrong
    process = kernel._open_pidfd(sleeper.pid)
    assert process is not None
    assert os.readlink(f"/proc/self/fd/{process}") == "anon_inode:[pidfd]"
    assert not os.get_inheritable(process)
    kernel._kill_by_pidfd(sleeper.pid, process)
    os.close(process)
    assert sleeper.wait(60) == -9


def test_descendants_are_killed_by_one_look_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    found = kernel.list_descendants
    monkeypatch.setattr(kernel, "list_descendants", lambda pid: looks.append(pid) or found(pid))
    with subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000 & wait"]) as shell:
        try:
            family = wait_until(lambda: len(found(shell.pid)) == 2 and found(shell.pid))
            kernel.kill_descendants(shell.pid)
            assert shell.wait(10.0) == 0
            assert not any(map(is_alive, family))
        finally:
            shell.kill()
    assert looks == [shell.pid]


def test_who_descends_from_a_process_is_seen_from_below(sleeper: subprocess.Popen[bytes]) -> None:
    assert kernel.is_descendant(os.getpid(), sleeper.pid)
    assert not kernel.is_descendant(sleeper.pid, os.getpid())
    assert not kernel.is_descendant(sleeper.pid, sleeper.pid)
