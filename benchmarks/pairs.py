"""Two launchers side by side: the same job under meshrun and under torchrun, A B A B ... in one run.

A machine that is busy, warm or slow is so for both sides of a pair, so the ratio within a pair says more
than either time. What is printed is the median of these ratios and their range; the samples themselves go
to a file of JSON lines, with the machine they were taken on. The first run of each side is thrown away:
it fills the page cache and compiles modules.

Every benchmark here is a function `sample(side)` that runs one job under COMMANDS[side] and returns its
figures by name; units and aims are in figures.py. Run one as `python -m benchmarks.startup --pairs 10 --json FILE`.

A record is a file of JSON lines. A head says what was run, where and on which commit; each sample has its side, its
pair, whether it counts, and figures by name, null for one that did not come in time; then come summaries, and an end
that is missing where the run was cut off. runs.py reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks import figures
from benchmarks.runs import NEVER, OURS, THEIRS

COMMANDS = {
    OURS: [sys.executable, "-m", "launcher"],
    THEIRS: [sys.executable, "-m", "torch.distributed.run"],
}
JOB_LIMIT_S = 120.0  # a job that takes longer hangs: torchrun's slowest here takes about 2 s

Samples = dict[str, dict[str, list[float]]]  # side -> figure -> one value per pair


class Figure(NamedTuple):
    """One line of the table. `goal` is a ratio meshrun / torchrun: at most that, or at least if `more_is_better`.

    Without a goal here that of figures.py counts, if it has one by this name.
    """

    name: str
    unit: str
    goal: float | None = None
    more_is_better: bool = False


class Job:
    """A launcher that was started; `started_s` is CLOCK_MONOTONIC just before its exec."""

    def __init__(self, side: str, command: Sequence[str], script: Path, errors: IO[bytes]) -> None:
        self.side = side
        self.errors = errors
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [*command, str(script)], stdout=subprocess.PIPE, stderr=errors, cwd=script.parent, env=environment()
        )

    def line(self) -> str:
        """The next line that a worker prints. Raises RuntimeError when there is none any more."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.side}: no worker is left to print a line\n{self.tail()}")
        return line.decode().rstrip("\n")

    def finish(self) -> None:
        """Wait for the job's own end. Raises RuntimeError with the end of its stderr if it failed."""
        code = self.process.wait(JOB_LIMIT_S)
        if code:
            raise RuntimeError(f"{self.side} ended with {code}\n{self.tail()}")

    def end(self) -> None:
        """Ask the launcher to leave, and wait until it has."""
        self.process.terminate()
        try:
            self.process.wait(JOB_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self, count: int = 2_000) -> str:
        """The last bytes that launcher and workers wrote to stderr, as text."""
        self.errors.seek(0)
        return self.errors.read()[-count:].decode(errors="replace")


class HowOften(argparse.Action):
    """--pairs and --quick: whatever their order, a number that was given counts for more than that of --quick."""

    def __call__(self, parser: object, options: argparse.Namespace, values: Any, option: str | None = None) -> None:
        if self.dest == "pairs":
            options.pairs, options.pairs_given = values, True
        else:
            options.quick = True
            options.pairs = options.pairs if getattr(options, "pairs_given", False) else self.const


def arguments(description: str, pairs: int, quick: int | None = None) -> argparse.ArgumentParser:
    """The options that every benchmark has; `pairs` jobs by default, `quick` with --quick."""
    few = min(pairs, 3) if quick is None else quick
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--pairs", type=int, action=HowOften, default=pairs, help="pairs of jobs (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action=HowOften, nargs=0, const=few, default=False, help=f"as `make bench WHAT=report`: {few} pairs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append machine, samples and summary as JSON lines")
    parser.add_argument("--only", choices=sorted(COMMANDS), help="run one side, without ratios (to try a benchmark)")
    return parser


def environment() -> dict[str, str]:
    """The caller's environment without what would configure either launcher, or have modules compiled every time."""
    others = ("PET_", "LAUNCHER_", "TORCHEL", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(others)}


@contextlib.contextmanager
def running(
    side: str, options: Sequence[str], script: str, *, command: Sequence[str] = (), meeting: Sequence[str] = ()
) -> Iterator[Job]:
    """Run `script` (its text) under a launcher on this machine; its workers share one pipe for stdout.

    `meeting`: the options by which nodes meet; --standalone if there are none. `command`: another program that runs
    the script, which then gets no options. A job that the caller has not finished is ended.
    """
    command = command or [*COMMANDS[side], *(meeting or ["--standalone"]), *options]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory, tempfile.TemporaryFile() as errors:
        file = Path(directory, "script.py")
        file.write_text(script)
        job = Job(side, command, file, errors)
        try:
            yield job
        finally:
            if job.process.poll() is None:
                job.end()
            if job.process.stdout is not None:
                job.process.stdout.close()


def machine() -> dict[str, Any]:
    """Where the samples were taken; no name of a host or a user."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line[:10] == "model name"
    ]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_1min": os.getloadavg()[0],
        **{package: installed(package) for package in ("torch", "meshrun")},
    }


def installed(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """What is measured: the commit, with a + where the code is another by now; None outside of a repository."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--short", "launcher", "rendezvous"))
    except (OSError, subprocess.CalledProcessError):
        return None


def alternate(
    sample: Callable[[str], dict[str, float]],
    *,
    sides: Sequence[str],
    pairs: int,
    record: Callable[[dict[str, Any]], None],
    warm_ups: int = 1,
) -> Samples:
    """Call `sample` A B A B ..., `pairs` times each after `warm_ups` calls that do not count."""
    samples: Samples = {side: {} for side in sides}
    for pair in range(1 - warm_ups, pairs + 1):
        for side in sides:
            figures = sample(side)
            told = {name: value if value < NEVER else None for name, value in figures.items()}
            record({"sample": side, "pair": pair, "counts": pair > 0, **told})
            if pair < 1:
                continue
            for name, value in figures.items():
                samples[side].setdefault(name, []).append(value)
        print(f"pair {pair} of {pairs}", file=sys.stderr, flush=True)
    return samples


def summary(figure: Figure, samples: Samples) -> dict[str, Any]:
    """Medians of the sides that have it; median and range of the ratios within a pair.

    What torchrun did not do in time counts there as if done at the limit.
    """
    medians = {side: statistics.median(found[figure.name]) for side, found in samples.items() if figure.name in found}
    told = {side: value if value < NEVER else None for side, value in medians.items()}
    line: dict[str, Any] = {"figure": figure.name, "unit": figure.unit, **told}
    if OURS in medians and THEIRS in medians:
        ours, theirs = (samples[side][figure.name] for side in (OURS, THEIRS))
        limits_s = samples[THEIRS].get("limit_s", theirs)
        ratios = [one / min(other, end) for one, other, end in zip(ours, theirs, limits_s, strict=True)]
        line |= {
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "pairs": len(ratios),
        }
        aim = figures.aim(figure.name)
        goal, least = figure.goal, figure.more_is_better
        if goal is None and aim is not None:
            goal, least = aim.ratio, aim.least
        if goal is not None:
            line |= {"goal": goal, "reached": line["ratio"] >= goal if least else line["ratio"] <= goal}
    return line


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The summary for people, as a Markdown table."""
    rows = ["| figure | meshrun | torchrun | ratio: median (range) | goal |", "|---|---|---|---|---|"]
    for line in lines:
        sides = ["" if side not in line else _value(line[side], line["unit"]) for side in (OURS, THEIRS)]
        ratio = goal = ""
        if "ratio" in line:
            ratio = f"{line['ratio']:.3f} ({line['ratio_min']:.3f} to {line['ratio_max']:.3f}, {line['pairs']} pairs)"
        if "goal" in line:
            goal = f"{line['goal']:g}: {'reached' if line['reached'] else 'missed'}"
        rows.append(f"| {line['figure']} | {sides[0]} | {sides[1]} | {ratio} | {goal} |")
    return "\n".join(rows)


def _value(value: float | None, unit: str) -> str:
    return "not in time" if value is None else f"{value:.3g} {unit}"


@contextlib.contextmanager
def recording(options: argparse.Namespace) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What takes the lines of a record: appends them to the file of --json, if given, after where they come from."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(options.json.open("a")) if options.json else None

        def record(line: dict[str, Any]) -> None:
            if file:
                print(json.dumps(line), file=file, flush=True)

        where, began_s = machine(), time.monotonic()
        record(
            {
                "benchmark": Path(sys.argv[0]).stem,
                "arguments": sys.argv[1:],
                "machine": where,
                "commit": commit(),
                "unix_time_s": time.time(),
            }
        )
        print(", ".join(f"{name} {value}" for name, value in where.items()), file=sys.stderr, flush=True)
        yield record
        record({"end": True, "seconds": time.monotonic() - began_s})


def sides(options: argparse.Namespace) -> list[str]:
    """Who takes part."""
    return [options.only] if options.only else [OURS, THEIRS]


def main(
    sample: Callable[[str], dict[str, float]], figures: Sequence[Figure], options: argparse.Namespace, warm_ups: int = 1
) -> None:
    """Take the samples, print the table on stdout, and keep the record if --json was given."""
    with recording(options) as record:
        samples = alternate(sample, sides=sides(options), pairs=options.pairs, record=record, warm_ups=warm_ups)
        lines = [summary(figure, samples) for figure in figures]
        for line in lines:
            record({"summary": line})
        print(table(lines))
