"""The state of a run by what its agents say, shown as one from the store."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from launcher.meshctl.status.agents import derive_overview
from launcher.meshctl.status.render import describe, encode_overview
from tests.support.run_reports import FIRST, NOW, REPORT, make_node, make_rank


def test_a_run_is_shown_as_one_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.meshctl.status.render.format_clock", lambda at, now: f"T{at - NOW:+.0f}")
    assert (
        describe(derive_overview(REPORT))
        == """\
run       exp
now       round 2 runs 4 ranks on 2 nodes, since T-60 (1 min)
mesh      dp=2, tp=2
leader    h0
restarts  1 of 3
lost      h9 in round 1
silent    h7: no answer

node  state    ranks
h0    running  0-1    leads
h1    running  2-3

round 1   T-120  6 ranks on 2 nodes; ended after 30 s: node h9 is lost
round 2   T-60  4 ranks on 2 nodes"""
    )


def test_its_json_has_the_same_fields() -> None:
    found = json.loads(json.dumps(encode_overview(derive_overview(REPORT))))
    assert (found["schema"], found["phase"], found["lost"], found["silent"]) == (1, "running", [["h9", 1]], ["h7"])


@pytest.mark.parametrize(
    ("states", "node_state", "phase"),
    [
        (("running", "running"), "running", "running"),
        (("succeeded", "succeeded"), "succeeded", "running"),
        (("failed", "running"), "failed", "running"),
    ],
)
def test_states_of_ranks_are_those_of_their_node(states: tuple[str, ...], node_state: str, phase: str) -> None:
    ranks = tuple(make_rank(rank, state=state, exit_code=1) for rank, state in enumerate(states))
    seen = derive_overview(replace(REPORT, nodes=(make_node(0, ranks=ranks),)))
    assert (seen.nodes[0].state, seen.phase) == (node_state, phase)


def test_before_and_between_rounds() -> None:
    waiting = make_node(0, state="waiting", round=0, ranks=(), waiting="1 of at least 2 nodes", mesh_shape=())
    assert derive_overview(replace(REPORT, nodes=(waiting,), rounds=())).phase == "forming"
    between = derive_overview(replace(REPORT, nodes=(waiting,), rounds=(FIRST,)))
    assert (between.phase, between.nodes[0].why) == ("waiting", "1 of at least 2 nodes")
    stopping = replace(REPORT, nodes=(make_node(0, state="stopping"),))
    assert derive_overview(stopping).phase == "stopping"
