"""What follows from a worker's failure in real jobs: its class, what it says of itself, rounds without progress."""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs.multi_node import LIMIT_S, Cluster
from tests.support.jobs.single_node import Job, run
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = loopback_hosts(3)
ONE_EACH = ("--nproc-per-node=1", "--max-restarts=3", "--lease-ttl=15", "--join-grace=0.5")

GIVES_UP = """
from launcher.worker import give_up
if RANK == 1:
    wait_for("../told")
    give_up("the loss is not a number")
beat_until("../finish")
"""
BLAMES = """
from launcher.worker import blame_node
if ROUND == 1 and os.path.basename(os.getcwd()) == "n2":
    wait_for("../told")
    blame_node("GPU 0 is wrong")
beat_until("../finish")
"""


def test_a_worker_that_gives_up_ends_the_job_on_all_nodes(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *ONE_EACH, etcd=etcd, script=GIVES_UP) as cluster:
        cluster.begin(N1, N2, workers=2)
        (tmp_path / "told").touch()
        for ended in cluster.wait(exit_code=76):
            assert "a restart would not help: the loss is not a number" in " ".join(ended.stderr.split())
            assert "gave up: the loss is not a number" in ended.stderr
        assert not cluster.ranks(2)


def test_a_node_that_its_worker_blames_is_not_used_in_the_next_round(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *ONE_EACH, etcd=etcd, script=BLAMES) as cluster:
        cluster.begin(N1, N2, workers=2)
        cluster.start(N3)
        cluster.wait_for_members("n1", "n2", "n3")
        (tmp_path / "told").touch()
        cluster.wait_for_round(2, 2)
        assert sorted(cluster.ranks(2)) == ["n1", "n3"]
        cluster.finish()


def test_rounds_that_repeat_the_same_steps_end_with_a_code_of_their_own(tmp_path: Path) -> None:
    script = """
from launcher.worker import progress
for step in range(3 if ROUND == 2 else 5):
    assert progress(step)
sys.exit(7)
"""
    job = run(tmp_path, "--nproc-per-node=1", "--max-restarts=9", script=script, exit_code=76, limit_s=LIMIT_S)
    assert "no progress: 3 rounds in a row did not get beyond step 4" in job.stderr
    assert "round 4 starts" in job.stderr
    assert "round 5 starts" not in job.stderr


def test_a_program_that_has_gone_is_not_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 3\n')
    program.chmod(0o755)
    with Job(tmp_path, "--nproc-per-node=1", "--max-restarts=9", "--no-python", "./program") as job:
        assert job.wait().exit_code == 127
    assert "a restart would not help: the program does not exist" in " ".join(job.stderr.split())
    assert "round 3 starts" not in job.stderr


def test_the_log_says_the_class_of_a_failure_and_that_it_is_the_same_again(tmp_path: Path) -> None:
    script = "raise MemoryError('no room for the batch')"
    job = run(tmp_path, "--nproc-per-node=1", "--max-restarts=3", "--tee=2", script=script, exit_code=1)
    assert job.stderr.count("failed with exit code 1 (memory: MemoryError)") == 4
    assert "meshrun: rank 0 (memory: MemoryError) failed in the same way 3 times in a row\n" in job.stderr
    assert "rank 0 (memory: MemoryError) failed in the same way 4 times in a row" in " ".join(job.stderr.split())
