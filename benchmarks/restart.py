"""How long from the death of one of eight workers until all eight of the next round have said a word.

Each worker prints its restart count and the time (CLOCK_MONOTONIC, one clock for all processes of a
machine) and sleeps. One of them is killed with SIGKILL, another one each time; between kills nothing
happens for a while of random length, so that a launcher that polls is met at any point of its period. The
while is longer than meshrun's min_round_time_s: it holds rounds back that end sooner, on purpose.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import statistics
import time

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


def sample(side: str, kills: int, idle_s: float, chance: random.Random) -> dict[str, float]:
    """One job in which `kills` workers are killed one after the other; the median over the kills, seconds."""
    options = ["--nproc-per-node", str(WORKERS), "--max-restarts", str(kills)]
    with pairs.running(side, options, SCRIPT) as job:
        pids, _ = one_round(job, restart_count=0)
        times_s: list[float] = []
        for kill in range(1, kills + 1):
            time.sleep(idle_s * chance.uniform(1.0, 1.5))
            killed_s = time.monotonic()
            os.kill(pids[kill % WORKERS], signal.SIGKILL)
            pids, last_s = one_round(job, restart_count=kill)
            times_s.append(last_s - killed_s)
        singly = {f"kill {number}": time_s for number, time_s in enumerate(times_s, start=1)}
        return {RESTART: statistics.median(times_s), **singly}


def one_round(job: pairs.Job, restart_count: int) -> tuple[dict[int, int], float]:
    """Read the line of every worker of a round: pid by local rank, and the time in the last."""
    pids: dict[int, int] = {}
    last_s = 0.0
    while len(pids) < WORKERS:
        count, local_rank, pid, now_s = job.line().split()
        if int(count) == restart_count:
            pids[int(local_rank)] = int(pid)
            last_s = max(last_s, float(now_s))
    return pids, last_s


if __name__ == "__main__":
    parser = pairs.arguments(__doc__ or "", pairs=5)
    parser.add_argument("--kills", type=int, help="kills per job (default: 3, quick: 2)")
    parser.add_argument("--idle", type=float, default=5.5, metavar="S", help="least pause between kills (default: 5.5)")
    options = parser.parse_args()
    kills = options.kills or (2 if options.quick else 3)
    take = functools.partial(sample, kills=kills, idle_s=options.idle, chance=random.Random(1))
    pairs.main(take, [pairs.Figure(RESTART, "s")], options, warm_ups=0 if options.quick else 1)
