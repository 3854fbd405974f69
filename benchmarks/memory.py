"""How much memory the launcher itself holds while its workers run, on one node and on a node of several.

Eight workers sleep; what is counted is every process of the job that is not a worker: torchrun's agent, our agent,
keeper and supervisor. The measure is PSS (proportional set size, as psutil reads it): a page that several processes
share is divided among them, so a sum over processes counts no page twice.

A node of several talks to a store in the network, meshrun's to a real etcd, torchrun's to a store that its agent
serves. It waits for others that do not come, so that no second agent shares its libraries on this machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import psutil

from benchmarks import pairs
from benchmarks.figures import PROCESSES, PSS, PSS_ETCD

WORKERS = 8
SETTLE_S = 2.0
HOST = "127.0.0.1"
SCRIPT = r"""
import os, signal
print(f"{os.getpid()}\n", end="", flush=True)  # one write: both launchers run Python unbuffered
signal.pause()
"""


def sample(side: str) -> dict[str, float]:
    """The launcher alone, then where others could join; MiB."""
    pss, count = measure(side, [])
    with contextlib.ExitStack() as stack:
        if side == pairs.OURS:
            server = stack.enter_context(pairs.running_etcd())
            where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={server.endpoint}", "--join-grace=0"]
        else:
            where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{pairs.find_free_port(HOST)}"]
            where += ["--rdzv-conf=last_call_timeout=1"]
        with_others, _ = measure(side, ["--nnodes=1:2", "--rdzv-id=memory", *where])
    return {PSS: pss, PSS_ETCD: with_others, PROCESSES: float(count)}


def measure(side: str, meeting: Sequence[str]) -> tuple[float, int]:
    """Start the workers, leave the launcher alone for SETTLE_S, and add up: MiB, and of how many processes."""
    with pairs.running(side, ["--nproc-per-node", str(WORKERS)], SCRIPT, meeting=meeting) as job:
        workers = {int(job.line()) for _ in range(WORKERS)}
        time.sleep(SETTLE_S)
        root = psutil.Process(job.process.pid)
        counted = [root, *(child for child in root.children(recursive=True) if child.pid not in workers)]
        return sum(process.memory_full_info().pss for process in counted) / 2**20, len(counted)


@pairs.benchmark(pairs=5, quick=3)
def main(bench: pairs.Bench) -> None:
    bench.alternate(sample)


if __name__ == "__main__":
    main()
