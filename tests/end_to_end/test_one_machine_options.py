"""torchrun's less usual options in real jobs: lines looked for, events, a plug-in for logs, bound CPUs."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.config.plugins import LOGS_SPECS
from launcher.hardware import node_binding
from tests.support.distributions import install
from tests.support.jobs.single_node import run, words
from tests.support.processes.tree import REPOSITORY

AFFINITY = 'mark("cpus", " ".join(map(str, sorted(os.sched_getaffinity(0)))) + "/" + os.environ["OMP_NUM_THREADS"])'


def test_filtered_lines_have_a_file_in_every_round_and_events_follow_it(tmp_path: Path) -> None:
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
        " --duplicate-stdout-filters loss,, --duplicate_stderr_filters=grad,nan --event-log-handler console"
    )
    job = run(tmp_path, *options, script=script, arguments=("a",))
    (root,) = (tmp_path / "logs").iterdir()
    assert root.name.startswith("n_")
    assert f"log files are in {root}\n" in job.stderr
    kept = [name for name in os.listdir(root) if "incident" not in name]
    assert sorted(kept) == ["attempt_0", "attempt_1", "round_1.json", "round_2.json"]
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
    events = [json.loads(line) for line in job.stderr.splitlines() if line.startswith("{")]
    told = [(one["metadata"]["state"], one["metadata"]["global_rank"]) for one in events]
    assert told[0] == told[told.index(("ROUND_ENDED", None)) + 1] == ("RENDEZVOUS", None)
    assert told[-1] == ("SUCCEEDED", None)
    assert told.count(("FAILED", 1)) == 1
    assert told.count(("START", 0)) == told.count(("START", 1)) == 2
    assert "--start-method fork has no effect" in job.stderr


def test_a_plugin_says_where_output_goes_and_no_torch_is_needed(tmp_path: Path) -> None:
    source = f"""
import os, sys
class Dest: pass
class Specs:
    def __init__(self, log_dir=None, redirects=0, tee=0, local_ranks_filter=None):
        self.folder = log_dir
    def reify(self, envs):
        assert "torch" not in sys.modules
        found = Dest()
        attempt = self.folder + "/" + envs[0]["TORCHELASTIC_RUN_ID"] + "-" + envs[0]["TORCHELASTIC_RESTART_COUNT"]
        found.stdouts = {{rank: f"{{attempt}}-{{env['RANK']}}.out" for rank, env in envs.items()}}
        found.stderrs = dict.fromkeys(envs, {os.devnull!r})
        found.tee_stdouts = {{1: found.stdouts[1]}}
        found.error_files = {{rank: f"{{attempt}}-{{rank}}.json" for rank in envs}}
        found.filtered_stdout = f"{{attempt}}-found.out"
        for rank in envs:
            envs[rank]["FROM_PLUGIN"] = "yes"
        return found
"""
    offered = install(
        tmp_path / "fancy", group=LOGS_SPECS, offers={"fancy": "fancy_logs:Specs"}, modules={"fancy_logs": source}
    )
    script = """
print("hello", RANK, os.environ["FROM_PLUGIN"], flush=True)
print("not shown", file=sys.stderr, flush=True)
mark("said")
if RANK == 1:
    wait_for(f"said-0-{ROUND}")
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write('{"message": "the cause"}')
    sys.exit(7)
wait_for("never")
"""
    options = words("--nproc-per-node 2 --logs-specs fancy --log-dir a/b --rdzv-id n --duplicate-stdout-filters hello")
    env = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{offered}"}
    job = run(tmp_path, *options, script=script, env=env, exit_code=7)
    assert job.stdout == "[default1]:hello 1 yes\n"
    assert "not shown" not in job.stderr
    assert "the cause" in job.stderr
    assert {path.name: path.read_text() for path in (tmp_path / "a/b").glob("*.out")} == {
        "n-0-0.out": "hello 0 yes\n", "n-0-1.out": "hello 1 yes\n", "n-0-found.out": "[default1]:hello 1 yes\n"
    }  # fmt: skip


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_plugin_made_of_torchs_own_class_and_a_handler_that_torch_knows(tmp_path: Path) -> None:
    offered = install(
        tmp_path / "mine",
        group=LOGS_SPECS,
        offers={"mine": "mine_logs:Specs"},
        modules={
            "mine_logs": """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
class Specs(DefaultLogsSpecs):
    def reify(self, envs):
        found = super().reify(envs)
        found.filtered_stdout = found.filtered_stdout.replace("filtered_", "looked_for_")
        return found
""",
            "mine_device": """
def load():
    import logging
    from torch.distributed.elastic.events import handlers
    handlers._log_handlers["file"] = logging.FileHandler("events.jsonl")
""",
        },
    )
    metadata = offered / "mine-1.0.dist-info/entry_points.txt"
    metadata.write_text(metadata.read_text() + "\n[torch.backends]\nmine = mine_device:load\n")
    options = words(
        "--logs-specs mine --log-dir logs --rdzv-id n --tee 1 --duplicate-stdout-filters hello --event-log-handler file"
    )
    job = run(tmp_path, *options, script='print("hello")', env={"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{offered}"})
    (found,) = tmp_path.glob("logs/n_*/attempt_0/looked_for_stdout.log")
    assert found.read_text() == job.stdout == "[default0]:hello\n"
    (log,) = tmp_path.glob("logs/n_*/attempt_0/0/stdout.log")
    assert log.read_text() == "hello\n"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [one["metadata"]["state"] for one in events] == [
        "RENDEZVOUS", "START", "SUCCEEDED", "ROUND_ENDED", "SUCCEEDED"
    ]  # fmt: skip


def test_workers_run_on_their_own_cpus_out_of_those_of_the_agent(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cores = set(node_binding.read_topology(frozenset(allowed)).core.values()) & set(allowed)
    count = min(2, len(cores))
    job = run(tmp_path, "--nproc-per-node", str(count), "--numa-binding", "exclusive", script=AFFINITY)
    assert "--numa-binding exclusive keeps local rank 0 to CPUs " in job.stderr
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


def test_a_worker_whose_timer_runs_out_is_killed_and_nobody_else(tmp_path: Path) -> None:
    script = """
import json
mark("started")
def set_timer(pid, name, after):
    told = {"version": 1, "pid": pid, "scope_id": name, "expiration_time": time.time() + after, "signal": 9}
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as pipe:  # as torch's FileTimerClient does
        pipe.write(json.dumps(told) + "\\n")
set_timer(os.getppid(), "not a worker", 0)
set_timer(os.getpid(), "quick step", 60)
set_timer(os.getpid(), "quick step", -1e12)
if ROUND == 1 and RANK == 1:
    set_timer(os.getpid(), "slow step", 0.1)
    wait_for("never")
"""
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(tmp_path / "pipe")}
    job = run(tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", script=script, env=env)
    pid = job.mark("started", 1, 1)
    assert job.stderr.count("has run out") == 1
    assert f"pid {pid}: its timer 'slow step' has run out, it gets signal 9\n" in job.stderr
    assert f"rank 1 (pid {pid}) was killed by SIGKILL" in job.stderr
    assert not (tmp_path / "pipe").exists()


def test_a_pipe_for_timers_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "file"
    there.write_text("mine")
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(there)}
    job = run(tmp_path, env=env, exit_code=2)
    assert there.read_text() == "mine"
    assert f"error: TORCHELASTIC_ENABLE_FILE_TIMER=1: cannot make {there}: File exists\n" in job.stderr
