"""Whoever dies or hangs while workers are forked from the image: nobody runs who should not, and rounds go on."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes.tree import children, family, freeze, is_alive, oldest_first, parent, state
from tests.support.processes.warm_agent import SLEEP, WarmAgent, becomes_cold, is_cold
from tests.support.waiting import wait_until

# Where the talk between supervisor, fork server and worker can be: with a worker on its way, and once it runs.
ON_THE_WAY = ("order", "go-between", "newborn", "unborn")
STEPS = ("import", *ON_THE_WAY, "parked", "released", "running")


def at_step(agent: WarmAgent, step: str, ran: Path) -> None:
    """Bring two workers of round 1, who leave a file as soon as they run, to this step."""
    agent.is_preloading()
    agent.spawn(1, *[["sh", "-c", f"touch {ran}; exec sleep 1000"]] * 2)
    if step == "running":
        wait_until(ran.exists)
    else:
        agent.reaches(step)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("step", STEPS)
def test_when_the_agent_is_killed_nobody_is_left_and_nobody_has_run(tmp_path: Path, step: str) -> None:
    with WarmAgent(tmp_path, step) as agent:
        at_step(agent, step, tmp_path / "ran")
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left()
        assert (tmp_path / "ran").exists() == (step == "running")


@pytest.mark.parametrize("step", STEPS)
def test_when_the_supervisor_is_killed_all_go_by_themselves(tmp_path: Path, step: str) -> None:
    with WarmAgent(tmp_path, step) as agent:
        at_step(agent, step, tmp_path / "ran")
        os.kill(agent.supervisor_pid, signal.SIGKILL)
        agent.wait_for("SupervisorLost")
        agent.let_go(step)  # a newborn without a parent ends as soon as it looks
        agent.wait_until_nobody_is_left(agent.pid)
        assert (tmp_path / "ran").exists() == (step == "running")


@pytest.mark.parametrize("step", ["import", "newborn", "running"])
def test_when_the_agent_is_killed_while_the_supervisor_is_stopped_all_go(tmp_path: Path, step: str) -> None:
    with WarmAgent(tmp_path, step) as agent:
        at_step(agent, step, tmp_path / "ran")
        freeze(agent.supervisor_pid)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left()


@pytest.mark.parametrize("step", STEPS)
def test_an_expired_watchdog_kills_all_and_a_later_round_starts_anew(tmp_path: Path, step: str) -> None:
    ran = tmp_path / "ran"
    with WarmAgent(tmp_path, step, standby=1) as agent:
        at_step(agent, step, ran)
        server = agent.server_pid
        agent.do("extend_watchdog", boottime() + 0.05)
        agent.wait_for("WorkersFenced", 1)
        sentence = f"the fork server (pid {server}) was killed: the watchdog expired"
        assert agent.wait_for("ForkServerLost")[1] == sentence
        agent.wait_for("RoundSwept", 1)
        agent.let_go(step)
        agent.wait_until_nobody_is_left(agent.pid, agent.keeper_pid, agent.supervisor_pid)
        wait_until(lambda: children(agent.supervisor_pid) == [])
        assert ran.exists() == (step == "running")
        agent.ask("extend_watchdog", boottime() + 1000)
        assert agent.is_preloaded() != server  # before there is a round
        assert not is_cold(agent.start(2, SLEEP)[0])


def test_a_watchdog_that_runs_out_between_rounds_spares_nobody_either(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=1) as agent:
        agent.is_preloaded()
        agent.start(1, SLEEP)
        (parked,) = agent.parked(1)
        agent.sweep(1)
        freeze(parked)
        agent.do("extend_watchdog", boottime() + 0.05)
        agent.wait_for("ForkServerLost")
        agent.wait_until_nobody_is_left(agent.pid, agent.keeper_pid, agent.supervisor_pid)


def test_a_supervisor_stopped_beyond_its_watchdog_takes_all_with_it(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "unborn", standby=1) as agent:
        at_step(agent, "unborn", tmp_path / "ran")
        agent.do("extend_watchdog", boottime() + 0.3)
        agent.sweep(9)  # so the supervisor has taken the watchdog, too
        os.kill(agent.supervisor_pid, signal.SIGSTOP)
        agent.wait_for("SupervisorLost")
        agent.let_go("unborn")
        agent.wait_until_nobody_is_left(agent.pid)
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("step", [*ON_THE_WAY, "parked", "released", "running"])
def test_a_round_is_swept_at_once_and_who_comes_later_runs_nothing(tmp_path: Path, step: str) -> None:
    ran = tmp_path / "ran"
    with WarmAgent(tmp_path, step) as agent:
        at_step(agent, step, ran)
        agent.sweep(1)
        agent.let_go(step)
        agent.wait_until_only_the_server_is_left()
        assert ran.exists() == (step == "running")
        (worker,) = agent.start(2, SLEEP)
        assert not is_cold(worker)
        assert "ForkServerLost" not in [report[0] for report in agent.heard]


@pytest.mark.parametrize("step", ["unborn", "newborn"])
def test_a_sweep_that_hits_new_forks_of_another_round_forks_them_again(tmp_path: Path, step: str) -> None:
    with WarmAgent(tmp_path, step, standby=1) as agent:
        at_step(agent, step, tmp_path / "ran")
        agent.do("spawn", 2, [{"local_rank": 0, "argv": SLEEP}])
        agent.wait_for("Spawned", 2, 0)
        agent.sweep(2)
        agent.let_go(step)
        for rank in range(2):
            assert not is_cold(agent.wait_for("Spawned", 1, rank)[3])
        assert "ForkServerLost" not in [report[0] for report in agent.heard]


def test_a_fork_server_that_dies_while_it_imports_is_started_once_more(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "import") as agent:
        first = agent.is_preloading()
        os.kill(first, signal.SIGSEGV)
        sentence = f"the fork server (pid {first}) was killed by SIGSEGV while importing torch, numpy"
        assert agent.wait_for("ForkServerLost")[1] == f"{sentence}; the next round restarts it"
        agent.let_go("import")
        agent.spawn(1, SLEEP, SLEEP)
        assert agent.is_preloaded() != first
        assert not is_cold(agent.wait_for("Spawned", 1, 1)[3])


def test_a_fork_server_that_dies_twice_while_it_imports_is_done_without(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "import", standby=1) as agent:
        first = agent.is_preloading()
        agent.spawn(1, SLEEP, SLEEP)
        agent.wait_for("Returned", "spawn")
        agent.sweep(0)  # there is none, but the supervisor has taken the orders before this one by then
        os.kill(first, signal.SIGKILL)
        assert agent.wait_for("ForkServerLost")[1].endswith("; restarting it")
        os.kill(agent.is_preloading(), signal.SIGKILL)
        assert agent.wait_for("ForkServerLost")[1].endswith("; workers are now started without it")
        for rank in range(2):
            becomes_cold(agent.wait_for("Spawned", 1, rank)[3])
        agent.sweep(1)
        agent.start(2, SLEEP)
        assert len(children(agent.supervisor_pid)) == 1


@pytest.mark.parametrize("step", ON_THE_WAY)
def test_workers_start_cold_if_the_fork_server_is_killed_while_forking(tmp_path: Path, step: str) -> None:
    ran = tmp_path / "ran"
    with WarmAgent(tmp_path, step) as agent:
        at_step(agent, step, ran)
        os.kill(agent.server_pid, signal.SIGKILL)
        sentence = f"the fork server (pid {agent.server_pid}) was killed by SIGKILL; 2 workers are started without it"
        assert agent.wait_for("ForkServerLost")[1] == sentence
        workers = [agent.wait_for("Spawned", 1, rank)[3] for rank in range(2)]
        wait_until(ran.exists)
        agent.let_go(step)
        agent.server_pid = 0
        assert agent.aside(2) == sorted(workers)
        agent.sweep(1)
        agent.spawn(2, SLEEP)
        agent.is_preloaded()
        assert not is_cold(agent.wait_for("Spawned", 2, 0)[3])


def test_a_round_and_standby_workers_outlive_the_fork_server(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=1) as agent:
        server = agent.is_preloaded()
        (worker,) = agent.start(1, SLEEP)
        (parked,) = agent.parked(1)
        os.kill(server, signal.SIGKILL)
        sentence = f"the fork server (pid {server}) was killed by SIGKILL; the next round restarts it"
        assert agent.wait_for("ForkServerLost")[1] == sentence
        assert is_alive(worker)
        agent.sweep(1)
        assert agent.start(2, SLEEP) == [parked]
        agent.is_preloaded()  # in the background, for the next
        agent.parked(1)


def test_a_fork_server_that_did_its_work_is_restarted_each_time_it_dies(tmp_path: Path) -> None:
    with WarmAgent(tmp_path) as agent:
        for round in range(1, 4):
            agent.spawn(round, SLEEP)
            server = agent.is_preloaded()
            assert not is_cold(agent.wait_for("Spawned", round, 0)[3])
            os.kill(server, signal.SIGKILL)
            assert agent.wait_for("ForkServerLost")[1].endswith("; the next round restarts it")
            agent.sweep(round)


def test_a_workers_end_is_reported_though_a_frozen_fork_holds_its_socket(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "newborn") as agent:
        server = agent.is_preloaded()
        agent.spawn(1, ["true"], ["true"])
        wait_until(lambda: len(children(agent.supervisor_pid)) == 3, what="the end of the go-between")
        first, second = oldest_first(set(children(agent.supervisor_pid)) - {server})
        freeze(second)
        agent.let_go("newborn")
        agent.wait_for("Spawned", 1, 0, first)
        assert agent.wait_for("Exited", 1, 0)[3:5] == [first, 0]
        os.kill(second, signal.SIGCONT)
        assert agent.wait_for("Exited", 1, 1)[3:5] == [second, 0]


def test_a_hung_fork_server_is_killed_at_the_limit_and_workers_start_cold(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, setup="from launcher.supervisor import warm; warm.FORK_LIMIT_S = 0.3") as agent:
        server = agent.is_preloaded()
        os.kill(server, signal.SIGSTOP)
        agent.spawn(1, SLEEP)
        sentence = f"the fork server (pid {server}) forked no worker within 0.3 s and was killed"
        assert agent.wait_for("ForkServerLost")[1] == f"{sentence}; 1 worker is started without it"
        becomes_cold(agent.wait_for("Spawned", 1, 0)[3])
        wait_until(lambda: state(server) == "")


@pytest.mark.parametrize("how", ["stray", "lie"])
def test_a_fork_server_that_loses_its_forks_is_no_longer_used(tmp_path: Path, how: str) -> None:
    with WarmAgent(tmp_path, how, setup="from launcher.supervisor import warm; warm.LOST_LIMIT_S = 0.2") as agent:
        for round, then in ((1, "1 worker is started without it"), (2, "workers are now started without it")):
            agent.spawn(round, SLEEP)
            server = agent.is_preloaded()
            sentence = f"the fork server (pid {server}) lost a worker before it was ready and was killed"
            assert agent.wait_for("ForkServerLost")[1] == f"{sentence}; {then}"
            agent.wait_for("Spawned", round, 0)
            agent.sweep(round)
        agent.start(3, SLEEP)


def test_a_fork_server_that_cannot_be_started_changes_nothing_for_workers(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, argv=["nowhere-to-be-found"]) as agent:
        failure = "the fork server could not be started: cannot run 'nowhere-to-be-found': No such file or directory"
        assert agent.wait_for("ForkServerLost")[1] == f"{failure}; the next round restarts it"
        agent.start(1, SLEEP, SLEEP)
        assert agent.wait_for("ForkServerLost")[1] == f"{failure}; workers are now started without it"
        assert "Preloading" not in [report[0] for report in agent.heard]


GARBAGE = ["b'\\0\\0\\0\\1\\0x'", "b'\\0\\0\\0\\2\\0{}'", "b'\\0\\0\\0\\x09\\0[\"ready\"]'", "b'\\0\\0\\0\\x02\\0[]'"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_fork_server_that_cannot_be_understood_is_killed(tmp_path: Path, garbage: str) -> None:
    code = f"import os, time; os.write(int(os.environ['LAUNCHER_FORK_SERVER']), {garbage}); time.sleep(1000)"
    with WarmAgent(tmp_path, argv=[sys.executable, "-I", "-S", "-c", code]) as agent:
        server = agent.is_preloading()
        beginning = f"the fork server (pid {server}) sent an invalid message ("
        assert agent.wait_for("ForkServerLost")[1].startswith(beginning)
        agent.start(1, SLEEP)


def test_nothing_is_heard_of_a_fork_server_behind_its_refusal(tmp_path: Path) -> None:
    refused = 'b"\\0\\0\\0\\x13\\0" + b\'["refused","s","h"]\''
    code = f"import os, time; os.write(int(os.environ['LAUNCHER_FORK_SERVER']), ({refused}) * 2); time.sleep(1000)"
    with WarmAgent(tmp_path, argv=[sys.executable, "-I", "-S", "-c", code]) as agent:
        server = agent.is_preloading()
        agent.wait_for("PreloadRefused", "s", "h")
        wait_until(lambda: state(server) == "")
        agent.sweep(1)
        kinds = [report[0] for report in agent.heard if report[0] != "Returned"]
        assert kinds == ["Preloading", "PreloadRefused", "RoundSwept"]


def test_a_process_that_an_import_started_is_killed_without_the_supervisor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    helper = f"echo $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 1000"
    with WarmAgent(tmp_path, argv=["sh", "-c", f"setsid sh -c '{helper}' & exec sleep 1000"]) as agent:
        agent.is_preloading()
        wait_until(pid_file.exists)
        agent.ask("describe_remaining")  # so the agent has done with the order
        freeze(agent.keeper_pid)  # which would see to it
        os.kill(agent.supervisor_pid, signal.SIGKILL)
        agent.wait_for("SupervisorLost")
        started = int(pid_file.read_text())  # the kernel kills the fork server first, which it belonged to
        wait_until(lambda: parent(started) == agent.keeper_pid)
        assert agent.ask("kill_orphans", 20) == []
        assert family(agent.token) == [agent.pid]


def test_a_fork_server_that_closes_its_socket_is_killed_at_once(tmp_path: Path) -> None:
    # As an import does that runs Python anew, by an exec: that one would come to the script, without a rank.
    setup = "from launcher.supervisor import warm; warm.LOST_LIMIT_S = 1e6"
    argv = ["sh", "-c", 'eval "exec $LAUNCHER_FORK_SERVER>&-"; exec sleep 1000']
    with WarmAgent(tmp_path, argv=argv, setup=setup) as agent:
        server = agent.is_preloading()
        sentence = f"the fork server (pid {server}) closed its socket while importing torch, numpy and was killed"
        assert agent.wait_for("ForkServerLost")[1] == f"{sentence}; the next round restarts it"
        wait_until(lambda: state(server) == "")


def test_closing_the_supervisor_leaves_nobody(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=2) as agent:
        agent.is_preloaded()
        (worker,) = agent.start(1, SLEEP)
        agent.parked(2)
        agent.ask("close", 20)
        assert family(agent.token) == [agent.pid]
        assert children(agent.pid) == []
        agent.wait_for("Exited", 1, 0, worker)
        agent.wait_for("RoundSwept", 1)
        assert "ForkServerLost" not in [report[0] for report in agent.heard]
