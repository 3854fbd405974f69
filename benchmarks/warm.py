"""Eight workers that import torch: started, and one of them killed, with the modules in memory and without.

What is timed is the import's end in the last worker, from the launcher's exec and from the SIGKILL. meshrun runs three
jobs: `--preload torch`, the same with `--standby 1`, and a cold one; torchrun has one way, so its one job stands beside
each of them. Between start and kill nothing happens for longer than meshrun's min_round_time_s, and memory is counted
then: as PSS, in which a page that several processes share is divided among them.
"""

from __future__ import annotations

import random
import time

import psutil

from benchmarks import figures, pairs, restart
from benchmarks.figures import COLD, STANDBY
from launcher.supervisor.messages import KEEPER_NAME, SUPERVISOR_NAME

SCRIPT = f"import torch\n{restart.SCRIPT}"
WAYS = {"": ("--preload=torch",), STANDBY: ("--preload=torch", "--standby=1"), COLD: ()}


def run_job(side: str, options: tuple[str, ...], idle_s: float) -> dict[str, float]:
    """One job: its start, its memory, and a worker killed; seconds and MiB."""
    with restart.running(side, 1, SCRIPT, options) as workers:
        time.sleep(idle_s)
        found = measure_pss(workers, is_warm=bool(options))
        return {figures.WARM_START: workers.started_s, figures.WARM_RESTART: workers.kill_one(), **found}


def measure_pss(workers: restart.Workers, *, is_warm: bool) -> dict[str, float]:
    """MiB of the workers, of the launcher, and of the preloaded image, which has Python's name and none of ours."""
    launcher = psutil.Process(workers.job.process.pid)
    sums = dict.fromkeys((figures.WARM_PSS, figures.WARM_LAUNCHER_PSS, figures.IMAGE_PSS), 0.0)
    for process in (launcher, *launcher.children(recursive=True)):
        is_own = process == launcher or not is_warm or process.name() in (KEEPER_NAME, SUPERVISOR_NAME)
        own = figures.WARM_LAUNCHER_PSS if is_own else figures.IMAGE_PSS
        is_worker = process.pid in workers.pids.values()
        sums[figures.WARM_PSS if is_worker else own] += process.memory_full_info().pss / 2**20
    return {figure: value for figure, value in sums.items() if value}


def is_figure_of(way: str, figure: str) -> bool:
    """With workers that wait, memory is another matter; a cold job's launcher and image are not told."""
    return "PSS" not in figure or way == "" or (way == COLD and figure == figures.WARM_PSS)


@pairs.benchmark(pairs=5, quick=2)
def main(bench: pairs.Bench) -> None:
    wanted = list(WAYS.items())[: 2 if bench.is_quick else 3]
    rng = random.Random(1)

    def sample(side: str) -> dict[str, float]:
        found: dict[str, float] = {}
        job: dict[str, float] = {}
        for way, options in wanted:
            if side == pairs.OURS or not job:
                idle_s = restart.IDLE_S * rng.uniform(1.0, 1.3)
                job = run_job(side, options if side == pairs.OURS else (), idle_s)
            found |= {figure + way: value for figure, value in job.items() if is_figure_of(way, figure)}
        return found

    bench.alternate(sample, warm_ups=0 if bench.is_quick else 1)


if __name__ == "__main__":
    main()
