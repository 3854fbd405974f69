"""A job whose etcd is restored from a snapshot, or replaced by another, while it runs.

A restored etcd has forgotten writes that the agents have acted on, and its revisions mean other writes from then on. An
agent that reads less than it has read kills its workers, says what it saw and ends with 75; started again, the agents
continue from what the store holds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Ended
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import ETCDCTL, EtcdServer

pytestmark = pytest.mark.server

HOSTS = N1, N2 = loopback_hosts(2)
OPTIONS = ("--nproc-per-node=1", "--lease-ttl=3", "--nnodes=2", "--max-restarts=5")
LOST = "meshrun: the store was restored to an earlier state, or replaced by another: "
HINT = "once all agents of the run have ended, start them again; next time stop them before a restore"


class Snapshot:
    """What an etcd held at some time, and ways to bring it back."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._file = server.directory / "snapshot"
        server.ctl("snapshot", "save", str(self._file))

    def restore(self, *, token: str = "etcd-cluster") -> None:
        """Kill the server, and put the snapshot in the place of its data; `token`: of the cluster that it begins."""
        server = self._server
        server.kill()
        data = server.directory / f"{server.name}.data"
        shutil.rmtree(data)
        subprocess.run(
            [
                *(ETCDCTL, "snapshot", "restore", str(self._file), "--data-dir", str(data), "--name", server.name),
                *("--initial-cluster", f"{server.name}={server.peer_url}", "--initial-cluster-token", token),
                *("--initial-advertise-peer-urls", server.peer_url),
            ],
            env={**os.environ, "ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
            timeout=60,
        )


def next_round(job: Cluster, round: int) -> None:
    """End the running round by the failure of one worker, and wait until this one runs."""
    (pid,) = job[N1].worker_pids()
    os.kill(pid, signal.SIGKILL)
    job.wait_for_round(round, 2)


def require_all_end(job: Cluster, evidence: str) -> list[Ended]:
    """Both agents must say what shows that the store went back, and end with 75 and nothing left."""
    ended = job.wait(exit_code=75)
    for node, one in zip(job.jobs.values(), ended, strict=True):
        assert f"{LOST}{evidence}" in one.stderr
        assert HINT in one.stderr
        node.wait_until_nobody_is_left()
    return ended


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_a_snapshot_of_round_1_that_is_restored_in_round_3_ends_both_agents(tmp_path: Path, version: str) -> None:
    with EtcdServer(version, tmp_path / "etcd") as server, Cluster(tmp_path, *OPTIONS, etcd=server) as job:
        job.begin(*HOSTS, workers=2)
        snapshot = Snapshot(server)
        next_round(job, 2)
        next_round(job, 3)
        snapshot.restore()
        server.start()
        require_all_end(job, "it is at revision ")
        for node in job.jobs.values():
            print(node.stderr)
