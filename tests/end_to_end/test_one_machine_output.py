"""What workers print on one machine, where it ends up, and what happens when it cannot: whole jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs.meshctl import ask
from tests.support.jobs.single_node import Job, run
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

# A small file system of the job's own: made in a mount namespace, gone with it.
SMALL_DISK = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=256k none small && exec "$@"', "sh")


def _can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="no file system may be mounted here (unshare -m needs privileges)")
def test_on_a_full_disk_training_goes_on_with_one_warning(tmp_path: Path) -> None:
    script = """
for step in range(4000):
    print("step", step, "x" * 100)
while os.statvfs("small").f_bfree:  # what the pipe still holds comes later
    time.sleep(0.01)
mark("trained")
"""
    (tmp_path / "small").mkdir()
    job = run(tmp_path, "--nproc-per-node", "2", "--log-dir", "small", "--tee", "1", prefix=SMALL_DISK, script=script)
    assert [job.has_mark("trained", rank, 1) for rank in range(2)] == [True, True]
    assert job.stderr.count("No space left on device") == 3, "of the log, and of the events: that, and how many"
    assert "training continues" in job.stderr
    assert job.stdout.count("step 3999") == 2
    assert len(job.stdout.splitlines()) == 8000


def test_when_the_reader_of_stdout_goes_away_log_files_and_training_go_on(tmp_path: Path) -> None:
    script = """
print("first")
wait_for("closed")
print("second")
mark("trained")
"""
    reader = 'code=0; { "$@"; echo $? > code; } | { head -n 1 > read; exec <&-; touch closed; }'
    with Job(tmp_path, "--log-dir", "logs", "--tee", "3", prefix=("sh", "-c", reader, "sh"), script=script) as job:
        job.wait()
        job.wait_until_nobody_is_left()
    assert (tmp_path / "code").read_text() == "0\n"
    assert (tmp_path / "read").read_text() == "[default0]:first\n"
    assert job.has_mark("trained", 0, 1)
    assert job.stderr.count("Broken pipe") == 1
    (log,) = tmp_path.glob("logs/*_*/attempt_0/0/stdout.log")
    assert log.read_text() == "first\nsecond\n"


@pytest.mark.parametrize(
    ("options", "script", "exit_code"),
    [
        ((), "pass", 0),
        (("--virtual-local-rank",), "pass", 2),
        (("--signals-to-handle", "SIGTERM"), "os.kill(int(os.environ['AGENT']), 15); time.sleep(60)", 143),
    ],
    ids=["success", "refused at the start", "stopped"],
)
def test_no_temporary_directory_without_a_file_is_left(
    tmp_path: Path, options: tuple[str, ...], script: str, exit_code: int
) -> None:
    (tmp_path / "temporary").mkdir()
    env = {"TMPDIR": str(tmp_path / "temporary"), "CUDA_VISIBLE_DEVICES": "0"}
    env |= {"AGENT": ""} if exit_code != 143 else {}
    prefix = ("sh", "-c", 'AGENT=$$ exec "$@"', "sh")
    run(tmp_path, "--nproc-per-node", "2", *options, script=script, env=env, prefix=prefix, exit_code=exit_code)
    assert os.listdir(tmp_path / "temporary") == []


def test_fifty_restarts_leave_no_descriptor_behind(tmp_path: Path) -> None:
    count = "[ $RANK = 1 ] && exec sleep 60; ls /proc/$AGENT/fd /proc/$PPID/fd | wc -l >> counts; exit 1"
    words = ("--nproc-per-node", "2", "--max-restarts", "50", "--tee", "3", "--no-python", "sh", "-c", count)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.jobs.short_rounds", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1, ended.stderr
    assert "50 of 50 restarts used" in ended.stderr
    counts = [int(line) for line in (tmp_path / "counts").read_text().splitlines()]
    assert len(counts) == 51
    assert min(counts[-20:]) <= max(counts[:20])  # it varies a little: a pipe may be in use or not


def test_a_stderr_that_nobody_reads_hangs_neither_a_signal_nor_the_end(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda signum, frame: (mark("got"), sys.exit(0)))
mark("up")
while True:
    time.sleep(60)
"""
    # A pipe that is full before the agent comes, and that its own shell keeps open.
    fill = 'mkfifo full; exec 3<>full; dd if=/dev/zero bs=4096 oflag=nonblock >&3 2>/dev/null; exec "$@" 2>&3'
    with Job(tmp_path, prefix=("sh", "-c", fill, "sh"), script=script) as job:
        job.mark("up", 0, 1)
        job.send(15)
        wait_until(lambda: job.has_mark("got", 0, 1))
        assert job.wait().exit_code == 143


def test_a_job_leaves_its_events_from_which_it_is_shown_after_its_end(tmp_path: Path) -> None:
    events, logs = tmp_path / "events", tmp_path / "logs"
    options = ("--nproc-per-node=2", "--max-restarts=1", f"--events={events}", f"--log-dir={logs}", "--redirects=3")
    script = "if RANK == 1 and ROUND == 1:\n    raise KeyError('lost')\nif ROUND == 1:\n    wait_for('never')"
    run(tmp_path, *options, f"--notify=cat >> {tmp_path}/told", script=script).wait_until_nobody_is_left()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in found if one["event"].startswith("round")] == [
        *("round_started", "round_stopping", "round_ended") * 2
    ]
    failure = next(one for one in found if one["event"] == "failure_found")
    assert (failure["rank"], failure["error"]) == (1, "KeyError: 'lost'")
    assert failure["failure_class"] == "user code: KeyError"
    (kept,) = logs.glob("*_*/events.jsonl")
    assert kept.read_text() == events.read_text()
    shown = json.loads(ask("status", "--log-dir", logs, "--json"))
    assert [one["failed_rank"] for one in shown["rounds"]] == [1, -1]
    assert shown["verdict"]["kind"] == "success"
    assert [rank["state"] for rank in json.loads(ask("ps", "--log-dir", logs, "--json"))["nodes"][0]["ranks"]] == [
        "succeeded", "succeeded"
    ]  # fmt: skip
    assert "KeyError: 'lost'" in ask("logs", "--log-dir", logs, "--round", 1)
    assert "rank 1: user code: KeyError, KeyError: 'lost'" in ask("events", "--log-dir", logs)
    assert "succeeded in round 2" in ask("why", "--log-dir", logs)
    told = [json.loads(line)["event"] for line in (tmp_path / "told").read_text().splitlines()]
    assert told == ["round_started", "round_stopping", "round_started", "round_stopping", "agent_ended"]


def test_the_last_lines_of_a_stream_that_only_the_console_gets_can_be_read(tmp_path: Path) -> None:
    script = """
for step in range(1000):
    print("step", step, flush=True)
wait_for("end")
"""
    options = ("--nproc-per-node=2", "--tee=1", "--log-dir=/dev/null")
    with Job(tmp_path, *options, script=script) as job:
        wait_until(lambda: job.stdout.count("step 999\n") == 2)
        shown = ask("logs", job.pid, "--tail", "all").splitlines()
        assert {"[0-1] step 800", "[0-1] step 999"} <= {*shown}
        assert ask("logs", job.pid, "--rank", 1, "--tail", 2).splitlines() == ["[1] step 998", "[1] step 999"]
        (tmp_path / "end").touch()
        assert job.wait().exit_code == 0
