"""An etcd whose packets are dropped on the way: nobody refuses anything, and the agent does not wait for ever."""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs.multi_node import Cluster, HostEtcd
from tests.support.network.namespaces import Network


def test_a_store_behind_a_dropping_firewall_fails_at_the_start_timeout(
    network: Network, etcd: HostEtcd, tmp_path: Path
) -> None:
    host = network.host("n1")
    network.cut("n1", "store")
    with Cluster(tmp_path, "--nproc-per-node=1", "--nnodes=1", "--start-timeout=1", etcd=etcd) as job:
        job.start(host)
        (ended,) = job.wait(exit_code=75)
        job[host].wait_until_nobody_is_left()
    assert ended.stdout == ""
    sentence = f"no store could be used within 1 s: {etcd.endpoint} does not answer"
    assert f"meshrun: error: {sentence}\n" in ended.stderr
    assert "Traceback" not in ended.stderr
