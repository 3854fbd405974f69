"""--request-nodes: a command that starts the node that is missing, and is told when it has come."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2 = loopback_hosts(2)


def test_a_missing_node_is_asked_for_by_who_leads_until_it_has_come(tmp_path: Path, etcd: EtcdServer) -> None:
    told = tmp_path / "told"
    command = f'cat >> {told}; echo "$NODES_WANTED $NODES_PRESENT" >> {told}.figures'
    options = ("--nnodes=1:2", "--nproc-per-node=1", "--join-grace=0", "--grow=never")
    with Cluster(tmp_path, *options, f"--request-nodes={command}", etcd=etcd) as cluster:
        cluster.begin(N1, workers=1)
        figures = Path(f"{told}.figures")
        wait_until(lambda: figures.exists() and figures.read_text() == "2 1\n", 60, "the request")
        cluster.start(N2)
        wait_until(lambda: figures.read_text() == "2 1\n2 2\n", 60, "what is said once all are there")
        events = [json.loads(line) for line in told.read_text().splitlines()]
        assert [(event["wanted"], event["present"], bool(event["since"])) for event in events] == [
            (2, 1, True), (2, 2, False),
        ]  # fmt: skip
        assert "--request-nodes runs its command: wanted 2 nodes, present 1, for 1" in cluster[N1].stderr
        assert "is told" not in cluster[N2].stderr
        cluster[N1].kill()
        wait_until(lambda: figures.read_text() == "2 1\n2 2\n2 1\n", 60, "the request of the next leader")
        cluster.finish(N2)
        assert figures.read_text() == "2 1\n2 2\n2 1\n0 0\n", "the run has ended"
