"""How long until the last worker has said its first word, and how long a job lasts that does nothing.

Each worker prints one line and ends; it imports nothing, so the time is the launcher's and the bare Python's. Lines are
timed where they arrive, at the reading end of the pipe that all workers share. The same eight Pythons started by a loop
of the shell, which does nothing else, are the least that any launcher could take.

`--check` compares nothing with torchrun: it fails when the launcher needs more of the processor than it did. The unit
is the CPU time of a Python that does nothing, in the same run, so a slower machine has the same figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import click

from benchmarks import figures, pairs

WORKERS = (1, 2, 8)
SCRIPT = r"print('here\n', end='', flush=True)" + "\n"  # one write: both launchers run Python unbuffered
LOOP = ["sh", "-c", f'for worker in {" ".join(map(str, range(8)))}; do "$0" -u "$1" & done; wait', sys.executable]

# In bare Pythons, of CPU time. Seen are 10.7 to 10.9 and 0.4 with msgspec, whose import is some 3 of them; without it 6
# to 8. Classes made by the library's dataclasses and named tuples took 13.
JOB_MAX, WORKER_MAX = 12.0, 0.9
RUNS = 12


def sample(side: str) -> dict[str, float]:
    """One job for each number of workers, one after the other; seconds."""
    found: dict[str, float] = {}
    for workers in WORKERS:
        first_s, whole_s = run(side, ["--nproc-per-node", str(workers)], (), workers)
        found[figures.workers(figures.FIRST_LINE, workers)] = first_s
        found[figures.workers(figures.WHOLE_JOB, workers)] = whole_s
    if side == pairs.OURS:
        found[figures.LOOP], _ = run(side, (), LOOP, 8)
    return found


def run(side: str, options: Sequence[str], command: Sequence[str], workers: int) -> tuple[float, float]:
    """Seconds from the exec to the last first line, and to the end."""
    with pairs.running(side, options, SCRIPT, command=command) as job:
        for _ in range(workers):
            job.line()
        first_s = time.monotonic() - job.started_s
        job.finish()
        return first_s, time.monotonic() - job.started_s


def check() -> list[str]:
    """What has grown, as sentences. The least of several runs counts: others on this machine only ever add."""
    launcher = [*pairs.COMMANDS[pairs.OURS], "--standalone", "--no-python", "--nproc-per-node"]
    commands = {
        "unit": [sys.executable, "-I", "-S", "-c", "pass"],
        "start": [sys.executable, "-c", "pass"],
        "one": [*launcher, "1", "true"],
        "eight": [*launcher, "8", "true"],
    }
    runs = [{name: spend_cpu_s(command) for name, command in commands.items()} for _ in range(RUNS)]
    least = {name: min(run[name] for run in runs[1:]) for name in commands}  # the first fills caches
    job = (least["one"] - least["start"]) / least["unit"]
    worker = (least["eight"] - least["one"]) / 7 / least["unit"]
    print(f"a bare Python takes {least['unit'] * 1000:.1f} ms of CPU; in these, beyond the start of its own Python:")
    print(f"a job of one program that does nothing: {job:.2f}, at most {JOB_MAX:g}")
    print(f"each further program: {worker:.2f}, at most {WORKER_MAX:g}")
    where = "`python -X importtime -m launcher` shows where, tests/cli/test_start.py counts what is imported"
    grown = ["the start of a job has grown: " + where] if job > JOB_MAX else []
    return grown + (["the start of a worker has grown"] if worker > WORKER_MAX else [])


def spend_cpu_s(command: Sequence[str]) -> float:
    """CPU time of a program and all that it starts and waits for. Raises RuntimeError if it fails."""
    with open(os.devnull, "r+b") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), descriptor) for descriptor in (0, 1, 2)]
        pid = os.posix_spawn(sys.executable, command, pairs.environment(), file_actions=actions)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def check_and_exit(context: click.Context, option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        sys.exit("\n".join(check()) or 0)


@pairs.benchmark(pairs=10, quick=3)
@click.option("--check", is_flag=True, callback=check_and_exit, expose_value=False, help="Fail when CPU time grew.")
def main(bench: pairs.Bench) -> None:
    bench.alternate(sample)


if __name__ == "__main__":
    main()
