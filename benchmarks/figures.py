"""What the benchmarks measure, in which unit, and what each figure should reach.

A figure has one name, the same in a script, in its records and here; where that has a number, `{n}` stands for it.
The aims are the first table of docs/performance.md, in this order: most are ratios to torchrun in the same run, some
are limits in the figure's own unit, where torchrun never comes to an end or cannot do the thing at all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple


class Kind(NamedTuple):
    """Figures of one kind: their benchmark, their name with `{n}` for numbers, and their unit."""

    benchmark: str
    name: str
    unit: str = "s"


class Aim(NamedTuple):
    """What the page calls it, the figure, and its limit: `ratio` to torchrun, or `value` in the figure's unit."""

    what: str
    figure: str
    ratio: float | None = None
    value: float | None = None
    least: bool = False  # the limit is a least one
    every: bool = False  # each run must reach it, and not the median alone

    def is_reached(self, found: float) -> bool:
        """Whether this ratio, or this value, is good enough."""
        limit = self.ratio if self.ratio is not None else self.value
        assert limit is not None
        return found >= limit if self.least else found <= limit


FIRST_LINE, WHOLE_JOB = "exec to first line, {n} worker(s)", "whole job that does nothing, {n} worker(s)"
LOOP = "start to first line, 8 workers, by a loop of the shell"
PSS, PSS_ETCD = "PSS beside 8 sleeping workers", "PSS beside 8 sleeping workers, with etcd"
PROCESSES = "processes that are no workers"
RESTART = "kill of one of 8 workers to first line of the last in the next round"
WARM_START, WARM_RESTART = "exec to torch imported in 8 workers", "kill of one of 8 workers to torch imported in all"
WARM_PSS, IMAGE_PSS = "PSS of 8 workers that have imported torch", "PSS of the preloaded image"
WARM_LAUNCHER_PSS = "PSS of the launcher beside 8 workers that have imported torch"
COLD, STANDBY = ", without --preload", ", with --standby 1"
BLOCKS, PRINTS = "lines per second in blocks", "lines per second by print"
TORN_IN_BLOCKS, TORN_PRINTS = "torn lines in blocks", "torn lines by print"
FIRST_ROUND, REQUESTS = "first round of {n} members", "requests per member until all {n} had met"
REST, KEEP_ALIVES = (f"{what} per member and second at rest, {{n}} members" for what in ("requests", "keep-alives"))
AGENTS_FIRST, AGENTS_SEAL = "first round of {n} agents", "re-seal of {n} agents"
AGENTS_CPU, LEADER_CPU, ETCD_CPU = (
    "CPU of {n} agents, first round",
    "CPU of the leader, {n} agents",
    "CPU of etcd, {n} agents",
)
AGENTS_REQUESTS, AGENTS_BYTES = "requests of {n} agents, first round", "bytes of {n} agents, first round"
REST_REQUESTS, REST_BYTES = "requests of {n} agents at rest, per second", "bytes of {n} agents at rest, per second"
REST_KEPT = "keep-alives of {n} agents at rest, per second"
OTHER_NODE, LEADERS_NODE = " of another node", " of the leader's node"
EVENTS = ("crash", "kill", "leave", "join", "freeze", "pause", "partition")
CUT_OFF, CUT_OFF_LEADER = f"partition{OTHER_NODE}, 4 agents", f"partition{LEADERS_NODE}, 4 agents"
GLOO, WARM, OVERLAP = ": first step of gloo", ", --preload", ": overlap"
# Made of other figures. Growth is told of so many members or agents on: below, what is done once per job hides what is
# done once per agent. At rest: requests, keep-alives, and whether they are of the whole job or of one member.
GROWTH_FROM = 64
GROWTH_REQUESTS, GROWTH_BYTES = "growth of requests with agents", "growth of bytes with agents"
GROWTHS = {GROWTH_REQUESTS: AGENTS_REQUESTS, GROWTH_BYTES: AGENTS_BYTES}
RESTS = ((REST_REQUESTS, REST_KEPT, True), (REST, KEEP_ALIVES, False))
IDLE = "requests at rest that are no keep-alives, per member and second"

KINDS = (
    Kind("startup", FIRST_LINE),
    Kind("startup", WHOLE_JOB),
    Kind("startup", LOOP),
    Kind("memory", PSS, "MiB"),
    Kind("memory", PSS_ETCD, "MiB"),
    Kind("memory", PROCESSES, ""),
    Kind("restart", RESTART),
    *(Kind("warm", f"{name}{how}") for name in (WARM_START, WARM_RESTART) for how in ("", COLD, STANDBY)),
    Kind("warm", WARM_PSS, "MiB"),
    Kind("warm", f"{WARM_PSS}{COLD}", "MiB"),
    Kind("warm", IMAGE_PSS, "MiB"),
    Kind("warm", WARM_LAUNCHER_PSS, "MiB"),
    Kind("output", BLOCKS, "1/s"),
    Kind("output", PRINTS, "1/s"),
    Kind("output", TORN_IN_BLOCKS, ""),
    Kind("output", TORN_PRINTS, ""),
    Kind("rendezvous", FIRST_ROUND),
    Kind("rendezvous", REQUESTS, ""),
    Kind("rendezvous", REST, "1/s"),
    Kind("rendezvous", KEEP_ALIVES, "1/s"),
    *(Kind("scale", name) for name in (AGENTS_FIRST, AGENTS_SEAL, AGENTS_CPU, LEADER_CPU, ETCD_CPU)),
    Kind("scale", AGENTS_REQUESTS, ""),
    Kind("scale", AGENTS_BYTES, "B"),
    Kind("scale", REST_REQUESTS, "1/s"),
    Kind("scale", REST_KEPT, "1/s"),
    Kind("scale", REST_BYTES, "B/s"),
    *(
        Kind("failover", f"{event}{victim}, {{n}} agents{what}")
        for event in EVENTS
        for victim in ("", OTHER_NODE, LEADERS_NODE)
        for what in ("", GLOO, GLOO + WARM, OVERLAP)
    ),
    Kind("derived", GROWTH_REQUESTS, ""),
    Kind("derived", GROWTH_BYTES, ""),
    Kind("derived", IDLE, "1/s"),
)

AIMS = (
    Aim("exec to the first line of the last of 8 workers, which import nothing", "exec to first line, 8 workers", 0.10),
    Aim("exec until all 8 workers have imported torch, with `--preload torch`", WARM_START, 0.20),
    Aim("a worker of 8 killed, until all of the next have imported torch, `--preload torch`", WARM_RESTART, 0.02),
    Aim("the same, with `--preload torch --standby 1`", WARM_RESTART + STANDBY, 0.02),
    Aim("a worker of 8 killed, to the first line of the last of the next round", RESTART, 0.50),
    Aim("a worker killed, 8 agents, to the first line of the last of the next round", "crash, 8 agents", 0.05),
    Aim("a node killed, 4 agents, not the leader's", f"kill{OTHER_NODE}, 4 agents", value=1.0),
    Aim("the leader's node killed, 4 agents", f"kill{LEADERS_NODE}, 4 agents", value=1.0),
    Aim("a node cut off, 4 agents, not the leader's; lease 5 s", CUT_OFF, value=6.0),
    Aim("the leader's node cut off, 4 agents; lease 5 s", CUT_OFF_LEADER, value=6.0),
    Aim("how long its workers outlive the first of the next round", CUT_OFF + OVERLAP, value=0.0, every=True),
    Aim("the same, the leader's node", CUT_OFF_LEADER + OVERLAP, value=0.0, every=True),
    Aim("a fourth agent started beside three, from its exec, `--grow delay=0`", "join, 3 agents", value=1.0),
    Aim("first round of 128 members", FIRST_ROUND.format(n=128), 0.50),
    # A fiftieth of the 180 s after which torchrun's are stopped, which is too long to wait for in each report.
    Aim("first round of 256 members", FIRST_ROUND.format(n=256), value=3.6),
    Aim("first round of 1,024 agents", AGENTS_FIRST.format(n=1024), value=10.0),
    Aim("requests to the store as a power of the number of agents", GROWTH_REQUESTS, value=1.05),
    Aim("bytes from and to the store, likewise", GROWTH_BYTES, value=1.05),
    Aim("requests of a member at rest that are no keep-alives", IDLE, value=0.005),
    Aim("memory (PSS) of all processes but the 8 workers, one node", PSS, 0.12),
    Aim("the same on a node of several, with etcd", PSS_ETCD, 0.25),
    Aim("lines per second, 8 workers, written in blocks", BLOCKS, 3.0, least=True),
    Aim("the same, each line an unbuffered `print`", PRINTS, 3.0, least=True),
)  # fmt: skip


def workers(name: str, count: int) -> str:
    """The name of a figure of start-up for so many workers."""
    return name.format(n=count).replace("(s)", "s" * (count > 1))


def kind(name: str) -> Kind | None:
    """What kind of figure has this name; None of one that nobody listed."""
    return next((kind for kind in KINDS if _pattern(kind.name).fullmatch(name)), None)


def aim(name: str) -> Aim | None:
    """What this figure should reach; None if there is no aim."""
    return next((aim for aim in AIMS if aim.figure == name), None)


def number(pattern: str, name: str) -> int | None:
    """The number that `name` has where `pattern` has {n}; None if it is not such a name."""
    match = _pattern(pattern).fullmatch(name)
    return int(match["n"]) if match else None


def numbered(pattern: str, names: Sequence[str]) -> list[tuple[int, str]]:
    """Those names that follow the pattern, by their number."""
    return sorted((found, name) for name in names if (found := number(pattern, name)) is not None)


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name).replace(re.escape("(s)"), "s?").replace(re.escape("{n}"), r"(?P<n>\d+)")
    return re.compile(text)
