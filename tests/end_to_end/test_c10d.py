"""torchrun's c10d command lines on several hosts without an etcd: whose the store is, whatever it is called."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.support.jobs.multi_node import SLEEP, Cluster
from tests.support.network.namespaces import Host, free_port, loopback_hosts
from tests.support.processes.tree import REPOSITORY, is_alive
from tests.support.waiting import wait_until

N1, N2, N3, N4 = loopback_hosts(4)
C10D = ("--nproc-per-node=1", "--lease-ttl=15", "--rdzv-backend=c10d")


def knowing(host: Host, hosts_file: Path) -> Host:
    """The same host with an /etc/hosts of its own."""
    mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts_file))
    return host._replace(prefix=(*mount, *host.prefix))


def test_a_head_that_is_loopback_to_itself_and_not_yet_resolvable_is_found(tmp_path: Path) -> None:
    known_to_n1, known_to_others = tmp_path / "hosts-1", tmp_path / "hosts-2"
    known_to_n1.write_text("127.0.0.1 localhost\n127.0.1.1 n1\n")  # as on Debian
    known_to_others.write_text("127.0.0.1 localhost\n")
    head, *others = knowing(N1, known_to_n1), *(knowing(host, known_to_others) for host in (N2, N3, N4))
    endpoint = f"n1:{free_port(N1.address)}"
    with Cluster(tmp_path, *C10D, "--nnodes=4", f"--rdzv-endpoint={endpoint}", script=SLEEP) as job:
        job.start(*others[:2])
        job[N2].says(f"waiting up to 600 s (--start-timeout) for the store: {endpoint} cannot be found: ")
        job.start(head, others[2])
        job[N1].says("this agent serves the job's store")
        with known_to_others.open("a") as file:
            file.write(f"{N1.address} n1\n")
        ranks = job.wait_for_round(1, 4)
        assert sorted(rank for found in ranks.values() for rank in found) == [0, 1, 2, 3]
        job.finish()


def test_over_ipv6_the_agent_of_the_store_stays_until_the_others_end(tmp_path: Path) -> None:
    one, other = Host("n1", "::1", N1.prefix), Host("n2", "::1", N2.prefix)
    endpoint = f"[::1]:{free_port('::1', socket.AF_INET6)}"
    script = "if RANK: beat_until('../finish')"
    with Cluster(tmp_path, *C10D, "--nnodes=2", f"--rdzv-endpoint={endpoint}", script=script) as job:
        job.start(one)
        job[one].says(f"this agent serves the job's store at {endpoint}")
        job.start(other)
        ranks = job.wait_for_round(1, 2)
        early = next(host for host in (one, other) if ranks[host.name] == [0])
        early_pid = next(life.pid for life in job[early].lives())
        wait_until(lambda: not is_alive(early_pid), 20, "the end of rank 0")
        assert all(is_alive(job[host].pid) for host in (one, other))
        job.finish()  # both agents know that all workers have succeeded


# Holds an agent that is to serve the store after it has seen none and before it binds the port: there it imports the
# server. Says so by a file, and goes on when there is another.
HOLD = """
import importlib.abc, os, sys, time
PLACE = {place!r}

class Hold(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "rendezvous.stores.server.server":
            open(f"{{PLACE}}/held-{{os.getpid()}}", "w").close()
            while not os.path.exists(f"{{PLACE}}/go"):
                time.sleep(0.01)

sys.meta_path.insert(0, Hold())
"""


def held_agents(place: Path) -> dict[str, str]:
    """Variables that hold every agent between its look and its bind until there is a file `go`."""
    place.mkdir()
    (place / "sitecustomize.py").write_text(HOLD.format(place=str(place)))
    return {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(place)))}


def test_of_agents_that_all_saw_no_store_one_serves_it_and_the_others_join(tmp_path: Path) -> None:
    hosts = (N1, N2, N3)
    place, endpoint = tmp_path / "hold", f"127.0.0.1:{free_port('127.0.0.1')}"
    env = held_agents(place)
    with Cluster(tmp_path, *C10D, f"--nnodes={len(hosts)}", f"--rdzv-endpoint={endpoint}", env=env) as job:
        job.start(*hosts)
        wait_until(lambda: len(list(place.glob("held-*"))) == len(hosts), 60, "all agents to have seen no store")
        (place / "go").touch()
        job.wait_for_round(1, len(hosts))
        assert sum("this agent serves the job's store" in job[host].stderr for host in hosts) == 1
        job.finish()


def test_an_agent_that_loses_the_port_to_a_slow_store_probes_it_again(tmp_path: Path) -> None:
    place, port = tmp_path / "hold", free_port("127.0.0.1")
    options = (*C10D, "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}")
    with Cluster(tmp_path, *options, env=held_agents(place)) as job:
        job.start(N1)
        wait_until(lambda: list(place.glob("held-*")), 60, "the agent to have seen no store")
        with socket.create_server(("127.0.0.1", port)) as listener:  # in the place of an agent that has bound the port
            (place / "go").touch()
            listener.settimeout(60)
            listener.accept()[0].close()  # the agent's next look: it has lost the port, and nobody answers
        job.start(N2)
        job.wait_for_round(1, 2)
        job.finish()
