"""The agent as PID 1 of a container: there is nobody else to reap, and nobody else's signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.processes.tree import Agent, children, family, namespace_pids
from tests.support.waiting import wait_until

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def agent() -> Iterator[Agent]:
    try:
        subprocess.run([*NAMESPACE, "true"], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no pid namespace: the unshare command is missing")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no pid namespace: {error.stderr.strip()}")
    with Agent(*NAMESPACE) as agent:
        assert agent.pid == 1
        yield agent


def outside(agent: Agent) -> dict[int, int]:
    """The namespace's processes by their pid inside: their pid out here."""
    own_depth = len(namespace_pids(os.getpid()))
    pids = {pid: namespace_pids(pid) for pid in family(agent.token)}
    # unshare itself carries the token too, and stays outside.
    return {inner[-1]: pid for pid, inner in pids.items() if len(inner) > own_depth}


def test_a_round_is_started_and_swept(agent: Agent) -> None:
    agent.start(1, ["sh", "-c", "(setsid sleep 1000 &); exec sleep 1000"], ["true"])
    wait_until(lambda: len(outside(agent)) == 5)
    agent.sweep(1)
    assert len(outside(agent)) == 3


def test_orphans_of_other_processes_are_reaped(agent: Agent) -> None:
    init = outside(agent)[1]
    # As "docker exec" does: a process that enters from outside and leaves children behind.
    enter = ["nsenter", "--target", str(init), "--pid", "sh", "-c", "(sleep 0.01 &); (setsid sleep 0.01 &)"]
    subprocess.run(enter, check=True)

    def only_the_supervisor_is_left() -> bool:
        agent.ask("reap")
        return len(children(init)) == 1

    wait_until(only_the_supervisor_is_left)
    agent.start(1, ["sleep", "1000"])


def test_killing_the_agent_ends_all(agent: Agent) -> None:
    agent.start(1, ["sh", "-c", "(setsid sleep 1000 &); exec sleep 1000"])
    os.kill(outside(agent)[1], signal.SIGKILL)
    agent.wait_until_nobody_is_left()


def test_the_agent_clears_away_what_a_lost_supervisor_leaves(agent: Agent) -> None:
    agent.start(1, ["sh", "-c", "(setsid sleep 1000 &); exec sleep 1000"])
    wait_until(lambda: len(outside(agent)) == 5)
    agent.ask("evaluate", "os.kill(supervisor.pid, 9)")
    agent.wait_for("SupervisorLost")
    assert agent.ask("kill_orphans", 20) == []
    assert len(outside(agent)) == 1
