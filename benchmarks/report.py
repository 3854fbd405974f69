"""All benchmarks in one command and within a budget of minutes, then the tables and pictures of docs/performance.md.

    python -m benchmarks.report --budget 20m
    python -m benchmarks.report --only startup,warm
    python -m benchmarks.report --from-records

Each benchmark is a process of its own that writes its record as it goes. One that fails, hangs or is interrupted is
told and loses nothing but itself: what it had measured by then stays, other figures stay those of the record before.
Then the page is made from all records there are; what people wrote on it is left as it is. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from benchmarks import budget, figures, runs
from benchmarks.budget import Step, clock

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build/report"
CLEANING_S = 30.0  # for agents, servers and namespaces of a benchmark that is stopped
PAGE_S = 15.0  # to make the page
BUSY = 0.1  # of a core: a 1-minute load above that is somebody else's work
# What there is no time for beside those before it is left out. Seconds are of two quiet cores.
STEPS = (
    Step("startup", fixed_s=10, pair_s=7.5, least=3, wanted=8),
    Step("warm", fixed_s=5, pair_s=42, least=2, wanted=4),
    Step("memory", fixed_s=18, pair_s=14, least=2, wanted=4),
    Step("restart", fixed_s=3, pair_s=31, least=2, wanted=4),
    Step("failover", fixed_s=225, pair_s=60, least=2, wanted=3),
    Step("rendezvous", fixed_s=280, pair_s=48, least=1, wanted=3),
    Step("scale", fixed_s=10, pair_s=65, least=1, wanted=1),
    Step("output", fixed_s=10, pair_s=13, least=2, wanted=5),
    Step("placement", fixed_s=35, pair_s=6, least=3, wanted=5),
)


class Outcome(NamedTuple):
    """How a step ended: whether it came to its end, and a sentence if it did not."""

    is_done: bool
    why: str = ""


class Stopped(Exception):
    """Somebody asked this report to end."""


def command(step: Step, pairs: int, record: Path) -> list[str]:
    """How a benchmark is called, in ROOT; its words are part of its record."""
    place = os.path.relpath(record, ROOT)
    return [sys.executable, "-m", f"benchmarks.{step.name}", "--quick", "--pairs", str(pairs), "--json", place]


def run(words: Sequence[str], limit_s: float, log: Path) -> Outcome:
    """Run one benchmark for no longer than that. Raises Stopped, when it has ended too."""
    # Compiled modules are part of what is measured, on either side.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = None
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            assert process is not None
            end(process)
            return Outcome(False, f"still at it after {clock(limit_s)}, stopped")
        except (KeyboardInterrupt, Stopped):
            if process is not None:
                end(process)
            raise Stopped from None
    said = log.read_text(errors="replace").strip().splitlines()
    return (
        Outcome(True) if code == 0 else Outcome(False, f"exit code {code}: {said[-1] if said else 'it said nothing'}")
    )


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a benchmark to clean up and end, ask again, then kill its group: a launcher that hangs is in it, too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLEANING_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def keep(new: Path, kept: Path, is_done: bool, start: dict[str, Any]) -> bool:
    """Move what was measured to the records; whether there was anything.

    The record of a benchmark that came to its end takes the place of all before it. Another one is put behind them, so
    that its figures, being newer, count and no other is lost. Raises RecordError for what is no record.
    """
    text = new.read_text() if new.exists() else ""
    found = runs.read(text, new.name)
    if not any(run.figures() or len(run.lines) > 1 for run in found):
        return False
    lines = text.splitlines()[: None if text.endswith("\n") else -1]
    lines = [json.dumps({**json.loads(line), "report": start}) if '"machine"' in line else line for line in lines]
    before = kept.read_text() if kept.exists() and not is_done else ""
    kept.write_text(before + "".join(f"{line}\n" for line in lines))
    new.unlink()
    return True


def chosen(words: str | None) -> list[Step]:
    """The steps that --only names, or all. Raises ValueError for a name that none has."""
    names = [step.name for step in STEPS] if words is None else [name.strip() for name in words.split(",")]
    unknown = [name for name in names if name not in {step.name for step in STEPS}]
    if unknown:
        raise ValueError(f"no benchmark is called {unknown[0]!r}: {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if step.name in names]


def announce(steps: Sequence[Step], planned: dict[str, int], budget_s: float) -> None:
    """Say how the minutes will be spent, and what there is no time for."""
    total_s = sum(step.seconds(planned[step.name]) for step in steps if step.name in planned)
    parts = [f"{step.name} {planned[step.name]}" for step in steps if step.name in planned]
    say(f"pairs: {', '.join(parts)}; about {clock(total_s)} of {clock(budget_s)}")
    for step in steps:
        if step.name not in planned:
            say(f"{step.name}: left out, it needs {clock(step.seconds(step.least))}")


def measure(steps: Sequence[Step], budget_s: float, records: Path) -> Iterator[tuple[Step, Outcome]]:
    """Run the steps one after the other, each with as many pairs as its share of what is left allows."""
    began_s = time.monotonic()
    start = {"unix_time_s": time.time(), "load_1min": os.getloadavg()[0], "budget_s": budget_s}
    announce(steps, budget.plan(steps, budget_s - PAGE_S), budget_s)
    LOGS.mkdir(parents=True, exist_ok=True)
    records.mkdir(parents=True, exist_ok=True)
    planned_s = taken_s = 1.0
    for at in range(len(steps)):
        left_s = budget_s - PAGE_S - (time.monotonic() - began_s)
        step, *_ = rest = budget.slower(steps[at:], max(1.0, taken_s / planned_s))
        pairs = budget.plan(rest, left_s).get(step.name)
        if pairs is None:
            needed = clock(step.seconds(step.least))
            say(f"{step.name:<11}left out: {clock(max(0, left_s))} are left, and it needs {needed}")
            yield step, Outcome(False, "left out")
            continue
        new, log = LOGS / f"{step.name}.jsonl", LOGS / f"{step.name}.log"
        new.unlink(missing_ok=True)
        since_s = time.monotonic()
        outcome, is_stopped = Outcome(False, "interrupted"), False
        try:
            outcome = run(command(step, pairs, new), budget.limit_s(step, pairs, left_s), log)
        except Stopped:
            is_stopped = True
        took_s = time.monotonic() - since_s
        planned_s, taken_s = planned_s + steps[at].seconds(pairs), taken_s + took_s
        try:
            is_kept = keep(new, records / f"{step.name}.jsonl", outcome.is_done, start)
        except runs.RecordError as error:
            is_kept, outcome = False, Outcome(False, str(error))
        line = f"{step.name:<11}{pairs} pairs  {clock(took_s)} of {clock(step.seconds(pairs))}  "
        lost = "what it measured until then counts" if is_kept else "it measured nothing"
        say(line + ("done" if outcome.is_done else f"{outcome.why}; {lost}; see {os.path.relpath(log, ROOT)}"))
        yield step, outcome
        if is_stopped:
            raise Stopped


def say(sentence: str) -> None:
    """One line for whoever waits."""
    print(sentence, file=sys.stderr, flush=True)


def verdicts(history: runs.History) -> str:
    """How many aims are reached, and which are not."""
    from benchmarks.tables import verdict

    found = {aim.figure: verdict(aim, history.series.get(aim.figure)) for aim in figures.AIMS}
    lines = [f"{sum(each is True for each in found.values())} of {len(found)} aims are reached"]
    lines += [f"  not reached: {figure}" for figure, each in found.items() if each is False]
    lines += [f"  not measured: {figure}" for figure, each in found.items() if each is None]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a benchmark failed, 2 for what the caller can mend, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", default="20m", metavar="TIME", help="how long all may take (default: %(default)s)")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(step.name for step in STEPS)}")
    parser.add_argument("--from-records", action="store_true", help="measure nothing, make the page from what is there")
    options = parser.parse_args(words)
    try:
        steps, budget_s = chosen(options.only), budget.seconds(options.budget)
    except ValueError as error:
        parser.error(str(error))
    try:
        from benchmarks import page
    except ModuleNotFoundError as error:
        say(f"{error.name} is missing, which the report needs")
        say("hint: pip install --constraint constraints.txt '.[report]'")
        return 2
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would have it ignored
    failed, is_stopped = [], False
    try:
        page.made(page.PAGE.read_text(), page.history())  # better now than when all is measured
        if not options.from_records:
            load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
            if load > BUSY * cores:
                say(f"this machine is busy, its load is {load:.2f} on {cores} cores: times will be long and far apart")
            try:
                for step, outcome in measure(steps, budget_s, page.RECORDS):
                    failed += [] if outcome.is_done else [step.name]
            except (KeyboardInterrupt, Stopped):
                is_stopped = True
                say("interrupted: the page is made from what there is")
        history = page.write()
    except (runs.RecordError, page.PageError) as error:
        say(str(error))
        return 2
    print(verdicts(history))
    say(f"written: {page.PAGE.relative_to(ROOT)} and its pictures")
    return 130 if is_stopped else 1 if failed else 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
