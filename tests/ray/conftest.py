"""One cluster of Ray for all tests of a session: every test begins with three nodes, whatever the one before did."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.support.ray_cluster import LEAF, RayTestCluster
from tests.support.waiting import wait_until

NODES = 3


def pytest_report_header() -> str:
    try:
        return f"ray {version('ray')}"
    except PackageNotFoundError:
        return "ray is not installed"


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[RayTestCluster]:
    pytest.importorskip("ray")
    with RayTestCluster(has_dashboard=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: RayTestCluster) -> Iterator[RayTestCluster]:
    """Three nodes: one in leaf0, two in leaf1."""
    while len(session_cluster.nodes) > NODES:
        session_cluster.kill(max(session_cluster.nodes))
    while len(session_cluster.nodes) < NODES:
        add_node(session_cluster)
    # A job that says no number takes all nodes that Ray holds for alive.
    wait_until(lambda: session_cluster.count_alive() == NODES + 1, 60.0, "the end of nodes that were killed")
    yield session_cluster
    for number in list(session_cluster.nodes):
        if number in session_cluster.drained:
            session_cluster.kill(number)


def add_node(cluster: RayTestCluster) -> int:
    """Add a node: the leaf with fewer nodes gets it, and leaf1 the first of two."""
    leaves = [node.leaf for node in cluster.nodes.values()]
    leaf = "leaf0" if leaves.count("leaf0") < leaves.count("leaf1") else "leaf1"
    return cluster.add({LEAF: leaf, "topology.kubernetes.io/zone": "a"}, gpus=4, cpus=4, TPU=4).number
