"""What agreement costs as a job grows: N simulated agents on a real etcd, N = 8 to 4,096.

The agents are `members.py`'s: machine, driver, planner, connections and records as in production, workers that start
and stop at once. For each N a job goes through the steps of MOVES, and for each step is counted: the time until the
last agent knows its ranks, CPU of the leader, of the others and of etcd, etcd's requests and bytes, and what its
records weigh. After them the fit of growth: what grows faster than N would be the limit of what a job can be.

There are two shapes. `own`: every agent has a client of its own, as real ones have; on two cores hundreds of them
measure how threads take turns. `shared`: the leader and the one that follows it have a process and everything of their
own, all others share two processes, and a client in each, so that what is measured is the agreement, the leader and
etcd. Requests, watches and connections between agents are each agent's own in both.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from benchmarks import etcd_figures, members, pairs, words
from benchmarks import figures as names
from benchmarks.rendezvous import parse_sizes
from benchmarks.runs import NEVER, fit
from launcher.hardware.linux.limits import raise_descriptor_limit
from rendezvous.stores.etcd.store import EtcdStore
from tests.support.stores.etcd import EtcdServer

SIZES, REST_SIZES, REST_S = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), (16, 64, 256, 1024), 20.0
QUICK_SIZES, QUICK_REST_SIZES, QUICK_REST_S = (8, 64, 256, 1024), (64, 256), 10.0
OWN_PER_PROCESS = 16
LIMIT_S = 120.0
FILES_BESIDES = 200  # open files of a leader that are no connections of agents
QUIET_S = 0.4  # nothing is written for so long: a step is over
MOVES = ("first round", "member lost", "member added", "late members", "leader lost")
USUAL_TTL_S = 5.0
CALM_TTL_S = 600.0  # so that a busy core is no lost agent, and events are counted without what goes on at rest

Line = Mapping[str, Any]


class Use(NamedTuple):
    """How much of everything had been used at a moment."""

    leader_cpu_s: float
    members_cpu_s: float
    etcd: etcd_figures.Figures


class Agents:
    """N agents of one job, and those that come later. Agent 0 begins first and leads, agent 1 is next in line."""

    def __init__(self, shape: str, count: int, crowd: members.Crowd, server: EtcdServer) -> None:
        self.count = count
        self.crowd = crowd
        self.alive = set(range(count))
        self._server = server
        self._next = count
        self._lost_cpu_s = 0.0  # of members that were killed
        self.leader = crowd.add_process("own", [0])
        crowd.add_process("own", [1])
        others, process_count = range(2, count - 1), 2 if shape == "shared" else max(2, count // OWN_PER_PROCESS)
        for index in range(process_count):
            crowd.add_process(shape, others[index::process_count])
        self._has_own_processes = shape == "own"
        self._visitors = crowd.add_process(shape) if self._has_own_processes else crowd.homes[3]
        self._last = crowd.add_process(shape, [count - 1]) if self._has_own_processes else crowd.homes[2]
        crowd.homes[count - 1] = self._last
        crowd.wait_ready(LIMIT_S)

    def happen(self, step: str, rest_s: float) -> float:
        """Have one of MOVES, or rest, happen; how long it took. Raises NotInTime."""
        round, at = max(self.crowd.rounds, default=0), time.monotonic()
        match step:
            case "first round":
                for number in (0, 1):
                    self.crowd.order("begin", [number])
                    self._wait_joined({0, number})
                self.crowd.order("begin", range(2, self.count))
            case "rest":
                time.sleep(rest_s)
                return rest_s
            case "member lost":
                self.alive.remove(self.count - 1)
                if self._has_own_processes:
                    self._lost_cpu_s += self._last.cpu_s()
                    self._last.kill()
                    self.crowd.silenced.add(self._last)
                else:
                    self._last.order("kill", [self.count - 1])
            case "member added":
                self._add(1)
            case "late members":
                self._add(max(2, self.count // 8))
                return self._wait_joined(self.alive) - at
            case "leader lost":
                self.alive.remove(0)
                self.crowd.homes[0].kill()
            case _:
                raise ValueError(step)
        return self._wait_round(round) - at

    def expect_successor(self) -> None:
        """From here on the CPU of the first leader is not counted, and that of its successor is the leader's."""
        self.crowd.silenced.add(self.leader)
        self.leader = self.crowd.homes[1]

    def settle(self) -> None:
        """Wait until nothing has been written for a while."""
        commits, since = -1.0, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            now = etcd_figures.read(self._server.url).counters["commits"]
            if now != commits:
                commits, since = now, time.monotonic()
            self.crowd.read(QUIET_S / 4)

    def measure(self) -> Use:
        others = [process for process in self.crowd.processes() if process is not self.leader]
        cpu_s = self._lost_cpu_s + sum(process.cpu_s() for process in others)
        return Use(self.leader.cpu_s(), cpu_s, etcd_figures.read(self._server.url))

    def records(self) -> dict[str, tuple[int, int]]:
        """What lies in the store: kind -> how many records, how many bytes of keys and values."""
        found: dict[str, tuple[int, int]] = {}
        with contextlib.closing(EtcdStore([self._server.endpoint], call_limit_s=30.0)) as store:
            for item in store.get(f"/{members.PREFIX}/{self.crowd.job.run_id}/", prefix=True).items:
                parts = item.key.split("/")[4:]
                kind = "/".join(parts[:2]) if parts[:1] == ["ctl"] else "".join(parts[:1])
                count, size = found.get(kind, (0, 0))
                found[kind] = (count + 1, size + len(item.key) + len(item.value))
        return dict(sorted(found.items()))

    def _add(self, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._visitors.order("begin", numbers)
        self.alive.update(numbers)
        self._next += count

    def _wait_joined(self, numbers: set[int]) -> float:
        joined = self.crowd.joined
        self.crowd.wait(lambda: numbers <= joined.keys(), LIMIT_S, f"{len(numbers)} agents are members")
        return max(joined.values())

    def _wait_round(self, before: int) -> float:
        """Until as many as can take part have started one round after `before`; when the last did."""
        count, rounds = min(self.count, len(self.alive)), self.crowd.rounds

        def complete() -> list[int]:
            return [round for round, started in rounds.items() if round > before and len(started) >= count]

        self.crowd.wait(lambda: bool(complete()), LIMIT_S, f"{count} agents know their ranks")
        return max(rounds[max(complete())].values())


def sample(shape: str, count: int, lease_ttl_s: float, steps: Iterable[str], rest_s: float) -> Iterator[dict[str, Any]]:
    """One job of so many agents through these steps: what each took. Raises NotInTime."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pairs.running_etcd())
        job = members.Job(server.endpoint, secrets.token_hex(4), count, 1, lease_ttl_s)
        crowd = stack.enter_context(members.Crowd(job))
        agents = Agents(shape, count, crowd, server)
        for step in steps:
            if step == "leader lost":
                agents.expect_successor()
            before, round = agents.measure(), max(crowd.rounds, default=0)
            time_s = agents.happen(step, rest_s)
            if step != "rest":
                agents.settle()
            after = agents.measure()
            yield {
                "step": step,
                "shape": shape,
                "members": count,
                "time_s": time_s,
                "rounds": max(crowd.rounds) - round,
                "leader_cpu_s": after.leader_cpu_s - before.leader_cpu_s,
                "members_cpu_s": after.members_cpu_s - before.members_cpu_s,
                **after.etcd.count_since(before.etcd),
                "records": agents.records(),
            }


def name_figures(line: Line) -> dict[str, float]:
    """The figures of a sample by the names that the report knows them by."""
    requests, size, time_s = sum(line["requests"].values()), line["bytes_in"] + line["bytes_out"], line["time_s"]
    found = {
        "first round": {
            names.AGENTS_FIRST: time_s,
            names.AGENTS_CPU: line["leader_cpu_s"] + line["members_cpu_s"],
            names.LEADER_CPU: line["leader_cpu_s"],
            names.ETCD_CPU: line["cpu_s"],
            names.AGENTS_REQUESTS: requests,
            names.AGENTS_BYTES: size,
        },
        "rest": {
            names.REST_REQUESTS: requests / time_s,
            names.REST_KEPT: line["requests"].get("LeaseKeepAlive", 0.0) / time_s,
            names.REST_BYTES: size / time_s,
        },
        "member lost": {names.AGENTS_SEAL: time_s},
    }
    return {name.format(n=line["members"]): value for name, value in found.get(line["step"], {}).items()}


# The columns of docs/internals/scale.md: what of a step each counts, shown per member (at rest: and second) with this
# factor and unit.
COLUMNS: dict[str, tuple[Callable[[Line], float], float, str]] = {
    "requests": (lambda line: sum(line["requests"].values()), 1, ""),
    "writes": (lambda line: line["commits"], 1, ""),
    "watch messages": (lambda line: line["answers"].get("Watch", 0.0), 1, ""),
    "bytes in": (lambda line: line["bytes_in"], 1, ""),
    "bytes out": (lambda line: line["bytes_out"], 1, ""),
    "CPU of the leader": (lambda line: line["leader_cpu_s"], 1e3, " ms"),
    "of etcd": (lambda line: line["cpu_s"], 1e3, " ms"),
    "of the others": (lambda line: line["members_cpu_s"], 1e3, " ms"),
    "memory of etcd": (lambda line: line["memory_bytes"], 1e-6, " MB"),
}


def describe(lines: Sequence[Line]) -> str:
    """For each step what a member costs by N, how that grows with N, and what a record of the largest job weighs."""
    rows: list[list[str]] = []
    for step in dict.fromkeys(line["step"] for line in lines):
        same = [line for line in lines if line["step"] == step]
        for line in same:
            share = line["members"] * (line["time_s"] if step == "rest" else 1.0)
            each = (f"{factor * value(line) / share:.4g}{unit}" for value, factor, unit in COLUMNS.values())
            rows.append([step, f"{line['members']:,}", f"{line['time_s']:.2f} s", *each])
        rows.append([step, "grows", describe_growth(same, lambda line: line["time_s"])])
        rows[-1] += [describe_growth(same, value) for value, *_ in COLUMNS.values()]
    largest = max(lines, key=lambda line: line["members"], default={"records": {}})
    weights = [f"{kind or 'current'} {size / count:,.0f}" for kind, (count, size) in largest["records"].items()]
    return f"{words.table(['step', 'N', 'time', *COLUMNS], rows)}\n\nBytes of a record: {', '.join(weights)}."


def describe_growth(lines: Sequence[Line], value: Callable[[Line], float]) -> str:
    """The power of N by which this figure of the whole job grows."""
    found = fit({line["members"]: value(line) for line in lines if line["members"] >= names.GROWTH_FROM})
    return str(found or "")


@pairs.benchmark(pairs=1, quick=1)
@click.option("--sizes", callback=parse_sizes, help=f"Numbers of agents (default: {','.join(map(str, SIZES))}).")
@click.option("--rest-sizes", callback=parse_sizes, help="Likewise, at rest.")
@click.option("--rest", "rest_s", type=float, default=REST_S, show_default=True, help="How long to watch them.")
@click.option("--shape", type=click.Choice(["own", "shared"]), default="shared", show_default=True)
@click.option("--steps", default=",".join(MOVES), show_default=True)
def main(
    bench: pairs.Bench,
    sizes: Sequence[int] | None,
    rest_sizes: Sequence[int] | None,
    rest_s: float,
    shape: str,
    steps: str,
) -> str:
    if pairs.OURS not in bench.sides:
        raise click.UsageError("there are no agents of torchrun's without nodes: rendezvous has its members")
    rest_s = min(rest_s, QUICK_REST_S) if bench.is_quick else rest_s
    sizes = (QUICK_SIZES if bench.is_quick else SIZES) if sizes is None else sizes
    rest_sizes = (QUICK_REST_SIZES if bench.is_quick else REST_SIZES) if rest_sizes is None else rest_sizes
    if min((*sizes, *rest_sizes), default=SIZES[0]) < SIZES[0]:
        raise click.UsageError(f"the smallest job here has {SIZES[0]} agents")
    moves = [step for step in steps.split(",") if step]
    jobs = [(size, CALM_TTL_S, moves) for size in sizes if moves]
    jobs += [(size, USUAL_TTL_S, ["first round", "rest"]) for size in rest_sizes if rest_s]
    files = raise_descriptor_limit()  # inherited by the processes
    lines: list[Line] = []
    for pair, (size, ttl_s, wanted) in itertools.product(range(1, bench.pairs + 1), jobs):
        if size + FILES_BESIDES > files:
            print(f"N = {size:,}: a leader may open {files} files here, which are too few", file=sys.stderr)
            continue
        done: list[str] = []
        try:
            for line in sample(shape, size, ttl_s, wanted, rest_s):
                done.append(line["step"])
                if ttl_s == USUAL_TTL_S and line["step"] != "rest":
                    continue
                bench.record({"step": line})
                bench.note(pairs.OURS, pair, name_figures(line), counts=shape == "shared")
                lines.append(line)
                print(f"N = {size:,}, {line['step']}: {line['time_s']:.2f} s", file=sys.stderr, flush=True)
        except members.NotInTime as error:
            print(f"N = {size:,}: {error}", file=sys.stderr, flush=True)
            if not done and wanted[0] == "first round" and ttl_s == CALM_TTL_S:
                late = {names.AGENTS_FIRST.format(n=size): NEVER, "limit_s": LIMIT_S}
                bench.note(pairs.OURS, pair, late, counts=shape == "shared")
    return describe(lines)


if __name__ == "__main__":
    main()
