"""How much memory the launcher itself holds while its workers run.

Eight workers sleep; what is counted is every process of the job that is not a worker: torchrun's agent,
our agent and its warden. The measure is PSS (proportional set size, /proc/PID/smaps_rollup): a page that
several processes share is divided among them, so a sum over processes counts no page twice.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path

import pairs

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
        counted = tree(job.process.pid) - workers
        return {PSS: sum(map(pss_mib, counted)), PROCESSES: float(len(counted))}


def tree(root: int) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            parent = stat.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, waiting = set[int](), [root]
    while waiting:
        found.add(pid := waiting.pop())
        waiting += children.get(pid, [])
    return found


def pss_mib(pid: int) -> float:
    """The proportional set size of one process, in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel gives no PSS for process {pid}")


if __name__ == "__main__":
    parser = pairs.arguments(__doc__ or "", pairs=5)
    parser.add_argument("--settle", type=float, default=2.0, metavar="S", help="seconds before measuring (default: 2)")
    options = parser.parse_args()
    figures = [pairs.Figure(PSS, "MiB", 0.15), pairs.Figure(PROCESSES, "")]
    pairs.main(functools.partial(sample, settle_s=options.settle), figures, options)
