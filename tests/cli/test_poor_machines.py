"""A machine that lacks what the agent stands on: one sentence and exit code 75, no traceback and no 137."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.tree import REPOSITORY, Agent

MESHRUN = [sys.executable, "-m", "launcher"]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NO_TIMER = "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))"


def run(*words: str, limit_s: float = 60.0) -> tuple[int, str]:
    """What is said, and the exit code."""
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=limit_s)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@NEEDS_ROOT
def test_without_proc_nothing_is_started() -> None:
    words = " ".join((*MESHRUN, "--no-python", "echo", "never"))
    assert run("unshare", "--mount", "sh", "-c", f"umount -l /proc; {words}") == (
        75,
        "meshrun: error: /proc is not mounted, but meshrun needs it to find processes\n"
        "hint: run mount -t proc proc /proc, or unshare with --mount-proc\n",
    )


@NEEDS_ROOT
def test_with_the_proc_of_another_namespace_nothing_is_started() -> None:
    exit_code, said = run("unshare", "--pid", "--fork", *MESHRUN, "--no-python", "echo", "never")
    assert exit_code == 75
    assert "/proc shows another pid namespace: this process is 1 here and " in said


def test_a_node_that_can_have_no_timer_does_not_join() -> None:
    require = "from launcher.hardware.linux.limits import require_timer; require_timer()"
    fine = subprocess.run([sys.executable, "-c", require], cwd=REPOSITORY)
    assert fine.returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", f"{NO_TIMER}; {require}"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert "TemporaryError: the kernel refuses another timer" in done.stderr


def test_a_supervisor_without_a_timer_says_so_kills_its_workers_and_ends() -> None:
    with Agent(setup=NO_TIMER) as agent:
        agent.start(1, ["sh", "-c", "sleep 1000 & exec sleep 1000"])
        agent.do("extend_watchdog", 1e9)
        lost = agent.wait_for("SupervisorLost")
        assert lost[1:] == [
            "the supervisor cannot create the timer that ends workers: "
            "timer_create: Resource temporarily unavailable; check `ulimit -i`",
            75,
        ]
        assert agent.ask("kill_orphans", 20) == []
        agent.wait_until_nobody_is_left(agent.pid)


def test_a_supervisor_that_cannot_begin_says_so() -> None:
    no_proc = "import os; listdir = os.listdir; "
    no_proc += "os.listdir = lambda path='.': listdir('/nowhere' if path == '/proc/self/fd' else path)"
    done = subprocess.run(
        [sys.executable, "-c", f"{no_proc}\n{BEGIN}"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("75 the supervisor cannot run here: No such file or directory\n", "")


BEGIN = """
import select
from launcher.supervisor.handle import Supervisor
from launcher.supervisor.keeper import fork_keeper
supervisor = Supervisor(*fork_keeper())
supervisor.start()
while not (reports := supervisor.read_reports()):
    select.select([supervisor], [], [], 10)
print(reports[0].exit_code, reports[0].sentence)
"""


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("limit", "sentence", "code"),
    [
        (1, "error: cannot fork the supervisor: Resource temporarily unavailable\nhint: check ulimit -u\n", 75),
        (3, "cannot start the worker of local rank 0: Resource temporarily unavailable (check ulimit -u)\n", 1),
    ],
)
def test_too_few_processes_are_told_in_a_sentence(limit: int, sentence: str, code: int, tmp_path: Path) -> None:
    """As another user, for root has no such limit; what root may read it may read all the same."""
    tmp_path.chmod(0o777)
    read = "+dac_override,+dac_read_search"
    user = 70_000 + os.getpid() % 100_000
    drop = ["setpriv", "--reuid", str(user), "--clear-groups", "--inh-caps", read, "--ambient-caps", read]
    words = " ".join((*MESHRUN, "--log-dir", str(tmp_path), "--no-python", "true"))
    exit_code, said = run(*drop, "sh", "-c", f"ulimit -u {limit} 2>/dev/null || ulimit -p {limit}; exec {words}")
    assert sentence in said
    assert exit_code == code
