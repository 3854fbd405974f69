"""How long from the death of one of eight workers until all eight of the next round have said a word.

Each worker prints its restart count and the time (CLOCK_MONOTONIC, one clock for all processes of a machine) and
sleeps. One of them is killed with SIGKILL, another one each time; between kills nothing happens for a while of random
length, so that a launcher that polls is met at any point of its period. The while is longer than meshrun's
min_round_time_s: it holds rounds back that end sooner, on purpose.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks import pairs
from benchmarks.figures import RESTART

WORKERS = 8
SCRIPT = r"""
import os, signal, time
now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
words = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"], os.getpid(), now_s
print("%s %s %d %.6f\n" % words, end="", flush=True)  # one write: both launchers run Python unbuffered
signal.pause()
"""
IDLE_S = 5.5


class Workers:
    """Eight workers under a launcher. `started_s`: from the exec to the last first line."""

    def __init__(self, job: pairs.Job) -> None:
        self.job = job
        self.restart_count = 0
        self.pids: dict[int, int] = {}
        self.started_s = self._read_round() - job.started_s

    def kill_one(self) -> float:
        """Kill a worker; seconds until the last of the next round has said its word."""
        killed_s = time.monotonic()
        self.restart_count += 1
        os.kill(self.pids[self.restart_count % WORKERS], signal.SIGKILL)
        return self._read_round() - killed_s

    def _read_round(self) -> float:
        """Read the line of every worker of the round; the last time in them."""
        self.pids, last_s = {}, 0.0
        while len(self.pids) < WORKERS:
            count, local_rank, pid, now_s = self.job.line().split()
            if int(count) == self.restart_count:
                self.pids[int(local_rank)] = int(pid)
                last_s = max(last_s, float(now_s))
        return last_s


@contextlib.contextmanager
def running(side: str, kills: int, script: str, options: Sequence[str] = ()) -> Iterator[Workers]:
    """A job of eight workers of which so many may be killed."""
    words = ["--nproc-per-node", str(WORKERS), "--max-restarts", str(kills), *options]
    with pairs.running(side, words, script) as job:
        yield Workers(job)


@pairs.benchmark(pairs=5, quick=3)
def main(bench: pairs.Bench) -> None:
    kills, rng = 2 if bench.is_quick else 3, random.Random(1)

    def sample(side: str) -> dict[str, float]:
        """One job in which workers are killed one after the other; the median over the kills, seconds."""
        with running(side, kills, SCRIPT) as workers:
            times_s = []
            for _ in range(kills):
                time.sleep(IDLE_S * rng.uniform(1.0, 1.5))
                times_s.append(workers.kill_one())
        return {RESTART: statistics.median(times_s)}

    bench.alternate(sample, warm_ups=0 if bench.is_quick else 1)


if __name__ == "__main__":
    main()
