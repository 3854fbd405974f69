"""The command on one machine, with real processes: what it runs, restarts, failures and their report."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.support.jobs.single_node import Job, run
from tests.support.modules import needs
from tests.support.processes.tree import is_alive
from tests.support.waiting import wait_until

TWO = ("--nproc-per-node", "2")


def test_all_workers_succeed_and_the_command_too(tmp_path: Path) -> None:
    script = 'sys.stdout.write(f"rank {RANK} {sys.argv[1:]}\\n")'  # `print` would write its line in pieces
    arguments = ("--standalone", "-x", "${local_rank}")
    job = run(tmp_path, "--standalone", "--nproc-per-node", "3", script=script, arguments=arguments)
    assert sorted(job.stdout.splitlines()) == [f"rank {r} ['--standalone', '-x', '{r}']" for r in range(3)]
    assert job.stderr == ""


def test_a_killed_worker_restarts_all_and_with_the_budget_spent_the_first_failure_is_reported(tmp_path: Path) -> None:
    script = """
mark("up")
mark("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
if ROUND == 2 and RANK == 1:
    wait_for("up-0-2")
    wait_for("fail")
    print("boom", file=sys.stderr)
    sys.exit(42)
time.sleep(1000)
"""
    with Job(tmp_path, "--nproc-per-node", "3", "--max-restarts", "1", "--tee", "2", script=script) as job:
        first = [int(pid) for pid in job.marks("up", range(3))]
        os.kill(first[1], signal.SIGKILL)
        assert job.marks("restarts", range(3), 2) == ["1"] * 3
        assert not any(is_alive(pid) for pid in first)
        (tmp_path / "fail").touch()
        ended = job.wait()
    assert ended.exit_code == 42
    before, _, report = ended.stderr.partition("train.py FAILED")
    assert all(words in before for words in ("rank 1", "SIGKILL"))
    assert all(words in report for words in ("rank 1 on ", "exitcode  : 42", "1 of 1 restarts used"))
    assert "boom" in report.partition("Root Cause")[2]


def test_a_worker_that_exits_0_early_is_not_a_failure(tmp_path: Path) -> None:
    script = """
if RANK:
    wait_for("go")
mark("done")
"""
    with Job(tmp_path, *TWO, script=script) as job:
        wait_until(lambda: not is_alive(int(job.mark("done", 0, 1))))
        (tmp_path / "go").touch()
        assert job.wait().exit_code == 0
    assert job.has_mark("done", 1, 1)
    assert not job.has_mark("done", 0, 2)


def test_an_end_by_a_signal_is_an_exit_code_above_128(tmp_path: Path) -> None:
    run(tmp_path, script="os.kill(os.getpid(), 11)", exit_code=139)


def test_a_program_that_cannot_be_run_is_said(tmp_path: Path) -> None:
    with Job(tmp_path, "--no-python", "./no-such-program") as job:
        assert job.wait().exit_code in (2, 127)
    assert "no-such-program" in job.stderr
    assert "Traceback" not in job.stderr


RECORDED = """
mark("up")
if RANK == 0:
    time.sleep(1000)
import torch.distributed
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    assert torch.distributed.is_torchelastic_launched()
    wait_for(f"up-0-{ROUND}")
    raise ValueError("the loss is not a number")

main()
"""


@needs("torch")
def test_the_exception_that_record_wrote_is_reported_and_passed_on(tmp_path: Path) -> None:
    """To whoever started the job: torch reads it in the file that the agent itself was given."""
    env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "told.json")}
    job = run(tmp_path, *TWO, "--run-path", "--log-dir", "logs", script=RECORDED, env=env, exit_code=1)
    (error_file,) = tmp_path.glob("logs/*_*/attempt_0/1/error.json")
    report = job.stderr.partition("train.py FAILED")[2]
    assert f"error_file: {error_file}\n" in report
    assert "rank 1 on " in report
    assert "  ValueError: the loss is not a number\n    File " in report
    assert "hint: its traceback" not in report
    message = json.loads((tmp_path / "told.json").read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: the loss is not a number", 1)
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")


def test_too_few_descriptors_are_no_bug_of_ours(tmp_path: Path) -> None:
    for limit in range(7, 24):
        prefix = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
        with Job(tmp_path, *TWO, "--tee", "3", prefix=prefix) as job:
            ended = job.wait()
        assert ended.exit_code in (0, 75), ended.stderr
        if ended.exit_code:
            assert "Too many open files\nhint: check ulimit -n" in ended.stderr


def test_a_job_inside_a_worker_is_a_job_of_its_own(tmp_path: Path) -> None:
    """And its failure reaches the outer report: the inner agent writes to the error file it was given."""
    script = """
if "inner" not in sys.argv:
    sys.exit(subprocess.call([sys.executable, "-m", "launcher", "--nproc-per-node", "2", "train.py", "inner"]))
mark("inner", " ".join(os.environ[name] for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID")))
if RANK == 1:
    import json
    content = {"message": {"message": "the inner reason", "extraInfo": {"py_callstack": "the inner reason"}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump(content, file)
    sys.exit(7)
"""
    job = run(tmp_path, "--rdzv-id", "outer", "--rdzv-backend", "c10d", script=script, exit_code=7)
    world_size, run_id = job.mark("inner", 1, 1).split()
    assert world_size == "2"
    assert run_id != "outer"
    assert job.stderr.rpartition("Root Cause")[2].count("the inner reason") == 1
