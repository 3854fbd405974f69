"""Whoever asks what a job's workers do is told, and nothing of the job is stopped or delayed by that."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from launcher.hardware.linux.kernel import list_children
from tests.support.jobs.meshctl import ask, start
from tests.support.jobs.multi_node import Cluster, meshctl
from tests.support.jobs.single_node import Job
from tests.support.modules import needs
from tests.support.network.namespaces import loopback_hosts
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
ODD = "rank 1 is in load (train.py:"


def test_a_job_of_one_machine_answers_all_who_ask_and_before_sigquit_ends_it(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask("why", job.pid), 60, "an answer")
        text = ask("why", job.pid)
        assert text.endswith("\n")
        assert max(len(line) for line in text.splitlines() if "/" not in line) <= 80  # a path is whole
        assert ask("why", job.pid, "--stacks").startswith("rank 1: ")
        assert json.loads(ask("why", job.pid, "--json"))["culprits"] == [1]
        two = [start("why", job.pid) for _ in range(2)]
        assert all(ODD in one.communicate(timeout=60)[0] for one in two)
        job.send(signal.SIGQUIT)
        ended = job.wait()
        assert ended.exit_code == 128 + signal.SIGQUIT
        assert ended.stderr.index(ODD) < ended.stderr.index("SIGQUIT is passed to the workers")
        job.wait_until_nobody_is_left()


def test_an_agent_that_is_lost_while_it_looks_leaves_no_process(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=4", script=WAIT) as job:
        job.marks("up", range(4))
        wait_until(lambda: ODD in ask("why", job.pid), 60, "an answer")
        with start("why", job.pid) as asking:
            wait_until(lambda: len(list_children(job.supervisor_pid)) > 4, 60, "the examiner")
            job.send(signal.SIGKILL)
            assert "no longer has an agent on this machine" in asking.communicate(timeout=60)[1]
        job.wait_until_nobody_is_left()


# The agent as it is, but for time: a look at survivors takes what it takes, however busy the machine is.
PATIENT = """
import sys, launcher.cli, launcher.agent.lifecycle, launcher.diagnosis.part.examination
launcher.agent.lifecycle.VICTIM_WINDOW_S = 600.0
launcher.diagnosis.part.examination.FAILURE_LIMIT_S = 60.0
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
NO_HEARTBEAT = "from launcher.worker import heartbeat; heartbeat(); signal.pause()"


@pytest.mark.parametrize(
    ("end", "options", "exit_code"),
    [
        (LOST_PEER, ("--redirects=3",), 1),
        (NO_HEARTBEAT, ("--heartbeat-timeout=1",), 128 + signal.SIGABRT),
    ],
    ids=["it lost a peer", "no heartbeat"],
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
    assert "before round 1 was stopped: rank 1 is in survive (train.py:" in job.stderr
    (folder,) = logs.glob("*_*/incident_1_1")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "survive" in (folder / "rank_1.stacks.json").read_text()
    assert json.loads((folder / "rank_0.json").read_text())["state"] == "ended"


@needs("torch")
def test_of_a_collective_that_gave_up_the_rank_that_did_not_come_is_told(tmp_path: Path) -> None:
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
        tmp_path,
        "--preload=torch",
        "--nproc-per-node=2",
        "--redirects=2",
        script=script,
        prefix=(sys.executable, "-c", PATIENT),
    ) as job:
        assert job.wait(120).exit_code == 1
        assert "before round 1 was stopped: rank 1 is in evaluate (train.py:" in job.stderr
        assert "Likely Cause (hang): rank 1 is in evaluate (train.py:" in job.stderr
        assert "Gave up waiting (first observed failure): rank 0 on " in job.stderr


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
            assert sum("rank 1 (pid" in job.stderr and "showed no sign of progress" in job.stderr for job in jobs) == 1
            return
        # The node that does not lead, and the leader through the store.
        assert all(ODD in ask("why", job.pid) for job in jobs)
        assert ODD in meshctl("why", cluster.run_id, endpoint=etcd.endpoint).stdout
        shown = meshctl("status", cluster.run_id, endpoint=etcd.endpoint).stdout
        assert f"hang {ODD}" in " ".join(shown.split())
        assert all(job.exit_code is None for job in jobs)


BARE = """
import sys, launcher.cli, launcher.diagnosis.stacks
launcher.diagnosis.stacks.find_command = lambda: None
sys.argv[1:] = sys.argv[4:]
sys.exit(launcher.cli.main())
"""
TWO_LINES = """
import threading
def send():
    threading.Event().wait()
def load():
    threading.Event().wait()
load() if RANK else send()
"""


def test_of_two_ranks_at_two_lines_neither_is_called_the_cause_and_both_are_told(tmp_path: Path) -> None:
    """Without py-spy. No signal may end the waits."""
    options = ("--nproc-per-node=2", "--hang-timeout=1,start=1", "--on-hang=restart")
    with Job(tmp_path, *options, script=TWO_LINES, prefix=(sys.executable, "-c", BARE)) as job:
        assert job.wait().exit_code == 128 + signal.SIGABRT
        job.wait_until_nobody_is_left()
    log, _, box = job.stderr.partition("FAILED")
    for text in (log, " ".join(box.split())):
        assert "it is unclear which rank the others wait for: the ranks are at 2 lines" in text
        assert "rank 0 is in send (train.py:" in text
        assert "rank 1 is in load (train.py:" in text
    assert "Root Cause not known (hang): " in box
    assert "first observed failure" not in box
    assert "not known for ranks 0-1: the worker wrote the stack itself, of its main thread only: py-spy is not" in log


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
        assert all("rank 1 is in survive (train.py:" in cluster[host].stderr for host in hosts)
    (path,) = tmp_path.glob("*/logs/*_*/*/incident_1_1/rank_1.stacks.json")
    assert "survive" in path.read_text()


def test_while_no_round_runs_the_answer_says_so_at_once(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", etcd=etcd, script="") as cluster:
        cluster.start(N1)
        job = cluster[N1]
        job.says("waiting for")
        assert "no round is running" in meshctl("why", cluster.run_id, "--timeout=6", endpoint=etcd.endpoint).stdout
        assert "no round is running" in ask("why", job.pid, "--timeout=6")
