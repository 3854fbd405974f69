"""What it costs to answer which of 1,000 ranks hangs: CPU seconds, of each step from the dumps to the printed answer.

The ranks are simulated, their dumps are as torch 2.13 writes them: a mesh of pp=5, dp=25, tp=8, of which rank 777 loads
data while its pipeline stage waits for it in tp, its replicas in dp, and so on. `read` is the part of the nodes, each
of its own ranks: dump to evidence, cut and encoded. `merge` is that of the node that concludes, of all ranks: decode,
diagnose, look for stragglers, print.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from launcher.diagnosis.answer import make_answer, render_answer
from launcher.diagnosis.evidence import Frame, RankEvidence
from launcher.diagnosis.recorder import read_dump
from launcher.diagnosis.request import shorten_evidence
from launcher.diagnosis.stack_groups import render_stacks
from launcher.diagnosis.stragglers import find_stragglers
from launcher.diagnosis.verdict import diagnose
from launcher.worker.grid import WorkerMesh
from rendezvous.codec import decode, encode

MESH = WorkerMesh(("pp", "dp", "tp"), (5, 25, 8), 0, ("pp", "dp", "tp"))
CULPRIT = 777
ENTRIES = {"tp": 500, "pp": 90, "dp": 10}
RANKS_PER_NODE = 8
LIMIT_S = 2.0
NOW_NS = 1_795_464_500 * 10**9
_Result = TypeVar("_Result")


def make_dump(rank: int) -> bytes:
    """Make a rank's dump: one open call in each group for which it would wait, if it is not the culprit."""
    here = MESH._replace(rank=rank)
    entries = [
        make_entry(f"{axis}{here.group(axis)[0]}", f"mesh_{axis}", number, pg, number <= count)
        for pg, (axis, count) in enumerate(ENTRIES.items())
        for number in range(1, count + 1 + (axis == find_wait(rank)))
    ]
    return json.dumps({"entries": entries, "pg_config": {}, "pg_status": {}, "version": "2.10"}).encode()


def find_wait(rank: int) -> str:
    """Return the axis in which a rank waits, "" for the culprit: for one whose coordinates agree with its later on."""
    place, culprit = (MESH._replace(rank=each).coordinates for each in (rank, CULPRIT))
    return next((axis for axis, at, its in zip(MESH.axes, place, culprit, strict=True) if at != its), "")


def make_entry(name: str, description: str, number: int, pg: int, is_retired: bool) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[4096, 4096]], "is_p2p": False,
        "op_id": number, "output_dtypes": ["Float"], "output_sizes": [[4096, 4096]], "p2p_seq_id": 0, "pg_id": pg,
        "process_group": [name, description], "profiling_name": "gloo:all_reduce", "record_id": number,
        "retired": is_retired, "state": "scheduled", "thread_id": "140367875844992", "thread_name": "python",
        "time_created_ns": NOW_NS - 400 * 10**9 + number * 10**7, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 1_800_000,
    }  # fmt: skip


def make_stack(rank: int) -> tuple[Frame, ...]:
    inner = (
        Frame(function="load", file="/home/me/project/loader.py", line=31)
        if rank == CULPRIT
        else Frame(function="all_reduce", file="/lib/torch/distributed/distributed_c10d.py", line=3252)
    )
    return (inner, *(Frame(function=f"step_{at}", file="/home/me/project/train.py", line=at) for at in range(12)))


def read(rank: int, dump: bytes) -> bytes:
    groups, is_truncated = read_dump(dump, NOW_NS)
    evidence = RankEvidence(rank=rank, state="sleeps", stack=make_stack(rank), groups=groups, is_truncated=is_truncated)
    return encode(shorten_evidence(evidence))


def merge(sent: list[bytes]) -> str:
    ranks = [decode(RankEvidence, each, "evidence") for each in sent]
    found = diagnose(ranks, MESH)
    assert found.culprits == (CULPRIT,), found
    find_stragglers(ranks, {rank: f"n{rank // RANKS_PER_NODE}" for rank in range(MESH.world_size)})
    return render_answer(make_answer(found, ranks, MESH)) + render_stacks(ranks, MESH)


def measure(act: Callable[[], _Result]) -> tuple[float, _Result]:
    begun = time.process_time()
    result = act()
    return time.process_time() - begun, result


def run_once() -> tuple[float, float]:
    """Return the CPU seconds of all reads together, and of the merge."""
    read_s, sent = 0.0, []
    for rank in range(MESH.world_size):
        dump = make_dump(rank)
        spent_s, evidence = measure(lambda rank=rank, dump=dump: read(rank, dump))
        read_s += spent_s
        sent.append(evidence)
    return read_s, measure(lambda: merge(sent))[0]


@click.command()
@click.option("--runs", default=5, show_default=True)
def main(runs: int) -> None:
    """Measure, and exit with 1 if the median of both steps together is not below the limit."""
    found = [run_once() for _ in range(runs)]
    for name, values in (
        ("read", [each[0] for each in found]),
        ("merge", [each[1] for each in found]),
        ("both", [sum(each) for each in found]),
    ):
        print(f"{name:6} {statistics.median(values):.2f} s of CPU ({min(values):.2f} to {max(values):.2f})")
    sys.exit(statistics.median(map(sum, found)) >= LIMIT_S)


if __name__ == "__main__":
    main()
