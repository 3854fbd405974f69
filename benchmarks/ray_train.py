"""A job on Ray by meshrun-ray and by Ray Train: start, worker killed, raylet killed, node added.

All on one cluster, in turns: seconds until rank 0 has logged a step in the world that should follow, of 3 workers (one
per node), of 3 again, of 2, and of 3. The sides are meshrun, meshrun with --preload and --standby 1, and Ray Train
with its time-out for the start of a worker group at its default of 60 s and at 15 s. `ray_programs.py` has the job. It
needs Ray, and is run in the environment of `make slow WHAT=ray`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from tests.support.ray_cluster import HEAD_ADDRESS, RayTestCluster

PROGRAMS = str(Path(__file__).with_name("ray_programs.py"))
MESHRUN = [
    *(sys.executable, "-m", "launcher.extensions.ray", "--nnodes", "2:3", "--nproc-per-node", "1"),
    *("--bundle", "agent=1", "--max-restarts", "99", "--grow", "delay=0"),
]
IMPORTS = "torch,torch._dynamo"  # sklearn, which the job imports too, starts a thread and cannot be forked
TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
SIDES = {
    "meshrun": ([*MESHRUN, PROGRAMS, "train"], {}),
    "meshrun warm": ([*MESHRUN, "--preload", IMPORTS, "--standby", "1", PROGRAMS, "train"], {}),
    "Ray Train, 60 s": ([sys.executable, PROGRAMS, "trainer"], {}),
    "Ray Train, 15 s": ([sys.executable, PROGRAMS, "trainer"], {TIMEOUT: "15"}),
}
EVENTS = ("start", "worker killed", "raylet killed", "node added", "stop")
NODES = 3
LIMIT_S = 240.0
READY_S = 3.0  # between two events, for standby workers to be ready
DEAD_S = 16.0  # until Ray holds a killed node for dead and gives its bundle another one
PAUSE_S = 15.0  # between jobs, for Ray to have back what the last one held


class Steps:
    """What rank 0 has logged."""

    def __init__(self, directory: Path, driver: subprocess.Popen[bytes]) -> None:
        self._directory, self._driver = directory, driver

    def wait(self, world: int, after: float, but_pid: int = 0) -> tuple[float, int]:
        """Wait for a step in a world of this size, later than `after`, by another process. Returns its time and pid."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            for line in reversed(self._read(0)):
                at, size, pid, _ = line.split()
                if float(at) < after:
                    break
                if int(size) == world and int(pid) != but_pid:
                    first = next(each for each in self._read(0) if each.split()[2] == pid)
                    return max(after, float(first.split()[0])), int(pid)
            if self._driver.poll() is not None:
                break
            time.sleep(0.02)
        raise TimeoutError(f"no step in a world of {world}; exit code of the driver: {self._driver.poll()}")

    def find_pid(self, rank: int) -> int:
        """The process of a rank's last step."""
        return int(self._read(rank)[-1].split()[2])

    def _read(self, rank: int) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [line for line in (self._directory / f"steps_{rank}").read_text().split("\n")[:-1] if line]
        return []


def make_environment(cluster: RayTestCluster) -> dict[str, str]:
    """The environment of `ray_programs.py` and of drivers."""
    return {**cluster.make_environment(), "BENCH_HEAD": HEAD_ADDRESS, "PYTHONPATH": str(Path(__file__).parents[1])}


@contextlib.contextmanager
def running(cluster: RayTestCluster, side: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job's driver, until the block ends."""
    words, variables = SIDES[side]
    environ = {**make_environment(cluster), **variables, "RAY_TRAIN_V2_ENABLED": "1"}
    with (directory / "log").open("wb") as log:
        driver = subprocess.Popen(
            [*words, str(directory)], env=environ, cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def run_job(cluster: RayTestCluster, side: str) -> dict[str, float]:
    """Run the job through all events. Returns seconds by event. Raises TimeoutError."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="job", dir="/tmp") as name:
        directory = Path(name)
        begun = time.time()
        with running(cluster, side, directory) as driver:
            steps = Steps(directory, driver)
            try:
                at, pid = steps.wait(NODES, begun)
                found["start"] = at - begun
                time.sleep(READY_S)
                begun = time.time()
                os.kill(steps.find_pid(1), signal.SIGKILL)
                at, pid = steps.wait(NODES, begun, pid)
                found["worker killed"] = at - begun
                time.sleep(READY_S)
                victim = max(cluster.nodes)
                begun = time.time()
                cluster.kill(victim)
                at, pid = steps.wait(NODES - 1, begun, pid)
                found["raylet killed"] = at - begun
                time.sleep(max(READY_S, DEAD_S - (time.time() - begun)))
                begun = time.time()
                cluster.add(agent=1)
                at, pid = steps.wait(NODES, begun, pid)
                found["node added"] = at - begun
                begun = time.time()
                os.killpg(driver.pid, signal.SIGTERM)
                driver.wait(LIMIT_S)
                found["stop"] = time.time() - begun
            except (TimeoutError, OSError):
                print((directory / "log").read_text()[-4000:], file=sys.stderr)
                raise
    forget = [sys.executable, PROGRAMS, "forget", "."]
    subprocess.run(forget, env=make_environment(cluster), check=True, timeout=LIMIT_S)
    while len(cluster.nodes) < NODES:
        cluster.add(agent=1)
    time.sleep(PAUSE_S)
    return found


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Jobs of each side.")
@click.option("--side", "sides", multiple=True, type=click.Choice(list(SIDES)), help="Only these.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Append each job's figures to this file.")
def main(rounds: int, sides: tuple[str, ...], file: Path | None) -> None:
    """Run all sides in turns on one cluster, and print medians with their range."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that no job stays behind
    chosen = sides or tuple(SIDES)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in chosen}
    with RayTestCluster(has_dashboard=True) as cluster:  # which Ray Train asks whether a controller still lives
        for _ in range(NODES):
            cluster.add(agent=1)
        for number in range(rounds):
            for side in chosen[number % len(chosen) :] + chosen[: number % len(chosen)]:
                figures = run_job(cluster, side)
                found[side].append(figures)
                line = {"side": side, "load": os.getloadavg()[0], **figures}
                print(json.dumps(line), flush=True)
                if file:
                    with file.open("a") as out:
                        print(json.dumps(line), file=out)
    for event in EVENTS:
        for side, jobs in found.items():
            seconds = sorted(job[event] for job in jobs)
            print(f"{event:14} {side:16} {statistics.median(seconds):6.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f})")


if __name__ == "__main__":
    main()
