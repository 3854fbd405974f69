"""meshctl doctor --report after a job that has failed, as its user would attach it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.running import Call, run

MESHCTL = os.path.join(os.path.dirname(sys.executable), "meshctl")
SCRIPT = """
import os
raise ValueError(f"cannot log in with {os.environ['EXAMPLE_API_KEY']} and --password=by-hand")
"""
SECRETS = {"EXAMPLE_API_KEY": "key-of-a-service", "LAUNCHER_JOB_SECRET": "secret-of-the-job"}


def test_a_report_has_the_last_failure_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**SECRETS, "LAUNCHER_LOG_DIR": "logs", "CUDA_VISIBLE_DEVICES": ""}
    assert run("meshrun", "--nproc-per-node=1", "train.py", cwd=tmp_path, environ=environ).code == 1
    given = ("meshctl", "doctor", "--report", "r.txt", "--", "--nproc-per-node=1")
    outcome = run(*given, cwd=tmp_path, environ=environ)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("r.txt is written; it contains:\n  findings  ")
    assert "not read" not in outcome.out
    text = (tmp_path / "r.txt").read_text()
    assert "verdict: a job would start here" in text
    assert "ValueError: cannot log in with (removed) and --password=(removed)" in text
    assert '"would_start": true' in text
    assert not [secret for secret in (*SECRETS.values(), "by-hand") if secret in text]
    again = run(*given, cwd=tmp_path, environ=environ)
    assert (again.code, again.err.splitlines()[0]) == (2, "meshctl: error: r.txt already exists")
    assert (tmp_path / "r.txt").read_text() == text


def test_a_report_goes_to_stdout_and_has_what_can_be_read(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    outcome = run("meshctl", "doctor", "--report", "-", "--", "--nnodes=none", cwd=tmp_path, environ=environ)
    assert outcome.code == 0
    assert outcome.out.startswith("meshrun report, written by meshctl doctor")
    assert "=== findings ===\n\nnot read: --nnodes" in outcome.out
    assert "=== versions ===\n\nmeshrun  " in outcome.out
    assert outcome.err.splitlines()[:2] == [
        "the report is written; it contains:", "  findings        not read",
    ]  # fmt: skip


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [MESHCTL, "doctor", "--report", "-", "--", "--nproc-per-node=1"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"the report was not read to its end\n")


def test_a_report_and_json_are_not_combined(call: Call) -> None:
    outcome = call("meshctl", "doctor", "--report", "x", "--json")
    assert (outcome.code, outcome.err.splitlines()[0]) == (
        2, "meshctl: error: --report cannot be combined with --json",
    )  # fmt: skip
