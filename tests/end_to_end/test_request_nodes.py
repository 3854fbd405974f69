"""--request-nodes: a command that starts the node that is missing, and is told when it is no longer wanted."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.config.scrub import PRIVATE
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

(N1,) = loopback_hosts(1)


def test_a_missing_node_is_asked_for_until_the_run_ends(tmp_path: Path, etcd: EtcdServer) -> None:
    told, figures, environ = (tmp_path / name for name in ("told", "figures", "environ"))
    command = f'cat >> {told}; env >> {environ}; echo "$NODES_WANTED $NODES_PRESENT" >> {figures}'
    options = ("--nnodes=1:2", "--nproc-per-node=1", "--lease-ttl=15", "--join-grace=0", "--grow=never")
    secret = {"LAUNCHER_JOB_SECRET": "only the job knows this"}
    with Cluster(tmp_path, *options, f"--request-nodes={command}", etcd=etcd, env=secret) as cluster:
        cluster.begin(N1, workers=1)
        wait_until(lambda: figures.exists() and figures.read_text() == "2 1\n", 60, "the request")
        cluster.finish()
        assert "--request-nodes runs its command: wanted 2 nodes, present 1, for 1" in cluster[N1].stderr
    assert figures.read_text() == "2 1\n0 0\n", "the run has ended"
    first, _ = (json.loads(line) for line in told.read_text().splitlines())
    assert (first["wanted"], first["present"], bool(first["since"])) == (2, 1, True)
    assert not [name for name in PRIVATE if f"{name}=" in environ.read_text()]
