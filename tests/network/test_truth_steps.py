"""Real steps of the truth bench move over every uplink what is counted for it, whatever the kind of communication."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.documents.pages import ROOT
from tests.support.network.trees import why_no_trees

pytestmark = pytest.mark.skipif(bool(why_no_trees()), reason=why_no_trees())

# In a process of its own: it imports torch and then forks.
SCRIPT = """
import json
import torch.distributed.device_mesh
from benchmarks import truth, truth_cases
from tests.support.network.trees import TreeNetwork

case = truth_cases.make_case("small", (2, 2), "dp=2,{axis}=2", "dp=100kB,{axis}=200kB", "host=100,leaf=100")
layout = ("h0", "h2", "h1", "h3")
with TreeNetwork(case.hosts, case.instance.limits.levels, case.wire_rates) as network:
    print(json.dumps(truth.measure(network, case, ["path"], layout, 2)))
"""


@pytest.mark.parametrize("axis", ["tp", "pp", "ep"])
def test_uplinks_carry_what_is_counted(axis: str) -> None:
    script = SCRIPT.replace("{axis}", axis)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["predicted_s"] > 0
    assert 0.97 < found["carried"] < 1.1
