"""Whose a store is that an agent serves: one run's, for as long as that agent runs."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rendezvous.records import make_current_key, make_job_keys
from rendezvous.stores.etcd.store import EtcdStore
from tests.end_to_end.test_c10d import C10D, knowing
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import Host, Network, free_port, loopback_hosts, why_no_namespaces

N1, N2, N3, N4 = loopback_hosts(4)
STATIC = ("--nproc-per-node=1", "--lease-ttl=15", "--nnodes=2", "--master-addr=127.0.0.1")


def options(port: int, *more: str) -> tuple[str, ...]:
    return (*C10D, "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", *more)


# --- two runs


def test_a_second_run_at_the_endpoint_of_one_that_runs_is_refused_at_once(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    (first_place := tmp_path / "first").mkdir()
    (second_place := tmp_path / "second").mkdir()
    with (
        Cluster(first_place, *options(port), run_id="first") as first,
        Cluster(second_place, *options(port), run_id="second") as second,
    ):
        first.start(N1)
        first[N1].says("this agent serves the job's store")
        first.start(N2)
        first.wait_for_round(1, 2)
        second.start(N3, N4)
        for ended in second.wait(exit_code=75):
            assert f"the store at 127.0.0.1:{port} belongs to run first, which is running" in ended.stderr
            assert "give this run another port with --rdzv-endpoint, or start it when run first has" in ended.stderr
        assert second.lives() == []
        first.finish()


def test_nodes_that_are_given_two_ids_learn_so_while_the_first_waits(tmp_path: Path) -> None:
    own = (*STATIC, f"--master-port={free_port('127.0.0.1', count=2)}")
    rank_0, rank_1 = ("--node-rank=0",), ("--node-rank=1",)
    with Cluster(tmp_path, *own, run_id="9021") as first, Cluster(tmp_path, *own, run_id="777") as second:
        first.start(N1, options=rank_0)
        first[N1].says("node rank 1 of 2 is missing")
        second.start(N2, options=rank_1)
        (ended,) = second.wait(exit_code=2)
        assert "another agent, on node n1, waits at" in ended.stderr
        assert (
            "for run 9021; this agent belongs to run 777, and all nodes of a run need the same --rdzv-id"
            in ended.stderr
        )
        first.start(N3, options=rank_1)  # the run that waited is not harmed
        first.wait_for_round(1, 2)
        first.finish()


def test_the_next_run_waits_until_the_last_store_is_gone(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    (first_place := tmp_path / "first").mkdir()
    (next_place := tmp_path / "next").mkdir()
    with (
        Cluster(first_place, *options(port, "--rdzv-conf=close_timeout=100"), run_id="none") as first,
        Cluster(next_place, *options(port), run_id="none") as following,
        closing(EtcdStore([f"127.0.0.1:{port}"], call_limit_s=20.0)) as store,
    ):
        first.start(N1)
        first[N1].says("this agent serves the job's store")
        first.start(N2)
        first.wait_for_round(1, 2)
        job = store.get(make_current_key("meshrun", "none")).items[0].value.decode()
        key = make_job_keys("meshrun", "none", job).make_member_key("ghost")
        store.put(key, b"{}")  # a member that does not go, so the store stays
        (first_place / "finish").touch()
        first[N1].says("staying for up to 130 s, because other nodes use this node's store")
        following.start(N3)
        following[N3].says("which has ended: waiting")
        store.delete(key)
        first.wait()
        following[N3].says("this agent serves the job's store")
        following.start(N4)
        following.wait_for_round(1, 2)
        following.finish()


# --- the end of the agent that serves


def test_the_end_of_the_serving_node_is_the_end_of_the_others(tmp_path: Path) -> None:
    with Cluster(tmp_path, *options(free_port("127.0.0.1"))) as job:
        job.start(N1)
        job[N1].says("this agent serves the job's store")
        job.start(N2)
        job.wait_for_round(1, 2)
        job[N1].send(signal.SIGINT)
        (other,) = job.wait(N2, exit_code=143)
        (host,) = job.wait(N1, exit_code=130)
        for one in (host, other):
            assert "node n1, which serves the job's store, is leaving: stopped by SIGINT" in one.stderr


def test_who_succeeded_does_not_stay_when_the_host_was_killed(tmp_path: Path) -> None:
    script = "beat_until('finish')"
    short = options(free_port("127.0.0.1"), "--rdzv-conf=close_timeout=2", "--lease-ttl=3")
    with Cluster(tmp_path, *short, script=script) as job:
        job.start(N1)
        job[N1].says("this agent serves the job's store")
        job.start(N2)
        job.wait_for_round(1, 2)
        job[N1].kill()
        (tmp_path / "n2" / "finish").touch()
        (ended,) = job.wait(N2)
        assert "all workers of this node succeeded" in ended.stderr


def test_a_host_that_is_started_again_has_a_new_store_and_the_others_end_with_75(tmp_path: Path) -> None:
    with Cluster(tmp_path, *options(free_port("127.0.0.1")), script="beat_until('finish')") as job:
        job.start(N1)
        job[N1].says("this agent serves the job's store")
        job.start(N2)
        job.wait_for_round(1, 2)
        job[N1].kill()
        job.start(N1)
        (ended,) = job.wait(N2, exit_code=75)
        assert "the store was restored, replaced, or restarted without its data: the store at " in ended.stderr
        job[N1].kill()


# --- names


@pytest.fixture
def network() -> Iterator[Network]:
    if why_no_namespaces():
        pytest.skip(why_no_namespaces())
    with Network() as network:
        yield network


def name_hosts(tmp_path: Path, network: Network, *tables: str) -> list[Host]:
    """Hosts n1, n2, ..., each with this /etc/hosts; {1} is the address of n1, and so on."""
    hosts = [network.host(f"n{number}") for number in range(1, len(tables) + 1)]
    found = []
    for host, table in zip(hosts, tables, strict=True):
        path = tmp_path / f"hosts-{host.name}"
        path.write_text("127.0.0.1 localhost\n" + table.format("", *(host.address for host in hosts)))
        found.append(knowing(host, path))
    return found


def count_servers(job: Cluster) -> int:
    return sum("this agent serves the job's store" in one.stderr for one in job.jobs.values())


def test_of_hosts_that_share_a_name_one_serves(tmp_path: Path, network: Network) -> None:
    hosts = name_hosts(tmp_path, network, "{1} head\n{2} head\n", "{2} head\n{1} head\n")  # as a headless service
    with Cluster(tmp_path, *C10D, "--nnodes=2", "--rdzv-endpoint=head:29400") as job:
        job.start(*hosts)
        job.wait_for_round(1, 2)
        assert count_servers(job) == 1
        job.finish()


def test_a_name_that_every_host_has_is_remarked_upon(tmp_path: Path, network: Network) -> None:
    hosts = name_hosts(tmp_path, network, "127.0.1.1 head\n", "127.0.1.1 head\n")
    with Cluster(tmp_path, *C10D, "--nnodes=2", "--rdzv-endpoint=head:29400") as job:
        job.start(*hosts)
        for host in hosts:
            job[host].says(f"to meet here, give all nodes --rdzv-endpoint {host.address}:29400")
        assert count_servers(job) == 2


def test_a_name_that_etc_hosts_has_asks_no_name_server(tmp_path: Path, network: Network) -> None:
    hosts = name_hosts(tmp_path, network, "{1} head\n", "{1} head\n")
    server = network.host("dns")
    resolv = tmp_path / "resolv.conf"
    resolv.write_text(f"nameserver {server.address}\n")
    asking = [
        host._replace(
            prefix=(
                *("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', str(resolv)),
                *host.prefix,
            )
        )
        for host in hosts
    ]
    with network.inside("dns"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as name_server:
        name_server.bind((server.address, 53))
        name_server.setblocking(False)
        with Cluster(tmp_path, *C10D, "--nnodes=2", "--rdzv-endpoint=head:29400") as job:
            job.start(*asking)
            job.wait_for_round(1, 2)
            job.finish()
        asked = []
        with suppress(BlockingIOError):
            while len(asked) < 100:
                asked.append(name_server.recv(512))
        assert asked == []
