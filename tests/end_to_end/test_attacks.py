"""Attacks by other users of the machine, and by who may write to the store: the job and its round go on undisturbed.

Each claim of the table in docs/guides/security.md that says what somebody can do, or cannot, is tried here.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.attacks import Stranger, again_and_again, cpu_s
from tests.support.etcd import EtcdServer
from tests.support.hosts import Cluster
from tests.support.network import loopback_hosts
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root"),
]

N1, N2 = loopback_hosts(2)
ALONE = ("--nproc-per-node=1", "--lease-ttl=3", "--nnodes=1:2", "--join-grace=0")
BOTH = ("--nproc-per-node=1", "--lease-ttl=3", "--nnodes=2", "--grow=never")
SECRET = {"LAUNCHER_JOB_SECRET": "only the job knows this"}
# Workers that tell of a checkpoint when the test asks for it.
SAVES = """
import subprocess
from launcher import worker
beat_until("../save")
worker.checkpoint_saved()
subprocess.run([sys.executable, "-c", "from launcher import worker; worker.checkpoint_saved()"], close_fds=True)
beat_until("../finish")
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("etcd")) as server:
        yield server


def finish(job: Cluster, *, round: int = 1) -> None:
    """Let the workers end: all that were started were of this round, and every agent ends well."""
    job.finish()
    for one in job.jobs.values():
        ended = one.wait()
        assert ended.exit_code == 0, ended.stderr
    assert {life.round for life in job.lives()} == {round}


def under(job: Cluster, prefix: str) -> list[dict[str, Any]]:
    """The job's records whose keys begin with this."""
    return [record for key, record in job.stored().items() if key.startswith(prefix)]


# --- another user of the machine ---


def test_a_flood_into_the_socket_that_hears_workers_costs_the_agent_nothing(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *ALONE, "--grow=checkpoint", etcd=etcd, script=SAVES) as job:
        job.start(N1)
        job.wait_for_round(1, 1)
        before = cpu_s(job[N1].pid)
        with Stranger(flood) as stranger:
            count = stranger.wait()
        agent_s = cpu_s(job[N1].pid) - before
        print(f"{count} datagrams by {stranger.cpu_s:.2f} s of CPU, the agent's: {agent_s:.2f} s")
        assert agent_s < stranger.cpu_s / 5
        (tmp_path / "save").touch()
        wait_until(
            lambda: [one["saved_count"] for key, one in job.stored().items() if key.startswith("status/")] == [2]
        )
        finish(job)


def flood() -> int:
    """Say at every abstract socket of a meshrun, as its own workers would, that a checkpoint is saved."""
    names = set(re.findall(r"@(meshrun-\S+)", Path("/proc/net/unix").read_text()))
    assert names
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)

        def once() -> None:
            for name in names:
                for message in (b"saved 1", b"0123456789abcdef saved 1", b"x" * 200, b""):
                    with suppress(OSError):
                        sender.sendto(message, f"\0{name}")

        return 4 * len(names) * again_and_again(once)
