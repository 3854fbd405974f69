"""How long a job on several nodes is without its workers, and without a training step, when something happens.

    crash      one worker is killed
    kill       all processes of a node are killed at once; its kernel lives and refuses connections
    leave      an agent is told to leave with SIGTERM
    join       an agent is started beside those that run
    freeze     an agent is stopped (SIGSTOP); its supervisor and its workers run on
    pause      all processes of a node are stopped, as on a machine that is paused
    partition  every packet to and from a node is dropped, as if it had lost its power (network namespaces)

The nodes are loopback addresses or network namespaces of one machine, the store is a real etcd. Workers note what they
do in a file, with the time (CLOCK_MONOTONIC, one clock for all processes of a machine). Idle ones note that they began
and sleep: a time runs from just before the event to the first line of the last worker of the next round. Or they train
with torch over gloo, and it runs to the end of the first step that all have made together; under meshrun also with
--preload. In the last three events only silence tells that the node is gone, and its workers might live on: they write
down that they do, and a node that was stopped goes on after the next round has begun. Where the leader's node can be
the victim it is so in half of the runs, which are reported apart. Each event is the first one of its job: rounds that
end within min_round_time_s are held back on purpose, but only from the second one in a row.

torchrun takes turns with meshrun and is watched for as long. With idle workers nothing tells it that a node is gone, so
it is watched to the end; that is repeated in every pair, since a claim about another program needs several runs
(runs.WATCHES_MIN). In a quick run only the killed node is worth that.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks import figures, pairs, steps
from benchmarks.runs import NEVER, WATCHES_MIN
from tests.support.jobs.multi_node import Cluster, Etcd, HostEtcd
from tests.support.network.namespaces import Host, Network, loopback_hosts
from tests.support.processes.tree import TOKEN_VARIABLE, family, freeze, kill_family
from tests.support.stores.etcd import EtcdServer

RUN_ID = "failover"
START_LIMIT_S = 90.0  # until the first round runs: eight agents that import torch share two cores
LAST_CALL_S = 5  # how long torchrun waits for more agents than the least; by default 30
LIFE_S = 0.5  # how long a stopped node is watched: a worker that was not killed writes every 4 ms
PRELOADED = "torch,torch._dynamo"  # the second is what the first optimizer imports, and takes as long as the first
LEADER, FOLLOWER, ANY = figures.LEADERS_NODE, figures.OTHER_NODE, ""
NODE_EVENTS = ("kill", "leave", "freeze", "pause", "partition")
SILENT = ("freeze", "pause", "partition")  # torchrun, which would notice them no better than a kill, is not tried
UNNOTICED = ("kill", "leave", "join")  # by torchrun with idle workers, or in vain: its agents exit after a minute
BEGAN, STEPPED = "began", "stepped"
IDLE = """
import os, signal, threading, time

def note(what):
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    words = os.environ["NODE"], os.environ["RANK"], os.environ["WORLD_SIZE"], str(os.getpid()), "%.6f" % now_s, what
    marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND)
    os.write(marks, (" ".join(words) + "\\n").encode())

def live():
    life = os.open(f'{os.environ["LIVES"]}/{os.environ["NODE"]}-{os.getpid()}', os.O_CREAT | os.O_WRONLY, 0o644)
    while True:
        os.pwrite(life, b"%020.6f" % time.clock_gettime(time.CLOCK_MONOTONIC), 0)
        time.sleep(0.004)

note("began")
"""
# A small model whose gradients are averaged over all ranks, step by step, as data-parallel training does.
GLOO = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
is_first = True
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    if is_first:
        note("stepped")
        is_first = False
    time.sleep(0.02)
"""
SCRIPTS = {
    "idle": f'{IDLE}live() if "LIVES" in os.environ else signal.pause()\n',
    "gloo": IDLE + GLOO,
    "warm": IDLE + GLOO,
}


class Case(NamedTuple):
    """What is measured. `agents`: how many there are before the event. `job`: "idle", "gloo", or "warm" gloo."""

    event: str
    agents: int
    victim: str = ANY
    job: str = "idle"

    @property
    def after(self) -> int:
        """How many nodes the next round has."""
        return self.agents + {"crash": 0, "join": 1}.get(self.event, -1)

    @property
    def figure(self) -> str:
        """The name of the time it takes."""
        what = {"idle": "", "gloo": figures.GLOO, "warm": figures.GLOO + figures.WARM}[self.job]
        return f"{self.event}{self.victim}, {self.agents} agents{what}"

    @property
    def overlap(self) -> str:
        """The name of how long the old workers of a silent node outlived the first of the next round; or ""."""
        is_of_interest = self.event in SILENT and self.job == "idle"
        return f"{self.event}{self.victim}, {self.agents} agents{figures.OVERLAP}" if is_of_interest else ""


# With --quick these are run once, and the others in every pair.
ONCE = (
    *(Case("crash", agents) for agents in (1, 2, 4)),
    Case("leave", 4, FOLLOWER),
    Case("leave", 4, LEADER),
    Case("freeze", 4, FOLLOWER),
    Case("pause", 4, FOLLOWER),
    Case("crash", 2, ANY, "gloo"),
    Case("crash", 2, ANY, "warm"),
    Case("kill", 4, FOLLOWER, "gloo"),
    Case("kill", 4, FOLLOWER, "warm"),
)
EACH = (
    Case("crash", 8),
    *(Case(event, 4, victim) for event in ("kill", "partition") for victim in (FOLLOWER, LEADER)),
    Case("join", 3),
)


class Turn(NamedTuple):
    """One run."""

    case: Case
    side: str
    pair: int
    limit_s: float


def list_cases(events: Sequence[str], agents: Sequence[int], jobs: Sequence[str]) -> Iterator[Case]:
    """Each of the events to each number of agents, as far as there is a node left afterwards."""
    for event in events:
        victims = (FOLLOWER, LEADER) if event in NODE_EVENTS else (ANY,)
        for count in agents:
            if count > 1 or event not in NODE_EVENTS:
                yield from (Case(event, count, victim, job) for victim in victims for job in jobs)


def list_turns(cases: Sequence[Case], pair_count: int, sides: Sequence[str], limit_s: float) -> Iterator[Turn]:
    """Every run of these cases, or of a quick run without any, in order: within a pair the sides take turns."""
    for pair in range(1, pair_count + 1):
        for case in cases or (*EACH, *ONCE):
            if pair > 1 and not cases and case not in EACH:
                continue
            for side in sides:
                if side == pairs.OURS or has_torchrun(case, is_quick=not cases):
                    yield Turn(case, side, pair, limit_s)


def has_torchrun(case: Case, *, is_quick: bool) -> bool:
    """Whether torchrun takes part."""
    if case.event in SILENT or case.victim == LEADER or case.job == "warm":
        return False
    if is_quick and (case.event in ("leave", "join") or case.job == "gloo"):
        return False  # it is late each time, and three watches of each would take half of the report's minutes
    # A worker that trains notices by itself when another has gone, so torchrun is tried with any number of agents.
    return case.event not in UNNOTICED or case.job == "gloo" or case.agents == 4


class Mark(NamedTuple):
    """What a worker noted."""

    node: str
    rank: int
    world_size: int
    pid: int
    at_s: float
    what: str


def last_s(marks: Sequence[Mark], since_s: float, world_size: int, what: str = BEGAN) -> float:
    """When the last rank of a world of this size noted this, all after `since_s`; NEVER while one is missing.

    Should one do so twice, in rounds that came to nothing, its first time counts.
    """
    found: dict[int, float] = {}
    for mark in marks:
        if mark.what == what and mark.at_s >= since_s and mark.world_size == world_size:
            found.setdefault(mark.rank, mark.at_s)
    return max(found.values()) if len(found) == world_size else NEVER


class Agents:
    """The agents of one job under one launcher; at its end every process of it is killed by pid.

    `command`: what stands before the options. `env` is for all agents.
    """

    def __init__(
        self, side: str, directory: Path, command: Sequence[str], script: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.side = side
        self.directory = directory
        self._command = command
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}
        self._marks, self._lives = directory / "marks", directory / "lives"
        self._marks.touch()
        self._lives.mkdir()
        self._env = {"MARKS": str(self._marks), **(env or {})}
        (directory / "train.py").write_text(script)

    def start(self, host: Host, options: Sequence[str] = ()) -> None:
        token = self._tokens[host.name] = f"{self.directory.name}-{host.name}"
        env = {**pairs.environment(), **self._env, TOKEN_VARIABLE: token, "NODE": host.name}
        command = [*host.prefix, *self._command, "--local-addr", host.address, *options, "train.py"]
        with (self.directory / f"{host.name}.log").open("ab") as log:
            self._processes[host.name] = subprocess.Popen(
                command, cwd=self.directory, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def marks(self) -> list[Mark]:
        words = (line.split() for line in self._marks.read_text().splitlines())
        return [Mark(w[0], int(w[1]), int(w[2]), int(w[3]), float(w[4]), w[5]) for w in words]

    def wait_round(self, since_s: float, world_size: int, limit_s: float, what: str) -> float:
        """When the last worker of such a round had noted this, which none had before `since_s`; or NEVER."""
        while time.monotonic() < since_s + limit_s:
            found_s = last_s(self.marks(), since_s, world_size, what)
            if found_s < NEVER:
                return found_s
            time.sleep(0.02)
        return NEVER

    def wait_first_round(self, since_s: float, world_size: int, what: str) -> None:
        """Raises RuntimeError with what the agents said if there is none."""
        if self.wait_round(since_s, world_size, START_LIMIT_S, what) == NEVER:
            said = "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in self.directory.glob("*.log"))
            raise RuntimeError(f"{self.side}: no round of {world_size} workers within {START_LIMIT_S:g} s{said}")

    def outlived_s(self, node: str, since_s: float, began_s: float) -> float:
        """For how long workers of this node lived beyond `began_s`, those that began before `since_s`.

        Negative where the last of them was gone before.
        """
        pids = {mark.pid for mark in self.marks() if mark.node == node and mark.at_s < since_s}
        return max(float((self._lives / f"{node}-{pid}").read_text()) for pid in pids) - began_s

    def strike(self, event: str, node: str) -> None:
        """Have one of the events that need no network happen to this node."""
        match event:
            case "crash":
                os.kill(next(mark.pid for mark in reversed(self.marks()) if mark.node == node), signal.SIGKILL)
            case "kill":
                self._signal(node, signal.SIGKILL)
            case "leave":
                self._processes[node].send_signal(signal.SIGTERM)
            case "freeze":
                freeze(self._processes[node].pid)
            case "pause":
                self._signal(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """Undo a freeze or a pause."""
        self._signal(node, signal.SIGCONT)

    def _signal(self, node: str, number: int) -> None:
        for pid in family(self._tokens[node]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        for token in self._tokens.values():
            kill_family(token)
        for process in self._processes.values():
            process.wait()


def run_trial(turn: Turn, rng: random.Random, *, notes_steps: bool) -> tuple[dict[str, float], Mapping[str, float]]:
    """One job and its event: the figures, NEVER for what did not come in time, and the steps on the way (steps.py)."""
    case, is_ours = turn.case, turn.side == pairs.OURS
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        network = stack.enter_context(Network()) if case.event == "partition" else None
        count = max(case.agents, case.after)
        hosts = [network.host(f"n{i + 1}") for i in range(count)] if network else loopback_hosts(count)
        etcd: Etcd | None = None
        if is_ours:
            server = HostEtcd(network, directory, "3.4") if network else EtcdServer("3.4", directory / "etcd")
            etcd = stack.enter_context(server)
        notebook = directory / "stamps"
        notebook.touch()
        command = pairs.COMMANDS[turn.side]
        if is_ours and notes_steps:
            command = [sys.executable, steps.__file__]
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0" if network else "lo", steps.FILE: str(notebook)}
        if case.overlap:
            env["LIVES"] = str(directory / "lives")
        agents = Agents(turn.side, directory, [*command, *_options(case, hosts[0], etcd)], SCRIPTS[case.job], env)
        stack.callback(agents.close)
        own = [[] if is_ours else ["--rdzv-conf", _rendezvous_settings(index)] for index in range(count)]
        what = BEGAN if case.job == "idle" else STEPPED
        since_s = time.monotonic()
        for host, options in zip(hosts[: case.agents], own, strict=False):
            agents.start(host, options)
        agents.wait_first_round(since_s, case.agents, what)
        # At any point of the period of whoever polls; a round that has just begun is not at rest yet.
        time.sleep(rng.uniform(1.5, 2.5))
        # n1 serves torchrun's store, without which no agent goes on; so it is never the victim there.
        victim = hosts[case.agents - 1].name
        if etcd is not None:
            leader = Cluster(directory, etcd=etcd, run_id=RUN_ID).leader()
            others = [host.name for host in hosts[: case.agents] if host.name != leader]
            victim = leader if case.victim == LEADER or not others else rng.choice(others)
        event_s = time.monotonic()
        if case.event == "join":
            agents.start(hosts[-1], own[-1])
        elif network is not None:
            network.cut(victim)
        else:
            agents.strike(case.event, victim)
        next_s = agents.wait_round(event_s, case.after, turn.limit_s, what)
        gone = victim if case.after < case.agents else ""
        found_steps = steps.find_steps(notebook.read_text(), event_s, next_s, gone)
        found = {case.figure: next_s - event_s}
        if case.overlap and next_s < NEVER:
            if network is None:
                agents.resume(victim)
            time.sleep(LIFE_S)
            marks = agents.marks()
            began_s = min(mark.at_s for mark in marks if mark.at_s > event_s and mark.world_size == case.after)
            found[case.overlap] = agents.outlived_s(victim, event_s, began_s)
        return found, found_steps


def _options(case: Case, first: Host, etcd: Etcd | None) -> list[str]:
    least = case.agents if case.event == "crash" else 1
    shared = ["--nnodes", f"{least}:{max(case.agents, case.after)}", "--nproc-per-node", "1", "--max-restarts", "9"]
    if etcd is None:
        where = f"{first.address}:{pairs.find_free_port(first.address)}"
        return [*shared, "--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", RUN_ID]
    shared += ["--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoint, "--rdzv-id", RUN_ID]
    shared += ["--preload", PRELOADED] if case.job == "warm" else []
    return [*shared, "--grow", "delay=0", "--target-nodes", str(case.agents)]


def _rendezvous_settings(index: int) -> str:
    return f"is_host={int(index == 0)},last_call_timeout={LAST_CALL_S}"


def take(turn: Turn, bench: pairs.Bench, rng: random.Random, *, notes_steps: bool) -> bool:
    """One run, told and recorded. False if it came to no first round, which says nothing about the event.

    Without `ip`, or the right to make namespaces, the others are measured all the same.
    """
    case, side = turn.case, turn.side
    try:
        found, found_steps = run_trial(turn, rng, notes_steps=notes_steps)
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        bench.record({"failed": case.figure, "side": side, "pair": turn.pair, "why": str(error)[:2000]})
        print(f"{side}: {case.figure}: {error}", file=sys.stderr, flush=True)
        return False
    bench.note(side, turn.pair, {"limit_s": turn.limit_s, **found})
    for name, value in found.items():
        shown = f"{value:.3f} s" if value < NEVER else f"not within {turn.limit_s:g} s"
        print(f"{side}: {name}: {shown}", file=sys.stderr, flush=True)
    if found_steps:
        bench.record({"steps": case.figure, "pair": turn.pair, **found_steps})
        words = (f"{name} {1e3 * found_steps[name]:.0f} ms" for name in steps.STEPS if name in found_steps)
        print(f"    {', '.join(words)}", file=sys.stderr, flush=True)
    return True


@pairs.benchmark(pairs=WATCHES_MIN, quick=WATCHES_MIN)
@click.option("--events", default="crash,kill,leave,join,freeze,pause,partition", show_default=True)
@click.option("--agents", default="1,2,4,8", show_default=True, help="Numbers of agents.")
@click.option("--jobs", default="idle", show_default=True, help="idle, gloo, warm: gloo and --preload.")
@click.option("--limit", "limit_s", type=float, default=25.0, show_default=True, help="Wait no longer, seconds.")
@click.option("--steps", "notes_steps", is_flag=True, help="Note in which steps the time passes, see steps.py.")
def main(bench: pairs.Bench, events: str, agents: str, jobs: str, limit_s: float, notes_steps: bool) -> None:
    rng, counts = random.Random(1), [int(count) for count in agents.split(",")]
    cases = [] if bench.is_quick else list(list_cases(events.split(","), counts, jobs.split(",")))
    turns = list_turns(cases, bench.pairs, bench.sides, limit_s)
    failed_count = [take(turn, bench, rng, notes_steps=notes_steps) for turn in turns].count(False)
    if failed_count:
        bench.failures.append(f"{failed_count} jobs came to no first round")


if __name__ == "__main__":
    main()
