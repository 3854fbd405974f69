"""Jobs whose nodes the user has numbered, torchrun's static way: given ranks, one given address, no store of one's own.

Names, addresses and the order in which the nodes come say something else than the numbers, and have no say.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.jobs.multi_node import SLEEP, Cluster
from tests.support.network.namespaces import Host, free_port, loopback_hosts

N1, N2, N3, N4 = loopback_hosts(4)
MASTER = "127.0.0.99"
# Rank 0 serves where all were told that it does, and the others find it there.
MEET = """
import socket
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
names = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
mark("env", " ".join(os.environ[name] for name in names) + f" {place[0]}:{place[1]}")
if RANK == 0:
    with socket.create_server(place) as server:
        others = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
        assert sorted(other.recv(1)[0] for other in others) == list(range(1, len(others) + 1))
        for other in others:
            other.sendall(b".")
            other.recv(1)
else:
    for _ in range(1000):
        try:
            there = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    there.sendall(bytes((RANK,)))
    assert there.recv(1) == b"."
"""


class Numbered(Cluster):
    """A job of hosts with numbers, from 0 in the order given; the master's address is none by which hosts know one."""

    def __init__(self, directory: Path, hosts: list[Host], *options: str, script: str) -> None:
        address, port = MASTER, str(free_port(MASTER, count=2))
        self.master = f"{address}:{port}"
        self.numbers = {host.name: number for number, host in enumerate(hosts)}
        where = ("--master-addr", address, "--master-port", port)
        super().__init__(directory, f"--nnodes={len(hosts)}", *where, "--lease-ttl=15", *options, script=script)

    def start(self, *hosts: Host, options: tuple[str, ...] = ()) -> None:
        """Start the agent on these hosts, each with its number unless `options` give another."""
        for host in hosts:
            super().start(host, options=(f"--node-rank={self.numbers.get(host.name)}", *options))


def test_four_nodes_keep_their_ranks_address_and_port_through_a_restart(tmp_path: Path) -> None:
    script = MEET + "sys.exit(3 if (RANK, ROUND) == (2, 1) else 0)"
    hosts = [N3, N1, N4, N2]
    with Numbered(tmp_path, hosts, "--nproc-per-node=1", "--max-restarts=1", script=script) as job:
        job.start(N2, N4)
        job[N2].says("; the agent of node rank 0 serves it")
        job.start(N1, N3)
        ended = job.wait(*hosts)
        for round in (1, 2):
            assert job.ranks(round) == {"n1": [1], "n2": [3], "n3": [0], "n4": [2]}
            for number, host in enumerate(hosts):
                told = job[host].mark("env", number, round)
                assert told == f"{number} 4 {number} 4 False {job.master}"
        assert f"this agent serves the job's store at {MASTER}:" in ended[0].stderr
        assert "if it is lost, the job is lost" in ended[0].stderr


def test_a_lost_node_is_awaited_by_its_rank_and_so_is_its_replacement(tmp_path: Path) -> None:
    hosts = [N2, N3, N1]
    with Numbered(tmp_path, hosts, "--nproc-per-node=2", "--nnodes=1:3", script=SLEEP) as job:
        job.start(*hosts)
        given = {"n2": [0, 1], "n3": [2, 3], "n1": [4, 5]}
        assert job.wait_for_round(1, 6) == given
        assert "--nnodes 1:3: a static rendezvous starts with all 3 nodes; with c10d fewer are enough" in job[N2].stderr
        job[N3].kill()
        job[N2].says("node rank 1 of 3 is missing; joined: n2 (0), n1 (2); lost: node n3")
        job.start(N3)
        assert job.wait_for_round(2, 6) == given
        job.start(N4, options=("--node-rank=1",))
        job[N4].says("n4 and n3 both have --node-rank 1: n4 waits as a spare until n3 has left")
        job[N4].says("is a spare")
        assert job.ranks(3) == {}
        job[N3].kill()
        assert job.wait_for_round(3, 6) == {"n2": [0, 1], "n4": [2, 3], "n1": [4, 5]}
        job.finish(N1, N2, N4)
