"""How soon `meshctl why` answers for eight ranks, and what it costs a job that its progress is watched.

`answer`: seconds from the exec of `meshctl why` to its end, while rank 2 of eight hangs and the others wait for it in
an all_reduce of gloo. `start` and `step`: the same job with --hang-timeout 0 and with each other value, in turns, in
random order: seconds from the launcher's exec to the last worker's first line, and the median of a rank's milliseconds
per step. With 2 s the workers are looked at four times a second, with the default once in 75 s.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import pairs

RANKS, WORKERS = 8, 2
HANGING = Path(__file__).parents[1].joinpath("examples/hangs/sleep.py").read_text()
CULPRIT = "rank 2 (dp=2)"
LIMIT_S = 1.0
WAYS = {"off": "0", "default": "600", "2 s": "2"}
STEPPING = r"""
import statistics, sys, time
print("here\n", end="", flush=True)  # one write, for both ranks share the pipe
import torch, torch.distributed as dist
from launcher.worker import heartbeat
torch.set_num_threads(1)
dist.init_process_group("gloo")
weights, times = torch.ones(256, 256), []
for number in range(STEPS):
    begun = time.perf_counter()
    dist.all_reduce(weights @ weights)
    heartbeat()
    times.append(time.perf_counter() - begun)
print(f"{statistics.median(times[STEPS // 10:]) * 1000}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def time_answers(count: int) -> list[float]:
    """Return the seconds that each question takes. Raises RuntimeError for an answer that names another rank."""
    found = []
    with pairs.running(pairs.OURS, ["--nproc-per-node", str(RANKS)], HANGING) as job:
        for _ in range(RANKS):
            job.line()
        question = [sys.executable, "-m", "launcher.meshctl.main", "why", str(job.process.pid)]
        until = time.monotonic() + pairs.JOB_LIMIT_S
        while CULPRIT not in ask(question)[1]:  # until all others wait
            if time.monotonic() > until:
                raise RuntimeError(f"no answer names {CULPRIT}")
        for _ in range(count):
            spent_s, text = ask(question)
            if CULPRIT not in text:
                raise RuntimeError(f"another answer: {text}")
            found.append(spent_s)
    return found


def ask(question: Sequence[str]) -> tuple[float, str]:
    begun = time.monotonic()
    done = subprocess.run(question, capture_output=True, text=True, env=pairs.environment())
    return time.monotonic() - begun, done.stdout


def run_steps(hang_timeout: str, steps: int) -> tuple[float, float]:
    """Return when the last worker has begun, in seconds, and the milliseconds of a step."""
    options = ["--nproc-per-node", str(WORKERS), "--hang-timeout", hang_timeout]
    with pairs.running(pairs.OURS, options, STEPPING.replace("STEPS", str(steps))) as job:
        for _ in range(WORKERS):
            job.line()
        started_s = time.monotonic() - job.started_s
        times = [float(job.line()) for _ in range(WORKERS)]
        job.finish()
    return started_s, statistics.mean(times)


def show(name: str, values: Sequence[float], unit: str) -> None:
    spread = f"{min(values):.3f} to {max(values):.3f}"
    print(f"{name:22} {statistics.median(values):.3f} {unit} ({spread}, {len(values)} times)", flush=True)


@click.command()
@click.option("--answers", default=9, show_default=True, help="Questions.")
@click.option("--turns", default=7, show_default=True, help="Jobs of each kind.")
@click.option("--steps", default=5000, show_default=True, help="Of each job.")
def main(answers: int, turns: int, steps: int) -> None:
    """Measure, and exit with 1 if the median answer is not below the limit."""
    spent_s = time_answers(answers)
    show("answer", spent_s, "s")
    found: dict[str, list[float]] = defaultdict(list)
    rng = random.Random(1)
    for turn in range(turns + 1):  # the first does not count
        for way in rng.sample(list(WAYS), len(WAYS)):
            started_s, step_ms = run_steps(WAYS[way], steps)
            if turn:
                found[f"start, {way}"].append(started_s)
                found[f"step, {way}"].append(step_ms)
    for kind, unit in (("start", "s"), ("step", "ms")):
        for way in WAYS:
            show(f"{kind}, {way}", found[f"{kind}, {way}"], unit)
        for way in list(WAYS)[1:]:
            both = zip(found[f"{kind}, {way}"], found[f"{kind}, off"], strict=True)
            show(f"{kind}, {way} / off", [one / off for one, off in both], "")
    sys.exit(statistics.median(spent_s) >= LIMIT_S)


if __name__ == "__main__":
    main()
