"""Jobs on several hosts: one agent per host, workers that write down when they lived, and ways to lose a host.

Hosts are loopback addresses or network namespaces (`tests.support.network.namespaces`). All of them are on one machine,
so CLOCK_MONOTONIC is one clock, and what two hosts wrote down can be compared: a worker beats every few milliseconds,
and the times of its first and last beat are its life. Where two rounds must not overlap, no life of the later one
may begin before the last of the earlier one has ended.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.support.jobs.single_node import Ended, Job
from tests.support.network.namespaces import Host, Network
from tests.support.processes.tree import family, freeze, is_alive
from tests.support.stores.etcd import EtcdServer, Version
from tests.support.waiting import wait_until

# What a script gets before its first line, after the prelude of tests.support.jobs.single_node. Each host has its own
# directory, the parent of which all hosts share.
BEATS = """
BEGUN = time.monotonic_ns()
LIFE = os.open(f"life-{RANK}-{ROUND}-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o644)

def beat():
    os.pwrite(LIFE, b"%020d %020d" % (BEGUN, time.monotonic_ns()), 0)

def beat_until(name):
    while not os.path.exists(name):
        beat()
        time.sleep(0.005)

beat()
"""
# For a script that does not beat by itself: a thread does.
BEAT_IN_A_THREAD = """
import threading

def live():
    while True:
        beat()
        time.sleep(0.005)

threading.Thread(target=live, daemon=True).start()
"""
# Workers that say they are there and live until the test puts a file "finish" into the directory of all hosts.
SLEEP = """
mark("began", os.environ["WORLD_SIZE"] + " " + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
beat_until("../finish")
"""
# Where a hundred other processes want the same cores, three agents and six workers took 48 s to start.
LIMIT_S = 180.0
# How often `make slow WHAT=faults` makes each fault.
FAULT_REPEATS = int(os.environ.get("FAULT_REPEATS", "1"))


class Life(NamedTuple):
    """One worker: when it began and when it was last seen alive, in seconds of CLOCK_MONOTONIC."""

    node: str
    rank: int
    round: int
    pid: int
    begun_s: float
    last_s: float


class NodeJob(Job):
    """The command on one host. Its directory is `<directory>/<node>`."""

    def __init__(self, host: Host, directory: Path, *options: str, script: str, env: dict[str, str] | None = None):
        self.host = host
        own = directory / host.name
        own.mkdir(exist_ok=True)
        super().__init__(own, *options, script=BEATS + script, prefix=host.prefix, env=env)

    def lives(self, what: str = "life") -> list[Life]:
        """Every worker that this host has had; or whatever else has written down its life under another name."""
        found = []
        for path in self.directory.glob(f"{what}-*"):
            times = path.read_text().split()
            if len(times) == 2:
                rank, round, pid = map(int, path.name.split("-")[1:])
                found.append(Life(self.host.name, rank, round, pid, int(times[0]) / 1e9, int(times[1]) / 1e9))
        return sorted(found, key=lambda life: (life.round, life.rank))

    def ranks(self, round: int) -> list[int]:
        """Which ranks of a round this host has had."""
        return sorted({life.rank for life in self.lives() if life.round == round})

    def worker_pids(self) -> list[int]:
        return [life.pid for life in self.lives() if is_alive(life.pid)]

    def kill(self) -> None:
        """SIGKILL to every process at once: the host has lost its power. First all stand still, or one might fork.

        The agent last, which renews the lease until then: on a busy machine this takes longer than a lease, and what
        a worker has started would outlive a frozen agent, keeper and supervisor, which no lost power lets it do.
        """
        stopped: set[int] = set()
        while new := set(family(self._token)) - stopped:
            for pid in sorted(new, reverse=True):
                with suppress(ProcessLookupError):
                    freeze(pid)
            stopped |= new
        self._signal(sorted(stopped, reverse=True), signal.SIGKILL)
        wait_until(lambda: not family(self._token), 20, f"the end of all processes of {self.host.name}")

    def parts(self, *names: str) -> list[int]:
        """The pids of "agent", "keeper", "supervisor" and "workers", or of the "node", which is every process of it."""
        pids: dict[str, Callable[[], list[int]]] = {
            "agent": lambda: [self.pid],
            "keeper": lambda: [self.keeper_pid],
            "supervisor": lambda: [self.supervisor_pid],
            "workers": self.worker_pids,
            "node": lambda: [*self._launcher(), *set(family(self._token)) - set(self._launcher())],
        }
        return [pid for name in names for pid in pids[name]()]

    def _launcher(self) -> list[int]:
        return [self.pid, self.keeper_pid, self.supervisor_pid]

    def freeze(self, *names: str) -> list[int]:
        """SIGSTOP to these parts, the agent last (see `kill`); who was stopped, for `thaw`."""
        chosen = self.parts(*names)
        for pid in reversed(chosen):
            with suppress(ProcessLookupError):
                freeze(pid)
        return chosen

    def thaw(self, pids: list[int]) -> None:
        """The launcher's first: what its kernel's timer has left to the keeper is killed before it runs on."""
        self._signal(pids[:3], signal.SIGCONT)
        if any(not is_alive(pid) for pid in pids[:3]):
            wait_until(lambda: not any(map(is_alive, pids[3:])), 20, "the end of what was frozen beyond its watchdog")
        self._signal(pids[3:], signal.SIGCONT)

    def _signal(self, pids: Iterable[int], signum: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)


class HostEtcd:
    """An etcd server on a host of its own, "store", on a network of namespaces."""

    def __init__(self, network: Network, directory: Path, version: Version = "3.5") -> None:
        self._network = network
        host = network.host("store")
        with network.inside("store"):
            self._server = EtcdServer(version, directory / "etcd", host=host.address)
        self.endpoint = self._server.endpoint

    def __enter__(self) -> HostEtcd:
        with self._network.inside("store"):
            self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def ctl(self, *words: str) -> str:
        """What `etcdctl WORDS` prints."""
        with self._network.inside("store"):
            return self._server.ctl(*words)

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        """Start it again on its data and its port."""
        with self._network.inside("store"):
            self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def cont(self) -> None:
        self._server.cont()


class Etcd(Protocol):
    """An `EtcdServer` or `HostEtcd`."""

    @property
    def endpoint(self) -> str: ...

    def ctl(self, *words: str) -> str: ...


class Cluster:
    """One job on several hosts, all started with the same options; at its end every process of it is killed by pid.

    Without an `etcd` the options say where the nodes meet.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        etcd: Etcd | None = None,
        script: str = SLEEP,
        env: dict[str, str] | None = None,
        run_id: str = "",
    ) -> None:
        self.directory = directory
        self.run_id = run_id or f"job-{secrets.token_hex(4)}"
        self.jobs: dict[str, NodeJob] = {}
        self._etcd = etcd
        meeting = ("--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoint) if etcd else ()
        self._options = (*meeting, "--rdzv-id", self.run_id, *options)
        self._script, self._env = script, env
        self._stack = ExitStack()

    @property
    def etcd(self) -> Etcd:
        assert self._etcd is not None, "this job has no etcd"
        return self._etcd

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stack.close()
        if kind is not None:
            for name, job in sorted(self.jobs.items()):
                print(f"--- {name} said:\n{job.stderr}")

    def start(self, *hosts: Host, options: tuple[str, ...] = (), env: dict[str, str] | None = None) -> None:
        """Start the agent on these hosts; `options` and `env` are theirs alone. A host may be started again."""
        for host in hosts:
            own = ("--local-addr", host.address, *options)
            variables = {**(self._env or {}), **(env or {})}
            job = NodeJob(host, self.directory, *self._options, *own, script=self._script, env=variables)
            self._stack.push(job)
            self.jobs[host.name] = job

    def begin(self, *hosts: Host, workers: int, limit_s: float = LIMIT_S) -> dict[str, list[int]]:
        """Start the agent on these hosts, and wait until round 1 has so many workers; which ranks ran where."""
        self.start(*hosts)
        return self.wait_for_round(1, workers, limit_s)

    def __getitem__(self, host: Host | str) -> NodeJob:
        return self.jobs[host if isinstance(host, str) else host.name]

    def stored(self) -> dict[str, Any]:
        """The job's records in the store: what follows the job key -> the record."""
        answer = json.loads(self.etcd.ctl("get", "--prefix", f"/meshrun/{self.run_id}/", "--write-out", "json"))
        found = {}
        for item in answer.get("kvs", ()):
            key = base64.b64decode(item["key"]).decode().split("/", 4)
            if len(key) == 5:
                found[key[4]] = json.loads(base64.b64decode(item["value"]))
        return found

    def leader(self) -> str:
        """Wait until a node leads; its name."""
        leader: Any = wait_until(lambda: self.stored().get("ctl/leader"), 30, "a leader")
        return str(leader["node_name"])

    def victim(self, is_leader: bool) -> str:
        """The node that leads, or another one that runs workers."""
        leader = self.leader()
        return leader if is_leader else next(life.node for life in self.lives() if life.node != leader)

    def members(self) -> list[str]:
        """The names of the nodes that are members now."""
        return sorted(str(item["node_name"]) for key, item in self.stored().items() if key.startswith("members/"))

    def wait_for_members(self, *names: str) -> None:
        wait_until(lambda: self.members() == sorted(names), LIMIT_S, f"{', '.join(names)} to be the members")

    def lives(self, round: int | None = None) -> list[Life]:
        """Every worker that any host has had, or those of one round."""
        found = [life for job in self.jobs.values() for life in job.lives()]
        return [life for life in found if round in (None, life.round)]

    def live_on(self, seconds: float) -> None:
        """Wait until every worker of round 1 has lived so long from now, by its own clock, or a further one began."""
        first = self.lives(1)
        since = max(life.last_s for life in first)

        def have() -> bool:
            oldest = min(life.last_s for life in self.lives(1))
            return oldest >= since + seconds or len(self.lives()) > len(first)

        wait_until(have, seconds + 60, f"{seconds:g} s of life")

    def ranks(self, round: int) -> dict[str, list[int]]:
        """Which ranks of a round ran where: node -> ranks."""
        found = {name: job.ranks(round) for name, job in self.jobs.items()}
        return {name: ranks for name, ranks in sorted(found.items()) if ranks}

    def wait_for_round(self, round: int, worker_count: int, limit_s: float = LIMIT_S) -> dict[str, list[int]]:
        """Wait until so many workers of a round have begun; which ranks ran where."""

        def are_there() -> bool:
            return len({life.rank for life in self.lives(round)}) == worker_count

        try:
            wait_until(are_there, limit_s, f"{worker_count} workers of round {round}")
        except AssertionError as error:
            load = f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
            raise AssertionError(f"{error}; there are {self.ranks(round)}; {load}") from None
        return self.ranks(round)

    def finish(self, *hosts: Host | str) -> list[Ended]:
        """Let workers that sleep end, and these agents, or all, with them: see `wait`."""
        (self.directory / "finish").touch()
        return self.wait(*hosts)

    def wait(self, *hosts: Host | str, exit_code: int = 0, limit_s: float = 60.0) -> list[Ended]:
        """How these agents, or all, ended: each with this exit code, and no round had begun in the time of another."""
        ended = [self[host].wait(limit_s) for host in hosts or self.jobs]
        assert [one.exit_code for one in ended] == [exit_code] * len(ended)
        assert self.overlaps() == []
        return ended

    def overlaps(self) -> list[str]:
        return find_overlaps(self.lives())


Make = Callable[..., Cluster]
"""Makes a job with these options."""


def find_overlaps(lives: Iterable[Life]) -> list[str]:
    """Where a worker of a later round had begun while one of an earlier round still lived; empty if nowhere."""
    return [
        f"{late} began {1e3 * (early.last_s - late.begun_s):.1f} ms before the end of {early}"
        for early, late in itertools.permutations(lives, 2)
        if early.round < late.round and late.begun_s < early.last_s
    ]


def lose(job: Cluster, network: Network, victim: str, fault: str) -> None:
    """Take a node away: "kill" it, "cut" it off from everything, or "drain" it as a person would."""
    if fault == "kill":
        job[victim].kill()
    elif fault == "cut":
        network.cut(victim)
    else:
        meshctl(
            "drain", job.run_id, victim, endpoint=job.etcd.endpoint, prefix=network.host("login").prefix
        ).check_returncode()


def meshctl(*words: str, endpoint: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What `meshctl WORDS` does with the store there. `prefix`: what to put before it, as for a host."""
    program = os.path.join(os.path.dirname(sys.executable), "meshctl")
    command = [*prefix, program, *words, "--rdzv-endpoint", endpoint]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
