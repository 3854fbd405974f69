"""Jobs that make no progress, or seem not to: real workers, whose launcher looks at what they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.jobs.single_node import Job
from tests.support.waiting import wait_until

SILENT = "no progress for"
OPTIONS = ("--standalone", "--nproc-per-node=2", "--hang-timeout=2")
WRAPPED = ("--no-python", "sh", "-c", f"{sys.executable} $0; exit $?")


@pytest.mark.parametrize("options", [("--tee=3",), WRAPPED], ids=["teed", "wrapped"])
def test_silent_workers_are_reported_and_so_is_their_return(options: tuple[str, ...], tmp_path: Path) -> None:
    script = """
from launcher.worker import heartbeat
heartbeat()  # the first step is over
while not os.path.exists("stop") and (RANK == 1 or not os.path.exists("stop-0")):
    print("step", flush=True)
    time.sleep(0.05)
wait_for("again")
print("step", flush=True)
wait_for("end")
"""
    with Job(tmp_path, *OPTIONS, *options, script=script) as job:
        wait_until(lambda: job.stdout.count("step") > 2, 60, "output")
        (tmp_path / "stop-0").touch()
        before = job.stdout.count("step")
        wait_until(lambda: job.stdout.count("step") > before + 70, 60, "3.5 s of output of rank 1")
        assert SILENT not in job.stderr
        (tmp_path / "stop").touch()
        job.says(f"{SILENT} 2 s: no output or heartbeat on this node\n")
        (tmp_path / "again").touch()
        job.says(" s: output\n")
        (tmp_path / "end").touch()
        assert job.wait().exit_code == 0
    assert "meshrun: progress again after" in job.stderr


def test_a_phase_may_be_silent_for_its_own_limit(tmp_path: Path) -> None:
    script = """
from launcher.worker import heartbeat, phase
assert heartbeat()
if RANK == 1:
    with phase("eval", limit_s=4):
        wait_for("never")
wait_for("never")
"""
    with Job(tmp_path, *OPTIONS, script=script) as job:
        job.says("; rank 1 is in phase eval, 4 s of 4 s\n")
    assert job.stderr.count(SILENT) == 1
