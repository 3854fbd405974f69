"""Real torch workers open their flight recorder to the agent: each way, without a trace in their output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.jobs.single_node import run

ASK = """
import os, socket, sys
%s
assert "LAUNCHER_RECORDER_SOCKET" not in os.environ
given = open("/proc/self/environ").read()
path = dict(entry.split("=", 1) for entry in given.split("\\0") if entry)["LAUNCHER_RECORDER_SOCKET"]
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    connection.sendall(b"POST /handler/fr_trace_json HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n")
    with connection.makefile("rb") as answer:
        mark("answer", answer.read().decode())
mark("folder", os.path.dirname(path))
"""
WAYS = {
    "a call": ({}, "import torch.distributed; from launcher.worker import mesh; mesh()"),
    "the hook": ({"LAUNCHER_HANG_EVIDENCE": "1"}, "import torch.distributed"),
}


@pytest.mark.parametrize(("env", "script"), WAYS.values(), ids=WAYS)
def test_the_recorder_answers_and_its_socket_goes_with_the_job(
    env: dict[str, str], script: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    job = run(tmp_path, "--nproc-per-node=1", script=ASK % script, env=env)
    assert re.search(r'HTTP/1.1 200 .*"pg_status":', job.mark("answer", 0, 1), re.DOTALL)
    assert "c10d" not in job.stderr
    assert not Path(job.mark("folder", 0, 1)).exists()
