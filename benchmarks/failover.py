"""How long a job on several nodes is without its workers when something happens to one of them.

    crash      one worker is killed
    kill       agent, warden and workers of a node are killed at once; its kernel lives and refuses connections
    partition  every packet to and from a node is dropped, as if it had lost its power (network namespaces)
    leave      an agent is told to leave with SIGTERM
    join       an agent is started beside those that run

The nodes are loopback addresses or network namespaces of one machine, the store is a real etcd, and the workers do
nothing: they note that they began, with the time (CLOCK_MONOTONIC, one clock for all processes of a machine), and
sleep. A time runs from just before the event to the first line of the last worker of the next round. Where the leader's
node can be the victim it is so in half of the runs, which are reported apart. Each event is the first one of its job:
rounds that end within min_round_time_s are held back on purpose, but only from the second one in a row.

torchrun runs in turns with meshrun where it gets to a next round at all. Where it does not, it is watched once for
`--limit` seconds: its workers are idle, and nothing else would tell it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import pairs
from benchmarks.agents import NEVER, Agents, free_port
from tests.support.etcd import EtcdServer
from tests.support.hosts import Cluster, Etcd, HostEtcd
from tests.support.network import Host, Network, loopback_hosts

RUN_ID = "failover"
LAST_CALL_S = 5  # how long torchrun waits for more agents than the least; by default 30
LEADER, FOLLOWER, ANY = "the leader's node", "another node", ""
GOALS_S = {("kill", 4): 2.0}
GOALS = {("crash", 8): 0.15}  # of torchrun's time
UNNOTICED = ("kill", "leave", "join")  # by torchrun with idle workers, or to no good: its agents exit after a minute


class Case(NamedTuple):
    """What is measured. `agents`: how many there are before the event."""

    event: str
    agents: int
    victim: str

    def __str__(self) -> str:
        return f"{_name(self.event, self.victim)}, {self.agents} agents"

    @property
    def after(self) -> int:
        """How many nodes the next round has."""
        return self.agents + {"crash": 0, "join": 1}.get(self.event, -1)


class Trial:
    """One job, one event."""

    def __init__(self, side: str, case: Case, options: argparse.Namespace, chance: random.Random) -> None:
        self._side, self._case, self._chance = side, case, chance
        self._workers, self._limit_s, self._lease_ttl_s = options.workers, options.limit, options.lease_ttl

    def run(self) -> float:
        """The time in seconds, or NEVER if nothing came of it in time."""
        case = self._case
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            network = stack.enter_context(Network()) if case.event == "partition" else None
            count = max(case.agents, case.after)
            hosts = [network.host(f"n{i + 1}") for i in range(count)] if network else loopback_hosts(count)
            etcd: Etcd | None = None
            if self._side == pairs.OURS and network is not None:
                etcd = stack.enter_context(HostEtcd(network, directory))
            elif self._side == pairs.OURS:
                etcd = stack.enter_context(EtcdServer("3.4", directory / "etcd"))
            agents = Agents(self._side, directory, self._options(hosts, etcd))
            stack.callback(agents.close)
            since_s = time.monotonic()
            for index, host in enumerate(hosts[: case.agents]):
                agents.start(host, self._own_options(index))
            agents.begin(since_s, case.agents * self._workers)
            # At any point of the period of whoever polls; a round that has just begun is not at rest yet.
            time.sleep(self._chance.uniform(1.5, 2.5))
            victim = self._victim(hosts, etcd, directory)
            began_s = time.monotonic()
            if case.event == "crash":
                agents.kill_worker(victim)
            elif case.event == "kill":
                agents.kill(victim)
            elif case.event == "leave":
                agents.leave(victim)
            elif case.event == "join":
                agents.start(hosts[-1], self._own_options(case.agents))
            elif network is not None:
                network.cut(victim)
            return agents.next_round_s(began_s, case.after * self._workers, self._limit_s) - began_s

    def _victim(self, hosts: Sequence[Host], etcd: Etcd | None, directory: Path) -> str:
        """n1 serves torchrun's store, without which nobody goes on; so it is never the victim there."""
        names = [host.name for host in hosts[: self._case.agents]]
        if etcd is None:
            return names[-1]
        leader = Cluster(directory, etcd=etcd, run_id=RUN_ID).leader()
        others = [name for name in names if name != leader]
        return leader if self._case.victim == LEADER else self._chance.choice(others)

    def _options(self, hosts: Sequence[Host], etcd: Etcd | None) -> list[str]:
        least = self._case.agents if self._case.event == "crash" else 1
        most = max(self._case.agents, self._case.after)
        shared = ["--nnodes", f"{least}:{most}", "--nproc-per-node", str(self._workers), "--max-restarts", "9"]
        if etcd is None:
            where = f"{hosts[0].address}:{free_port(hosts[0].address)}"
            return [*shared, "--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", RUN_ID]
        shared += ["--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoint, "--rdzv-id", RUN_ID]
        return [
            *shared,
            "--grow-delay",
            "0",
            "--target-nodes",
            str(self._case.agents),
            "--lease-ttl",
            f"{self._lease_ttl_s:g}",
        ]

    def _own_options(self, index: int) -> list[str]:
        if self._side == pairs.OURS:
            return []
        return ["--rdzv-conf", f"is_host={int(index == 0)},last_call_timeout={LAST_CALL_S}"]


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for event in options.events.split(","):
        for agents in map(int, options.agents.split(",")):
            victims = [FOLLOWER, LEADER] if event in ("kill", "partition", "leave") else [ANY]
            for victim in victims:
                yield Case(event, agents, victim)


def measure(case: Case, options: argparse.Namespace, chance: random.Random, record: Any) -> dict[str, Any]:
    """All runs of one case; its line of the summary."""
    times: dict[str, list[float]] = {side: [] for side in pairs.sides(options)}
    for repeat in range(options.repeats):
        for side in times:
            if side == pairs.THEIRS and (case.event == "partition" or case.victim == LEADER):
                continue  # it has no leader, and would notice a partition no better than a kill
            if side == pairs.THEIRS and case.event in UNNOTICED and (repeat > 0 or case.agents != options.watched):
                continue
            took_s = Trial(side, case, options, chance).run()
            times[side].append(took_s)
            record({"sample": side, "case": str(case), "repeat": repeat, "s": took_s if took_s < NEVER else None})
            print(f"{case}: {side} {took_s:.3f} s", file=sys.stderr)
    return summary(case, times, options.limit)


def summary(case: Case, times: dict[str, list[float]], limit_s: float) -> dict[str, Any]:
    """Medians and ranges of both sides in seconds, NEVER where nothing came; and of their ratio, where they took turns.

    In the ratio a torchrun that was waited for in vain counts as if it had come at the limit.
    """
    line: dict[str, Any] = {"event": case.event, "agents": case.agents, "victim": case.victim}
    line |= {side: {**_spread(taken), "runs": len(taken)} for side, taken in times.items() if taken}
    ours, theirs = (times.get(side, []) for side in (pairs.OURS, pairs.THEIRS))
    if case.event not in UNNOTICED and ours and len(ours) == len(theirs) and max(ours) < NEVER:
        line["ratio"] = _spread([a / min(b, limit_s) for a, b in zip(ours, theirs, strict=True)])
    return line


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(lines: Sequence[dict[str, Any]], limit_s: float) -> str:
    """The summary for people, as a Markdown table."""
    rows = ["| event | agents | meshrun | torchrun | ratio: median (range) | aim |", "|---|---|---|---|---|---|"]
    for line in lines:
        sides = [_times(line.get(side), limit_s) for side in (pairs.OURS, pairs.THEIRS)]
        ratio = line.get("ratio")
        spread = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})" if ratio else ""
        what = _name(line["event"], line["victim"])
        rows.append(f"| {what} | {line['agents']} | {sides[0]} | {sides[1]} | {spread} | {_aim(line)} |")
    return "\n".join(rows)


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    """The same for JSON, which has no infinity."""
    return {key: _finite(v) if isinstance(v, dict) else None if v == NEVER else v for key, v in line.items()}


def _name(event: str, victim: str) -> str:
    return f"{event} of {victim}" if victim else event


def _times(times: dict[str, float] | None, limit_s: float) -> str:
    if times is None:
        return ""
    if times["median"] == NEVER:
        return f"not within {limit_s:g} s"
    most = f"{times['max']:.2f}" if times["max"] < NEVER else f"more than {limit_s:g}"
    return f"{times['median']:.2f} s ({times['min']:.2f} to {most}; {times['runs']})"


def _aim(line: dict[str, Any]) -> str:
    key = (line["event"], line["agents"])
    if key in GOALS_S and pairs.OURS in line:
        is_reached = line[pairs.OURS]["median"] <= GOALS_S[key]
        return f"at most {GOALS_S[key]:g} s: {'reached' if is_reached else 'missed'}"
    if key in GOALS and "ratio" in line:
        is_reached = line["ratio"]["median"] <= GOALS[key]
        return f"at most {GOALS[key]:g} of torchrun: {'reached' if is_reached else 'missed'}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", default="crash,kill,leave,join,partition", help="(default: %(default)s)")
    parser.add_argument("--agents", default="2,4,8", help="numbers of agents (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of an agent (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=30.0, metavar="S", help="wait no longer (default: %(default)s)")
    parser.add_argument("--lease-ttl", type=float, default=5.0, metavar="S", help="of meshrun (default: its own)")
    parser.add_argument("--watched", type=int, default=4, help="on so many agents torchrun is seen not to notice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append machine, samples and summary as JSON lines")
    parser.add_argument("--only", choices=sorted(pairs.COMMANDS), help="run one side, without ratios")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no agent stays behind
    chance = random.Random(1)
    with pairs.recording(options) as record:
        lines = []
        for case in cases(options):
            lines.append(measure(case, options, chance, record))
            record({"summary": _finite(lines[-1])})
    print(table(lines, options.limit))


if __name__ == "__main__":
    main()
