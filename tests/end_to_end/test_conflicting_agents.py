"""Agents that should not have met: one id for two jobs, one name for two nodes, a secret that is another one.

Whoever comes second is told in a sentence what is amiss and ends; the job that was there first does not notice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

pytestmark = pytest.mark.server

N1, N2, *OTHERS = loopback_hosts(4)
OPTIONS = ("--nproc-per-node=1", "--lease-ttl=15")
RIGHT, WRONG = "r1ght", "wr0ng"
# What the second agent is given beside the options of the first, its secret, and why it is refused.
DIFFERENT = (
    (
        ("--mesh=dp=*,tp=1",),
        RIGHT,
        "run {run} has different options from this agent; --mesh is dp=* there and dp=*,tp=1 here",
    ),
    (("--run-path",), RIGHT, "this agent runs a different command from the first node of run {run}"),
    ((), WRONG, "was not written by an agent that knows the job's secret"),
)


def test_agents_of_another_job_are_refused_and_the_first_goes_on(tmp_path: Path, etcd: EtcdServer) -> None:
    alone = ("--nnodes=1:2", "--join-grace=0", "--grow=never", "--mesh=dp=*")
    with Cluster(tmp_path, *OPTIONS, *alone, etcd=etcd) as job:
        job.start(N1, env={"LAUNCHER_JOB_SECRET": RIGHT})
        job.wait_for_round(1, 1)
        seconds = (N2, *OTHERS)
        for host, (options, secret, _) in zip(seconds, DIFFERENT, strict=True):
            job.start(host, options=options, env={"LAUNCHER_JOB_SECRET": secret})
        for host, (_, _, sentence) in zip(seconds, DIFFERENT, strict=True):
            (ended,) = job.wait(host, exit_code=2)
            job[host].wait_until_nobody_is_left()
            (error,) = (line for line in ended.stderr.splitlines() if line.startswith("meshrun: error: "))
            assert sentence.format(run=job.run_id) in error
            assert ended.stdout == ""
            assert not any(word in ended.stderr for word in ("Traceback", RIGHT, WRONG))
        job.finish(N1)
        assert [(life.node, life.round) for life in job.lives()] == [("n1", 1)]


def test_two_machines_with_one_name_are_two_nodes(tmp_path: Path, etcd: EtcdServer) -> None:
    """On one machine, what keeps two agents of one name apart is that they see other devices."""
    with Cluster(tmp_path, *OPTIONS, "--nnodes=2", "--node-name=same", etcd=etcd) as job:
        for device, host in enumerate((N1, N2)):
            job.start(host, env={"CUDA_VISIBLE_DEVICES": str(device)})
        job.wait_for_round(1, 2)
        ended = job.finish()
        assert any("2 nodes have the name same: give each its own --node-name" in one.stderr for one in ended), ended
