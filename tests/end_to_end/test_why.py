"""Whoever asks what a job's workers do is told, and nothing of the job is stopped or delayed by that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.hardware.linux.kernel import list_children
from tests.support.jobs.multi_node import Cluster, meshctl
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.processes.tree import REPOSITORY
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2 = loopback_hosts(2)
# Rank 1 waits in a function of its own; the others wait for it in another.
WAIT = """
def wait_for_others():
    signal.pause()

def load():
    signal.pause()

mark("up")
load() if RANK == 1 else wait_for_others()
"""
ODD = "rank 1 (dp=1) is in load (train.py:"


def ask(*words: object, exit_code: int = 0) -> str:
    """Run `meshctl why`; return what it prints."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    call = [sys.executable, "-m", "launcher.meshctl.main", "why", *map(str, words)]
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == exit_code, done.stderr
    return done.stdout if exit_code == 0 else done.stderr


def test_a_job_of_one_machine_answers_by_the_pid_of_its_agent(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask(job.pid), 60, "an answer")
        text = ask(job.pid)
        assert text.endswith("\n")
        assert max(map(len, text.splitlines()[:-1])) <= 80  # the hint has a whole path
        assert ask(job.pid, "--stacks").startswith("rank 1 (dp=1): asleep\n")
        assert json.loads(ask(job.pid, "--json"))["culprits"] == [1]
        assert job.exit_code is None


def test_an_agent_that_is_lost_while_it_looks_leaves_no_process(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask(job.pid), 60, "an answer")
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        call = [sys.executable, "-m", "launcher.meshctl.main", "why", str(job.pid)]
        with subprocess.Popen(call, env=environ, stderr=subprocess.PIPE, text=True) as asking:
            wait_until(lambda: len(list_children(job.supervisor_pid)) > 4, 60, "the examiner")
            job.send(signal.SIGKILL)
            assert "on this machine has ended while it was asked" in asking.communicate(timeout=60)[1]
        job.wait_until_nobody_is_left()


def test_without_a_job_here_the_answer_is_a_sentence() -> None:
    assert "no run or agent named no-such-run was found on this machine" in ask("no-such-run", exit_code=2)


def test_two_who_ask_at_once_are_both_answered(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask(job.pid), 60, "an answer")
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        call = [sys.executable, "-m", "launcher.meshctl.main", "why", str(job.pid)]
        asking = [subprocess.Popen(call, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert all(ODD in one.communicate(timeout=60)[0] for one in asking)


def test_sigquit_shows_what_the_workers_do_before_it_ends_them(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask(job.pid), 60, "an answer")
        job.send(signal.SIGQUIT)
        ended = job.wait()
        assert ended.exit_code == 128 + signal.SIGQUIT
        assert ended.stderr.index(ODD) < ended.stderr.index("SIGQUIT is passed to the workers")
        job.wait_until_nobody_is_left()


# The agent as it is, but for time: a look at survivors takes what it takes, however busy the machine is.
PATIENT = """
import sys, launcher.cli, launcher.agent.lifecycle, launcher.diagnosis.part.examination
launcher.agent.lifecycle.VICTIM_WINDOW_S = 600.0
launcher.diagnosis.part.examination.FAILURE_LIMIT_S = 60.0
sys.argv[1:] = sys.argv[4:]
sys.exit(launcher.cli.main())
"""
# An agent that cannot look, and would wait for ever if it wanted to.
BLIND = """
import sys, launcher.cli, launcher.agent.lifecycle
launcher.agent.lifecycle.VICTIM_WINDOW_S = float("inf")
sys.modules["launcher.diagnosis.part.examination"] = None
sys.argv[1:] = sys.argv[4:]
sys.exit(launcher.cli.main())
"""
ONE_FAILS = """
def survive():
    mark("up")
    signal.pause()
if RANK == 1:
    survive()
wait_for("up-1-1")
"""
LOST_PEER = "raise RuntimeError('[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4521')"
NCCL_TIMEOUT = "print('Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)', file=sys.stderr, flush=True)"
NO_HEARTBEAT = "from launcher.worker import heartbeat; heartbeat(); signal.pause()"


@pytest.mark.parametrize(
    ("end", "options", "exit_code"),
    [
        (LOST_PEER, ("--redirects=3",), 1),
        (f"{NCCL_TIMEOUT}; os.abort()", ("--redirects=3",), 128 + signal.SIGABRT),
        ("os.abort()", (), 128 + signal.SIGABRT),
        (NO_HEARTBEAT, ("--heartbeat-timeout=1",), 128 + signal.SIGABRT),
    ],
    ids=["it lost a peer", "a watchdog", "an abort that says nothing", "no heartbeat"],
)
def test_survivors_of_a_possible_victim_are_looked_at_before_their_end(
    end: str, options: tuple[str, ...], exit_code: int, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    prefix = (sys.executable, "-c", PATIENT)
    with Job(
        tmp_path, "--nproc-per-node=2", f"--log-dir={logs}", *options, script=ONE_FAILS + end, prefix=prefix
    ) as job:
        assert job.wait().exit_code == exit_code
        job.wait_until_nobody_is_left()
    assert "before round 1 was stopped: rank 1 (dp=1) is in survive (train.py:" in job.stderr
    (folder,) = logs.glob("*/incident_1_1")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "survive" in (folder / "rank_1.stacks.json").read_text()
    assert json.loads((folder / "rank_0.json").read_text())["state"] == "ended"


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("1 / 0", 1),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
        ("raise MemoryError", 1),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_failure_with_a_cause_of_its_own_lets_nothing_wait(
    nodes: int, end: str, exit_code: int, tmp_path: Path, etcd: EtcdServer
) -> None:
    blind = (sys.executable, "-c", BLIND)
    if nodes == 1:
        with Job(tmp_path, "--nproc-per-node=2", "--redirects=2", script=ONE_FAILS + end, prefix=blind) as job:
            assert job.wait().exit_code == exit_code
        return
    hosts = [host._replace(prefix=(*host.prefix, *blind)) for host in (N1, N2)]
    script = ONE_FAILS.replace('"up-', '"../up-').replace('mark("up")', 'mark("../up")') + end
    with Cluster(tmp_path, "--nnodes=2", "--nproc-per-node=1", "--redirects=2", etcd=etcd, script=script) as cluster:
        cluster.start(*hosts)
        assert [cluster[host].wait().exit_code for host in hosts] == [exit_code] * 2


def test_of_a_collective_that_gave_up_the_rank_that_did_not_come_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
def evaluate():
    mark("up")
    signal.pause()
if RANK == 1:
    evaluate()
wait_for("up-1-1")
dist.all_reduce(torch.ones(1), group=group)
"""
    with Job(
        tmp_path, "--nproc-per-node=2", "--redirects=2", script=script, prefix=(sys.executable, "-c", PATIENT)
    ) as job:
        assert job.wait(120).exit_code == 1
        assert "before round 1 was stopped: rank 1 (dp=1) is in evaluate (train.py:" in job.stderr


HANG = """
from launcher.worker import heartbeat
heartbeat()
mark("up")
def load():
    signal.pause()
def work():
    signal.pause()
if ROUND == 1:
    load() if RANK == 1 else work()
"""


@pytest.mark.parametrize("on_hang", ["report", "restart"])
def test_a_hang_of_all_nodes_is_reported_on_each_and_restarted_if_asked(
    on_hang: str, tmp_path: Path, etcd: EtcdServer
) -> None:
    options = ("--nnodes=2", "--nproc-per-node=2", "--max-restarts=1", "--hang-timeout=2", f"--on-hang={on_hang}")
    with Cluster(tmp_path, *options, etcd=etcd, script=HANG) as cluster:
        cluster.begin(N1, N2, workers=4)
        jobs = [cluster[host] for host in (N1, N2)]
        for job in jobs:
            job.says(ODD)
        if on_hang == "restart":
            assert [job.wait().exit_code for job in jobs] == [0, 0]
            assert sum("rank 1 (pid" in job.stderr and "gave no sign of progress" in job.stderr for job in jobs) == 1
            return
        # The node that does not lead, and the leader through the store.
        assert all(ODD in ask(job.pid) for job in jobs)
        assert ODD in meshctl("why", cluster.run_id, endpoint=etcd.endpoint).stdout
        assert all(job.exit_code is None for job in jobs)


LEFT = """
from launcher.worker import heartbeat
heartbeat()
mark("up")
def wait_for_rank_0():
    signal.pause()
if ROUND == 1 and RANK == 1:
    wait_for_rank_0()
"""


def test_a_rank_that_has_left_its_node_to_wait_is_found_and_all_restart(tmp_path: Path, etcd: EtcdServer) -> None:
    options = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--hang-timeout=2", "--on-hang=restart")
    with Cluster(tmp_path, *options, etcd=etcd, script=LEFT) as cluster:
        cluster.begin(N1, N2, workers=2)
        jobs = [cluster[host] for host in (N1, N2)]
        assert [job.wait().exit_code for job in jobs] == [0, 0]
        assert all("rank 0 (dp=0) has ended with exit code 0" in job.stderr for job in jobs)


def test_survivors_on_other_nodes_are_looked_at_too(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
mark("up")
if RANK == 0:
    wait_for("../up-1-1")
    os.abort()
def survive():
    mark("../up")
    signal.pause()
survive()
"""
    hosts = [host._replace(prefix=(*host.prefix, sys.executable, "-c", PATIENT)) for host in (N1, N2)]
    options = ("--nnodes=2", "--nproc-per-node=1", "--log-dir=logs")
    with Cluster(tmp_path, *options, etcd=etcd, script=script) as cluster:
        cluster.start(*hosts)
        assert [cluster[host].wait().exit_code for host in hosts] == [128 + signal.SIGABRT] * 2
        assert all("rank 1 (dp=1) is in survive (train.py:" in cluster[host].stderr for host in hosts)
    (path,) = tmp_path.glob("*/logs/*/incident_1_1/rank_1.stacks.json")
    assert "survive" in path.read_text()


def test_while_no_round_runs_the_answer_says_so_at_once(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", etcd=etcd, script="") as cluster:
        cluster.start(N1)
        job = cluster[N1]
        job.says("waiting for")
        assert "no round is running" in meshctl("why", cluster.run_id, "--timeout=6", endpoint=etcd.endpoint).stdout
        assert "no round is running" in ask(job.pid, "--timeout=6")
