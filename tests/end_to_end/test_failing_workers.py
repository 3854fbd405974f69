"""What follows from a worker's failure in real jobs: its class, what it says of itself, rounds without progress."""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = loopback_hosts(3)
ONE_EACH = ("--nproc-per-node=1", "--max-restarts=3", "--lease-ttl=15", "--join-grace=0.5")
BLAMES_THEN_GIVES_UP = """
from launcher.worker import blame_node, give_up
if ROUND == 1 and os.path.basename(os.getcwd()) == "n2":
    wait_for("../told")
    blame_node("GPU 0 is wrong")
if ROUND == 2 and RANK == 1:
    wait_for("../told again")
    give_up("the loss is not a number")
beat_until("never")
"""


def test_a_node_that_is_blamed_is_not_used_and_who_gives_up_ends_the_job_on_all(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    with Cluster(tmp_path, "--nnodes=2", *ONE_EACH, etcd=etcd, script=BLAMES_THEN_GIVES_UP) as cluster:
        cluster.begin(N1, N2, workers=2)
        cluster.start(N3)
        cluster.wait_for_members("n1", "n2", "n3")
        (tmp_path / "told").touch()
        assert sorted(cluster.wait_for_round(2, 2)) == ["n1", "n3"]
        (tmp_path / "told again").touch()
        for ended in cluster.wait(exit_code=76):
            assert "a restart would not help: the loss is not a number" in " ".join(ended.stderr.split())
            assert "gave up: the loss is not a number" in ended.stderr
        assert not cluster.ranks(3)


def test_a_program_that_has_gone_is_not_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 3\n')
    program.chmod(0o755)
    with Job(tmp_path, "--nproc-per-node=1", "--max-restarts=9", "--no-python", "./program") as job:
        assert job.wait().exit_code == 127
    assert "a restart would not help: the program cannot be run" in " ".join(job.stderr.split())
    assert "could not be started: ./program does not exist" in job.stderr
    assert "hint: install it on this node, or correct its name" in job.stderr
    assert "round 3 starts" not in job.stderr
