"""How long until the last worker has said its first word, and how long a job lasts that does nothing.

Each worker prints one line and ends; it imports nothing, so the time is the launcher's and the bare
Python's. Lines are timed where they arrive, at the reading end of the pipe that all workers share.
"""

from __future__ import annotations

import time

import pairs

WORKERS = (1, 2, 8)
SCRIPT = r"print('here\n', end='', flush=True)" + "\n"  # one write: both launchers run Python unbuffered


def sample(side: str) -> dict[str, float]:
    """One job for each number of workers, one after the other; seconds."""
    figures: dict[str, float] = {}
    for workers in WORKERS:
        with pairs.running(side, ["--nproc-per-node", str(workers)], SCRIPT) as job:
            for _ in range(workers):
                job.line()
            figures[first_line(workers)] = time.monotonic() - job.started_s
            job.finish()
            figures[whole_job(workers)] = time.monotonic() - job.started_s
    return figures


def first_line(workers: int) -> str:
    return f"exec to first line, {workers} worker{'s' * (workers > 1)}"


def whole_job(workers: int) -> str:
    return f"whole job that does nothing, {workers} worker{'s' * (workers > 1)}"


if __name__ == "__main__":
    goals = {first_line(8): 0.12, whole_job(8): 0.12}
    names = [name(workers) for name in (first_line, whole_job) for workers in WORKERS]
    options = pairs.arguments(__doc__ or "", pairs=10).parse_args()
    pairs.main(sample, [pairs.Figure(name, "s", goals.get(name)) for name in names], options)
