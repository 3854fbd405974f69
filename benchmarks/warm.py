"""Eight workers that import torch: started, and one of them killed, with the modules in memory and without.

What is timed is the import's end in the last worker, from the launcher's exec and from the SIGKILL. meshrun runs three
jobs: `--preload torch`, the same with `--standby 1`, and a cold one; torchrun has one way, so its one job stands beside
each of them. Each worker says that it has imported torch, and the time (CLOCK_MONOTONIC, one clock for all processes of
a machine), and sleeps. Between start and kill nothing happens for longer than meshrun's min_round_time_s, and memory is
counted then: as PSS, in which a page that several processes share is divided among them.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import statistics
import time
from collections.abc import Collection

import psutil

from benchmarks import figures, pairs
from benchmarks.figures import COLD, STANDBY
from benchmarks.restart import SCRIPT as IDLE
from benchmarks.restart import WORKERS, one_round
from launcher.supervisor.messages import KEEPER_NAME, SUPERVISOR_NAME

SCRIPT = f"import torch\n{IDLE}"
WAYS = {"": ("--preload=torch",), STANDBY: ("--preload=torch", "--standby=1"), COLD: ()}


def sample(side: str, ways: Collection[str], kills: int, idle_s: float, chance: random.Random) -> dict[str, float]:
    """One job each in these ways, one after the other; seconds and MiB."""
    if side == pairs.THEIRS:
        found = job(side, (), kills, idle_s * chance.uniform(1.0, 1.3))
        return {figure + way: value for way in ways for figure, value in found.items() if _is_of(figure, way)}
    return {
        figure + way: value
        for way in ways
        for figure, value in job(side, WAYS[way], kills, idle_s * chance.uniform(1.0, 1.3)).items()
        if _is_of(figure, way)
    }


def _is_of(figure: str, way: str) -> bool:
    """With workers that wait, memory is another matter."""
    return "PSS" not in figure or way == "" or (way == COLD and figure == figures.WARM_PSS)


def job(side: str, options: Collection[str], kills: int, idle_s: float) -> dict[str, float]:
    """One job: its start, its memory, and the median over kills."""
    words = ["--nproc-per-node", str(WORKERS), "--max-restarts", str(kills), *options]
    with pairs.running(side, words, SCRIPT) as running:
        pids, last_s = one_round(running, restart_count=0)
        started_s = last_s - running.started_s
        restarts_s: list[float] = []
        memory: dict[str, float] = {}
        for kill in range(1, kills + 1):
            time.sleep(idle_s)
            memory = memory or pss(running.process.pid, set(pids.values()), is_warm=bool(options))
            killed_s = time.monotonic()
            os.kill(pids[kill % WORKERS], signal.SIGKILL)
            pids, last_s = one_round(running, restart_count=kill)
            restarts_s.append(last_s - killed_s)
        return {figures.WARM_START: started_s, figures.WARM_RESTART: statistics.median(restarts_s), **memory}


def pss(root: int, workers: Collection[int], *, is_warm: bool) -> dict[str, float]:
    """MiB of the workers, of the launcher, and of the preloaded image, which has Python's name and none of ours."""
    launcher = psutil.Process(root)
    sums = dict.fromkeys((figures.WARM_PSS, figures.WARM_LAUNCHER_PSS, figures.IMAGE_PSS), 0.0)
    for process in (launcher, *launcher.children(recursive=True)):
        is_own = process.pid == root or not is_warm or process.name() in (KEEPER_NAME, SUPERVISOR_NAME)
        own = figures.WARM_LAUNCHER_PSS if is_own else figures.IMAGE_PSS
        sums[figures.WARM_PSS if process.pid in workers else own] += process.memory_full_info().pss / 2**20
    return sums if is_warm else {figure: value for figure, value in sums.items() if value}


if __name__ == "__main__":
    parser = pairs.arguments(__doc__ or "", pairs=5, quick=2)
    parser.add_argument("--kills", type=int, default=1, help="kills per job (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=5.5, metavar="S", help="least pause before a kill (default: 5.5)")
    parser.add_argument("--ways", type=int, choices=(1, 2, 3), help="how many of the three ways (default: 3, quick: 2)")
    options = parser.parse_args()
    ways = list(WAYS)[: options.ways or (2 if options.quick else 3)]
    take = functools.partial(sample, ways=ways, kills=options.kills, idle_s=options.idle, chance=random.Random(1))
    names = [figure + way for figure in (figures.WARM_START, figures.WARM_RESTART) for way in ways]
    lines = [pairs.Figure(name, "s") for name in names]
    lines += [pairs.Figure(figures.WARM_PSS + way, "MiB") for way in ways if way != STANDBY]
    lines += [pairs.Figure(name, "MiB") for name in (figures.WARM_LAUNCHER_PSS, figures.IMAGE_PSS)]
    pairs.main(take, lines, options, warm_ups=0 if options.quick else 1)
