"""Workers that are forked from the preloaded image: started together, each with nothing but what is its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes.tree import children, descriptors, freeze, is_alive, state
from tests.support.processes.warm_agent import SLEEP, WarmAgent
from tests.support.waiting import wait_until


def test_a_worker_has_its_streams_and_kept_files_the_supervisor_has_none(tmp_path: Path) -> None:
    kept = "import os; kept = os.open('/', 0)"
    (tmp_path / "files").mkdir()
    files = {"stdout": f"{tmp_path}/files/{{local_rank}}.out", "stderr": f"{tmp_path}/files/{{local_rank}}.err"}
    with WarmAgent(tmp_path, setup=f"{kept}; KEEP = [kept]") as agent:
        server = agent.is_preloaded()
        assert "/" in descriptors(server)
        before = len(descriptors(agent.supervisor_pid)), len(descriptors(server))
        workers = agent.start(1, *[SLEEP] * 9, **files)
        for rank, worker in enumerate(workers):
            own = [os.devnull, f"{tmp_path}/files/{rank}.out", f"{tmp_path}/files/{rank}.err", "/"]
            wait_until(lambda worker=worker, own=own: descriptors(worker) == own)  # type: ignore[misc]
        after = len(descriptors(agent.supervisor_pid)), len(descriptors(server))
        assert after == before


def test_streams_that_are_not_given_are_the_agents(tmp_path: Path) -> None:
    with WarmAgent(tmp_path) as agent:
        server = agent.is_preloading()
        assert agent.wait_for("Preloaded") == ["Preloaded", server, 0.5, ["a remark"]]
        # Standard output is for workers: what an import prints goes elsewhere.
        assert descriptors(server)[:3] == [*descriptors(agent.pid)[:1], *descriptors(agent.pid)[2:3] * 2]
        (worker,) = agent.start(1, SLEEP)
        wait_until(lambda: descriptors(worker) == descriptors(agent.pid)[:3])


def test_the_supervisor_does_not_wait_for_a_worker_to_read_its_large_spec(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import json, os, sys; json.dump(sum(map(len, os.environ.values())), sys.stdout)"
    large = {f"LARGE{index}": "x" * 100_000 for index in range(15)}
    with WarmAgent(tmp_path, "parked") as agent:
        agent.is_preloaded()
        before = descriptors(agent.supervisor_pid)
        agent.spawn(1, [sys.executable, "-I", "-S", "-c", code], env=large, stdout=str(out))
        agent.aside(1)
        agent.sweep(2)
        agent.let_go("parked")
        assert agent.wait_for("Exited", 1, 0)[4] == 0
        assert json.loads(out.read_text()) > 1_500_000
        agent.hold("parked")
        agent.spawn(3, SLEEP, env=large, stdout=str(out))
        agent.reaches("parked")
        agent.sweep(3)
        agent.wait_until_only_the_server_is_left()
        assert descriptors(agent.supervisor_pid) == before


def test_a_round_waits_for_the_import_however_often_others_are_swept(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with WarmAgent(tmp_path, "import") as agent:
        agent.is_preloading()
        agent.spawn(1, ["touch", str(ran)], ["touch", str(ran)])
        agent.sweep(1)
        agent.spawn(2, SLEEP, SLEEP)
        agent.sweep(3)
        assert not [report for report in agent.heard if report[0] == "Spawned"]
        agent.let_go("import")
        workers = [agent.wait_for("Spawned", 2, rank)[3] for rank in range(2)]
        assert sorted(children(agent.supervisor_pid)) == sorted([agent.server_pid, *workers])
        assert not ran.exists()


def test_a_signal_ends_workers_that_have_not_begun_and_they_never_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with WarmAgent(tmp_path, "import") as agent:
        agent.is_preloading()
        agent.spawn(1, *[["touch", str(ran)]] * 3)
        agent.do("signal", 1, signal.SIGCONT)
        agent.do("signal", 1, signal.SIGTERM, [0, 1])
        assert [agent.wait_for("Exited", 1, rank)[3:5] for rank in range(2)] == [[0, -signal.SIGTERM]] * 2
        agent.let_go("import")
        assert agent.wait_for("Exited", 1, 2)[4] == 0
        ran.unlink()
        agent.hold("unborn")
        agent.spawn(2, ["touch", str(ran)])
        agent.aside(1)
        agent.do("signal", 2, signal.SIGUSR1)
        assert agent.wait_for("Exited", 2, 0)[3:5] == [0, -signal.SIGUSR1]
        agent.let_go("unborn")
        agent.wait_until_only_the_server_is_left()
        assert not ran.exists()


def test_a_signal_between_spec_and_script_is_not_lost(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "released") as agent:
        agent.is_preloaded()
        agent.spawn(1, SLEEP)
        agent.reaches("released")
        agent.do("signal", 1, signal.SIGTERM)
        assert agent.wait_for("Exited", 1, 0)[4] == -signal.SIGTERM


def test_what_cannot_be_forked_or_run_is_told(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "fail") as agent:
        server = agent.is_preloaded()
        before = descriptors(agent.supervisor_pid), descriptors(server)
        agent.spawn(1, SLEEP)
        sentence = "cannot start the worker of local rank 0: Resource temporarily unavailable"
        assert agent.wait_for("SpawnFailed")[1:] == [1, 0, sentence, 11]
        agent.let_go("fail")
        agent.do("spawn", 2, [{"local_rank": 5, "argv": ["false"], "warm": ["nothing"]}])
        assert agent.wait_for("SpawnFailed")[1:] == [2, 5, "cannot run 'nothing': it is nothing", 2]
        agent.wait_until_only_the_server_is_left()
        assert not [report for report in agent.heard if report[0] in ("Spawned", "Exited")]
        assert (descriptors(agent.supervisor_pid), descriptors(server)) == before


def test_a_refusal_starts_nobody(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, "import", "refuse") as agent:
        agent.is_preloading()
        agent.spawn(1, SLEEP)
        agent.let_go("import")
        assert agent.wait_for("PreloadRefused")[1:] == ["cannot import torch", "leave it out"]
        agent.sweep(1)
        agent.server_pid = 0
        agent.aside(0)
        wait_until(lambda: children(agent.supervisor_pid) == [])
        kinds = [report[0] for report in agent.heard if report[0] != "Returned"]
        assert kinds == ["Preloading", "PreloadRefused", "RoundSwept"]


def test_standby_workers_outlive_a_round_and_are_the_next_one(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=3) as agent:
        server = agent.is_preloaded()
        agent.start(1, SLEEP, SLEEP)
        parked = set(agent.parked(3))
        agent.sweep(1)
        assert set(agent.parked(3)) == parked
        os.kill(server, signal.SIGSTOP)  # so it is not needed
        assert set(agent.start(2, SLEEP, SLEEP)) < parked
        os.kill(server, signal.SIGCONT)
        agent.parked(3)
        agent.sweep(2)
        third = agent.start(3, *[SLEEP] * 4)  # one more than are parked
        assert len(set(third)) == 4
        agent.parked(3)
        assert "ForkServerLost" not in [report[0] for report in agent.heard]


def test_a_sweep_that_takes_long_does_not_name_who_is_spared(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=1) as agent:
        agent.is_preloaded()
        (worker,) = agent.start(1, SLEEP)
        wait_until(lambda: agent.ask("describe_remaining") == f"pid {worker} (sleep, state S)")
        (parked,) = agent.parked(1)
        agent.sweep(1)
        assert agent.start(2, SLEEP) == [parked]
        wait_until(lambda: agent.ask("describe_remaining") == f"pid {parked} (sleep, state S)")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_standby_worker_that_is_ended_is_replaced_in_the_next_round(tmp_path: Path, signum: int) -> None:
    with WarmAgent(tmp_path, standby=2) as agent:
        agent.is_preloaded()
        agent.start(1, SLEEP)
        victim = agent.parked(2)[0]
        os.kill(victim, signum)
        agent.parked(1)
        agent.sweep(1)
        workers = agent.start(2, SLEEP, SLEEP)
        assert victim not in workers
        agent.parked(2)
        reports = [report[0] for report in agent.heard]
        assert "ForkServerLost" not in reports
        assert reports.count("Exited") == 1  # that of round 1


def test_a_standby_worker_that_has_just_been_killed_gets_no_work(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=1) as agent:
        agent.is_preloaded()
        agent.start(1, SLEEP)
        (parked,) = agent.parked(1)
        freeze(agent.supervisor_pid)
        agent.spawn(2, SLEEP)
        agent.wait_for("Returned", "spawn")
        os.kill(parked, signal.SIGKILL)
        wait_until(lambda: state(parked) == "Z")
        os.kill(agent.supervisor_pid, signal.SIGCONT)
        assert agent.wait_for("Spawned", 2, 0)[3] != parked


def test_what_a_worker_said_is_read_though_it_has_been_reaped(tmp_path: Path) -> None:
    deaf = """
from launcher.supervisor.warm import WarmFork
real = WarmFork.receive
WarmFork.receive = lambda self, reaped=0: real(self, reaped) if reaped else None
"""
    with WarmAgent(tmp_path, "import", "parked", setup=deaf) as agent:
        agent.is_preloading()
        agent.spawn(1, SLEEP)
        agent.let_go("import")
        agent.reaches("parked")
        (worker,) = agent.aside(1)
        os.kill(worker, signal.SIGKILL)
        assert agent.wait_for("Exited", 1, 0)[3:5] == [worker, -signal.SIGKILL]
        assert [report[0] for report in agent.heard if report[1:3] == [1, 0]] == ["Spawned", "Exited"]
        assert not is_alive(worker)


def test_many_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    with WarmAgent(tmp_path, standby=1) as agent:
        server = agent.is_preloaded()

        def counts() -> tuple[int, int, list[str]]:
            """Of open descriptors, when two workers run and one is parked."""
            agent.start(100, SLEEP, SLEEP)
            agent.parked(1)
            agent.sweep(100)
            return len(descriptors(agent.supervisor_pid)), len(descriptors(server)), descriptors(agent.pid)

        before = counts()
        for number in range(1, 51):
            agent.spawn(number, SLEEP, ["true"], stdout=str(tmp_path / "out"), stderr=str(tmp_path / "err"))
            agent.wait_for("Spawned", number, 0)
            agent.sweep(number)
        assert counts() == before
        assert len(children(agent.supervisor_pid)) == 2
        assert "ForkServerLost" not in [report[0] for report in agent.heard]
