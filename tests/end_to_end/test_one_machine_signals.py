"""Signals to the agent at moments that are easily forgotten, on one machine with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.processes.tree import REPOSITORY, children, is_alive
from tests.support.waiting import wait_until

CRASHES = """
mark("up")
sys.exit(3)
"""


def test_a_stop_in_the_pause_between_two_rounds_is_obeyed_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, "--max-restarts", "9", script=CRASHES) as job:
        job.says("round 4 was short")  # and the pause after it is one of seconds
        job.send(signal.SIGTERM)
        ended = job.wait()
    assert ended.exit_code == 143
    assert ended.stderr.endswith("meshrun: stopped by SIGTERM\n")
    assert "passed to the workers" not in ended.stderr  # there are none
    assert not job.has_mark("up", 0, 5)


def test_a_supervisor_lost_in_the_pause_between_two_rounds_ends_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, "--max-restarts", "9", script=CRASHES) as job:
        job.says("round 4 was short")
        os.kill(job.supervisor_pid, signal.SIGKILL)
        assert job.wait().exit_code == 137
    assert not job.has_mark("up", 0, 5)


def test_signals_of_all_kinds_at_once_are_one_stop(tmp_path: Path) -> None:
    script = """
got = []
for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(signum, lambda signum, frame: got.append(signum))
mark("up")
wait_for("go")
mark("got", str(len(got)))
"""
    with Job(tmp_path, script=script) as job:
        job.mark("up", 0, 1)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) * 20:
            job.send(signum)
        job.says("passed to the workers")
        (tmp_path / "go").touch()
        assert job.wait().exit_code in (143, 129, 131)
    assert job.mark("got", 0, 1) == "1"


def test_a_stop_signal_after_the_last_worker_succeeded_changes_nothing(tmp_path: Path) -> None:
    """The agent still has output to write, to a pipe that is not read until the signal has come."""
    pipe = 'mkfifo pipe; exec 3<>pipe; exec "$@" >&3'
    script = "sys.stdout.write(('x' * 99 + chr(10)) * 15000)\nmark('done')"
    with Job(tmp_path, "--tee", "1", script=script, prefix=("sh", "-c", pipe, "sh")) as job:
        job.mark("done", 0, 1)
        wait_until(lambda: not children(job.pid))
        job.send(signal.SIGTERM)
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        data = b""
        while is_alive(job.pid):
            with suppress(BlockingIOError):
                data += os.read(reader, 1 << 20)
        os.close(reader)
        assert job.wait().exit_code == 0
    assert data.count(b"\n") == 15000


def test_under_nohup_a_hangup_stops_nothing(tmp_path: Path) -> None:
    script = """
mark("up")
wait_for("go")
mark("done")
"""
    with Job(tmp_path, script=script, prefix=("nohup",)) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
    assert job.has_mark("done", 0, 1)


def test_under_nohup_a_hangup_that_was_asked_for_stops_the_job(tmp_path: Path) -> None:
    options = ("--signals-to-handle", "SIGTERM,SIGHUP")
    with Job(tmp_path, *options, script="mark('up')\ntime.sleep(1000)", prefix=("nohup",)) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGHUP)
        assert job.wait().exit_code == 129


IGNORING = ("sh", "-c", 'trap "" INT TERM QUIT PIPE CHLD USR1; exec "$0" "$@"')


def test_signals_that_the_agents_parent_ignored_stop_it_all_the_same(tmp_path: Path) -> None:
    script = """
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
mark("up")
time.sleep(1000)
"""
    with Job(tmp_path, script=script, prefix=IGNORING) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 143


def test_exit_codes_are_seen_though_the_agents_parent_ignored_sigchld(tmp_path: Path) -> None:
    with Job(tmp_path, script="sys.exit(7)", prefix=IGNORING) as job:
        assert job.wait().exit_code == 7


def test_tests_are_not_run_with_what_their_shell_ignores() -> None:
    """tests/conftest.py: a test that sends SIGHUP would wait for ever under nohup."""
    look = "import signal, tests.conftest; print({signal.getsignal(n) for n in (1, 3, 10, 15, 17)} == {signal.SIG_DFL})"
    ignoring = ["sh", "-c", 'trap "" HUP INT TERM QUIT CHLD USR1; exec "$0" "$@"', sys.executable, "-c", look]
    assert subprocess.run(ignoring, cwd=REPOSITORY, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize("options", [("--shutdown-timeout", "9e8"), ("--lease-ttl", "9e8")])
def test_a_time_of_years_is_waited_for_like_any_other(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda signum, frame: mark("got"))
mark("up")
wait_for("go")
"""
    with Job(tmp_path, *options, script=script) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGTERM)
        job.mark("got", 0, 1)
        (tmp_path / "go").touch()
        ended = job.wait()
    assert ended.exit_code == 143, ended.stderr
