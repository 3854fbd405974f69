"""Ending a round: whoever a worker left behind, and however it resists, is gone when the supervisor says so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.tree import Agent, children, family, freeze, is_alive, parent, state
from tests.support.waiting import wait_until

SLEEP = ["sleep", "1000"]


def sweep(agent: Agent, round: int) -> None:
    """Sweep a round; when the supervisor calls it gone, nobody but it and the agent may be alive."""
    agent.sweep(round)
    assert set(family(agent.token)) == {agent.pid, agent.keeper_pid, agent.supervisor_pid}
    assert children(agent.supervisor_pid) == []


def wait_for_family(agent: Agent, count: int) -> list[int]:
    """The workers' processes, once there are so many."""

    def others() -> list[int]:
        found = sorted(set(family(agent.token)) - {agent.pid, agent.keeper_pid, agent.supervisor_pid})
        return found if len(found) == count else []

    return wait_until(others, what=f"{count} processes")


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_a_worker_that_ignores_every_signal_is_killed(agent: Agent) -> None:
    ignore_all = "[signal.signal(s, signal.SIG_IGN) for s in signal.valid_signals() - {9, 19}]"
    code = f"import signal, time; {ignore_all}; time.sleep(1000)"
    (worker,) = agent.start(1, [sys.executable, "-I", "-S", "-c", code])

    def ignores() -> bool:
        mask = Path(f"/proc/{worker}/status").read_text().partition("SigIgn:")[2].split()[0]
        return bool(int(mask, 16) & 1 << signal.SIGTERM - 1)

    wait_until(ignores)
    agent.do("signal", 1, signal.SIGTERM)
    sweep(agent, 1)
    assert agent.wait_for("Exited", 1, 0)[4] == -signal.SIGKILL


def test_a_workers_group_is_killed_at_once_so_no_child_sees_its_parent_end(agent: Agent, tmp_path: Path) -> None:
    saw_it = tmp_path / "saw it"
    code = f"""
import os, time
end, held = os.pipe()
for _ in range(4):
    if not os.fork():
        os.close(held)
        os.read(end, 1)  # until the parent's end closes, with it
        os.open({str(saw_it)!r}, os.O_CREAT)
print(flush=True)
time.sleep(1000)
"""
    agent.start(1, [sys.executable, "-I", "-S", "-c", code], stdout=str(tmp_path / "out"))
    wait_until((tmp_path / "out").read_text)
    wait_until(lambda: [state(pid) for pid in wait_for_family(agent, 5)] == ["S"] * 5)
    sweep(agent, 1)
    assert not saw_it.exists()


def test_stopped_workers_are_killed(agent: Agent) -> None:
    workers = agent.start(1, SLEEP, SLEEP)
    for pid in workers:
        freeze(pid)
    sweep(agent, 1)


def test_what_a_worker_left_running_runs_on_until_the_sweep(agent: Agent) -> None:
    agent.spawn(1, shell("sleep 1000 & sleep 1000 &"), SLEEP)
    assert agent.wait_for("Exited", 1, 0)[4] == 0
    left = wait_for_family(agent, 3)
    wait_until(lambda: all(parent(pid) == agent.supervisor_pid for pid in left), what="their adoption")
    assert all(map(is_alive, left))
    sweep(agent, 1)


LINE = '[ $1 = 0 ] || setsid sh -c "$2" sh $(($1 - 1)) "$2" & exec sleep 1000'
DAEMONS = shell("(setsid setsid sleep 1000 & setsid sleep 1000 &); (sleep 1000 &); sleep 1000 & exec sleep 1000")
NO_LIST = (
    "import os; real = os.path.exists; os.path.exists = lambda path: not path.endswith('/children') and real(path)"
)


@pytest.mark.parametrize(
    ("program", "count", "setup"),
    [(DAEMONS, 5, ""), (DAEMONS, 5, NO_LIST), ([*shell(LINE), "sh", "5", LINE], 6, "")],
    ids=["daemons", "daemons under a kernel that lists no children", "a long line"],
)
def test_descendants_are_killed_wherever_they_went(program: list[str], count: int, setup: str) -> None:
    with Agent(setup=setup) as agent:
        agent.start(1, program)
        wait_for_family(agent, count)
        sweep(agent, 1)


def test_orphans_that_end_by_themselves_leave_no_zombie(agent: Agent) -> None:
    (worker,) = agent.start(1, shell("for i in 1 2 3 4 5; do (sleep 0.01 & sleep 0.02 &); done; exec sleep 1000"))
    wait_for_family(agent, 1)
    wait_until(lambda: children(agent.supervisor_pid) == [worker], what="the orphans to be reaped")


FORK_BOMB = """
import os, time
end = time.monotonic() + 20  # bounded, should the test fail
for _ in range(4): os.fork()
while time.monotonic() < end:  # each of 16 forks a successor into a new session and goes, as fast as it can
    if os.fork(): os._exit(0)
    os.setsid()
"""


def test_a_fork_bomb_that_hops_from_session_to_session_is_caught(agent: Agent) -> None:
    agent.start(1, [sys.executable, "-I", "-S", "-c", FORK_BOMB])
    agent.wait_for("Exited", 1, 0)
    sweep(agent, 1)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group whose processes can be held by the kernel, SIGKILL pending, as in a driver that hangs."""
    group = Path(f"/sys/fs/cgroup/freezer/meshrun-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no version 1 freezer that we may use: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError:
            return False
        return True

    wait_until(removed)


def test_a_process_held_by_the_kernel_counts_as_gone_once_it_cannot_run(freezer: Path, agent: Agent) -> None:
    held, sibling = agent.start(1, shell("setsid sleep 1000 & exec sleep 1000"), SLEEP)
    (grandchild,) = wait_until(lambda: children(held))
    (freezer / "cgroup.procs").write_text(str(held))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
    agent.sweep(1)
    assert [is_alive(pid) for pid in (held, grandchild, sibling)] == [True, False, False]
    assert not [report for report in agent.heard if report[:3] == ["Exited", 1, 0]]
    (freezer / "freezer.state").write_text("THAWED")
    assert agent.wait_for("Exited", 1, 0)[4] == -signal.SIGKILL
