"""All benchmarks in one command and within a budget of minutes, then the tables and pictures of docs/performance.md.

    python -m benchmarks.report --budget 20m
    python -m benchmarks.report --only startup,warm
    python -m benchmarks.report --from-records

Each benchmark is a process of its own that writes its record as it goes. One that fails, hangs or is interrupted is
told and loses nothing but itself: what it had measured by then stays, other figures stay those of the record before.

How the minutes are spent: each benchmark gets the fewest pairs that say something; then the one that is furthest from
what one would like gets a pair more, again and again, until none fits any more. Costs are of two quiet cores; before
each benchmark the plan is made anew, from what is left and from how long those before took, so a machine that is slower
has fewer pairs and the same end. Progress goes to stderr. Then `page.py` makes the page from all records there are.

Figures are of a commit: nothing is measured while the code has uncommitted changes. In the end the report names the
records that are older than the code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import figures, pairs, runs, tables

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build/report"
CLEANING_S = 30.0  # for agents, servers and namespaces of a benchmark that is stopped
PAGE_S = 15.0  # to make the page
BUSY = 0.1  # of a core: a 1-minute load above that is other work


class Step(NamedTuple):
    """One benchmark in the report. `fixed_s`: what it takes without pairs."""

    name: str
    fixed_s: float
    pair_s: float
    least: int
    wanted: int

    def seconds(self, pairs: int) -> float:
        return self.fixed_s + self.pair_s * pairs

    def scale(self, factor: float) -> Step:
        """The same on a machine that takes so many times as long."""
        return self._replace(fixed_s=self.fixed_s * factor, pair_s=self.pair_s * factor)


# What there is no time for beside those before it is left out.
STEPS = (
    Step("startup", fixed_s=10, pair_s=7.5, least=3, wanted=8),
    Step("warm", fixed_s=5, pair_s=42, least=2, wanted=4),
    Step("memory", fixed_s=18, pair_s=14, least=2, wanted=4),
    Step("restart", fixed_s=3, pair_s=31, least=2, wanted=4),
    Step("failover", fixed_s=140, pair_s=95, least=runs.WATCHES_MIN, wanted=3),
    Step("rendezvous", fixed_s=75, pair_s=62, least=2, wanted=3),
    Step("scale", fixed_s=10, pair_s=65, least=1, wanted=1),
    Step("output", fixed_s=10, pair_s=13, least=2, wanted=5),
    Step("placement", fixed_s=35, pair_s=6, least=3, wanted=5),
)


class Outcome(NamedTuple):
    """How a step ended: whether it came to its end, and a sentence if it did not."""

    is_done: bool
    why: str = ""


class Stopped(Exception):
    """This report has been asked to end."""


def plan(steps: Sequence[Step], budget_s: float) -> dict[str, int]:
    """Pairs by name of step. A step whose fewest pairs do not fit beside those before it is left out."""
    kept: list[Step] = []
    left_s = budget_s
    for step in steps:
        if step.seconds(step.least) <= left_s:
            kept.append(step)
            left_s -= step.seconds(step.least)
    found = {step.name: step.least for step in kept}
    while open_ := [step for step in kept if found[step.name] < step.wanted and step.pair_s <= left_s]:
        next_ = min(open_, key=lambda step: found[step.name] / step.wanted)
        found[next_.name] += 1
        left_s -= next_.pair_s
    return found


def parse_seconds(words: str) -> float:
    """`20m`, `90s`, `1h`, `1h30m` or a number of seconds. Raises ValueError for anything else."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", words.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{words!r} is no time such as 20m, 90s or 1h30m")
    hours, minutes, rest = (int(each or 0) for each in match.groups())
    return 3600.0 * hours + 60 * minutes + rest


def find_steps(words: str | None) -> list[Step]:
    """The steps that --only names, or all. Raises ValueError for a name that none has."""
    known = [step.name for step in STEPS]
    names = known if words is None else [name.strip() for name in words.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no benchmark is called {unknown[0]!r}: {', '.join(known)}")
    return [step for step in STEPS if step.name in names]


def clock(duration_s: float) -> str:
    """`4:05`: minutes and seconds."""
    minutes, rest = divmod(round(duration_s), 60)
    return f"{minutes}:{rest:02}"


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def command(step: Step, pairs: int, record: Path) -> list[str]:
    """How a benchmark is called, in ROOT; its words are part of its record."""
    place = os.path.relpath(record, ROOT)
    return [sys.executable, "-m", f"benchmarks.{step.name}", "--quick", "--pairs", str(pairs), "--json", place]


def run(words: Sequence[str], limit_s: float, log: Path) -> Outcome:
    """Run one benchmark for no longer than that. Raises Stopped, when it has ended too."""
    process = None
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=pairs.environment(),
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
    return Outcome(code == 0, f"exit code {code}: {said[-1] if said else 'it said nothing'}" if code else "")


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
    that its figures, being newer, count and no other is lost. Raises RecordError for what cannot be published.
    """
    text = new.read_text() if new.exists() else ""
    if not any(len(run.lines) > 1 or run.figures() for run in runs.read_published(text, new.name)):
        return False
    lines = text.splitlines()[: None if text.endswith("\n") else -1]
    lines = [json.dumps({**json.loads(line), "report": start}) if '"machine"' in line else line for line in lines]
    before = kept.read_text() if kept.exists() and not is_done else ""
    kept.write_text(before + "".join(f"{line}\n" for line in lines))
    new.unlink()
    return True


def measure(steps: Sequence[Step], budget_s: float, records: Path) -> Iterator[tuple[Step, Outcome]]:
    """Run the steps one after the other, each with as many pairs as its share of what is left allows."""
    began_s = time.monotonic()
    start = {"unix_time_s": time.time(), "load_1min": os.getloadavg()[0], "budget_s": budget_s}
    planned = plan(steps, budget_s - PAGE_S)
    total_s = sum(step.seconds(planned[step.name]) for step in steps if step.name in planned)
    parts = (f"{name} {count}" for name, count in planned.items())
    say(f"pairs: {', '.join(parts)}; about {clock(total_s)} of {clock(budget_s)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    records.mkdir(parents=True, exist_ok=True)
    planned_s = taken_s = 1.0
    for at in range(len(steps)):
        left_s = budget_s - PAGE_S - (time.monotonic() - began_s)
        step, *_ = rest = [each.scale(max(1.0, taken_s / planned_s)) for each in steps[at:]]
        pairs = plan(rest, left_s).get(step.name)
        if pairs is None:
            needed = clock(step.seconds(step.least))
            say(f"{step.name:<11}left out: {clock(max(0, left_s))} are left, and it needs {needed}")
            yield step, Outcome(False, "left out")
            continue
        new, log = LOGS / f"{step.name}.jsonl", LOGS / f"{step.name}.log"
        new.unlink(missing_ok=True)
        since_s = time.monotonic()
        # Half as long again as planned and half a minute, if that much is left.
        limit_s = max(1.0, min(1.5 * step.seconds(pairs) + 30, left_s))
        try:
            outcome, is_stopped = run(command(step, pairs, new), limit_s, log), False
        except Stopped:
            outcome, is_stopped = Outcome(False, "interrupted"), True
        took_s = time.monotonic() - since_s
        planned_s, taken_s = planned_s + steps[at].seconds(pairs), taken_s + took_s
        try:
            is_kept = keep(new, records / f"{step.name}.jsonl", outcome.is_done, start)
        except runs.RecordError as error:
            is_kept, outcome = False, Outcome(False, str(error))
        lost = "what it measured until then counts" if is_kept else "it measured nothing"
        told = "done" if outcome.is_done else f"{outcome.why}; {lost}; see {os.path.relpath(log, ROOT)}"
        say(f"{step.name:<11}{pairs} pairs  {clock(took_s)} of {clock(step.seconds(pairs))}  {told}")
        yield step, outcome
        if is_stopped:
            raise Stopped


def describe_aims(history: runs.History) -> str:
    """How many aims are reached, and which are not."""
    found = {aim.figure: tables.verdict(aim, history.series.get(aim.figure)) for aim in figures.AIMS}
    lines = [f"{sum(each is True for each in found.values())} of {len(found)} aims are reached"]
    lines += [f"  not reached: {figure}" for figure, each in found.items() if each is False]
    lines += [f"  not measured: {figure}" for figure, each in found.items() if each is None]
    return "\n".join(lines)


def describe_age(history: runs.History) -> list[str]:
    """A sentence for each benchmark and commit whose figures are older than the code that is launched."""
    found = []
    for name, commit in dict.fromkeys((run.benchmark, run.source.commit) for run in history.used()):
        count = pairs.count_commits_since(commit)
        if count is None:
            found.append(f"{name}: commit {commit[:8]} is not in this repository; measure again")
        elif count:
            changes = f"{count} commits have" if count > 1 else "1 commit has"
            found.append(f"{name}: measured at {commit[:8]}; {changes} changed {' or '.join(pairs.LAUNCHED)} since")
    return found


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--budget", default="20m", show_default=True, help="How long it may take in all: 20m, 90s, 1h30m.")
@click.option("--only", metavar="NAME,...", help="Measure these benchmarks alone; the rest stays as recorded.")
@click.option("--from-records", is_flag=True, help="Measure nothing, make the page from what is there.")
def main(budget: str, only: str | None, from_records: bool) -> None:
    """Exits with 1 if a benchmark failed, 2 for what the caller can mend, 130 if interrupted."""
    try:
        budget_s, steps = parse_seconds(budget), find_steps(only)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        from benchmarks import page
    except ModuleNotFoundError as error:
        say(f"{error.name} is missing, which the report needs")
        say("hint: pip install --constraint constraints.txt '.[report]'")
        sys.exit(2)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would have it ignored
    failed, is_stopped = [], False
    try:
        page.make(page.read(), runs.load(page.RECORDS))  # better now than when all is measured
        if not from_records:
            commit, is_dirty = pairs.find_commit()
            if commit is None or is_dirty:
                say("the code has uncommitted changes" if commit else "this is not a git repository")
                say("hint: commit the code before it is measured for the page, since each figure names its commit")
                sys.exit(2)
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
        sys.exit(2)
    print(describe_aims(history))
    for sentence in describe_age(history):
        say(sentence)
    say(f"written: {page.PAGE.relative_to(ROOT)}, {page.DETAILS.relative_to(ROOT)} and their pictures")
    sys.exit(130 if is_stopped else 1 if failed else 0)


def _stop(*_: object) -> None:
    raise Stopped


if __name__ == "__main__":
    main()
