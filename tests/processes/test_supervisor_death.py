"""When the agent or the supervisor dies or freezes, no worker outlives it for long; and the watchdog."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from launcher.supervisor.watchdog import TIMER_MARGIN_S
from tests.support.processes.syscalls import WITHOUT_PIDFDS
from tests.support.processes.tree import Agent, children, descriptors, family, freeze, is_alive, is_refused, state
from tests.support.waiting import wait_until

SLEEP = ["sleep", "1000"]
# A child in the worker's group, one in a session of its own, and one that has lost its parent already.
FAMILY = ["sh", "-c", "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); exec sleep 1000"]
FAMILY_SIZE = 4


def start_families(agent: Agent, count: int) -> list[int]:
    workers = agent.start(1, *[FAMILY] * count)
    wait_until(lambda: len(family(agent.token)) == 3 + count * FAMILY_SIZE, what="the workers' children")
    return workers


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_killing_the_agent_gives_workers_no_chance_to_handle_sigterm(agent: Agent, tmp_path: Path) -> None:
    told = tmp_path / "told"
    agent.start(1, ["sh", "-c", f"trap 'touch {told}' TERM HUP INT; echo; while :; do sleep 0.01; done"])
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait_until_nobody_is_left()
    assert not told.exists()


def test_the_supervisor_takes_no_notice_of_signals(agent: Agent) -> None:
    (worker,) = agent.start(1, SLEEP)
    for name in ("INT", "TERM", "HUP", "QUIT", "PIPE", "USR1", "ALRM", "TSTP"):
        os.kill(agent.supervisor_pid, signal.Signals[f"SIG{name}"])
    agent.start(2, SLEEP)
    assert is_alive(worker)
    assert state(agent.supervisor_pid) != "T"


def test_a_supervisors_end_is_reported_and_what_it_leaves_is_cleared_away(agent: Agent) -> None:
    workers = start_families(agent, 3)
    os.kill(agent.supervisor_pid, signal.SIGKILL)
    assert agent.wait_for("SupervisorLost")[1] == f"the supervisor (pid {agent.supervisor_pid}) was killed by SIGKILL"
    wait_until(lambda: not any(map(is_alive, workers)))
    assert agent.ask("kill_orphans", 20) == []
    assert family(agent.token) == [agent.pid]
    assert children(agent.pid) == []


def test_the_supervisors_end_is_seen_even_if_the_agent_ignores_sigchld() -> None:
    with Agent(setup="import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)") as agent:
        os.kill(agent.supervisor_pid, signal.SIGKILL)
        assert "was killed by SIGKILL" in agent.wait_for("SupervisorLost")[1]


def test_a_supervisor_that_takes_no_orders_is_given_up(tmp_path: Path) -> None:
    with Agent(setup="import launcher.supervisor.handle; launcher.supervisor.handle.ORDER_LIMIT_S = 0.3") as agent:
        start_families(agent, 1)
        os.kill(agent.supervisor_pid, signal.SIGSTOP)
        agent.spawn(2, *[["echo", "x" * 100_000]] * 20, stdout=str(tmp_path / "out"))
        sentence = f"the supervisor (pid {agent.supervisor_pid}) accepted no order for 0.3 s and was killed"
        assert agent.wait_for("SupervisorLost")[1] == sentence
        assert agent.ask("kill_orphans", 20) == []
        assert family(agent.token) == [agent.pid]
        assert str(tmp_path / "out") not in descriptors(agent.pid)


def test_orders_to_a_lost_supervisor_are_harmless(agent: Agent, tmp_path: Path) -> None:
    os.kill(agent.supervisor_pid, signal.SIGKILL)
    agent.wait_for("SupervisorLost")
    for order in (("extend_watchdog", None), ("signal", 1, 15), ("sweep", 1), ("reap",), ("close", 5)):
        agent.ask(*order)
    agent.spawn(1, SLEEP, stdout=str(tmp_path / "out"))
    agent.wait_for("Returned", "spawn")
    assert str(tmp_path / "out") not in descriptors(agent.pid)
    assert children(agent.pid) == []


def test_a_worker_whose_supervisor_dies_during_its_setup_ends_itself() -> None:
    wait_for_the_death_of_the_supervisor = """
import os, time
from launcher.hardware.linux import kernel
real = kernel.signal_on_parent_death
def late(signum):
    global supervisor
    if signum == 9:
        while os.getppid() == supervisor: time.sleep(0.01)
    else:
        supervisor = os.getpid()  # keeper and supervisor ask for SIGCONT, the supervisor last
    real(signum)
kernel.signal_on_parent_death = late
"""
    with Agent(setup=wait_for_the_death_of_the_supervisor) as agent:
        agent.spawn(1, SLEEP)
        wait_until(lambda: children(agent.supervisor_pid))
        os.kill(agent.supervisor_pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left(agent.pid)


def test_a_supervisor_that_closes_too_slowly_is_killed_with_its_workers(agent: Agent) -> None:
    start_families(agent, 2)
    freeze(agent.supervisor_pid)
    agent.ask("close", 0.5)
    assert family(agent.token) == [agent.pid]
    assert children(agent.pid) == []


def test_the_kernel_kills_a_stopped_supervisor_with_a_watchdog_and_workers(agent: Agent) -> None:
    start_families(agent, 2)
    agent.ask("extend_watchdog", now() + 0.5)
    agent.sweep(2)  # so the supervisor has taken the watchdog, too
    os.kill(agent.supervisor_pid, signal.SIGSTOP)
    sentence = f"the supervisor (pid {agent.supervisor_pid}) was killed by SIGKILL after its watchdog expired"
    assert agent.wait_for("SupervisorLost")[1] == sentence
    assert agent.ask("kill_orphans", 20) == []
    assert family(agent.token) == [agent.pid]


def test_the_supervisor_outlives_an_expired_watchdog(agent: Agent) -> None:
    agent.start(1, SLEEP)
    until = now() + 0.2
    agent.ask("extend_watchdog", until)
    agent.wait_for("RoundSwept", 1)
    wait_until(lambda: now() > until + TIMER_MARGIN_S + 0.1, what="the kernel's timer, had it not been disarmed")
    agent.ask("extend_watchdog", None)
    agent.start(2, SLEEP)


BUSY = ["sh", "-c", "while :; do :; done"]


@pytest.mark.parametrize("is_all", [False, True], ids=["agent and supervisor", "all"])
def test_no_worker_of_a_node_runs_once_it_was_frozen_beyond_its_watchdog(agent: Agent, is_all: bool) -> None:
    workers = agent.start(1, BUSY, BUSY)
    agent.ask("extend_watchdog", now() + 0.5)
    agent.sweep(2)  # so the supervisor has taken the watchdog, too
    for pid in [agent.pid, agent.supervisor_pid, *workers * is_all]:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not any(map(is_alive, workers)))
    os.kill(agent.pid, signal.SIGCONT)
    agent.wait_for("SupervisorLost")
    assert agent.ask("kill_orphans", 20) == []
    agent.wait_until_nobody_is_left(agent.pid, agent.keeper_pid, agent.supervisor_pid)
    assert not any(map(is_alive, workers))


def test_a_node_frozen_for_less_than_its_watchdog_goes_on(agent: Agent) -> None:
    workers = agent.start(1, BUSY)
    agent.ask("extend_watchdog", now() + 1000)
    frozen = [agent.pid, agent.supervisor_pid, *workers]
    for pid in frozen:
        freeze(pid)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    agent.start(2, SLEEP)
    assert all(map(is_alive, frozen))


@pytest.mark.parametrize("lacking", [None, "filter"])
def test_the_agent_kills_in_place_of_a_supervisor_that_does_not(lacking: str | None) -> None:
    late = "import launcher.supervisor.watchdog as watchdog; watchdog.TIMER_MARGIN_S = 1000\n"
    with Agent(setup=late + (WITHOUT_PIDFDS[lacking] if lacking else "")) as agent:
        workers = start_families(agent, 2)
        agent.do("extend_watchdog", now() + 0.5)
        agent.sweep(2)
        os.kill(agent.supervisor_pid, signal.SIGSTOP)
        agent.wait_until_nobody_is_left(agent.pid, agent.keeper_pid, agent.supervisor_pid)
        wait_until(lambda: not any(map(is_alive, workers)))  # one that was just killed has no environment any more
        assert state(agent.supervisor_pid) == "T"
        os.kill(agent.supervisor_pid, signal.SIGCONT)
        agent.wait_for("WorkersFenced", 1)
        agent.wait_for("RoundSwept", 1)


def test_what_is_kept_lives_as_long_as_any_process_of_the_workers(tmp_path: Path) -> None:
    kept = "import os, socket; kept = socket.create_server(('127.0.0.1', 0)); other = os.open('/', 0)"
    with Agent(setup=f"{kept}; KEEP = [kept.fileno()]") as agent:
        number, port = agent.ask("evaluate", "[kept.fileno(), kept.getsockname()[1]]")
        workers = agent.start(1, ["sh", "-c", "sleep 1000 & exec sleep 1000"])
        child = wait_until(lambda: children(workers[0]))[0]
        for pid in (agent.keeper_pid, agent.supervisor_pid, workers[0], child):
            wait_until(lambda pid=pid: has_inherited(pid, number))  # type: ignore[misc]
        freeze(agent.pid)
        freeze(agent.keeper_pid)
        os.kill(agent.supervisor_pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(workers[0]))
        for holder, next_holder in ((agent.keeper_pid, agent.pid), (agent.pid, child), (child, 0)):
            assert not is_refused(port)
            os.kill(holder, signal.SIGKILL)
            wait_until(lambda pid=holder: not is_alive(pid))  # type: ignore[misc]
            assert next_holder == 0 or is_alive(next_holder)
        wait_until(lambda: is_refused(port))


def has_inherited(pid: int, number: int) -> bool:
    """Whether this one of the agent's descriptors is open there, under its number."""
    names = os.listdir(f"/proc/{pid}/fd")
    return str(number) in names and os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
