"""A machine that has no thread or no descriptor left for a while: that costs answers, and no job.

Whatever asked, told or wrote in vain works again once there is one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from launcher.hardware.linux.kernel_log import _HOST_PIDS as HOST_PIDS
from tests.support.jobs.shortage import ShortJob, limit_descriptors, lower_descriptors
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import free_port
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

WAIT = "mark('up')\nprint('hello', flush=True)\nwait_for('go')\n"
FAIL_ONCE = (
    "mark('up')\nwait_for(f'up-{1 - RANK}-{ROUND}')\nsys.exit(3) if RANK == ROUND == 1 else wait_for('up-0-2')\n"
)


def ask(command: str, *words: object) -> str:
    """Run a command of meshctl; return what it prints."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    call = [sys.executable, "-m", "launcher.meshctl.main", command, *map(str, words)]
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return bytes(answer.read())


def answers(port: int, path: str) -> bool:
    try:
        return bool(get(port, path))
    except OSError:
        return False


def test_all_who_ask_without_a_thread_are_answered_and_what_waited_follows(tmp_path: Path) -> None:
    metrics, page = free_port("127.0.0.1"), free_port("127.0.0.1")
    options = [
        "--nproc-per-node=2", "--log-dir=logs", "--redirects=3", "--events=events", "--notify=cat >>told",
        f"--metrics-port={metrics}", "--metrics-file=./metrics.prom", f"--serve=127.0.0.1:{page}",
    ]  # fmt: skip
    with ShortJob(tmp_path, *options, script=WAIT) as job:
        job.marks("up", range(2))
        assert "all ranks are at one line" in ask("why", job.pid)
        assert ask("why", job.pid, "--stacks").startswith("ranks 0, 1: ")
        assert "running" in ask("ps", job.pid)
        assert "its logs cannot be read: no thread can be started at the moment" in ask("logs", job.pid)
        assert "ranks 0-1 started" in ask("events", job.pid)
        assert "round 1" in ask("status", job.pid)
        wait_until(lambda: answers(metrics, "/healthz"), 60)
        assert b"meshrun_round{" in get(metrics, "/metrics")
        wait_until(lambda: "--serve" in job.refused, 60)
        assert {"report diagnosis", "report state", "report logs", "reader", "events", "teller"} <= {*job.refused}
        assert not answers(page, "/api/run")
        assert (tmp_path / "events").read_text() == ""
        job.end_shortage()
        wait_until(lambda: (tmp_path / "events").read_text().count("worker_started") == 2, 60)
        wait_until(lambda: (tmp_path / "told").exists() and "round_started" in (tmp_path / "told").read_text(), 60)
        wait_until(lambda: answers(page, "/api/run"), 60)
        assert "hello" in ask("logs", job.pid)
        assert "running" in ask("ps", job.pid)
        assert get(metrics, "/healthz") == b"ok\n"
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
    assert "Traceback" not in job.stderr


def test_without_a_thread_sigquit_shows_what_the_workers_do(tmp_path: Path) -> None:
    with ShortJob(tmp_path, "--nproc-per-node=2", script=WAIT) as job:
        job.marks("up", range(2))
        job.send(signal.SIGQUIT)
        ended = job.wait()
    assert ended.exit_code == 128 + signal.SIGQUIT
    assert "all ranks are at one line" in ended.stderr
    assert "report diagnosis" in job.refused


@pytest.mark.parametrize("options", [("--preload=json", "--standby=1"), ("--log-dir=logs", "--tee=3")], ids=str)
def test_without_a_thread_a_failure_with_survivors_costs_one_restart(options: tuple[str, ...], tmp_path: Path) -> None:
    with ShortJob(tmp_path, "--nproc-per-node=2", "--max-restarts=2", *options, script=FAIL_ONCE) as job:
        ended = job.wait()
    assert ended.exit_code == 0, ended.stderr
    assert "1 of 2 restarts used" in ended.stderr


def list_files(pid: int) -> list[str]:
    """The paths of the files that a process has open."""
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(entry.path))
    return found


def lack_descriptors(job: Job, round: int = 1) -> int:
    """Let the agent open no descriptor, once it has what the end of a round takes; return the limit that it had."""
    events = job.directory / "events"
    wait_until(lambda: events.exists() and events.read_text().count("worker_started") == 2 * round, 60)
    if os.access("/dev/kmsg", os.R_OK) and os.readlink("/proc/self/ns/pid") == HOST_PIDS:  # opened last
        wait_until(lambda: "/dev/kmsg" in list_files(job.pid), 60)
    return lower_descriptors(job.pid)


@pytest.mark.parametrize("options", [(), ("--preload=json",)], ids=str)
def test_without_a_descriptor_a_restart_waits_for_one_and_the_last_failure_has_its_exit_code(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    script = "mark('up')\nwait_for(f'go-{ROUND}' if RANK else 'never')\nsys.exit(2 + ROUND)\n"
    # With an option of placement there is a planner, part of which the first restart imports.
    words = ("--nproc-per-node=2", "--max-restarts=1", "--events=events", "--unit=2", *options)
    with Job(tmp_path, *words, script=script) as job:
        limit = lack_descriptors(job)
        (tmp_path / "go-1").touch()
        job.says("rank 1 exited with code 3; the agent had no descriptor or memory left to find out why")
        job.says("the next round cannot be planned yet: Too many open files")
        limit_descriptors(job.pid, limit)
        job.marks("up", range(2), round=2)
        lack_descriptors(job, round=2)
        (tmp_path / "go-2").touch()
        ended = job.wait()
    assert ended.exit_code == 4, ended.stderr
    assert ended.stderr.count("cannot be planned yet") == 1
    assert "1 of 1 restarts used" in ended.stderr


def test_without_a_descriptor_a_question_waits_and_sigquit_ends_the_job_as_ever(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=2", "--events=events", script=WAIT) as job:
        limit = lack_descriptors(job)
        assert f"the agent with pid {job.pid} does not respond" in ask("ps", job.pid)
        limit_descriptors(job.pid, limit)
        wait_until(lambda: "running" in ask("ps", job.pid), 60)
        assert "all ranks are at one line" in ask("why", job.pid)
        lower_descriptors(job.pid)
        job.send(signal.SIGQUIT)
        ended = job.wait()
    assert ended.exit_code == 128 + signal.SIGQUIT
    assert "meshrun: questions about this run: OSError: [Errno 24] " in ended.stderr


@contextmanager
def resting(directory: Path, *options: str, kind: str = "alone") -> Iterator[Job]:
    """A job whose two workers have begun and wait."""
    at = ("--rdzv-backend=c10d", "--nnodes=1", "--rdzv-id=short", f"--rdzv-endpoint=localhost:{free_port('127.0.0.1')}")
    given = at if kind == "networked" else ()
    with Job(directory, "--nproc-per-node=2", "--max-restarts=1", "--tee=3", *given, *options, script=WAIT) as job:
        job.marks("up", range(2))
        yield job


@pytest.mark.parametrize("kind", ["alone", "networked"])
def test_a_round_whose_pipes_cannot_be_opened_waits_and_a_success_needs_no_descriptor(
    tmp_path: Path, kind: str
) -> None:
    with resting(tmp_path, "--duplicate-stdout-filters=found", kind=kind) as job:
        held = len(list_files(job.pid))
        # There will be room for the read ends of the round's pipes, and not for write ends too.
        before = limit_descriptors(job.pid, held)
        os.kill(int(job.mark("up", 0, 1)), signal.SIGKILL)
        job.says("cannot prepare 2 workers: Too many open files (check ulimit -n); retrying for 60 s")
        limit_descriptors(job.pid, before)
        job.marks("up", range(2), round=2)
        wait_until(lambda: len(list_files(job.pid)) <= held + 1, 20, "no more files than before: tries leave none")
        limit_descriptors(job.pid, 3)
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0, job.stderr
        assert job.stderr.count("cannot prepare") == 1


def test_a_job_that_waits_for_descriptors_can_be_stopped(tmp_path: Path) -> None:
    with resting(tmp_path, "--shutdown-timeout=300") as job:
        limit_descriptors(job.pid, len(list_files(job.pid)))
        os.kill(int(job.mark("up", 0, 1)), signal.SIGKILL)
        job.says("retrying for 60 s")
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 143, job.stderr
