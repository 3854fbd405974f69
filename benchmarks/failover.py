"""How long a job on several nodes is without its workers, and without a training step, when something happens.

What can happen is told in trial.py. The workers are idle: they note that they began, with the time (CLOCK_MONOTONIC,
one clock for all processes of a machine), and sleep; a time runs from just before the event to the first line of the
last worker of the next round. Or they train with torch over gloo, and it runs to the end of the first step that all of
them have made together; under meshrun also with --preload. Where the leader's node can be the victim it is so in half
of the runs, which are reported apart. Each event is the first one of its job: rounds that end within min_round_time_s
are held back on purpose, but only from the second one in a row.

torchrun runs in turns with meshrun where it gets to a next round at all. Where it does not, it is watched once for
a short while: its workers are idle, and nothing else would tell it.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import figures, pairs, stamped
from benchmarks.agents import NEVER
from benchmarks.trial import ANY, FOLLOWER, LEADER, Case, Trial

NODE_EVENTS = ("kill", "leave", "freeze", "pause", "partition")
UNNOTICED = ("kill", "leave", "join")  # by torchrun with idle workers, or to no good: its agents exit after a minute
UNTRIED = ("freeze", "pause", "partition")  # with torchrun, which would notice them no better than a kill
WATCH_LIMIT_S = 12.0
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
    Case("kill", 4, FOLLOWER),
    Case("kill", 4, LEADER),
    Case("partition", 4, FOLLOWER),
    Case("partition", 4, LEADER),
    Case("join", 3),
)

Times = dict[str, dict[str, dict[int, float]]]  # figure -> side -> pair -> seconds


class Turn(NamedTuple):
    """One run."""

    case: Case
    side: str
    pair: int
    limit_s: float


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """What the options ask for."""
    for event in options.events.split(","):
        for agents in map(int, options.agents.split(",")):
            if agents == 1 and event in NODE_EVENTS:
                continue  # nobody is left
            for victim in (FOLLOWER, LEADER) if event in NODE_EVENTS else (ANY,):
                for job in options.jobs.split(","):
                    yield Case(event, agents, victim, job)


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    """Every run, in order: within a pair the sides take turns."""
    chosen = [(case, case in EACH) for case in (*EACH, *ONCE)] if options.quick else [(c, True) for c in cases(options)]
    for pair in range(1, options.pairs + 1):
        for case, is_repeated in chosen:
            if pair > 1 and not is_repeated:
                continue
            for side in pairs.sides(options):
                limit_s = options.limit if side == pairs.OURS else theirs_limit_s(case, pair, options)
                if limit_s:
                    yield Turn(case, side, pair, limit_s)


def theirs_limit_s(case: Case, pair: int, options: argparse.Namespace) -> float:
    """How long torchrun is waited for; 0 where it takes no part."""
    if case.event in UNTRIED or case.victim == LEADER or case.job == "warm":
        return 0.0
    if case.event not in UNNOTICED:
        return float(options.limit)
    if options.quick and case.event == "leave":
        return 0.0
    # A worker that trains notices by itself when another has gone, so there it is tried each time.
    is_watched = pair == 1 and case.agents == (3 if case.event == "join" and options.quick else options.watched)
    return min(options.limit, WATCH_LIMIT_S) if is_watched or case.job == "gloo" else 0.0


def measure(turn: Turn, options: argparse.Namespace, chance: random.Random, record: Any, times: Times) -> bool:
    """One run, told, noted and recorded. False if it came to no first round, which says nothing about the event.

    Without `ip`, or the right to make namespaces, the others are measured all the same.
    """
    case, side = turn.case, turn.side
    trial = Trial(side, case, chance, workers=options.workers, limit_s=turn.limit_s, has_steps=options.steps)
    try:
        outcome = trial.run()
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        record({"failed": case.figure, "side": side, "pair": turn.pair, "why": str(error)[:2000]})
        print(f"{side}: {case.figure}: {error}", file=sys.stderr, flush=True)
        return False
    found = {case.figure: outcome.took_s}
    if outcome.overlap_s is not None:
        found[case.overlap] = outcome.overlap_s
    told = {name: value if value < NEVER else None for name, value in found.items()}
    record({"sample": side, "pair": turn.pair, "counts": True, "limit_s": turn.limit_s, **told})
    if outcome.steps:
        record({"steps": case.figure, "pair": turn.pair, **outcome.steps})
    for name, value in found.items():
        times.setdefault(name, {}).setdefault(side, {})[turn.pair] = value
        print(f"{side}: {name}: {value:.3f} s", file=sys.stderr, flush=True)
    if outcome.steps:
        print(f"    {steps_in_words(outcome.steps)}", file=sys.stderr, flush=True)
    return True


def steps_in_words(steps: Mapping[str, float]) -> str:
    """When each step was reached, in milliseconds."""
    return ", ".join(f"{name} {1e3 * steps[name]:.0f} ms" for name in stamped.STEPS if name in steps)


# --- what comes of it ---


def summary(name: str, sides: Mapping[str, Mapping[int, float]], limit_s: float) -> dict[str, Any]:
    """Medians and ranges of both sides in seconds, NEVER where nothing came; and of their ratio, where they took turns.

    In the ratio a torchrun that was waited for in vain counts as if it had come at the limit.
    """
    line: dict[str, Any] = {"figure": name}
    line |= {side: {**_spread([*taken.values()]), "runs": len(taken)} for side, taken in sides.items()}
    ours, theirs = (sides.get(side, {}) for side in (pairs.OURS, pairs.THEIRS))
    shared = ours.keys() & theirs.keys()
    if shared and statistics.median(theirs.values()) < NEVER and max(ours.values()) < NEVER:
        line["ratio"] = _spread([ours[pair] / min(theirs[pair], limit_s) for pair in sorted(shared)])
    return line


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The summary for people, as a Markdown table."""
    rows = ["| event | meshrun | torchrun | ratio: median (range) | aim |", "|---|---|---|---|---|"]
    for line in lines:
        sides = [_times(line.get(side)) for side in (pairs.OURS, pairs.THEIRS)]
        ratio = line.get("ratio")
        spread = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})" if ratio else ""
        rows.append(f"| {line['figure']} | {sides[0]} | {sides[1]} | {spread} | {_aim(line)} |")
    return "\n".join(rows)


def _times(times: Mapping[str, float] | None) -> str:
    if times is None:
        return ""
    if times["median"] == NEVER:
        return "not in time"
    most = f"{times['max']:.2f}" if times["max"] < NEVER else "never"
    return f"{times['median']:.2f} s ({times['min']:.2f} to {most}; {times['runs']})"


def _aim(line: Mapping[str, Any]) -> str:
    aim = figures.aim(line["figure"])
    if aim is None or (aim.ratio is None and pairs.OURS not in line) or (aim.ratio is not None and "ratio" not in line):
        return ""
    found = line["ratio"]["median"] if aim.ratio is not None else line[pairs.OURS]["max" if aim.every else "median"]
    words = f"{aim.ratio:g} of torchrun" if aim.ratio is not None else f"{aim.value:g} s"
    return f"at most {words}: {'reached' if aim.is_reached(found) else 'missed'}"


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    """The same for JSON, which has no infinity."""
    return {key: _finite(v) if isinstance(v, dict) else None if v == NEVER else v for key, v in line.items()}


def main() -> None:
    parser = pairs.arguments(__doc__ or "", pairs=3, quick=2)
    parser.add_argument(
        "--events", default="crash,kill,leave,join,freeze,pause,partition", help="(default: %(default)s)"
    )
    parser.add_argument("--agents", default="1,2,4,8", help="numbers of agents (default: %(default)s)")
    parser.add_argument("--jobs", default="idle", help="idle, gloo, warm: gloo and --preload (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of an agent (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=25.0, metavar="S", help="wait no longer (default: %(default)s)")
    parser.add_argument("--watched", type=int, default=4, help="on so many agents torchrun is seen not to notice")
    parser.add_argument("--steps", action="store_true", help="note in which steps the time passes, see stamped.py")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no agent stays behind
    chance = random.Random(1)
    times: Times = {}
    with pairs.recording(options) as record:
        failed_count = [measure(turn, options, chance, record, times) for turn in turns(options)].count(False)
        lines = [summary(name, sides, options.limit) for name, sides in times.items()]
        for line in lines:
            record({"summary": _finite(line)})
    print(table(lines))
    if failed_count:
        sys.exit(f"{failed_count} jobs came to no first round")


if __name__ == "__main__":
    main()
