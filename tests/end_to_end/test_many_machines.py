"""Jobs of several agents, each at a loopback address of its own, over a store that one of them serves and over etcd."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import free_port, loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = loopback_hosts(3)
TWO = ("--nproc-per-node=2", "--lease-ttl=15", "--join-grace=0.5")
HOST = ("--rdzv-conf=is_host=1",)

TELL = """
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
mark("env", " ".join(os.environ[name] for name in names))
mark("python", sys.executable)
mark("../told")
if ROUND == 1:
    if RANK == 1:
        for rank in (0, 2, 3):  # each ends with the round
            wait_for(f"../told-{rank}-1")
        sys.exit(3)
    beat_until("never")
"""


@pytest.fixture
def endpoint() -> str:
    """Where an agent of the first host shall serve the store."""
    return f"{N1.address}:{free_port(N1.address)}"


def served(
    directory: Path, endpoint: str, *options: str, script: str = "", env: dict[str, str] | None = None
) -> Cluster:
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", "--nnodes=2")
    return Cluster(directory, *meeting, *TWO, *options, script=script, env=env)


def test_two_agents_agree_on_who_is_who_and_restart_all_with_a_new_port(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", "--max-restarts=1", *TWO, etcd=etcd, script=TELL) as cluster:
        cluster.start(N1, N2)
        ended = cluster.wait()
        ports = []
        for round in (1, 2):
            ranks = cluster.ranks(round)
            (first, second) = sorted(ranks, key=lambda name: ranks[name])
            assert (ranks[first], ranks[second]) == ([0, 1], [2, 3])
            words = [cluster[name].mark("env", rank, round).split() for name in (first, second) for rank in ranks[name]]
            ports.append(words[0].pop())
            job = (str(round - 1), cluster.run_id, cluster[first].host.address)
            assert [word[:8] for word in words] == [
                ["4", str(local), "2", str(node), "2", *job] for node in (0, 1) for local in (0, 1)
            ]
            assert {word[8] for word in words[1:]} == {ports[-1]}
        assert ports[0] != ports[1]
        assert cluster[first].mark("python", 0, 1) == sys.executable
        led = [one for one in ended if f" leads run {cluster.run_id}, in etcd at " in one.stderr]
        assert len(led) == 1  # what concerns all is said once
        for one in ended:
            devices, *before = one.stderr.partition("meshrun: round 1: ")[0].splitlines()
            assert "workers on the CPU, as asked" in devices  # a node that has lost its driver looks so, too
            assert one in led or all(", but has not started a round yet: " in line for line in before), before
            assert "meshrun: round 1: 2 of 2 nodes, 4 ranks; ranks " in one.stderr
            assert "; 1 of 1 restarts used; " in one.stderr


def test_every_agent_ends_with_the_first_failure_of_the_whole_job(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
if RANK == 3:
    beat_until("../fail")
    print("I am the cause", file=sys.stderr, flush=True)
    raise ValueError("bad shape")
beat_until("never")
"""
    with Cluster(tmp_path, "--nnodes=2", *TWO, "--tee=2", etcd=etcd, script=script) as cluster:
        cluster.start(N1, N2, N3)
        ranks = cluster.wait_for_round(1, 4)
        (spare,) = {"n1", "n2", "n3"} - ranks.keys()
        cluster[spare].says("is a spare")
        (tmp_path / "fail").touch()
        culprit = next(name for name, own in ranks.items() if 3 in own)
        for name, one in zip(cluster.jobs, cluster.wait(exit_code=1), strict=True):
            output, _, box = one.stderr.partition("=" * 80)
            assert (
                f"Root Cause (first observed failure): rank 3 on {culprit}\n  ValueError: bad shape\n    File " in box
            )
            there = "" if name == culprit else f"{culprit}:"
            assert f"  log       : {there}/" in box
            assert ("I am the cause" in output, "further up" in box) == (name == culprit, False)


def test_nodes_share_a_log_directory_and_the_leader_tells_where_the_first_failure_is(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    logs, told = tmp_path / "logs", tmp_path / "told"
    script = """
print("I am", RANK)
if RANK == 3:
    raise KeyError("bad batch")
beat_until("never")
"""
    options = (f"--log-dir={logs}", "--redirects=3", f"--notify=cat >> {told}")
    with Cluster(tmp_path, "--nnodes=3", "--nproc-per-node=2", *options, etcd=etcd, script=script) as cluster:
        cluster.start(N1)
        cluster[N1].says("n1 leads run")
        cluster.start(N2)
        cluster[N2].says("n1 leads, but has not started a round yet: waiting for nodes: at least 3 nodes must be")
        cluster.start(N3)
        ended = cluster.wait(exit_code=1)
        ranks = cluster.ranks(1)
    (run,) = logs.glob(f"{cluster.run_id}_*")
    assert (logs / "latest-run").resolve() == run
    assert sorted(path.name for path in run.iterdir()) == ["n1", "n2", "n3"]
    assert sum(f"log files are in {run}\n" in one.stderr for one in ended) == 1
    for node, own in ranks.items():
        for local_rank, rank in enumerate(own):
            assert (run / node / f"attempt_0/{local_rank}/stdout.log").read_text() == f"I am {rank}\n"
    culprit = next(node for node, own in ranks.items() if 3 in own)
    roots = [event["root_cause"] for event in map(json.loads, told.read_text().splitlines()) if "root_cause" in event]
    assert [(root["node"], root["rank"], root["error"]) for root in roots] == [
        (culprit, 3, "KeyError: 'bad batch'")
    ] * 2
    assert "KeyError" in Path(roots[0]["log_file"]).read_text()


def test_a_node_that_is_told_to_go_leaves_and_the_rest_goes_on_smaller(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *_: (mark("asked"), sys.exit(0)))
beat_until("../finish")
"""
    with Cluster(tmp_path, "--nnodes=1:3", "--target-nodes=3", *TWO, etcd=etcd, script=script) as cluster:
        going = tmp_path / "going"
        cluster.start(N1)
        cluster.start(N2, options=("--preemption-signal=SIGUSR2",))
        cluster.start(N3, options=(f"--preemption-file={going}",))
        first = cluster.wait_for_round(1, 6)
        cluster[N2].send(signal.SIGUSR2)
        (ended,) = cluster.wait(N2, exit_code=128 + signal.SIGUSR2)
        assert "SIGUSR2 announces a preemption" in ended.stderr
        cluster[N2].marks("asked", first["n2"])
        cluster.wait_for_round(2, 4)
        going.touch()
        (ended,) = cluster.wait(N3, exit_code=143)
        assert f"{going} announces a preemption" in ended.stderr
        cluster.wait_for_round(3, 2)
        cluster[N1].send(signal.SIGUSR1)  # that no option names
        (ended,) = cluster.wait(N1, exit_code=128 + signal.SIGUSR1)
        assert "stopped by SIGUSR1" in ended.stderr


def test_with_checkpoints_as_the_sign_a_job_grows_when_one_is_saved(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
from launcher.worker import checkpoint_saved
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
beat_until("../save")
if ROUND == 1 and RANK == 0:
    mark("heard", str(checkpoint_saved()))
beat_until("../finish")
"""
    with Cluster(tmp_path, "--nnodes=1:2", "--grow=checkpoint", *TWO, etcd=etcd, script=script) as cluster:
        cluster.begin(N1, workers=2)
        cluster.start(N2)
        cluster[N2].says("is a spare")
        assert cluster.ranks(2) == {}
        (tmp_path / "save").touch()
        assert cluster[N1].mark("heard", 0, 1) == "True"
        cluster.wait_for_round(2, 4)
        cluster.finish()


def test_the_loss_of_the_agent_that_serves_the_store_ends_the_job(tmp_path: Path, endpoint: str) -> None:
    options = ("--lease-ttl=3", "--rejoin-timeout=1", "--store-outage=stop")
    with served(tmp_path, endpoint, *options, script="beat_until('never')") as job:
        job.start(N1, options=HOST)
        job.begin(N2, workers=4)
        job[N1].kill()
        job.wait(N2, exit_code=75)
        job[N2].wait_until_nobody_is_left()


def test_a_signal_to_all_agents_at_once_stops_the_job_and_leaves_nothing(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        cluster.begin(N1, N2, workers=4)
        for host in (N1, N2):
            cluster[host].send(signal.SIGTERM)
        cluster.wait(exit_code=143)
        for host in (N1, N2):
            cluster[host].wait_until_nobody_is_left()
