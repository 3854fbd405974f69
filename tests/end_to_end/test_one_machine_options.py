"""torchrun's less usual options in real jobs: lines looked for, events, a plug-in for logs, bound CPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.hardware import node_binding
from tests.support.jobs.single_node import run, words

AFFINITY = 'mark("cpus", " ".join(map(str, sorted(os.sched_getaffinity(0)))) + "/" + os.environ["OMP_NUM_THREADS"])'


def test_filtered_lines_have_a_file_in_every_round(tmp_path: Path) -> None:
    script = """
for number in range(400):
    print(f"step {number}" if number % 40 else f"loss,{number} of round {ROUND}", flush=number % 7 == 0)
print("grad", RANK, file=sys.stderr)
assert sys.argv[1:] == [f"--local-rank={RANK}", "a"], sys.argv
if ROUND == 1:
    mark("printed")
    wait_for(f"printed-{1 - RANK}-1")
    sys.exit(3 * RANK)
"""
    options = words(
        "--nproc-per-node 2 --max-restarts 1 --tee 3 --log-dir logs --rdzv-id n --legacy-local-rank --start-method fork"
        " --duplicate-stdout-filters loss,, --duplicate_stderr_filters=grad,nan"
    )
    job = run(tmp_path, *options, script=script, arguments=("a",))
    (root,) = (tmp_path / "logs").glob("n_*")
    assert root.name.startswith("n_")
    assert f"log files are in {root}\n" in job.stderr
    kept = [name for name in os.listdir(root) if "incident" not in name]
    assert sorted(kept) == ["attempt_0", "attempt_1", "events.jsonl"]
    for restarts in range(2):
        assert (root / f"attempt_{restarts}/0/stdout.log").read_text().startswith(f"loss,0 of round {restarts + 1}\n")
        assert (root / f"attempt_{restarts}/1/stderr.log").read_text() == "grad 1\n"
        found = (root / f"attempt_{restarts}/filtered_stdout.log").read_text().splitlines()
        expected = [
            f"[default{rank}]:loss,{number} of round {restarts + 1}"
            for rank in range(2)
            for number in range(0, 400, 40)
        ]
        assert sorted(found) == sorted(expected)
        grads = (root / f"attempt_{restarts}/filtered_stderr.log").read_text().splitlines()
        assert sorted(grads) == ["[default0]:grad 0", "[default1]:grad 1"]
    assert "[default1]:grad 1\n" in job.stderr
    assert "--start-method fork has no effect" in job.stderr


def test_workers_run_on_their_own_cpus_out_of_those_of_the_agent(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cores = set(node_binding.read_topology(frozenset(allowed)).core.values()) & set(allowed)
    count = min(2, len(cores))
    job = run(tmp_path, "--nproc-per-node", str(count), "--numa-binding", "exclusive", script=AFFINITY)
    assert "--numa-binding exclusive binds local rank 0 to CPUs " in job.stderr
    found = [set(map(int, job.mark("cpus", rank, 1).partition("/")[0].split())) for rank in range(count)]
    assert all(cpus and cpus <= set(allowed) for cpus in found)
    assert count == 1 or not found[0] & found[1]

    narrow = f"import os, sys; os.sched_setaffinity(0, {{{allowed[0]}}}); os.execvp(sys.argv[1], sys.argv[1:])"
    prefix = (sys.executable, "-c", narrow)
    run(tmp_path, "--numa-binding", "exclusive", prefix=prefix, script=AFFINITY)
    assert (tmp_path / "cpus-0-1").read_text() == f"{allowed[0]}/1"
    own = {"OMP_NUM_THREADS": "3"}
    run(tmp_path, "--numa-binding", "exclusive", prefix=prefix, script=AFFINITY, env=own)
    assert (tmp_path / "cpus-0-1").read_text() == f"{allowed[0]}/3", "what the user says stays"
    two = ("--nproc-per-node", "2", "--numa-binding", "exclusive")
    job = run(tmp_path, *two, prefix=prefix, script=AFFINITY, exit_code=2)
    assert job.stderr.startswith("meshrun: error: --numa-binding exclusive: 2 workers belong on NUMA node ")
