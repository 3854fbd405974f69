"""Signals to the agent, also at moments that are easily forgotten, and the deaths of agent and supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job, run
from tests.support.processes.tree import REPOSITORY, children, freeze, is_alive, oldest_first, state
from tests.support.waiting import wait_until

TWO = ("--nproc-per-node", "2")
IDLE = """
mark("up")
while True:
    time.sleep(60)
"""
STOPPABLE = """
def stop(signum, frame):
    mark("got", signal.Signals(signum).name)
    sys.exit(0)
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(signum, stop)
"""
STUBBORN = """
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, lambda signum, frame: mark(signal.Signals(signum).name))
"""
WAITS = """
mark("up")
wait_for("go")
mark("done")
"""
CRASHES = """
mark("up")
sys.exit(3)
"""
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


LOADS = """
loader = subprocess.Popen(["sleep", "1000"])
def save(signum, frame):
    mark("loader", str(loader.poll()))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
mark("up")
while True:
    time.sleep(60)
"""
TRAPS = """
import os, signal, subprocess, sys
shell = 'trap "touch trapped" TERM; touch up; sleep 1000; exit 0'
os.execvp("sh", ["sh", "-c", shell])
"""


LEAVES_ONE = """
subprocess.Popen(["sh", "-c", f"while ! test -e go; do sleep 0.01; done; touch saved-{RANK}; exec sleep {sys.argv[1]}"])
sys.exit(int(sys.argv[2]))
"""


def test_what_workers_leave_after_a_success_may_finish(tmp_path: Path) -> None:
    with Job(tmp_path, *TWO, script=LEAVES_ONE, arguments=("0", "0")) as job:
        job.says("meshrun: waiting up to 20 s for what the workers have left: ")
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
        assert {file.name for file in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}
        assert "ending" not in job.stderr


def test_a_signal_ends_what_workers_have_left_and_the_job_has_succeeded(tmp_path: Path) -> None:
    with Job(tmp_path, *TWO, script=LEAVES_ONE, arguments=("1000", "0")) as job:
        job.says("meshrun: waiting up to 20 s for what the workers have left: ")
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 0
        assert job.stderr.count("meshrun: ending what the workers have left: 'sh' (pid ") == 1
        job.wait_until_nobody_is_left()


def test_what_workers_leave_after_a_failure_is_ended_at_once(tmp_path: Path) -> None:
    job = run(tmp_path, *TWO, script=LEAVES_ONE, arguments=("1000", "3"), exit_code=3)
    assert "what the workers have left" not in job.stderr


def test_a_killed_supervisor_leaves_nobody(tmp_path: Path) -> None:
    """Nor does a killed agent: tests/processes/test_keeper.py."""
    with Job(tmp_path, *TWO, script=GRANDCHILD + IDLE) as job:
        job.marks("grandchild", range(2))
        job.marks("up", range(2))
        os.kill(job.supervisor_pid, signal.SIGKILL)
        assert job.wait().exit_code == 137
        assert not job.left()
        assert "supervisor" in job.stderr
        assert job.stderr.count("was killed by SIGKILL") == 1


def test_a_frozen_agent_keeps_no_workers_and_starts_a_new_round_later(tmp_path: Path) -> None:
    script = """
mark("up")
mark("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
if ROUND == 1:
    time.sleep(1000)
"""
    with Job(tmp_path, *TWO, "--lease-ttl", "3", script=script) as job:
        pids = [int(pid) for pid in job.marks("up", range(2))]
        job.send(signal.SIGSTOP)
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 30)
        assert state(job.pid) == "T"
        job.send(signal.SIGCONT)
        assert job.wait().exit_code == 0
    assert job.marks("restarts", range(2), 2) == ["0", "0"]


def test_without_a_watchdog_a_stopped_agent_kills_nobody(tmp_path: Path) -> None:
    with Job(tmp_path, script=WAITS) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGSTOP)  # Ctrl-Z's own signal does nothing to a process group that no shell looks after
        wait_until(lambda: state(job.pid) == "T")
        (tmp_path / "go").touch()
        wait_until(lambda: job.has_mark("done", 0, 1))
        job.send(signal.SIGCONT)
        assert job.wait().exit_code == 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_signal_to_the_agent_reaches_the_workers(tmp_path: Path, name: str) -> None:
    with Job(tmp_path, *TWO, "--max-restarts", "3", script=STOPPABLE + IDLE) as job:
        job.marks("up", range(2))
        job.send(signal.Signals[name])
        assert job.wait().exit_code == 128 + signal.Signals[name]
        assert not job.left()
    assert job.marks("got", range(2)) == [name] * 2
    assert "FAILED" not in job.stderr


def test_what_a_worker_has_started_lives_until_the_worker_has_saved(tmp_path: Path) -> None:
    with Job(tmp_path, *TWO, script=LOADS) as job:
        job.marks("up", range(2))
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 128 + signal.SIGTERM
        assert not job.left()
    assert job.marks("loader", range(2)) == ["None", "None"]


def test_the_command_of_a_shell_gets_a_signal_that_the_shell_handles(tmp_path: Path) -> None:
    with Job(tmp_path, "--shutdown-timeout=600", script=TRAPS) as job:
        wait_until(lambda: (tmp_path / "up").exists())
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 128 + signal.SIGTERM
    assert (tmp_path / "trapped").exists()


NOTICES = """
handled, caught = os.environ["HANDLED"].split(",")[RANK].split(), []
for name in handled:
    signal.signal(signal.Signals[name], lambda signum, frame: caught.append(signal.Signals(signum).name))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
mark("handles")
while len(caught) < len(handled) or not caught:
    time.sleep(0.01)
child.terminate()  # of two pending signals the one of the lower number would be its end
mark("child", str(child.wait()))
mark("caught", " ".join(caught))
"""


def test_a_signal_that_would_be_the_agents_death_is_a_notice(tmp_path: Path) -> None:
    """Each worker is sent what it handles, and one that handles nothing ends."""
    handled = ("SIGUSR1", "SIGTERM", "SIGTERM SIGUSR1", "")
    env = {"HANDLED": ",".join(handled), "SLURM_JOB_ID": "7"}
    with Job(tmp_path, "--nproc-per-node=4", "--max-restarts", "3", script=NOTICES, env=env) as job:
        job.marks("handles", range(4))
        job.send(signal.SIGUSR1)
        assert job.wait().exit_code == 128 + signal.SIGUSR1
        assert not job.left()
    assert "SIGUSR1 is passed to the workers that handle it, SIGTERM to the others, which have 30 s" in job.stderr
    assert job.stderr.endswith("meshrun: SIGUSR1 announces the end of the Slurm job\n")
    assert "FAILED" not in job.stderr
    assert tuple(" ".join(sorted(words.split())) for words in job.marks("caught", range(3))) == handled[:3]
    assert not job.has_mark("caught", 3, 1)
    assert job.mark("child", 0, 1) == str(-signal.SIGTERM), "what a worker has started handles nothing"


@pytest.mark.parametrize(("grace", "names"), [("1", ["SIGTERM"]), ("1000", ["SIGINT", "SIGINT"])])
def test_workers_that_stay_are_killed_in_the_end_or_at_a_second_interrupt(
    tmp_path: Path, grace: str, names: list[str]
) -> None:
    with Job(tmp_path, "--shutdown-timeout", grace, script=STUBBORN + IDLE) as job:
        job.mark("up", 0, 1)
        for name in names:
            job.send(signal.Signals[name])
            job.mark(name, 0, 1)
        assert job.wait().exit_code == 128 + signal.Signals[names[0]]


# A PID 1 that reaps nobody, as in a container without tini.
INIT = """
import os, sys
pid = os.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)
"""


def _can_unshare() -> bool:
    return subprocess.run(["unshare", "-p", "-f", "--mount-proc", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="no own pid namespace may be made here (unshare needs privileges)")
@pytest.mark.parametrize("init", ["none", "not reaping"])
def test_under_any_pid_1_a_termination_is_passed_on(tmp_path: Path, init: str) -> None:
    """`none`: the agent itself is PID 1."""
    inner = () if init == "none" else (sys.executable, "-c", INIT)
    prefix = ("unshare", "-p", "-f", "--mount-proc", *inner)
    with Job(tmp_path, *TWO, script=GRANDCHILD + STOPPABLE + IDLE, prefix=prefix) as job:
        job.marks("up", range(2))
        job.marks("grandchild", range(2))
        os.kill(_the_agent(job), signal.SIGTERM)
        assert job.wait().exit_code == 143
        job.wait_until_nobody_is_left()
    assert all(job.has_mark("got", rank, 1) for rank in range(2))


def _the_agent(job: Job) -> int:
    """The outermost process that runs the launcher, by its command line."""
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in job.left()}
    return oldest_first(pid for pid, found in words.items() if found[1:3] == [b"-m", b"launcher"])[0]


@pytest.mark.parametrize("what", ["stop", "loss"])
def test_a_stop_and_a_lost_supervisor_end_the_job_between_two_rounds(tmp_path: Path, what: str) -> None:
    with Job(tmp_path, "--max-restarts", "9", script=CRASHES) as job:
        job.says("round 4 was short")  # and the pause after it is one of seconds
        if what == "stop":
            job.send(signal.SIGTERM)
        else:
            os.kill(job.supervisor_pid, signal.SIGKILL)
        assert job.wait().exit_code == (143 if what == "stop" else 137)
    assert job.stderr.endswith("meshrun: stopped by SIGTERM\n") == (what == "stop")
    assert "passed to the workers" not in job.stderr  # there are none
    assert not job.has_mark("up", 0, 5)


def test_signals_of_all_kinds_at_once_are_one_stop(tmp_path: Path) -> None:
    script = """
got = []
stops = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
for signum in stops:
    signal.signal(signum, lambda signum, frame: got.append(signum))
mark("up")
wait_for("go")
wait_for_signal(got, *stops)  # the agent has ordered it: the supervisor may still be about to send it
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
        with suppress(BlockingIOError):  # the keeper may have it open still
            while rest := os.read(reader, 1 << 20):  # what the pipe had left when the agent ended
                data += rest
        os.close(reader)
        assert job.wait().exit_code == 0
    assert data.count(b"\n") == 15000


def test_who_holds_up_the_end_is_named_and_continued(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark('up')\ntime.sleep(1000)"
    with Job(tmp_path, "--shutdown-timeout", "0.1", script=script) as job:
        job.mark("up", 0, 1)
        supervisor = job.supervisor_pid
        freeze(job.keeper_pid)
        freeze(supervisor)
        job.send(signal.SIGTERM)
        job.says(f"some processes still exist 3 s after SIGKILL: waiting for pid {supervisor} (mr-supervisor, state T)")
        assert job.wait(25.0).exit_code == 143  # not after 35 s, when the agent would give them up


@pytest.mark.parametrize(("options", "exit_code"), [((), 0), (("--signals-to-handle", "SIGTERM,SIGHUP"), 129)])
def test_under_nohup_a_hangup_stops_the_job_only_if_it_was_asked_for(
    tmp_path: Path, options: tuple[str, ...], exit_code: int
) -> None:
    with Job(tmp_path, *options, script=WAITS, prefix=("nohup",)) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGHUP)
        if not options:
            (tmp_path / "go").touch()
        assert job.wait().exit_code == exit_code
    assert job.has_mark("done", 0, 1) == (not options)


IGNORING = ("sh", "-c", 'trap "" INT TERM QUIT PIPE CHLD USR1; exec "$0" "$@"')


def test_signals_that_the_agents_parent_ignored_stop_it_all_the_same(tmp_path: Path) -> None:
    script = "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL"
    with Job(tmp_path, script=script + IDLE, prefix=IGNORING) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 143


def test_exit_codes_are_seen_though_the_agents_parent_ignored_sigchld(tmp_path: Path) -> None:
    run(tmp_path, script="sys.exit(7)", prefix=IGNORING, exit_code=7)


def test_tests_are_not_run_with_what_their_shell_ignores() -> None:
    """tests/conftest.py: a test that sends SIGHUP would wait for ever under nohup."""
    look = "import signal, tests.conftest; print({signal.getsignal(n) for n in (1, 3, 10, 15, 17)} == {signal.SIG_DFL})"
    ignoring = ["sh", "-c", 'trap "" HUP INT TERM QUIT CHLD USR1; exec "$0" "$@"', sys.executable, "-c", look]
    assert subprocess.run(ignoring, cwd=REPOSITORY, capture_output=True, text=True).stdout == "True\n"


def test_a_time_of_years_is_waited_for_like_any_other(tmp_path: Path) -> None:
    with Job(tmp_path, "--shutdown-timeout=9e8", "--lease-ttl=9e8", script=STUBBORN + WAITS) as job:
        job.mark("up", 0, 1)
        job.send(signal.SIGTERM)
        job.mark("SIGTERM", 0, 1)
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 143, job.stderr
