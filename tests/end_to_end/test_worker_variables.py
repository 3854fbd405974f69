"""Every variable that a real worker gets is on the reference page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.support.documents.pages import VARIABLES
from tests.support.jobs.single_node import run, words
from tests.support.processes.tree import TOKEN_VARIABLE

TELL = 'import json; mark("environ", json.dumps(dict(os.environ)))'


def test_a_real_worker_gets_no_variable_without_a_row(tmp_path: Path) -> None:
    options = words("--nproc-per-node=2 --mesh=dp=*,tp=2 --numa-binding=node --heartbeat-timeout=60 --log-dir=logs")
    job = run(tmp_path, *options, script=TELL)
    environ = json.loads(job.mark("environ", 0, 1))
    ours = {re.sub("_(DP|TP)_", "_<AXIS>_", name) for name in environ.keys() - os.environ.keys() - {TOKEN_VARIABLE}}
    ours -= {"PYTHONPATH", "LC_CTYPE"}  # of this test and of Python
    assert ours <= {row.name for row in VARIABLES}
    assert {"LAUNCHER_ROUND", "LAUNCHER_BOARD", "OMP_NUM_THREADS", "MESH_<AXIS>_RANK"} <= ours
