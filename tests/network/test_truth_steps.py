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

layout = ("h0", "h2", "h1", "h3")
for axis in ("tp", "pp", "ep"):
    case = truth_cases.make_case("small", (2, 2), f"dp=2,{axis}=2", f"dp=100kB,{axis}=200kB", "host=100,leaf=100")
    with TreeNetwork(case.hosts, case.instance.limits.levels, case.wire_rates) as network:
        print(json.dumps([axis, truth.measure(network, case, ["path"], layout, 2)]))
"""


def test_uplinks_carry_what_is_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=True, cwd=ROOT
    )
    measured = dict(json.loads(line) for line in done.stdout.splitlines())
    assert measured.keys() == {"tp", "pp", "ep"}
    assert {axis: found for axis, found in measured.items() if found["predicted_s"] <= 0} == {}
    assert {axis: found for axis, found in measured.items() if not 0.97 < found["carried"] < 1.1} == {}
