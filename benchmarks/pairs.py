"""Two launchers side by side: the same job under meshrun and under torchrun, A B A B ... in one run.

A machine that is busy, warm or slow is so for both sides of a pair, so the ratio within a pair says more than either
time. The first run of each side is thrown away: it fills the page cache and compiles modules.

A benchmark is a function `sample(side)` that runs one job under COMMANDS[side] and returns its figures by name; units
and aims are in figures.py. `@benchmark` makes a command of it: `python -m benchmarks.startup --pairs 10 --json FILE`.

A record is a file of JSON lines. A head says what was run, when, on which machine and commit, and whether the code had
uncommitted changes; each sample has its side, its pair, whether it counts, and figures by name, null for one that did
not come within the sample's `limit_s`; an end is missing where the run was cut off. runs.py reads them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from benchmarks import runs, tables
from benchmarks.runs import NEVER, OURS, SIDES, THEIRS
from tests.support.stores.etcd import EtcdServer

COMMANDS = {
    OURS: [sys.executable, "-m", "launcher"],
    THEIRS: [sys.executable, "-m", "torch.distributed.run"],
}
ROOT = Path(__file__).parents[1]
LAUNCHED = ("launcher", "rendezvous")
MEASURED = (*LAUNCHED, "benchmarks", "tests/support", "constraints.txt", ":!benchmarks/records")  # as git names files
JOB_LIMIT_S = 120.0  # a job that takes longer hangs: torchrun's slowest here takes about 2 s


class Bench(NamedTuple):
    """What a benchmark is asked for: how many pairs, of which sides, quickly or at length; and its record so far."""

    pairs: int
    sides: Sequence[str]
    is_quick: bool
    record: Callable[[dict[str, Any]], None]  # takes a line
    lines: list[dict[str, Any]]
    failures: list[str]  # sentences with which to exit in the end

    def history(self) -> runs.History:
        """What the lines come to."""
        return runs.History(runs.read_lines(enumerate(self.lines, 1), "this run"))

    def alternate(self, sample: Callable[[str], dict[str, float]], *, warm_ups: int = 1) -> None:
        """Call `sample` A B A B ... for all pairs, after `warm_ups` of them that do not count."""
        for pair in range(1 - warm_ups, self.pairs + 1):
            for side in self.sides:
                self.note(side, pair, sample(side))
            print(f"pair {pair} of {self.pairs}", file=sys.stderr, flush=True)

    def note(self, side: str, pair: int, found: dict[str, float], *, counts: bool = True) -> None:
        """Record one sample. NEVER becomes null, and `limit_s` among the figures says how long this run was watched."""
        assert "limit_s" in found or NEVER not in found.values(), found
        values = {name: value if value < NEVER else None for name, value in found.items()}
        self.record({"sample": side, "pair": pair, "counts": counts and pair > 0, **values})


def benchmark(*, pairs: int, quick: int) -> Callable[[Callable[..., str | None]], click.Command]:
    """Make a command of `main(bench, **options)`: the options that all have, its record, and a table at the end.

    `pairs` of jobs by default, `quick` with --quick. The table has every figure of the page, or is what `main` returns.
    """
    options = (
        click.option("--pairs", "wanted", type=int, help=f"Pairs of jobs (default: {pairs})."),
        click.option("--quick", "is_quick", is_flag=True, help=f"As `make bench WHAT=report`: {quick} pairs."),
        click.option("--json", "file", type=click.Path(path_type=Path), help="Append the record to this file."),
        click.option("--only", type=click.Choice(SIDES), help="Run one side, without ratios (to try a benchmark)."),
    )

    def decorate(main: Callable[..., str | None]) -> click.Command:
        def run(wanted: int | None, is_quick: bool, file: Path | None, only: str | None, **own: Any) -> None:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no job stays behind
            count = wanted or (quick if is_quick else pairs)
            with recording(file) as (record, lines):
                bench = Bench(count, [only] if only else SIDES, is_quick, record, lines, failures=[])
                shown = main(bench, **own)
            print(shown or tables.measured(bench.history()))
            sys.exit("\n".join(bench.failures) or 0)

        functools.update_wrapper(run, main)
        for option in options:
            run = option(run)
        return click.command(help=(sys.modules[main.__module__].__doc__ or "").partition("\n")[0])(run)

    return decorate


@contextlib.contextmanager
def recording(file: Path | None) -> Iterator[tuple[Callable[[dict[str, Any]], None], list[dict[str, Any]]]]:
    """What takes the lines of a record and appends them to `file`, after a head and before an end; and all of them."""
    lines: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(file.open("a")) if file else None

        def record(line: dict[str, Any]) -> None:
            lines.append(line)
            if out:
                print(json.dumps(line), file=out, flush=True)

        where, began_s = describe_machine(), time.monotonic()
        head = {"benchmark": Path(sys.argv[0]).stem, "arguments": sys.argv[1:], "machine": where}
        commit, is_dirty = find_commit()
        record({**head, "commit": commit, "is_dirty": is_dirty, "unix_time_s": time.time()})
        print(", ".join(f"{name} {value}" for name, value in where.items()), file=sys.stderr, flush=True)
        yield record, lines
        record({"end": True, "seconds": time.monotonic() - began_s})


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

    def tail(self) -> str:
        """The last that launcher and workers wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()[-2_000:].decode(errors="replace")


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


@contextlib.contextmanager
def running_etcd() -> Iterator[EtcdServer]:
    """meshrun's store where there are several nodes."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory, EtcdServer("3.4", Path(directory)) as server:
        yield server


def environment() -> dict[str, str]:
    """The caller's environment without what would configure either launcher, or have modules compiled every time."""
    others = ("PET_", "LAUNCHER_", "TORCHEL", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(others)}


def find_free_port(address: str) -> int:
    """A port for torchrun's store, which wants to be told; nobody holds it until then."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        number: int = probe.getsockname()[1]
        return number


def describe_machine() -> dict[str, Any]:
    """Where the samples were taken; no name of a host or a user."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_1min": os.getloadavg()[0],
        **{package: version(package) for package in ("torch", "meshrun")},
    }


def find_commit() -> tuple[str | None, bool]:
    """The commit that is measured, and whether the code differs from it. None, and true, outside of a repository."""
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *MEASURED))
    except (OSError, subprocess.CalledProcessError):
        return None, True


def count_commits_since(commit: str) -> int | None:
    """How many later commits change what is launched; None where `commit` is not in this repository."""
    try:
        return int(git("rev-list", "--count", f"{commit}..HEAD", "--", *LAUNCHED))
    except (OSError, subprocess.CalledProcessError):
        return None


def git(*words: str) -> str:
    """What git prints in this repository. Raises OSError, and CalledProcessError for an exit code."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
