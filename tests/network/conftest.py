"""Hosts in network namespaces with an etcd among them, once for each test; repeated for `make slow WHAT=faults`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import FAULT_REPEATS, SLEEP, Cluster, HostEtcd, Make
from tests.support.network.namespaces import Host, Network, why_no_namespaces

# Shorter than usual, for many of these tests wait for its end; the others give a longer one themselves.
LEASE = ("--lease-ttl", "4")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "is_leader_victim" in metafunc.fixturenames:
        # Every third fault hits the leader's node; with one repetition each, the tests take turns.
        offset = sum(map(ord, metafunc.function.__name__)) % 3
        turns = range(offset, offset + FAULT_REPEATS)
        names = [f"{turn - offset}-{'leader' if turn % 3 == 0 else 'follower'}" for turn in turns]
        metafunc.parametrize("is_leader_victim", [turn % 3 == 0 for turn in turns], ids=names)
    elif "cluster" in metafunc.fixturenames:
        metafunc.fixturenames.append("turn")
        metafunc.parametrize("turn", range(FAULT_REPEATS))
    if "direction" in metafunc.fixturenames:
        metafunc.parametrize("direction", ["both"] if FAULT_REPEATS == 1 else ["both", "from", "to"])


@pytest.fixture
def network() -> Iterator[Network]:
    if why_no_namespaces():
        pytest.skip(why_no_namespaces())
    with Network() as network:
        yield network


@pytest.fixture
def hosts(network: Network) -> list[Host]:
    """n1 to n4."""
    return [network.host(f"n{index}") for index in range(1, 5)]


@pytest.fixture
def etcd(network: Network, tmp_path: Path) -> Iterator[HostEtcd]:
    with HostEtcd(network, tmp_path) as etcd:
        yield etcd


@pytest.fixture
def cluster(etcd: HostEtcd, tmp_path: Path) -> Iterator[Make]:
    """Makes a job of two workers a node; called with options, and perhaps a script."""
    with ExitStack() as stack:

        def make(*options: str, script: str = SLEEP) -> Cluster:
            # gloo would take the address that the host's name stands for, and nothing knows the names of these hosts.
            env = {"GLOO_SOCKET_IFNAME": "eth0"}
            job = Cluster(tmp_path, "--nproc-per-node", "2", *LEASE, *options, etcd=etcd, script=script, env=env)
            return stack.enter_context(job)

        yield make
