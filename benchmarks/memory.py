"""How much memory the launcher itself holds while its workers run.

Eight workers sleep; what is counted is every process of the job that is not a worker: torchrun's agent,
our agent and its warden. The measure is PSS (proportional set size, as psutil reads it): a page that several
processes share is divided among them, so a sum over processes counts no page twice.
"""

from __future__ import annotations

import functools
import time

import pairs
import psutil

WORKERS = 8
SCRIPT = r"""
import os, signal
print(f"{os.getpid()}\n", end="", flush=True)  # one write: both launchers run Python unbuffered
signal.pause()
"""
PSS = f"PSS beside {WORKERS} sleeping workers"
PROCESSES = "processes that are no workers"


def sample(side: str, settle_s: float) -> dict[str, float]:
    """Start the workers, leave the launcher alone for `settle_s`, and add up; MiB."""
    with pairs.running(side, ["--nproc-per-node", str(WORKERS)], SCRIPT) as job:
        workers = {int(job.line()) for _ in range(WORKERS)}
        time.sleep(settle_s)
        root = psutil.Process(job.process.pid)
        counted = [root, *(child for child in root.children(recursive=True) if child.pid not in workers)]
        pss = sum(process.memory_full_info().pss for process in counted)
        return {PSS: pss / 2**20, PROCESSES: float(len(counted))}


if __name__ == "__main__":
    parser = pairs.arguments(__doc__ or "", pairs=5)
    parser.add_argument("--settle", type=float, default=2.0, metavar="S", help="seconds before measuring (default: 2)")
    options = parser.parse_args()
    figures = [pairs.Figure(PSS, "MiB", 0.15), pairs.Figure(PROCESSES, "")]
    pairs.main(functools.partial(sample, settle_s=options.settle), figures, options)
