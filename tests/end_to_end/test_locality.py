"""Where nodes stand decides which ranks they get: real agents over etcd, told their places by option and by file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.jobs.multi_node import Cluster, meshctl
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3, N4 = loopback_hosts(4)
ONE = ("--nproc-per-node=1", "--lease-ttl=15", "--join-grace=0.5", "--locality-sources=none")


def test_ranks_follow_the_leaves_and_a_node_that_comes_back_keeps_its_own(tmp_path: Path, etcd: EtcdServer) -> None:
    places = tmp_path / "places"
    places.write_text(f"# two leaves\n{N3.name}  spine=s,leaf=west\n{N4.address}  spine=s,leaf=east\n")
    ways = {
        N1: ("--locality", "spine=s,leaf=west"),
        N2: ("--locality", "spine=s,leaf=east"),
        N3: ("--locality", f"@{places}"),
        N4: ("--locality", f"@{places}"),
    }
    job = ("--nnodes=4", "--mesh=dp=2,tp=2", "--within=tp=leaf", "--level-costs=leaf=2", "--max-restarts=3")
    with Cluster(tmp_path, *ONE, *job, etcd=etcd) as cluster:
        for host in (N4, N1, N2, N3):  # in no good order, and the first two are on different leaves
            cluster.start(host, options=ways[host])
            cluster[host].says("meets the other nodes")
        first = cluster.wait_for_round(1, 4)
        assert sorted([*first["n1"], *first["n3"]]) in ([0, 1], [2, 3])
        assert sorted([*first["n2"], *first["n4"]]) in ([0, 1], [2, 3])
        cluster[N4].says("this node is at spine=s,leaf=east, by --locality")
        cluster[N1].says("tp stays on one leaf; dp goes over 2 leaves")

        shown = meshctl("status", cluster.run_id, "--json", endpoint=etcd.endpoint).stdout
        stand = {node["name"]: node["locality"] for node in json.loads(shown)["nodes"]}
        assert stand["n3"] == {"spine": "s", "leaf": "west"}
        text = meshctl("status", cluster.run_id, endpoint=etcd.endpoint).stdout
        assert "all nodes are on spine s" in text
        assert "leaf" in text

        cluster[N3].kill()
        cluster[N1].says("round 1 ends")
        # A level that only this node knows would put it before its neighbour, were the ranks given anew.
        cluster.start(N3, options=("--locality", "spine=s,leaf=west,nvl=a"))
        assert cluster.wait_for_round(2, 4) == first
