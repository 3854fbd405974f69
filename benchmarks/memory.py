"""How much memory the launcher itself holds while its workers run, on one node and on a node of several.

Eight workers sleep; what is counted is every process of the job that is not a worker: torchrun's agent,
our agent, keeper and supervisor. The measure is PSS (proportional set size, as psutil reads it): a page that several
processes share is divided among them, so a sum over processes counts no page twice.

A node of several talks to a store in the network, meshrun's to a real etcd, torchrun's to a store that its agent
serves. It waits for others that do not come, so that no second agent shares its libraries on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import figures, pairs
from benchmarks.agents import free_port
from tests.support.stores.etcd import EtcdServer

WORKERS = 8
HOST = "127.0.0.1"
SCRIPT = r"""
import os, signal
print(f"{os.getpid()}\n", end="", flush=True)  # one write: both launchers run Python unbuffered
signal.pause()
"""
PSS = figures.PSS
PROCESSES = "processes that are no workers"


def sample(side: str, settle_s: float) -> dict[str, float]:
    """The launcher alone, then where others could join; MiB."""
    pss, count = held(side, [], settle_s)
    with contextlib.ExitStack() as stack:
        if side == pairs.OURS:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
            server = stack.enter_context(EtcdServer("3.4", Path(directory)))
            where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={server.endpoint}", "--join-grace=0"]
        else:
            where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{free_port(HOST)}"]
            where += ["--rdzv-conf=last_call_timeout=1"]
        with_others, _ = held(side, ["--nnodes=1:2", "--rdzv-id=memory", *where], settle_s)
    return {PSS: pss, f"{PSS}, with etcd": with_others, PROCESSES: float(count)}


def held(side: str, meeting: Sequence[str], settle_s: float) -> tuple[float, int]:
    """Start the workers, leave the launcher alone for `settle_s`, and add up: MiB, and of how many processes."""
    with pairs.running(side, ["--nproc-per-node", str(WORKERS)], SCRIPT, meeting=meeting) as job:
        workers = {int(job.line()) for _ in range(WORKERS)}
        time.sleep(settle_s)
        root = psutil.Process(job.process.pid)
        counted = [root, *(child for child in root.children(recursive=True) if child.pid not in workers)]
        return sum(process.memory_full_info().pss for process in counted) / 2**20, len(counted)


if __name__ == "__main__":
    parser = pairs.arguments(__doc__ or "", pairs=5)
    parser.add_argument("--settle", type=float, default=2.0, metavar="S", help="seconds before measuring (default: 2)")
    options = parser.parse_args()
    shown = [pairs.Figure(PSS, "MiB"), pairs.Figure(f"{PSS}, with etcd", "MiB"), pairs.Figure(PROCESSES, "")]
    pairs.main(functools.partial(sample, settle_s=options.settle), shown, options)
