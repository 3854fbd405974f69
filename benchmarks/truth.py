"""Whether a plan's seconds are true: predicted communication of a training step beside real steps on emulated networks.

Every case of truth_cases.py is a tree of network namespaces with shaped links. For every order of its nodes there is a
process per rank in its host's namespace, which communicates over gloo as truth_steps.py says. The time of a step is
that of its slowest rank; the first step does not count. A step during which the machine had too little CPU time left
does not count either, and is tried again: the network is to be the limit, not the cores that emulate it. What others
do at low priority (nice) is no load, since it yields.

    python -m benchmarks.truth --json truth.jsonl
    python -m benchmarks.truth --quick --case 'even, 4+4+4'
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import pairs, truth_cases, truth_steps, truth_tables
from benchmarks.truth_cases import CASES, QUICK, WIRE, Case, Layout
from tests.support.network.trees import Carried, TreeNetwork, why_no_trees

IDLE_LEAST = 0.3  # share of the CPU time during a step
TRIES = 3  # steps for each that counts
START_IN_S = 0.03  # until all have been told
STEP_LIMIT_S = 60.0
JAX_RANDOM_ORDERS = 2  # its processes take seconds to start

Line = dict[str, Any]
Step = Callable[[], "Sample"]


class Sample(NamedTuple):
    """One step: how long the slowest rank took, and the share of CPU time that nobody needed."""

    seconds: float
    idle: float


@contextmanager
def running(network: TreeNetwork, case: Case, layout: Layout) -> Iterator[Step]:
    """A process per rank, on its host, ready for steps; they are killed with their network if they do not end."""
    fork = multiprocessing.get_context("fork")  # torch has been imported by then, once for all
    addresses = [network.host(host).address for host in layout]
    axes = tuple(axis.name for axis in case.instance.mesh.axes)
    pipes, processes = [], []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        for rank, host in enumerate(layout):
            ours, theirs = fork.Pipe()
            store = str(Path(directory, "store"))
            seat = truth_steps.Seat(rank, case.shape, axes, case.exchanges, store, addresses[0], addresses[rank])
            process = fork.Process(target=truth_steps.serve, args=(seat, theirs, case.framework), daemon=True)
            with network.inside(host):
                process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)

        def answers() -> list[float]:
            deadline = time.monotonic() + STEP_LIMIT_S
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise RuntimeError(f"{case.name}: rank {rank} has not answered for {STEP_LIMIT_S:g} s")
            return [pipe.recv() for pipe in pipes]

        def step() -> Sample:
            before = _read_cpu_times()
            start_s = time.monotonic() + START_IN_S
            for pipe in pipes:
                pipe.send(start_s)
            taken = max(answers())
            spare, total = (after - at for after, at in zip(_read_cpu_times(), before, strict=True))
            return Sample(taken, spare / total if total else 1.0)

        try:
            answers()
            yield step
        finally:
            for process in reversed(processes):  # at once, and rank 0 last: without it the others would complain
                process.kill()
            for pipe, process in zip(pipes, processes, strict=True):
                process.join()
                pipe.close()


def _read_cpu_times() -> tuple[int, int]:
    """Ticks of all cores that were idle, or would have been without what yields; and all ticks."""
    words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    user, nice, system, idle, wait, *rest = map(int, words)
    return nice + idle + wait, user + nice + system + idle + wait + sum(rest)


def measure(network: TreeNetwork, case: Case, names: Sequence[str], layout: Layout, count: int) -> Line:
    """One order: `count` steps that count, and what uplinks carried over what they should have."""
    samples: list[Sample] = []
    busy = 0
    with running(network, case, layout) as step:
        step()
        before = network.count_carried()
        while len(samples) < count and len(samples) + busy < TRIES * count:
            sample = step()
            if sample.idle >= IDLE_LEAST:
                samples.append(sample)
            else:
                busy += 1
        after = network.count_carried()
    return {
        "order": case.name,
        "mesh": str(case.instance.mesh),
        "names": list(names),
        "framework": case.framework,
        "predicted_s": case.predict(layout),
        "seconds": [round(sample.seconds, 4) for sample in samples],
        "idle": min((sample.idle for sample in samples), default=None),
        "busy": busy,
        "carried": compare_bytes(case, layout, before, after, len(samples) + busy),
    }


def compare_bytes(
    case: Case, layout: Layout, before: dict[str, Carried], after: dict[str, Carried], steps: int
) -> float | None:
    """What the uplinks of domains carried outwards over what the judge counts; None where nothing is to leave any."""
    planned: dict[str, float] = {}
    for part in case.count_parts(layout):
        for link, size in part.out.items():
            planned[link] = planned.get(link, 0) + size * steps
    uplinks = [link for link in planned if not link.startswith(("host:", f"{case.fast_level}/host:"))]
    carried = sum(after[link].out - before[link].out for link in uplinks)
    return carried / WIRE / sum(planned[link] for link in uplinks) if uplinks else None


def measure_case(case: Case, count: int) -> Iterator[Line]:
    """All orders of a case, those that are the same only once."""
    orders = truth_cases.list_orders(
        case, truth_cases.RANDOM_ORDERS if case.framework == "torch" else JAX_RANDOM_ORDERS
    )
    names: dict[Layout, list[str]] = {}
    for name, layout in orders.items():
        names.setdefault(layout, []).append(name)
    levels = case.instance.limits.levels
    with TreeNetwork(case.hosts, levels, case.wire_rates) as network:
        for layout, same in names.items():
            yield measure(network, case, same, layout, count)


@pairs.benchmark(pairs=4, quick=3)
@click.option(
    "--case", "chosen", type=click.Choice([case.name for case in CASES]), multiple=True, help="Only this case."
)
def main(bench: pairs.Bench, chosen: Sequence[str]) -> str:
    import torch.distributed.device_mesh  # noqa: F401  # inherited by all ranks

    names = chosen or (QUICK if bench.is_quick else [case.name for case in CASES])
    for case in CASES:
        if case.name in names:
            if case.framework == "jax":
                import jax  # noqa: F401
            began_s = time.monotonic()
            for line in measure_case(case, bench.pairs):
                bench.record(line)
                if not line["seconds"]:
                    bench.failures.append(f"{case.name}, {', '.join(line['names'])}: no step counts, the CPU was busy")
            print(f"{case.name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    history = bench.history()
    return "\n\n".join(table(history) for table in (truth_tables.leads, truth_tables.aims, truth_tables.cases))


if __name__ == "__main__":
    if why := why_no_trees():  # before there is a record
        print(f"skipped: {why}", file=sys.stderr)
        sys.exit(0)
    main()
