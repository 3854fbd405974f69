"""How long until the last worker has said its first word, and how long a job lasts that does nothing.

Each worker prints one line and ends; it imports nothing, so the time is the launcher's and the bare Python's. Lines are
timed where they arrive, at the reading end of the pipe that all workers share. The same eight Pythons started by a loop
of the shell, which does nothing else, are the least that any launcher could take.

Their CPU time is a test, tests/cli/test_start_cpu.py: others on the machine change it little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks import figures, pairs

WORKERS = (1, 2, 8)
SCRIPT = r"print('here\n', end='', flush=True)" + "\n"  # one write: both launchers run Python unbuffered
LOOP = ["sh", "-c", f'for worker in {" ".join(map(str, range(8)))}; do "$0" -u "$1" & done; wait', sys.executable]


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


@pairs.benchmark(pairs=10, quick=3)
def main(bench: pairs.Bench) -> None:
    bench.alternate(sample)


if __name__ == "__main__":
    main()
