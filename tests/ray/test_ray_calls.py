"""`launcher.extensions.ray.run`: a function on the nodes of a cluster, its results and its failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.running import LIMIT_S
from tests.support.ray_cluster import RayTestCluster

CALLS = Path(__file__).parent / "programs/calls.py"


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("results", "returned {0: (0, 3, 7), 1: (1, 3, 7), 2: (2, 3, 7)}"),
        ("thread", "returned {0: (0, 3, 7), 1: (1, 3, 7), 2: (2, 3, 7)}"),
        ("twice", "left True REMOVED"),
        ("program", "returned {0: None, 1: None, 2: None}"),
        ("script", "returned {0: None, 1: None, 2: None}"),
        ("failure", "raised 1 1 LookupError('rank 1 has no data')"),
    ],
)
def test_a_call_returns_what_ranks_of_all_nodes_return(cluster: RayTestCluster, what: str, line: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CALLS), what],
        env=cluster.make_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert line in done.stdout.splitlines(), done.stdout
