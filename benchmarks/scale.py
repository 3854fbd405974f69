"""What agreement costs as a job grows: N simulated agents on a real etcd, N = 8 to 4,096.

The agents are `crowd.py`'s: protocol, driver, planner and records as in production, workers that start and stop at
once. For each N a job goes through the steps of MOVES, and for each step is counted: the time until the last agent
knows its ranks, CPU of the leader, of the others and of etcd, etcd's requests and bytes, and what its records weigh.
After them the fit of growth: what grows faster than N would be the limit of what a job can be.

There are two shapes. `own`: every agent has a client, connections and threads of its own, as real ones have; on two
cores hundreds of them measure how threads take turns. `shared`: the leader and the one that follows it have a process
and everything of their own, all others share clients and threads (`shared.py` says exactly what), so that what is
measured is the agreement, the leader and etcd.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import figures as names
from benchmarks import pairs
from benchmarks.crowd import PREFIX
from benchmarks.derived import FROM, fit
from benchmarks.etcd_figures import Figures
from benchmarks.etcd_figures import figures as etcd_figures
from launcher.agent.startup.limits import raise_descriptor_limit
from rendezvous.stores.etcd.store import EtcdStore
from tests.support.stores.etcd import EtcdServer

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
REST_SIZES = (16, 64, 256, 1024)
QUICK_SIZES, QUICK_REST_SIZES, QUICK_REST_S = (8, 64, 256, 1024), (64, 256), 10.0
SHARED_PROCESSES = 2
OWN_PER_PROCESS = 16
LIMIT_S = 120.0
FILES_BESIDES = 200  # open files of a leader that are no presence connections
QUIET_S = 0.4  # nothing is written for so long: a step is over
MOVES = ("first round", "member lost", "member added", "late members", "leader lost")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class NotInTime(Exception):
    """Something that was waited for has not come within LIMIT_S; `what`: the step in which that was."""

    what = ""


USUAL_TTL_S = 5.0
CALM_TTL_S = 600.0  # so that a busy core is no lost agent, and events are counted without what goes on at rest


class Line(NamedTuple):
    """What a process has said: `at` on CLOCK_MONOTONIC."""

    word: str
    number: int
    at: float
    rest: tuple[str, ...]


class Process:
    """One process of agents."""

    def __init__(self, kind: str, endpoint: str, run_id: str, members: int, lease_ttl_s: float) -> None:
        command = [sys.executable, "-m", "benchmarks.crowd", kind, "--endpoint", endpoint, "--run-id", run_id]
        command += ["--members", str(members)]
        command += ["--lease-ttl-s", str(lease_ttl_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=pairs.environment(), start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self.lines = self._process.stdin, self._process.stdout
        os.set_blocking(self.lines.fileno(), False)
        self._part = ""

    def order(self, word: str, *numbers: int) -> None:
        self._orders.write(f"{word} {' '.join(map(str, numbers))}\n".encode())
        self._orders.flush()

    def read(self) -> list[Line]:
        """What it has said since the last time."""
        text = os.read(self.lines.fileno(), 1 << 20).decode()
        if not text:
            raise RuntimeError("a process of agents has ended")
        *whole, self._part = (self._part + text).split("\n")
        found = [line.split() for line in whole]
        return [Line(word, int(number), float(at), tuple(rest)) for word, number, at, *rest in found]

    def cpu_s(self) -> float:
        """Of all its threads, so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / CLOCK_TICKS

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._orders.close()
        self.lines.close()


class Look(NamedTuple):
    """How much of everything had been used at a moment."""

    leader_cpu_s: float
    members_cpu_s: float
    etcd: Figures


class Job:
    """N agents of one job, and whoever comes later. Agent 0 begins first and leads, agent 1 is its first successor."""

    def __init__(self, shape: str, members: int, server: EtcdServer, lease_ttl_s: float) -> None:
        self.members = members
        self._shape = shape
        self._server = server
        self._lease_ttl_s = lease_ttl_s
        self.run_id = f"s{random.SystemRandom().randrange(10**9)}"
        self.rounds: dict[int, dict[int, float]] = {}  # round -> agent -> when it knew its ranks
        self.joined: dict[int, float] = {}
        self._ended: dict[int, str] = {}
        self._gone_cpu_s = 0.0  # of members that were killed
        self._awaited_count = 0  # words of processes that are not ready yet
        self.alive = set(range(members))
        self._next = members
        self._processes: list[Process] = []
        self._homes = {number: self._process("own") for number in (0, 1)}
        self.leader = self._homes[0]
        self._homes |= self._in_groups(range(2, members - 1), shape)
        self._last = self._process("own") if shape == "own" else self._homes[2]
        self._homes[members - 1] = self._last
        if shape == "shared":
            self._order({members - 1: self._last}, "prepare")
        self._visitors = self._process("own") if shape == "own" else self._homes[3]

    def wait_ready(self) -> None:
        """Until all processes have imported what they need and have made their agents."""
        self._wait(lambda: not self._awaited_count, "all processes are ready")

    def _process(self, kind: str) -> Process:
        process = Process(kind, self._server.endpoint, self.run_id, self.members, self._lease_ttl_s)
        self._processes.append(process)
        self._awaited_count += 1
        return process

    def _in_groups(self, numbers: Sequence[int], shape: str) -> dict[int, Process]:
        """Agents over processes of their kind."""
        count = SHARED_PROCESSES if shape == "shared" else max(2, len(numbers) // OWN_PER_PROCESS)
        processes = [self._process(shape) for _ in range(min(count, len(numbers)))]
        homes = {number: processes[index % len(processes)] for index, number in enumerate(numbers)}
        if shape == "shared":
            self._order(homes, "prepare")
        return homes

    def _order(self, homes: Mapping[int, Process], word: str) -> None:
        for process in dict.fromkeys(homes.values()):
            process.order(word, *(number for number, home in homes.items() if home is process))
            self._awaited_count += word == "prepare"

    # --- what happens to it ---

    def begin(self) -> float:
        """All begin; when that was."""
        at = time.monotonic()
        for number in (0, 1):
            self._homes[number].order("begin", number)
            self._wait(lambda: len(self.joined) > number, f"agent {number} is a member")  # noqa: B023
        self._order({number: home for number, home in self._homes.items() if number > 1}, "begin")
        return at

    def lose(self) -> float:
        """The last of the first members is killed."""
        number, at = self.members - 1, time.monotonic()
        if self._shape == "own":
            self._gone_cpu_s += self._last.cpu_s()
            self._last.kill()
            self._processes.remove(self._last)
        else:
            self._last.order("kill", number)
        self.alive.remove(number)
        return at

    def add(self, count: int = 1) -> float:
        """So many come."""
        numbers, at = range(self._next, self._next + count), time.monotonic()
        self._visitors.order("begin", *numbers)
        self.alive.update(numbers)
        self._next += count
        return at

    def expect_successor(self) -> None:
        """From here on the CPU of the first leader is not counted, and that of its successor is the leader's."""
        self._processes.remove(self.leader)
        self.leader = self._homes[1]

    def lose_leader(self) -> float:
        at = time.monotonic()
        self._homes[0].kill()
        self.alive.remove(0)
        return at

    # --- what is seen of it ---

    def wait_round(self, before: int) -> float:
        """Until as many as can take part have started one round after `before`; when the last did."""
        count = min(self.members, len(self.alive))

        def last() -> bool:
            return any(round > before and len(started) >= count for round, started in self.rounds.items())

        self._wait(last, f"{count} agents know their ranks")
        round = max(round for round, started in self.rounds.items() if len(started) >= count)
        return max(self.rounds[round].values())

    def wait_joined(self) -> float:
        """Until all who have been told to begin are members; when the last was."""
        self._wait(lambda: self.alive <= set(self.joined), f"{len(self.alive)} agents are members")
        return max(self.joined.values())

    def settle(self) -> None:
        """Until nothing has been written for a while."""
        commits, since = -1.0, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            now = self.look().etcd.commits
            if now != commits:
                commits, since = now, time.monotonic()
            self._read(QUIET_S / 4)

    def look(self) -> Look:
        others = [process for process in self._processes if process is not self.leader]
        others_cpu_s = self._gone_cpu_s + sum(process.cpu_s() for process in others)
        return Look(self.leader.cpu_s(), others_cpu_s, etcd_figures(self._server.url))

    def records(self) -> dict[str, tuple[int, int]]:
        """What lies in the store: kind -> how many records, how many bytes of keys and values."""
        store = EtcdStore([self._server.endpoint], call_limit_s=30.0)
        try:
            found: dict[str, tuple[int, int]] = {}
            for item in store.get(f"/{PREFIX}/{self.run_id}/", prefix=True).items:
                parts = item.key.split("/")[4:]
                kind = "/".join(parts[:2]) if parts[:1] == ["ctl"] else "".join(parts[:1])
                count, size = found.get(kind, (0, 0))
                found[kind] = (count + 1, size + len(item.key) + len(item.value))
            return dict(sorted(found.items()))
        finally:
            store.close()

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                said = "; ".join(f"agent {number} has ended: {why}" for number, why in list(self._ended.items())[:4])
                counts = {round: len(started) for round, started in self.rounds.items()}
                raise NotInTime(f"not within {LIMIT_S:g} s: {what}; {len(self.joined)} joined, {counts} {said}")
            self._read(0.5)

    def _read(self, limit_s: float) -> None:
        readers = {process.lines.fileno(): process for process in self._processes}
        for number in select.select(list(readers), [], [], limit_s)[0]:
            for line in readers[number].read():
                self._take(line)

    def _take(self, line: Line) -> None:
        match line.word:
            case "ready":
                self._awaited_count -= 1
            case "joined":
                self.joined[line.number] = line.at
            case "started":
                if int(line.rest[1]) < 0:
                    raise RuntimeError(f"agent {line.number} was given too few ranks")
                self.rounds.setdefault(int(line.rest[0]), {})[line.number] = line.at
            case "ended":
                self._ended[line.number] = " ".join(line.rest)

    def close(self) -> None:
        for process in {*self._processes, *self._homes.values(), self._last}:
            process.close()


@contextlib.contextmanager
def running(shape: str, members: int, lease_ttl_s: float) -> Iterator[Job]:
    """A job of so many agents that are about to begin, on an etcd of its own."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory, EtcdServer("3.4", Path(directory)) as server:
        job = Job(shape, members, server, lease_ttl_s)
        try:
            job.wait_ready()
            yield job
        finally:
            job.close()


def happen(job: Job, name: str, rest_s: float) -> float:
    """Have one of MOVES, or rest, happen; how long it took."""
    round = max(job.rounds, default=0)
    match name:
        case "first round":
            at = job.begin()
        case "rest":
            time.sleep(rest_s)
            return rest_s
        case "member lost":
            at = job.lose()
        case "member added":
            at = job.add()
        case "late members":
            at = job.add(max(2, job.members // 8))
            return job.wait_joined() - at
        case "leader lost":
            at = job.lose_leader()
        case _:
            raise ValueError(name)
    return job.wait_round(round) - at


def sample(
    shape: str, members: int, lease_ttl_s: float, steps: Iterable[str], rest_s: float
) -> Iterator[dict[str, Any]]:
    """One job of so many agents through these steps: what each took."""
    with running(shape, members, lease_ttl_s) as job:
        for name in steps:
            if name == "leader lost":
                job.expect_successor()
            before, round = job.look(), max(job.rounds, default=0)
            try:
                time_s = happen(job, name, rest_s)
            except NotInTime as error:
                error.what = name
                raise
            if name != "rest":
                job.settle()
            after = job.look()
            yield {
                "step": name,
                "shape": shape,
                "members": members,
                "time_s": time_s,
                "rounds": max(job.rounds) - round,
                "leader_cpu_s": after.leader_cpu_s - before.leader_cpu_s,
                "members_cpu_s": after.members_cpu_s - before.members_cpu_s,
                **after.etcd.since(before.etcd)._asdict(),
                "records": job.records(),
            }


def named(line: Mapping[str, Any]) -> dict[str, float]:
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


# --- what is told of it ---

FITTED: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "time": lambda line: line["time_s"],
    "CPU of the leader": lambda line: line["leader_cpu_s"],
    "CPU of the others": lambda line: line["members_cpu_s"],
    "CPU of etcd": lambda line: line["cpu_s"],
    "requests": lambda line: sum(line["requests"].values()),
    "bytes to etcd": lambda line: line["bytes_in"],
    "bytes from etcd": lambda line: line["bytes_out"],
}


def fits(lines: Iterable[Mapping[str, Any]], fit_from: int) -> list[dict[str, Any]]:
    """For each shape and step: how its figures grow with N, over the sizes from `fit_from` on."""
    found = []
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["shape"], line["step"]), []).append(line)
    for (shape, name), group in groups.items():
        for figure, value in FITTED.items():
            fitted = fit({line["members"]: value(line) for line in group if line["members"] >= fit_from})
            if fitted is not None and not (name == "rest" and figure == "time"):
                found.append({"shape": shape, "step": name, "figure": figure, **fitted._asdict(), "words": str(fitted)})
    return found


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The samples for people: per member where that says more."""
    rows = [
        "| shape | step | N | time | CPU of leader | per other member | etcd, per member | requests per member "
        "| bytes in, out per member | memory of etcd |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        count, per_s = line["members"], line["time_s"] if line["step"] == "rest" else 1.0
        unit = " per s" if line["step"] == "rest" else ""
        requests = sum(line["requests"].values()) / count / per_s
        rows.append(
            f"| {line['shape']} | {line['step']} | {count:,} | {line['time_s']:.2f} s "
            f"| {1e3 * line['leader_cpu_s'] / per_s:.0f} ms{unit} "
            f"| {1e3 * line['members_cpu_s'] / (count - 1) / per_s:.2f} ms{unit} "
            f"| {1e3 * line['cpu_s'] / count / per_s:.2f} ms{unit} | {requests:.2f}{unit} "
            f"| {line['bytes_in'] / count / per_s:,.0f}, {line['bytes_out'] / count / per_s:,.0f}{unit} "
            f"| {line['memory_bytes'] / 2**20:.0f} MiB |"
        )
    return "\n".join(rows)


def table_of_fits(found: Sequence[Mapping[str, Any]]) -> str:
    """The exponents, one row per step."""
    rows = [f"| shape | step | {' | '.join(FITTED)} |", "|---|---|" + "---|" * len(FITTED)]
    words = {(line["shape"], line["step"], line["figure"]): line["words"] for line in found}
    for shape, name in dict.fromkeys((line["shape"], line["step"]) for line in found):
        cells = (words.get((shape, name, figure), "") for figure in FITTED)
        rows.append(f"| {shape} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def table_of_kinds(lines: Sequence[Mapping[str, Any]]) -> str:
    """Requests, events and records by kind, for the largest N of each step."""
    rows = [
        "| shape | step | N | requests per member | answers of watches | writes | bytes per record | database |",
        "|---|---|---|---|---|---|---|---|",
    ]
    largest = {(line["shape"], line["step"]): line for line in sorted(lines, key=lambda line: line["members"])}
    for (shape, name), line in largest.items():
        count, per_s = line["members"], line["time_s"] if name == "rest" else 1.0
        kinds = ", ".join(f"{kind} {asked / count / per_s:.3f}" for kind, asked in line["requests"].items())
        records = ", ".join(f"{kind or 'current'} {size / many:,.0f}" for kind, (many, size) in line["records"].items())
        rows.append(
            f"| {shape} | {name} | {count:,} | {kinds}{' per s' if name == 'rest' else ''} "
            f"| {line['answers'].get('Watch', 0) / count:.2f} | {line['commits'] / count:.2f} | {records} "
            f"| {line['database_bytes'] / 2**20:.1f} MiB |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = pairs.arguments(__doc__ or "", pairs=1, quick=1)
    parser.add_argument("--sizes", help=f"numbers of agents (default: {','.join(map(str, SIZES))})")
    parser.add_argument("--rest-sizes", help=f"likewise, at rest (default: {','.join(map(str, REST_SIZES))})")
    parser.add_argument("--shape", choices=["own", "shared"], default="shared", help="(default: %(default)s)")
    parser.add_argument("--steps", help=f"some of: {', '.join(MOVES)}")
    parser.add_argument("--rest", type=float, default=20.0, metavar="S", help="how long to watch agents at rest")
    parser.add_argument("--fit-from", type=int, default=FROM, metavar="N")
    options = parser.parse_args()
    if options.only == pairs.THEIRS:
        parser.error("there are no agents of torchrun's without nodes: rendezvous has its members")
    rest_s = min(options.rest, QUICK_REST_S) if options.quick else options.rest
    sizes = _numbers(options.sizes, QUICK_SIZES if options.quick else SIZES)
    rest_sizes = _numbers(options.rest_sizes, QUICK_REST_SIZES if options.quick else REST_SIZES)
    if min((*sizes, *rest_sizes), default=SIZES[0]) < SIZES[0]:
        parser.error(f"the smallest job here has {SIZES[0]} agents")
    steps = tuple(options.steps.split(",")) if options.steps is not None else MOVES
    jobs = [(size, CALM_TTL_S, steps, 0.0) for size in sizes if steps]
    jobs += [(size, USUAL_TTL_S, ("first round", "rest"), rest_s) for size in rest_sizes if rest_s]
    files = raise_descriptor_limit()  # inherited by the processes
    lines: list[dict[str, Any]] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with pairs.recording(options) as record:
        for pair, (size, ttl_s, wanted, watched_s) in itertools.product(range(1, options.pairs + 1), jobs):
            if size + FILES_BESIDES > files:
                print(f"N = {size:,}: a leader may open {files} files here, which are too few", file=sys.stderr)
                continue
            counts = {"sample": pairs.OURS, "pair": pair, "counts": options.shape == "shared"}
            try:
                for line in sample(options.shape, size, ttl_s, wanted, watched_s):
                    if ttl_s == USUAL_TTL_S and line["step"] != "rest":
                        continue
                    record({"step": line})
                    record({**counts, **named(line)})
                    lines.append(line)
                    print(table([line]).splitlines()[-1], file=sys.stderr, flush=True)
            except NotInTime as error:
                print(f"N = {size:,}: {error}", file=sys.stderr, flush=True)
                if error.what == wanted[0] == "first round" and ttl_s == CALM_TTL_S:
                    record({**counts, names.AGENTS_FIRST.format(n=size): None, "limit_s": LIMIT_S})
        found = fits(lines, options.fit_from)
        for each in found:
            record({"growth": each})
    print(table(lines), table_of_kinds(lines), table_of_fits(found), sep="\n\n")


def _numbers(text: str | None, default: Sequence[int]) -> Sequence[int]:
    return default if text is None else [int(word) for word in text.split(",") if word]


if __name__ == "__main__":
    main()
