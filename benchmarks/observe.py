"""What it costs a job that it is looked at: the same job without and with all who look, in turns.

A worker does a fixed amount of CPU work per step and measures it; the job has 1 worker, then 4. Those who look:
--events, a scrape of --metrics-port each second, `meshctl ps` each second, `meshctl logs -f`, 200 readers of the page,
who each read once in 2 s. All of them run on this machine, beside the workers, so few cores raise the ratio of steps.
With --flood a rank more writes 100,000 lines a second to files, on both sides. `start_s`: from the exec to the last
worker's first line, when no reader is there yet. `agent_cpu`, `look_cpu`: cores that the agent, and all who look, use
during the steps. Which side of a pair runs first is drawn, and a pair before the counted ones warms the caches.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psutil

from benchmarks import pairs

READ_EVERY_S, ASK_EVERY_S = 2.0, 1.0
LINES_PER_S = 100_000
STEPPING = """
import os, statistics, time
rank, flood = int(os.environ["RANK"]), {flood}
with open({results!r} + f"/{{rank}}", "w") as out:
    print("here", file=out, flush=True)
    if flood and rank == int(os.environ["WORLD_SIZE"]) - 1:
        block, due = "a line of output of the usual length, say\\n" * ({rate} // 100), time.monotonic()
        while not os.path.exists({results!r} + "/done"):
            os.write(1, block.encode())
            due += 0.01
            time.sleep(max(0, due - time.monotonic()))
    else:
        times, until = [], time.monotonic() + {seconds}
        while time.monotonic() < until:
            begun = time.perf_counter()
            sum(range(300_000))
            times.append(time.perf_counter() - begun)
        print(statistics.median(times) * 1000, file=out, flush=True)
"""


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_page(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        pass  # a busy page refuses some
    finally:
        connection.close()


@contextlib.contextmanager
def looking(job: pairs.Job, metrics: int, page: int, readers: int) -> Iterator[None]:
    """All who look, until the end of the block."""
    is_over = threading.Event()
    question = [sys.executable, "-m", "launcher.meshctl.main"]
    run = str(job.process.pid)

    def repeat(act: Callable[[], object], every_s: float) -> None:
        while not is_over.wait(every_s):
            act()

    def ask() -> None:
        subprocess.run([*question, "ps", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    acts = [(lambda: read_page(metrics, "/metrics"), ASK_EVERY_S), (ask, ASK_EVERY_S)]
    acts += [(lambda: read_page(page, "/api/run"), READ_EVERY_S)] * readers
    threads = [threading.Thread(target=repeat, args=each) for each in acts]
    follower = subprocess.Popen([*question, "logs", "-f", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        is_over.set()
        follower.kill()
        follower.wait()
        for thread in threads:
            thread.join()


def wait_for_lines(directory: Path, workers: int, lines: int) -> None:
    until = time.monotonic() + pairs.JOB_LIMIT_S
    while time.monotonic() < until:
        files = [directory / str(rank) for rank in range(workers)]
        if all(file.exists() and len(file.read_text().splitlines()) >= lines for file in files):
            return
        time.sleep(0.01)
    raise RuntimeError(f"not {lines} lines of each worker within {pairs.JOB_LIMIT_S:g} s")


def run_job(workers: int, seconds: float, readers: int | None, is_flooded: bool) -> dict[str, float]:
    """Run the job, with so many readers of the page, or with no one who looks.

    Returns seconds until its start, milliseconds of a step, the agent's MiB and cores.
    """
    with tempfile.TemporaryDirectory() as name:
        results, metrics, page = Path(name), find_port(), find_port()
        all_workers = workers + is_flooded
        script = STEPPING.format(flood=is_flooded, results=name, rate=LINES_PER_S, seconds=seconds)
        options = ["--nproc-per-node", str(all_workers), "--log-dir", f"{name}/logs", "--redirects", "3"]
        if readers is not None:
            options += ["--events", f"{name}/events", "--metrics-port", str(metrics), "--serve", str(page)]
        with pairs.running(pairs.OURS, options, script) as job:
            wait_for_lines(results, all_workers, 1)
            started_s = time.monotonic() - job.started_s
            agent = psutil.Process(job.process.pid)
            before, begun, looked = sum(agent.cpu_times()[:2]), time.monotonic(), sum(os.times()[:4])
            with looking(job, metrics, page, readers) if readers is not None else contextlib.nullcontext():
                wait_for_lines(results, workers, 2)
                cores = (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - begun)
                memory = agent.memory_info().rss / 2**20
            looked = (sum(os.times()[:4]) - looked) / (time.monotonic() - begun)
            (results / "done").touch()
            job.finish()
        steps = [float((results / str(rank)).read_text().splitlines()[1]) for rank in range(workers)]
    return {
        "start_s": started_s,
        "step_ms": statistics.mean(steps),
        "agent_mib": memory,
        "agent_cpu": cores,
        "look_cpu": looked,
    }


def run_pair(workers: int, seconds: float, readers: int, is_flooded: bool) -> list[dict[str, float]]:
    """Run the job without and with all who look, in an order that is drawn; return both, "without" first."""
    sides: list[int | None] = [None, readers]
    found = {side: run_job(workers, seconds, side, is_flooded) for side in random.sample(sides, 2)}
    return [found[side] for side in sides]


@click.command()
@click.option("--pairs", "count", type=click.IntRange(min=2), default=6, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Steps of each job.")
@click.option("--workers", type=int, multiple=True, default=(1, 4), show_default=True)
@click.option("--readers", default=200, show_default=True, help="Of the page, each once in 2 s.")
@click.option("--flood/--no-flood", default=True, help=f"A rank that writes {LINES_PER_S:,} lines a second beside.")
def main(count: int, seconds: float, workers: tuple[int, ...], readers: int, flood: bool) -> None:
    """Run the pairs, and print the medians of either side and of the ratios, with quartiles."""
    for number in workers:
        run_pair(number, 1.0, readers, flood)
        found = [run_pair(number, seconds, readers, flood) for _ in range(count)]
        for name in found[0][0]:
            without, looked_at = ([pair[side][name] for pair in found] for side in (0, 1))
            ratios = [pair[1][name] / max(pair[0][name], 1e-3) for pair in found]
            low, middle, high = statistics.quantiles(ratios, n=4)
            medians = f"{statistics.median(without):.3f} without, {statistics.median(looked_at):.3f} with"
            spread = f"{low:.3f} to {high:.3f}; {count} pairs"
            print(f"{number} workers: {name:9} {medians}, ratio {middle:.3f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
