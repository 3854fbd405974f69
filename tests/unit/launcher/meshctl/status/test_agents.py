"""The state of a run by what its agents say, shown as one from the store."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from launcher.meshctl.status.agents import derive_overview
from launcher.meshctl.status.render import describe, encode_overview
from tests.support.reasons import because
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


def test_a_feature_that_has_failed_is_shown_with_its_node() -> None:
    seen = derive_overview(replace(REPORT, nodes=(make_node(1, off=("--hang-timeout", "--serve")),)))
    assert seen.nodes[0].why == "--hang-timeout is off, --serve is off"


def test_before_and_between_rounds() -> None:
    waiting = make_node(0, state="waiting", round=0, ranks=(), waiting=because("1 of at least 2 nodes"), mesh_shape=())
    assert derive_overview(replace(REPORT, nodes=(waiting,), rounds=())).phase == "forming"
    between = derive_overview(replace(REPORT, nodes=(waiting,), rounds=(FIRST,)))
    assert (between.phase, between.nodes[0].why) == ("waiting", "1 of at least 2 nodes")
    over = replace(FIRST, cause="end", reason=because("all workers succeeded"))
    ended = derive_overview(replace(REPORT, nodes=(make_node(0, state="leaving"),), rounds=(over,)))
    assert (ended.phase, ended.leader) == ("ended", "h0")
    assert "now       has ended with round 1: all workers succeeded\n" in describe(ended)
    stopping = replace(REPORT, nodes=(make_node(0, state="stopping"),))
    assert derive_overview(stopping).phase == "stopping"


def test_a_failure_has_its_class_in_one_field_and_its_error_in_another() -> None:
    """As in the store, where a class is the same whenever a rank fails in the same way."""
    failed = replace(
        FIRST,
        cause="failure",
        reason=because("rank 1 failed"),
        failed_rank=1,
        failure_class=because("user code: KeyError"),
    )
    seen = derive_overview(replace(REPORT, rounds=(replace(failed, error="KeyError: 'lost'"),)))
    (past,) = encode_overview(seen)["history"]
    assert (past["failure_class"], past["ended"]) == ("user code: KeyError", "rank 1 failed; KeyError: 'lost'")
    assert past["ended_kind"] == because("").kind
    assert "rank 1 failed; KeyError: 'lost' (rank 1: user code: KeyError)" in " ".join(describe(seen).split())


def test_slots_are_counted_also_where_no_workers_run() -> None:
    spare = make_node(0, state="spare", ranks=(), slot_count=8)
    seen = derive_overview(replace(REPORT, nodes=(spare, make_node(1))))
    assert [node.slot_count for node in seen.nodes] == [2, 8]


def test_what_nodes_say_stays_in_its_line() -> None:
    forged = make_node(0, node="h0\n", state="up\x1b[2J\u202e", locality=(("rack\n", "r1"),))
    text = describe(derive_overview(replace(REPORT, nodes=(forged, make_node(1)))))
    assert text.isascii()
    assert "up\\x1b[2J\\u202e" in text
    assert next(line for line in text.splitlines() if line.startswith("h0")).startswith("h0\\n")
