"""Simulated members of a job, many to a process: all of an agent's part in agreement, and nothing of a node.

meshrun's members are production's machine, driver, planner, connections and etcd client; torchrun's are its handler of
the c10d rendezvous. There are no devices, no supervisor and no workers: these start and stop at once. `python -m
benchmarks.members KIND` is one process of them, of a kind:

    own       each has a client of etcd with connections and threads of its own, as a real agent has
    shared    all share one client of etcd, each has one thread that does its requests
    torchrun  member 0 hosts the store

Orders come in on stdin, a line each: `prepare NUMBER...` (connect torchrun's members to their store), `begin
NUMBER...` and `kill NUMBER...` (as by SIGKILL: the kernel closes what it held). A line goes out on stdout for what
happened, with the time (CLOCK_MONOTONIC, one clock for all processes of a machine): `ready 0 TIME`, also after having
prepared, `joined NUMBER TIME`, `started NUMBER TIME ROUND RANKS` and `ended NUMBER TIME REASON`. `Crowd` is the other
end of these pipes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import psutil

from benchmarks import pairs
from launcher.model.mesh import Axis, Mesh
from launcher.placement.adapter.description import Description, decode_assignment, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.limits import Costs, Limits
from rendezvous import records
from rendezvous.driver.driver import Driver
from rendezvous.events import Exit, RoundStopped, Start, StartRound, StopRound
from rendezvous.machine import MemberMachine
from rendezvous.peers.connections import PeerConnections, bind
from rendezvous.records import Spec
from rendezvous.settings import Settings
from rendezvous.state.state import Setup
from rendezvous.stores.etcd.store import EtcdStore

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

HOST = "127.0.0.1"
PREFIX = "meshrun"
SLOTS = 8
MESH = Mesh(axes=(Axis(name="dp", size=None),))
# What a member imports when it first needs it: once per process, so outside the time.
LATE = (
    *("grpc", "grpc._channel", "grpc.experimental", "encodings.idna", "fractions"),
    *("launcher.placement.adapter.topology", "launcher.placement.explain"),
)


class Job(NamedTuple):
    """What all members of a job know. The round begins when `members_min` have joined and none has for a while."""

    endpoint: str
    run_id: str
    members: int
    members_min: int = 1
    lease_ttl_s: float = 600.0


def say(word: str, number: int, *words: object) -> None:
    line = " ".join(map(str, (word, number, f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f}", *words)))
    os.write(1, f"{line}\n".encode())


def read_boot_clock() -> float:
    """The machine's clock: one for all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Member:
    """One of meshrun's, which has a thread of its own from `live` on. `store`: one that it shares, else its own."""

    def __init__(self, number: int, job: Job, store: EtcdStore | None) -> None:
        self.number = number
        self.is_dead = False
        self.has_joined = False
        self.wakeup = threading.Event()
        settings = make_settings(job)
        planner = PlannerAdapter(MESH, Limits(nodes_min=job.members_min, nodes_max=job.members), Costs())
        node = describe(number, leaves=max(2, job.members // 32))
        self.listener = bind(HOST, (0,))
        address = f"{HOST}:{self.listener.getsockname()[1]}"
        self.worker_port = 20_000 + number % 10_000
        setup = Setup(
            settings=settings,
            spec=Spec(mesh=str(MESH), options={}, digest=""),
            node=records.Member(
                member_id="",
                node_name=node.name,
                boot_id=node.machine,
                description=encode_description(node),
                presence_address=address,
            ),
            prefix=PREFIX,
            run_id=job.run_id,
            sizer=planner.compute_size,
        )
        self.machine = MemberMachine(setup, self.worker_port, random.Random(f"{job.run_id} {number}").random)
        self.presence = PeerConnections(
            listener=self.listener,
            address=address,
            secret=b"",
            submit=lambda event: self.driver.submit(event),
            clock=read_boot_clock,
            silence_s=settings.silence_s,
        )
        self.driver = Driver(
            machine=self.machine,
            store=store or make_store(job),
            planner=planner.plan,
            clock=read_boot_clock,
            wake=self.wakeup.set,
            presence=self.presence,
        )

    def live(self) -> None:
        self.driver.submit(Start())
        while not self.is_dead:
            self.wakeup.clear()
            for action in self.driver.run():
                match action:
                    case StartRound(round, _, world_size, _, assignment):
                        ranks = len(decode_assignment(assignment).ranks)
                        say("started", self.number, round, world_size if ranks == SLOTS else -1)
                    case StopRound(round, _, _):
                        self.driver.submit(RoundStopped(round, self.worker_port))
                    case Exit(_, reason, _):
                        self.is_dead = True
                        say("ended", self.number, reason)
            if self.machine.joined_root and not self.has_joined:
                self.has_joined = True
                say("joined", self.number)
            self.wakeup.wait(max(0.0, min(self.driver.wake_at - read_boot_clock(), 60.0)))


class Ours:
    """meshrun's members, each made when it begins, within the time, as a real one is."""

    def __init__(self, job: Job, store: EtcdStore | None) -> None:
        for name in LATE:
            importlib.import_module(name)
        self._job = job
        self._store = store
        self._members: dict[int, Member] = {}

    def prepare(self, number: int) -> None:
        """There is nothing to do before the time."""

    def begin(self, number: int) -> None:
        def live() -> None:
            member = self._members[number] = Member(number, self._job, self._store)
            member.live()

        threading.Thread(target=live, daemon=True).start()

    def kill(self, number: int) -> None:
        member = self._members[number]
        member.is_dead = True
        member.presence.close()
        member.listener.close()


class Theirs:
    """Members of torchrun's dynamic rendezvous. They connect to their store before the time, meshrun's within it."""

    def __init__(self, job: Job) -> None:
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous

        self._job = job
        self._create_backend = c10d_rendezvous_backend.create_backend
        self._create_handler = dynamic_rendezvous.create_handler
        self._handlers: dict[int, DynamicRendezvousHandler] = {}

    def prepare(self, number: int) -> None:
        # One after the other: threads that connect at once wait for each other, for seconds if there are dozens.
        from torch.distributed.elastic.rendezvous.api import RendezvousParameters

        job = self._job
        limits = {"join_timeout": "600", "read_timeout": "120"}
        place = {"local_addr": HOST, "is_host": str(int(number == 0))}
        parameters = RendezvousParameters("c10d", job.endpoint, job.run_id, job.members, job.members, **place, **limits)
        backend, store = self._create_backend(parameters)
        self._handlers[number] = self._create_handler(store, backend, parameters)

    def begin(self, number: int) -> None:
        def live() -> None:
            self._handlers[number].next_rendezvous()
            say("started", number, 1, self._job.members)

        threading.Thread(target=live, daemon=True).start()

    def kill(self, number: int) -> None:
        raise SystemExit("torchrun's members are killed with their process")


def describe(number: int, leaves: int) -> Description:
    """A node of a cluster of leaves in spines, one after the other in other leaves. Nobody dials its address."""
    leaf = number % leaves
    return Description(
        slot_count=SLOTS,
        address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        role="default",
        name=f"node-{number:05}",
        machine=f"{number:08x}-0000-4000-8000-000000000000",
        locality=(("zone", "z0"), ("spine", f"spine-{leaf // 8}"), ("leaf", f"leaf-{leaf}")),
    )


def make_settings(job: Job) -> Settings:
    """Rounds are short here on purpose, and nobody is waited for."""
    return Settings(lease_ttl_s=job.lease_ttl_s, grow_delay_s=0.0, min_round_time_s=0.0)


def make_store(job: Job) -> EtcdStore:
    return EtcdStore([job.endpoint], call_limit_s=make_settings(job).call_limit_s)


@click.command()
@click.argument("kind", type=click.Choice(["own", "shared", "torchrun"]))
@click.argument("endpoint")
@click.argument("run_id")
@click.argument("members", type=int)
@click.argument("members_min", type=int)
@click.argument("lease_ttl_s", type=float)
def main(kind: str, **words: Any) -> None:
    """One process of members, until the end of stdin."""
    job = Job(**words)
    held = Theirs(job) if kind == "torchrun" else Ours(job, make_store(job) if kind == "shared" else None)
    say("ready", 0)
    for line in sys.stdin:
        word, *numbers = line.split()
        for number in numbers:
            getattr(held, word)(int(number))
        if word == "prepare":
            say("ready", 0)
    os._exit(0)


# --- the benchmark's side ---


class NotInTime(Exception):
    """What was waited for has not come within its limit."""


class Process:
    """One process of members, whose lines are read by its Crowd."""

    def __init__(self, kind: str, job: Job) -> None:
        command = [sys.executable, "-m", "benchmarks.members", kind, *map(str, job)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=pairs.environment(), start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self.lines = self._process.stdin, self._process.stdout
        os.set_blocking(self.lines.fileno(), False)
        self._part = ""

    def order(self, word: str, numbers: Iterable[int]) -> None:
        self._orders.write(f"{word} {' '.join(map(str, numbers))}\n".encode())
        self._orders.flush()

    def read(self) -> list[list[str]]:
        """The words of each line since the last time."""
        text = os.read(self.lines.fileno(), 1 << 20).decode()
        if not text:
            raise RuntimeError("a process of members has ended")
        *whole, self._part = (self._part + text).split("\n")
        return [line.split() for line in whole]

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._orders.close()
        self.lines.close()


class Crowd:
    """The processes of one job's members, and what they have said. A context manager: at its end all are killed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.joined: dict[int, float] = {}  # member -> when
        self.rounds: dict[int, dict[int, float]] = {}  # round -> member -> when it knew its ranks
        self.ended: dict[int, str] = {}
        self.homes: dict[int, Process] = {}  # of each member
        self.silenced: set[Process] = set()  # killed on purpose
        self._processes: list[Process] = []
        self._awaited_count = 0  # processes that have not said that they are ready

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()

    def add_process(self, kind: str, numbers: Iterable[int] = ()) -> Process:
        """Start a process that will have these members."""
        process = Process(kind, self.job)
        self._processes.append(process)
        self._awaited_count += 1
        self.homes |= dict.fromkeys(numbers, process)
        return process

    def processes(self) -> list[Process]:
        return [process for process in self._processes if process not in self.silenced]

    def order(self, word: str, numbers: Iterable[int]) -> None:
        by_home: dict[Process, list[int]] = {}
        for number in numbers:
            by_home.setdefault(self.homes[number], []).append(number)
        for process, own in by_home.items():
            process.order(word, own)
            self._awaited_count += word == "prepare"

    def wait_ready(self, limit_s: float) -> None:
        """Until all have imported what they need and have done what they were told to prepare."""
        self.wait(lambda: not self._awaited_count, limit_s, "all processes are ready")

    def wait(self, is_so: Callable[[], bool], limit_s: float, what: str) -> None:
        """Read lines until it is so. Raises NotInTime."""
        deadline = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > deadline:
                said = "; ".join(f"member {number} has ended: {why}" for number, why in list(self.ended.items())[:4])
                counts = {round: len(started) for round, started in self.rounds.items()}
                raise NotInTime(f"not within {limit_s:g} s: {what}; {len(self.joined)} joined, {counts} {said}")
            self.read(0.5)

    def read(self, limit_s: float) -> None:
        """Take what is said within this time, or the first of it."""
        readers = {process.lines.fileno(): process for process in self.processes()}
        for descriptor in select.select(list(readers), [], [], limit_s)[0]:
            for word, number, at, *rest in readers[descriptor].read():
                match word:
                    case "ready":
                        self._awaited_count -= 1
                    case "joined":
                        self.joined[int(number)] = float(at)
                    case "started":
                        if int(rest[1]) < 0:
                            raise RuntimeError(f"member {number} was given too few ranks")
                        self.rounds.setdefault(int(rest[0]), {})[int(number)] = float(at)
                    case "ended":
                        self.ended[int(number)] = " ".join(rest)


if __name__ == "__main__":
    main()
