"""Healthy jobs that pause for three times --hang-timeout, and controls that hang as long: which is called hung?

    python -m tests.support.jobs.healthy_runs

Real jobs of torch and of JAX, of two ranks, under one agent and under two, each with one pause of rank 0, for which the
other rank waits. A false alarm is any line of an agent that says that there is no progress.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click

from tests.support.jobs.pausing_training import CHUNK_BYTES, CHUNKS, DISK, OVER, PAUSING, PIPE
from tests.support.jobs.single_node import Command
from tests.support.network.namespaces import free_port
from tests.support.processes.tree import REPOSITORY
from tests.support.stores.frozen_disks import Disk
from tests.support.waiting import wait_until

HANG_TIMEOUT_S = 3.0
PAUSE_S = 3 * HANG_TIMEOUT_S
START_LIMIT_S, END_LIMIT_S = 180.0, 120.0
ALARM = "no progress for"
FRAMEWORKS = ("torch", "jax")
SCRIPT = Path(__file__).with_name("pausing_training.py")

CONTROL = "hang"


class Run(NamedTuple):
    """One job. `pause`: a key of PAUSES, or CONTROL."""

    pause: str
    framework: str
    agents: int


class Outcome(NamedTuple):
    """`alarms`: lines of what the agents `said`. `skipped`, `failed`: why there is no result; "" if there is one."""

    alarms: list[str]
    said: str = ""
    skipped: str = ""
    failed: str = ""


class Skipped(Exception):
    """This machine cannot have such a pause."""


@contextmanager
def leave_alone(directory: Path) -> Iterator[Callable[[int], object]]:
    """The script makes the pause."""
    yield lambda pid: None


@contextmanager
def read_slowly(directory: Path) -> Iterator[Callable[[int], object]]:
    os.mkfifo(directory / PIPE)
    file = os.open(directory / PIPE, os.O_RDWR | os.O_NONBLOCK)  # it never ends

    def read(pid: int) -> None:
        for _ in range(CHUNKS):
            left = CHUNK_BYTES
            while left:
                wait_until(lambda: select.select([file], [], [], 0)[0], 20, "a chunk of the checkpoint")
                left -= len(os.read(file, left))
            time.sleep(PAUSE_S / CHUNKS)

    try:
        yield read
    finally:
        os.close(file)


@contextmanager
def freeze_disk(directory: Path) -> Iterator[Callable[[int], object]]:
    disk = Disk(directory, DISK)
    try:
        disk.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"no disk can be mounted: {error}") from None

    def thaw(pid: int) -> None:
        time.sleep(PAUSE_S)
        disk.thaw()

    try:
        disk.freeze()
        yield thaw
    finally:
        disk.unmount()


@contextmanager
def attach_debugger(directory: Path) -> Iterator[Callable[[int], object]]:
    if shutil.which("gdb") is None:
        raise Skipped("gdb is not installed")

    def debug(pid: int) -> None:
        quick = ("-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(pid))
        subprocess.run(["gdb", *quick, "-ex", f"shell sleep {PAUSE_S:g}"], check=True, capture_output=True)
        (directory / OVER).touch()

    yield debug


@contextmanager
def stop(directory: Path) -> Iterator[Callable[[int], object]]:
    def stop_for_a_while(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        os.kill(pid, signal.SIGCONT)
        (directory / OVER).touch()

    yield stop_for_a_while


PAUSES = {
    "evaluate": ("evaluation, under `phase`", leave_alone),
    "compile": ("long compilation before the first step", leave_alone),
    "save": ("checkpoint to a slow disk", read_slowly),
    "save_frozen": ("checkpoint to a disk that stands still, under `phase`", freeze_disk),
    "debugged": ("gdb attached", attach_debugger),
    "stopped": ("stopped by SIGSTOP", stop),
}
RUNS = [Run(*each) for each in product(PAUSES, FRAMEWORKS, (1, 2))]
CONTROLS = [Run(*each) for each in product((CONTROL,), FRAMEWORKS, (1, 2))]


def run(one: Run, directory: Path) -> Outcome:
    """Run a job to its end. Raises AssertionError if that is not a good one."""
    _, pausing = PAUSES.get(one.pause, ("", leave_alone))
    with ExitStack() as stack:
        try:
            act = stack.enter_context(pausing(directory))
        except Skipped as skipped:
            return Outcome([], skipped=str(skipped))
        jobs = start(one, directory, stack)
        mark = directory / PAUSING
        wait_until(
            lambda: mark.exists() or any(job.exit_code is not None for job in jobs), START_LIMIT_S, "the first steps"
        )
        if mark.exists():
            act(int(mark.read_text()))
        ended = [job.wait(END_LIMIT_S) for job in jobs]
    said = "\n".join(each.stderr for each in ended)
    assert {each.exit_code for each in ended} == {0}, f"{one}:\n{said}"
    return Outcome([line for line in said.splitlines() if ALARM in line], said)


def start(one: Run, directory: Path, stack: ExitStack) -> list[Command]:
    """Start the agents; the first serves the store, if there are two."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "TMPDIR": str(directory)}
    store = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port('127.0.0.1')}", "--rdzv-id=healthy")
    common = (f"--nproc-per-node={2 // one.agents}", f"--hang-timeout={HANG_TIMEOUT_S:g}")
    program = (str(SCRIPT), one.framework, one.pause, f"{PAUSE_S:g}")
    jobs = []
    for index in range(one.agents):
        own = directory / f"n{index}"
        own.mkdir()
        nodes = ("--nnodes=2", f"--node-name=n{index}", f"--local-addr=127.0.0.{index + 2}", *store)
        meeting = nodes if one.agents == 2 else ("--standalone",)
        framework = ("--framework=jax",) if one.framework == "jax" else ()
        command = [sys.executable, "-m", "launcher", *meeting, *framework, *common, *program]
        jobs.append(stack.enter_context(Command(own, command, environ)))
    return jobs


@click.command()
@click.option("--jobs", default=2, show_default=True, help="Jobs at a time.")
@click.option("--only", default="", help="A part of the name of a pause.")
def main(jobs: int, only: str) -> None:
    """Run all, print a table, and exit with 1 after a false alarm, a control without one, or a job that fails."""
    runs = [one for one in (*RUNS, *CONTROLS) if only in one.pause]
    print("| pause of rank 0 | framework | agents | alarms |\n|---|---|---|---|", flush=True)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for one, outcome in zip(runs, pool.map(run_somewhere, runs), strict=True):
            what = PAUSES[one.pause][0] if one.pause != CONTROL else "none: silent without a reason"
            told = outcome.skipped or outcome.failed or "; ".join(outcome.alarms) or "none"
            print(f"| {what} | {one.framework} | {one.agents} | {told} |", flush=True)
            if outcome.skipped or outcome.failed:
                counts["skipped" if outcome.skipped else "failed"] += 1
            elif one.pause == CONTROL:
                counts["controls"] += 1
                counts["missed"] += not outcome.alarms
            else:
                counts["healthy"] += 1
                counts["false"] += bool(outcome.alarms)
                if outcome.alarms:
                    print(outcome.said, file=sys.stderr, flush=True)
    print(
        f"{counts['false']} false alarms in {counts['healthy']} healthy runs, {counts['missed']} hangs missed of "
        f"{counts['controls']}; {counts['failed']} runs failed, {counts['skipped']} cannot be made here"
    )
    sys.exit(bool(counts["false"] or counts["missed"] or counts["failed"]))


def run_somewhere(one: Run) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        try:
            return run(one, Path(directory))
        except AssertionError as error:
            print(f"{one}: {error}", file=sys.stderr, flush=True)
            return Outcome([], failed="the job failed")


if __name__ == "__main__":
    main()
