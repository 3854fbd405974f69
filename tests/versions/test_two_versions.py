"""Agents of two versions of meshrun refuse each other at once, and so does meshctl; each sentence names both versions.

The other version is a copy of this tree with another number, older or newer, so every record, message and lock of it
can be read: nothing but its number keeps it out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous import __version__
from tests.support.documents.pages import ROOT
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import free_port, loopback_hosts
from tests.support.processes.tree import is_alive
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = HOSTS = loopback_hosts(3)
ONE = ("--nproc-per-node=1", "--lease-ttl=3")
TWO = ("--nnodes=2", *ONE)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module", params=["0.0.1", "99.1"], ids=["older", "newer"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the other version lies, a directory named by its number."""
    folder = tmp_path_factory.mktemp("versions") / str(request.param)
    for package in ("launcher", "rendezvous"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "rendezvous/__init__.py"
    text = file.read_text()
    assert text.count(f'"{__version__}"') == 1
    file.write_text(text.replace(f'"{__version__}"', f'"{folder.name}"'))
    return folder


def path_of(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(folder)}


def refused(job: Cluster, host: str) -> tuple[str, str]:
    """How this agent was refused: its sentence and hint."""
    ended = job[host].wait()
    assert ended.exit_code == 2
    lines = ended.stderr.splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("meshrun: error: "))
    return lines[at].removeprefix("meshrun: error: "), lines[at + 1].removeprefix("hint: ")


def meshctl(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "launcher.meshctl.main", *words]
    environ = {**os.environ, **path_of(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=folder)
    return done.returncode, done.stderr


@pytest.mark.parametrize("secret", [{}, {"LAUNCHER_JOB_SECRET": "of one job"}], ids=["open", "signed"])
def test_a_newcomer_of_another_version_is_refused_and_the_job_goes_on(
    tmp_path: Path, etcd: EtcdServer, other: Path, secret: dict[str, str]
) -> None:
    with Cluster(tmp_path, *TWO, etcd=etcd, env=secret) as job:
        job.start(N1)
        assert job.leader() == "n1"
        job.start(N2, env=path_of(other))
        assert refused(job, "n2") == (
            f"run {job.run_id} uses meshrun {__version__}, but node n2 has meshrun {other.name}",
            f"install meshrun {__version__} on every node, or use another --rdzv-id",
        )
        job.start(N3)
        job.wait_for_round(1, 2)
        job.finish("n1", "n3")


def test_meshctl_of_another_version_asks_nothing(tmp_path: Path, etcd: EtcdServer, other: Path) -> None:
    with Cluster(tmp_path, *TWO, etcd=etcd) as job:
        job.start(N1)
        assert job.leader() == "n1"
        of_run = (
            2,
            f"meshctl: error: run {job.run_id} uses meshrun {__version__}, but this is meshrun {other.name}\n"
            f"hint: use meshctl of meshrun {__version__}\n",
        )
        before = job.stored()
        for words in (("status", job.run_id), ("why", job.run_id), ("stop", job.run_id), ("drain", job.run_id, "n1")):
            assert meshctl(other, *words, "--rdzv-endpoint", etcd.endpoint) == of_run
        assert job.stored() == before
        for word in ("status", "why"):
            assert meshctl(other, word, str(job[N1].pid)) == (
                2,
                f"meshctl: error: the agent of run {job.run_id} has meshrun {__version__} on node n1, this is meshrun "
                f"{other.name}\nhint: use meshctl of meshrun {__version__}\n",
            )


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_store_that_another_version_serves_is_not_used(tmp_path: Path, other: Path, backend: str) -> None:
    port = free_port(N1.address, count=2)
    if backend == "c10d":
        options = ("--rdzv-backend=c10d", f"--rdzv-endpoint={N1.address}:{port}")
        first, second = ("--rdzv-conf=is_host=1",), ("--rdzv-conf=is_host=0",)
        served, option = f"{N1.address}:{port}", "--rdzv-endpoint"
    else:
        options = (f"--master-addr={N1.address}", f"--master-port={port}")
        first, second = ("--node-rank=0",), ("--node-rank=1",)
        served, option = f"{N1.address}:{port + 1}", "LAUNCHER_STORE_PORT"
    with Cluster(tmp_path, *options, *TWO) as job:
        job.start(N1, options=first, env=path_of(other))
        job[N1].says("this agent serves the job's store")
        job.start(N2, options=second)
        assert refused(job, "n2") == (
            f"the store at {served} uses meshrun {other.name}, but node n2 has meshrun {__version__}",
            f"install meshrun {other.name} on every node, or give this run another port with {option}",
        )
        assert job[N1].exit_code is None


def test_an_agent_of_another_version_under_this_node_s_name_is_named_at_once(
    tmp_path: Path, etcd: EtcdServer, other: Path
) -> None:
    with Cluster(tmp_path, *TWO, etcd=etcd) as job:
        job.start(N1, options=("--node-name=here",), env=path_of(other))
        assert job.leader() == "here"
        job.start(N2, options=("--node-name=here",))
        assert refused(job, "n2") == (
            f"an agent of run {job.run_id} is on this node with meshrun {other.name}, as here: pid {job[N1].pid}; this "
            f"is meshrun {__version__}",
            "stop it first, or install one version of meshrun on every node",
        )
        assert job[N1].exit_code is None


def test_what_a_killed_agent_of_another_version_has_left_is_ended(
    tmp_path: Path, etcd: EtcdServer, other: Path
) -> None:
    with Cluster(tmp_path, "--nnodes=1:2", *ONE, etcd=etcd) as job:
        job.start(N1, options=("--node-name=here",), env=path_of(other))
        job.wait_for_round(1, 1)
        before = job[N1]
        (worker,) = before.worker_pids()
        launcher = before.parts("agent", "keeper", "supervisor")
        before.freeze("node")
        for pid in launcher:
            os.kill(pid, signal.SIGKILL)
        job.start(N2, options=("--node-name=here",))
        sentence, _ = refused(job, "n2")
        assert sentence == f"run {job.run_id} uses meshrun {other.name}, but node here has meshrun {__version__}"
        assert not is_alive(worker)
