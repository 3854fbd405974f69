"""The options that say which node gets which ranks, given to the real command on one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Outcome, run

SCRIPT = """
import os, sys
names = ("RANK", "WORLD_SIZE", "MESH_SHAPE", "MESH_COORDS", "MESH_DP_RANK", "MESH_DP_SIZE", "MESH_TP_RANK")
sys.stdout.write(" ".join(os.environ[name] for name in names) + "\\n")
"""


def job(place: Path, *words: str, **environ: str) -> Outcome:
    (place / "train.py").write_text(SCRIPT)
    return run("meshrun", "--nproc-per-node=4", "--mesh=dp=*,tp=2", *words, "train.py", cwd=place, environ=environ)


def test_a_job_runs_with_all_of_them_and_its_workers_know_their_places(place: Path) -> None:
    outcome = job(
        place, "--traffic", "tp=100,dp=10:ring", "--unit", "2", "--within", "tp=host", "--level-costs", "host=1.5",
        "--elastic", "1:2",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert sorted(outcome.out.splitlines()) == [
        "0 4 2,2 0,0 0 2 0",
        "1 4 2,2 0,1 0 2 1",
        "2 4 2,2 1,0 1 2 0",
        "3 4 2,2 1,1 1 2 1",
    ]
    assert "level" not in outcome.err


def test_a_bounded_axis_leaves_slots_idle_and_says_so(place: Path) -> None:
    outcome = job(place, LAUNCHER_ELASTIC=":1")
    assert outcome.code == 0, outcome.err
    assert sorted(outcome.out.splitlines()) == ["0 2 1,2 0,0 0 1 0", "1 2 1,2 0,1 0 1 1"]
    assert "meshrun: world of 2 ranks on 1 of 1 node: " in outcome.err


@pytest.mark.parametrize(
    ("word", "variable", "error"),
    [
        ("--elastic=3:", "", "mesh dp>=3,tp=2 needs 6 devices, but 4 are present on 1 node"),
        ("", "TRAFFIC:tp=1:star", "LAUNCHER_TRAFFIC: --traffic tp=1:star: 'star' is not a kind of traffic\nhint: use "),
        ("--whole=slice:4", "", "--whole slice:4: unknown level slice; on one machine only host exists\nhint: leave "),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_worker_starts(
    place: Path, word: str, variable: str, error: str
) -> None:
    name, _, text = variable.partition(":")
    outcome = job(place, *filter(None, [word]), **({f"LAUNCHER_{name}": text} if name else {}))
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err.startswith(f"meshrun: error: {error}")


def test_a_plan_for_one_node_needs_nothing_heavy() -> None:
    code = """
import sys
from launcher.agent import loop
from launcher.model import mesh
from launcher.placement.limits import Costs, Limits
from launcher.placement.adapter.description import Description, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from rendezvous.events import MakePlan, RosterMember

node = RosterMember("a", encode_description(Description(slot_count=8, address="127.0.0.1", role="default")), 1)
planner = PlannerAdapter(mesh.parse("pp=2,dp=*,tp=2"), Limits(), Costs())
planned = planner.plan(MakePlan(1, 1, (node,), {}))
assert planned.world_size == 8
again = planner.plan(MakePlan(2, 2, (node,), planned.assignments))
assert again.assignments == planned.assignments
print(*sys.modules)
"""
    outcome = run("python", "-c", code)
    assert outcome.code == 0, outcome.err
    assert {"numpy", "fractions", "click", "argparse"}.isdisjoint(outcome.out.split())
