"""A scheduler has begun a job again while agents of the attempt before run on: the later one ends them, and waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import Host, free_port, loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2, N3, N4 = loopback_hosts(4)
COMMON = ("--nnodes=2", "--nproc-per-node=1", "--lease-ttl=15", "--shutdown-timeout=30")
# Workers that take a while to save: those of another attempt begin only when they are gone.
SAVES = """
import signal

def save(*_):
    mark("saving", "")
    beat_until("../saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
beat_until("../finish")
"""


def begin(stack: ExitStack, folder: Path, attempt: int, *options: str, etcd: EtcdServer | None = None) -> Cluster:
    """The nodes of one attempt of the run of this directory, with directories of their own."""
    place = folder / f"{len(list(folder.iterdir()))}"
    place.mkdir()
    more = (*COMMON, f"--attempt={attempt}", *options)
    return stack.enter_context(Cluster(place, *more, etcd=etcd, script=SAVES, run_id=f"{folder.name}-{os.getpid()}"))


def let_save(cluster: Cluster, hosts: Iterable[Host], attempt: int, by: str) -> None:
    """Wait until these nodes have been told why their workers are to save, let them, and see how the agents end."""
    replaced = f"attempt {attempt}, started on node {by}, replaces this one"
    for host in hosts:
        cluster[host].says(f"round 1 ends: {replaced}")
    (cluster.directory / "saved").touch()
    for ended in cluster.wait(exit_code=76):
        assert ended.stderr.splitlines()[-1] == f"meshrun: {replaced}"


def test_a_later_attempt_on_other_nodes_begins_once_the_earlier_has_saved(tmp_path: Path, etcd: EtcdServer) -> None:
    with ExitStack() as stack:
        first = begin(stack, tmp_path, 1, etcd=etcd)
        first.begin(N1, N2, workers=2)
        second = begin(stack, tmp_path, 3, etcd=etcd)
        second.start(N3)
        second[N3].says("waiting for attempt 1 to end on nodes n1, n2; up to ")
        assert second.lives() == []
        let_save(first, (N1, N2), 3, "n3")
        second.start(N4)
        second.wait_for_round(1, 2)
        assert max(life.last_s for life in first.lives()) < min(life.begun_s for life in second.lives())
        late = begin(stack, tmp_path, 0, etcd=etcd)
        late.start(N1)
        (ended,) = late.wait(exit_code=2)
        assert f"this is attempt 0, but run {first.run_id} is at attempt 3" in ended.stderr
        second.finish()


def test_an_agent_of_an_earlier_attempt_on_the_same_node_makes_way_though_it_was_stopped(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    name = ("--node-name=here",)
    with ExitStack() as stack:
        first, second = (begin(stack, tmp_path, attempt, "--nnodes=1", etcd=etcd) for attempt in (1, 2))
        first.start(N1, options=name)
        first.wait_for_round(1, 1)
        os.kill(first[N1].pid, signal.SIGSTOP)
        second.start(N2, options=name)
        there = f"agent {first[N1].pid} of attempt 1 of run {first.run_id} is here as here"
        second[N2].says(f"{there}: waiting up to 600 s for it to exit")
        let_save(first, (N1,), 2, "here")
        second.wait_for_round(1, 1)
        second.finish()


def test_a_later_attempt_serves_a_store_of_its_own_once_that_of_the_earlier_is_gone(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    meet = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}")
    with ExitStack() as stack:
        first, second = (begin(stack, tmp_path, attempt, *meet) for attempt in (1, 2))
        first.start(N1)
        first[N1].says("this agent serves the job's store")
        first.start(N2)
        first.wait_for_round(1, 2)
        second.start(N3)
        second[N3].says(f"belongs to attempt 1 of run {first.run_id}, which was asked to end: waiting")
        let_save(first, (N1, N2), 2, "n3")
        second[N3].says("this agent serves the job's store")
        second.start(N4)
        second.wait_for_round(1, 2)
        second.finish()


@pytest.mark.parametrize("first_attempt", [0, 2])
def test_a_second_agent_of_the_same_attempt_is_no_later_one(
    tmp_path: Path, etcd: EtcdServer, first_attempt: int
) -> None:
    name = ("--node-name=here",)
    with ExitStack() as stack:
        first = begin(stack, tmp_path, first_attempt, "--nnodes=1", etcd=etcd)
        again = begin(stack, tmp_path, first_attempt, "--nnodes=1", etcd=etcd)
        first.start(N1, options=name)
        first.wait_for_round(1, 1)
        again.start(N2, options=name)
        (ended,) = again.wait(exit_code=75)
        assert f"is already on this node, as here: pid {first[N1].pid}" in ended.stderr
        (first.directory / "saved").touch()
        first.finish()
