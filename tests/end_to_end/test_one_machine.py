"""The command on one machine, with real processes: restarts, signals, deaths of agent and supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.processes.tree import is_alive, state
from tests.support.waiting import wait_until

IDLE = """
mark("up")
while True:
    time.sleep(60)
"""


def test_all_workers_succeed_and_the_command_too(tmp_path: Path) -> None:
    script = 'sys.stdout.write(f"rank {RANK} {sys.argv[1:]}\\n")'  # `print` would write its line in pieces
    with Job(tmp_path, "--standalone", "--nproc-per-node", "3", script=script,
             arguments=("--standalone", "-x", "${local_rank}")) as job:  # fmt: skip
        ended = job.wait()
    assert ended.exit_code == 0
    assert sorted(ended.stdout.splitlines()) == [f"rank {r} ['--standalone', '-x', '{r}']" for r in range(3)]
    assert "3 workers" in ended.stderr


def test_a_killed_worker_restarts_all_of_them(tmp_path: Path) -> None:
    script = """
mark("up")
if ROUND == 1:
    time.sleep(1000)
mark("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""
    with Job(tmp_path, "--nproc-per-node", "3", "--max-restarts", "1", script=script) as job:
        first = [int(job.mark("up", rank, 1)) for rank in range(3)]
        os.kill(first[1], signal.SIGKILL)
        assert [job.mark("restarts", rank, 2) for rank in range(3)] == ["1"] * 3
        assert not any(is_alive(pid) for pid in first)
        ended = job.wait()
    assert ended.exit_code == 0
    assert "rank 1" in ended.stderr
    assert "SIGKILL" in ended.stderr


def test_with_the_budget_spent_the_first_failure_is_reported_with_its_code(tmp_path: Path) -> None:
    script = """
mark("up")
if RANK == 1:
    wait_for(f"up-0-{ROUND}")
    print("boom", file=sys.stderr)
    sys.exit(40 + ROUND)
time.sleep(1000)
"""
    with Job(tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", "--tee", "2", script=script) as job:
        ended = job.wait()
    assert ended.exit_code == 42
    assert "train.py FAILED" in ended.stderr
    assert "rank      : 1 (local_rank: 1)" in ended.stderr
    assert "exitcode  : 42" in ended.stderr
    assert "boom" in ended.stderr.partition("Root Cause")[2]
    assert "1 of 1 restarts used" in ended.stderr


def test_a_worker_that_exits_0_early_is_not_a_failure(tmp_path: Path) -> None:
    script = """
if RANK == 0:
    mark("done")
    sys.exit(0)
wait_for("go")
mark("done")
"""
    with Job(tmp_path, "--nproc-per-node", "2", script=script) as job:
        wait_until(lambda: not is_alive(int(job.mark("done", 0, 1))))
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
    assert job.has_mark("done", 1, 1)
    assert not job.has_mark("done", 0, 2)


@pytest.mark.parametrize(("code", "expected"), [("os.kill(os.getpid(), 11)", 139), ("os._exit(2)", 2)])
def test_the_exit_code_is_the_worker_s_own(tmp_path: Path, code: str, expected: int) -> None:
    with Job(tmp_path, script=code) as job:
        assert job.wait().exit_code == expected


def test_a_program_that_cannot_be_run_is_said(tmp_path: Path) -> None:
    with Job(tmp_path, "--no-python", "./no-such-program", script="") as job:
        ended = job.wait()
    assert ended.exit_code in (2, 127)
    assert "no-such-program" in ended.stderr
    assert "Traceback" not in ended.stderr


GRANDCHILD = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        mark("grandchild")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    os._exit(0)
os.wait()
"""


def test_a_killed_agent_leaves_nobody(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node", "2", script=GRANDCHILD + IDLE) as job:
        for rank in range(2):
            job.mark("grandchild", rank, 1)
            job.mark("up", rank, 1)
        job.send(signal.SIGKILL)
        job.wait_until_nobody_is_left()


def test_a_killed_supervisor_is_reported_and_leaves_nobody(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node", "2", script=GRANDCHILD + IDLE) as job:
        for rank in range(2):
            job.mark("grandchild", rank, 1)
            job.mark("up", rank, 1)
        os.kill(job.supervisor_pid, signal.SIGKILL)
        ended = job.wait()
        assert not job.left()
    assert ended.exit_code == 137
    assert "supervisor" in ended.stderr
    assert "SIGKILL" in ended.stderr


def test_a_frozen_agent_with_a_watchdog_keeps_no_workers(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node", "2", "--lease-ttl", "3", script=IDLE) as job:
        pids = [int(job.mark("up", rank, 1)) for rank in range(2)]
        job.send(signal.SIGSTOP)
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 30)
        assert state(job.pid) == "T"


def test_a_thawed_agent_starts_a_new_round(tmp_path: Path) -> None:
    script = """
mark("up")
mark("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
if ROUND == 1:
    time.sleep(1000)
"""
    with Job(tmp_path, "--lease-ttl", "3", script=script) as job:
        pid = int(job.mark("up", 0, 1))
        job.send(signal.SIGSTOP)
        wait_until(lambda: not is_alive(pid), 30)
        job.send(signal.SIGCONT)
        assert job.wait().exit_code == 0
    assert job.mark("restarts", 0, 2) == "0"


def test_without_a_watchdog_a_stopped_agent_kills_nobody(tmp_path: Path) -> None:
    script = """
mark("up")
wait_for("go")
mark("done")
"""
    with Job(tmp_path, script=script) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGSTOP)  # Ctrl-Z's own signal does nothing to a process group that no shell looks after
        wait_until(lambda: state(job.pid) == "T")
        (tmp_path / "go").touch()
        wait_until(lambda: job.has_mark("done", 0, 1))
        job.send(signal.SIGCONT)
        assert job.wait().exit_code == 0


@pytest.mark.parametrize(
    ("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_signal_to_the_agent_reaches_the_workers(tmp_path: Path, signum: int, exit_code: int) -> None:
    script = """
def stop(signum, frame):
    mark("got", signal.Signals(signum).name)
    sys.exit(0)
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(signum, stop)
mark("up")
while True:
    time.sleep(60)
"""
    with Job(tmp_path, "--nproc-per-node", "2", "--max-restarts", "3", script=script) as job:
        for rank in range(2):
            job.mark("up", rank, 1)
        job.send(signum)
        ended = job.wait()
        assert not job.left()
    assert [job.mark("got", rank, 1) for rank in range(2)] == [signal.Signals(signum).name] * 2
    assert ended.exit_code == exit_code
    assert "FAILED" not in ended.stderr


STUBBORN = """
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, lambda signum, frame: mark(signal.Signals(signum).name))
mark("up")
while True:
    time.sleep(60)
"""


def test_after_the_grace_comes_kill(tmp_path: Path) -> None:
    with Job(tmp_path, "--shutdown-timeout", "1", script=STUBBORN) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 143
    assert job.has_mark("SIGTERM", 0, 1)


def test_a_second_interrupt_is_impatient(tmp_path: Path) -> None:
    with Job(tmp_path, "--shutdown-timeout", "1000", script=STUBBORN) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGINT)
        job.mark("SIGINT", 0, 1)
        job.send(signal.SIGINT)
        assert job.wait().exit_code == 130


# A PID 1 that reaps nobody, and one that does: what a container without and with tini gives.
INITS = {
    "not reaping": "import subprocess, sys, os, time\n"
    "pid = os.fork()\n"
    "if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "print(pid, flush=True)\n"
    "os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)\n",
    "reaping": "import os, sys\n"
    "pid = os.fork()\n"
    "if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "while True:\n"
    "    ended, status = os.wait()\n"
    "    if ended == pid: os._exit(os.waitstatus_to_exitcode(status) % 256)\n",
}


def _can_unshare() -> bool:
    return subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="no own pid namespace may be made here (unshare needs privileges)")
@pytest.mark.parametrize("init", ["none", "not reaping", "reaping"])
def test_under_any_pid_1_a_termination_is_passed_on(tmp_path: Path, init: str) -> None:
    """`none`: the agent itself is PID 1."""
    if init != "none":
        (tmp_path / "init.py").write_text(INITS[init])
    inner = () if init == "none" else (sys.executable, str(tmp_path / "init.py"))
    script = (
        GRANDCHILD
        + """
signal.signal(signal.SIGTERM, lambda signum, frame: (mark("got"), sys.exit(0)))
mark("up")
while True:
    time.sleep(60)
"""
    )
    prefix = ("unshare", "-p", "-f", "--mount-proc", *inner)
    with Job(tmp_path, "--nproc-per-node", "2", script=script, prefix=prefix) as job:
        for rank in range(2):
            job.mark("up", rank, 1)
            job.mark("grandchild", rank, 1)
        agent = _the_agent(job)
        os.kill(agent, signal.SIGTERM)
        ended = job.wait()
        job.wait_until_nobody_is_left()
    assert all(job.has_mark("got", rank, 1) for rank in range(2))
    assert ended.exit_code == 143


def _the_agent(job: Job) -> int:
    """The outermost process that runs the launcher, by its command line."""
    found = []
    for pid in job.left():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [b"-m", b"launcher"]:
            found.append(pid)
    return min(found)


@pytest.mark.parametrize("name", ["queue", "launcher", "types", "signal", "json", "rendezvous"])
def test_modules_of_the_user_s_in_the_current_directory_break_nothing(tmp_path: Path, name: str) -> None:
    """With the installed command; what `python -m` itself imports first is not ours to decide."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')")
    (tmp_path / "work.py").write_text(f"import sys; print('ran', {name!r} in sys.modules)")
    command = Path(sys.executable).with_name("meshrun")
    ended = subprocess.run(
        [command, "--nproc-per-node", "2", "--no-python", "sh", "-c", "echo ran"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "ran\nran\n"


def test_workers_import_from_the_script_s_directory_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("NAME = 'of the user'")
    with Job(tmp_path, script="import queue; mark('name', queue.NAME)") as job:
        assert job.wait().exit_code == 0
    assert job.mark("name", 0, 1) == "of the user"
