"""Agents that should not have met: one id for two jobs, one name for two nodes, a secret that is another one.

Whoever comes second is told in a sentence what is amiss and ends; the job that was there first does not notice.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rendezvous import __version__
from tests.support.jobs.attacks import ATTACK_S
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Ended
from tests.support.network.namespaces import Host, free_port, loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.stores.hostile_clients import strangers

pytestmark = pytest.mark.server

N1, N2 = loopback_hosts(2)
OPTIONS = ("--nproc-per-node=1", "--lease-ttl=15")
ALONE = ("--nnodes=1:2", "--join-grace=0", "--grow=never")


def refused(first: Cluster, second: Cluster, host: Host = N2, *options: str) -> Ended:
    """How an agent of the second ends, while the first goes on and ends well. Nobody of either is left."""
    with first, second:
        first.begin(N1, workers=1)
        second.start(host, options=options)
        ended = second[host].wait()
        second[host].wait_until_nobody_is_left()
        assert (ended.stdout, second.lives()) == ("", [])
        assert "Traceback" not in ended.stderr
        first.finish()
        assert len(first.lives()) == 1
    return ended


def error_of(ended: Ended) -> str:
    """The last line that is not a hint."""
    return [line for line in ended.stderr.splitlines() if not line.startswith("hint: ")][-1]


def cluster(place: Path, etcd: EtcdServer, *options: str, run_id: str, **env: str) -> Cluster:
    place.mkdir(exist_ok=True)
    return Cluster(place, *OPTIONS, *ALONE, *options, etcd=etcd, run_id=run_id, env=env)


def test_a_job_with_the_id_of_another_is_refused_with_what_differs(tmp_path: Path, etcd: EtcdServer) -> None:
    first = cluster(tmp_path / "first", etcd, "--mesh=dp=*", run_id="shared")
    second = cluster(tmp_path / "second", etcd, "--mesh=dp=*,tp=1", run_id="shared")
    ended = refused(first, second)
    assert ended.exit_code == 2
    assert error_of(ended) == (
        "meshrun: error: run shared has other options than this agent; --mesh is dp=* there and dp=*,tp=1 here"
    )
    assert ended.stderr.splitlines()[-1].endswith("each run its own --rdzv-id")


def test_two_users_who_call_their_runs_none_do_not_meet(tmp_path: Path, etcd: EtcdServer) -> None:
    first = cluster(tmp_path / "first", etcd, run_id="none")
    second = cluster(tmp_path / "second", etcd, "--max-restarts=3", run_id="none")
    ended = refused(first, second)
    assert ended.exit_code == 2
    assert error_of(ended) == (
        "meshrun: error: this run has other options than this agent; --max-restarts is not given there and 3 here"
    )


def test_a_job_with_another_command_is_refused(tmp_path: Path, etcd: EtcdServer) -> None:
    first = cluster(tmp_path / "first", etcd, run_id="arguments")
    second = cluster(tmp_path / "second", etcd, "--run-path", run_id="arguments")
    ended = refused(first, second)
    assert ended.exit_code == 2
    sentence = "this agent runs another command than the first node of run arguments"
    assert error_of(ended) == f"meshrun: error: {sentence}"


def test_two_machines_with_one_name_are_two_nodes(tmp_path: Path, etcd: EtcdServer) -> None:
    """On one machine, what keeps two agents of one name apart is that they see other devices."""
    job = Cluster(tmp_path, *OPTIONS, "--nnodes=2", "--node-name=same", etcd=etcd, env={"CUDA_VISIBLE_DEVICES": "0"})
    other = Cluster(tmp_path, *OPTIONS, "--nnodes=2", "--node-name=same", etcd=etcd, run_id=job.run_id,
                    env={"CUDA_VISIBLE_DEVICES": "1"})  # fmt: skip
    with job, other:
        job.start(N1)
        other.start(N2)
        for each, host in ((job, N1), (other, N2)):
            each[host].says("round 1: 2 of 2 nodes, 2 ranks")
        assert {life.rank for life in job.lives() + other.lives()} <= {0, 1}
        ended = [*job.finish(), *other.wait()]
        assert any("2 nodes have the name same: give each its own --node-name" in one.stderr for one in ended), ended


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [
        ("wr0ng", "was not written by an agent that knows the job's secret"),
        ("", "run {run} has a job secret, and this agent has none"),
    ],
)
def test_an_agent_without_the_jobs_secret_is_refused(
    tmp_path: Path, etcd: EtcdServer, secret: str, sentence: str
) -> None:
    run = f"with-{len(secret)}-letters"
    first = cluster(tmp_path / "first", etcd, run_id=run, LAUNCHER_JOB_SECRET="r1ght")
    second = cluster(tmp_path / "second", etcd, run_id=run, **({"LAUNCHER_JOB_SECRET": secret} if secret else {}))
    ended = refused(first, second)
    assert ended.exit_code == 2
    assert sentence.format(run=run) in error_of(ended)
    assert not any(word in ended.stderr for word in ("wr0ng", "r1ght"))


def test_a_joiner_that_cannot_read_the_records_is_refused(tmp_path: Path, etcd: EtcdServer) -> None:
    run = "newer"
    etcd.ctl("put", f"/meshrun/{run}/current", "abc")
    etcd.ctl("put", f"/meshrun/{run}/abc/spec", json.dumps({"version": "9.1", "mesh": "", "limits": "", "digest": ""}))
    with cluster(tmp_path, etcd, run_id=run) as job:
        job.start(N1)
        (ended,) = job.wait(exit_code=2)
    assert error_of(ended) == f"meshrun: error: run {run} uses meshrun 9.1, node n1 has meshrun {__version__}"


def test_a_name_that_holds_something_else_is_left_alone(tmp_path: Path, etcd: EtcdServer) -> None:
    etcd.ctl("put", "/meshrun/taken/current", "what is this / ?")
    with cluster(tmp_path, etcd, run_id="taken") as job:
        job.start(N1)
        (ended,) = job.wait(exit_code=2)
    sentence = "the value of /meshrun/taken/current is not a job key, so it was not written by meshrun"
    assert error_of(ended) == f"meshrun: error: {sentence}"
    assert etcd.ctl("get", "--prefix", "/meshrun/taken/", "--keys-only").split() == ["/meshrun/taken/current"]


def test_a_flood_of_unauthenticated_calls_does_not_end_a_round(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2")
    with Cluster(tmp_path, *OPTIONS, *meeting, env={"LAUNCHER_STORE_TOKEN": "sesame"}) as job:
        job.begin(N1, N2, workers=2)
        before = {host.name: job[host].stderr for host in (N1, N2)}
        with strangers(("guess", "reset", "goaway", "odd"), port, ATTACK_S):
            pass
        assert {host.name: job[host].stderr for host in (N1, N2)} == before
        job.finish()
        assert {life.round for life in job.lives()} == {1}
