"""Agents of 0.1.0 and of today are one job: they form rounds, prove each other's deaths, and take over from each other.

OLD_VERSION names a directory with the older `launcher` and `rendezvous`; `make slow WHAT=versions` takes them from git.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = HOSTS = loopback_hosts(3)
OLD = {"PYTHONPATH": os.environ.get("OLD_VERSION", "")}
TWO = ("--nproc-per-node=2", "--lease-ttl=3", "--join-grace=0.5")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server


def test_the_older_version_is_another_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import launcher, rendezvous; print(launcher.__file__, rendezvous.__file__)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **OLD})
    assert found.stdout.split() == [
        f"{OLD['PYTHONPATH']}/{package}/__init__.py" for package in ("launcher", "rendezvous")
    ]


@pytest.mark.parametrize("secret", [{}, {"LAUNCHER_JOB_SECRET": "of one job"}], ids=["open", "signed"])
@pytest.mark.parametrize("first", [OLD, {}], ids=["old leads", "new leads"])
def test_a_leader_of_one_version_is_lost_and_one_of_the_other_goes_on(
    tmp_path: Path, etcd: EtcdServer, first: dict[str, str], secret: dict[str, str]
) -> None:
    second = {} if first else OLD
    with Cluster(tmp_path, "--nnodes=2:3", "--target-nodes=3", *TWO, etcd=etcd, env=secret) as cluster:
        cluster.start(N1, env=first)
        assert cluster.leader() == "n1"
        cluster.start(N2, env=second)
        cluster.start(N3, env=second)
        cluster.wait_for_round(1, 6)
        cluster[N1].kill()
        cluster.wait_for_round(2, 4)
        assert cluster.leader() in ("n2", "n3")
        cluster.start(N1, env=first)
        cluster[N1].says("stands by as a spare")
        cluster.finish()
        assert any("node n1 lost in round 1" in cluster[host].stderr for host in (N2, N3))


@pytest.mark.parametrize("first", [OLD, {}], ids=["old serves", "new serves"])
def test_a_store_that_one_version_serves_is_used_by_the_other(tmp_path: Path, first: dict[str, str]) -> None:
    second = {} if first else OLD
    at = ("--rdzv-backend=c10d", f"--rdzv-endpoint={N1.address}:29471")
    with Cluster(tmp_path, *at, "--nnodes=2", *TWO) as cluster:
        cluster.start(N1, options=("--rdzv-conf=is_host=1",), env=first)
        cluster.start(N2, options=("--rdzv-conf=is_host=0",), env=second)
        cluster.wait_for_round(1, 4)
        cluster.finish()


@pytest.mark.parametrize("first", [OLD, {}], ids=["old leads", "new leads"])
@pytest.mark.parametrize("failing", [0, 2], ids=["of the leader", "of the other"])
def test_a_failure_is_charged_and_told_by_both(
    tmp_path: Path, etcd: EtcdServer, first: dict[str, str], failing: int
) -> None:
    """The one of today looks at the survivors first, and asks the other one to do so."""
    second = {} if first else OLD
    script = f"mark('up')\nif RANK == {failing}: sys.exit(3)\nwait_for('never')"
    options = ("--nnodes=2", "--max-restarts=1", *TWO)
    with Cluster(tmp_path, *options, etcd=etcd, script=script) as cluster:
        cluster.start(N1, env=first)
        assert cluster.leader() == "n1"
        cluster.start(N2, env=second)
        ended = cluster.wait(N1, N2, exit_code=3)
    told = f"a worker failed on n{2 if failing else 1} in round 2, 1 of 1 restarts used"
    assert all(told in one.stderr for one in ended)
