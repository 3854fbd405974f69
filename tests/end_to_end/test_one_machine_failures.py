"""What is said when a job fails on one machine, read as the person does who finds it in the morning."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job

RECORDED = """
import torch.distributed
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    mark("up")
    assert torch.distributed.is_torchelastic_launched()
    if RANK == 1:
        wait_for(f"up-0-{ROUND}")
        raise ValueError("the loss is not a number")
    time.sleep(1000)

main()
"""


def test_the_report_shows_the_exception_that_record_wrote(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with Job(tmp_path, "--nproc-per-node", "2", "--log-dir", "logs", script=RECORDED) as job:
        ended = job.wait()
    (error_file,) = tmp_path.glob("logs/*/attempt_0/1/error.json")
    assert ended.exit_code == 1
    report = ended.stderr.partition("train.py FAILED")[2]
    assert f"error_file: {error_file}\n" in report
    assert "rank      : 1 (local_rank: 1)" in report
    assert "traceback : Traceback (most recent call last):" in report
    assert "ValueError: the loss is not a number" in report
    assert "hint: its traceback" not in report


def test_torch_passes_the_reason_on_to_whoever_started_the_job(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    target = tmp_path / "told.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(target)}
    with Job(tmp_path, "--nproc-per-node", "2", "--run-path", script=RECORDED, env=env) as job:
        assert job.wait().exit_code == 1
    message = json.loads(target.read_text())["message"]
    assert message["message"] == "ValueError: the loss is not a number"
    assert message["errorCode"] == 1
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")


def test_a_lost_supervisor_is_said_once(tmp_path: Path) -> None:
    with Job(tmp_path, script="mark('up')\ntime.sleep(1000)") as job:
        job.mark("up", 0, 1)
        os.kill(job.supervisor_pid, signal.SIGKILL)
        ended = job.wait()
    assert ended.exit_code == 137
    assert ended.stderr.count("was killed by SIGKILL") == 1


def test_who_holds_up_the_end_is_named(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark('up')\ntime.sleep(1000)"
    with Job(tmp_path, "--shutdown-timeout", "0.1", script=script) as job:
        job.mark("up", 0, 1)
        supervisor = job.supervisor_pid
        os.kill(supervisor, signal.SIGSTOP)
        job.send(signal.SIGTERM)
        job.says(f"not everything is gone 3 s after SIGKILL: waiting for pid {supervisor} (mr-supervisor, state T)")
        os.kill(supervisor, signal.SIGCONT)
        assert job.wait().exit_code == 143


def test_too_few_descriptors_are_no_bug_of_ours(tmp_path: Path) -> None:
    for limit in range(7, 24):
        prefix = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
        with Job(tmp_path, "--nproc-per-node", "2", "--tee", "3", script="", prefix=prefix) as job:
            ended = job.wait()
        assert ended.exit_code in (0, 75), ended.stderr
        if ended.exit_code:
            assert "Too many open files\nhint: see ulimit -n" in ended.stderr
