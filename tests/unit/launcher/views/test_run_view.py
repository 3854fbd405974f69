"""A run as a value: what its leader knows, joined with what its nodes answer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.views.run_view import NodeView, RoundView, RunView, guess_run, join_nodes, merge_rounds
from rendezvous.reasons import Reason
from tests.support.reasons import because
from tests.support.run_reports import FIRST, NOW, make_node, make_round

RUN = RunView(run_id="exp", phase="running", round=2, leader="h0", rounds=(FIRST, make_round(2)))
NAMES = {"m0": "h0", "m1": "h1"}


def test_a_leader_that_has_become_a_spare_does_not_hide_the_round_that_runs() -> None:
    spare = make_node(0, state="spare", round=0, last=FIRST, why=because("runs without this node"))
    known = NodeView(name="h0", member_id="m0", state="quarantined", why=because("3 failures"))
    run = join_nodes(replace(RUN, nodes=(known,)), {"m0": spare, "m1": make_node(1, last=make_round(2))}, NAMES)
    assert [(one.name, one.state, len(one.ranks)) for one in run.nodes] == [
        ("h1", "running", 2),
        ("h0", "quarantined", 0),
    ]
    assert run.nodes[1].why == because("3 failures")
    assert (run.phase, run.round, run.lost) == ("running", 2, (("h9", 1),))


def test_a_node_without_an_answer_is_silent_and_one_with_a_refusal_says_why() -> None:
    run = join_nodes(RUN, {"m0": "too many questions"}, NAMES)
    assert run.silent == ("h0", "h1")
    assert [one.why for one in run.nodes] == [Reason.of("views/sentence", sentence="too many questions"), None]


@pytest.mark.parametrize(
    ("states", "phase"), [(("running", "stopping"), "stopping"), (("waiting", "spare"), "waiting")]
)
def test_a_round_is_being_stopped_as_long_as_a_node_says_so(states: tuple[str, str], phase: str) -> None:
    answers = {f"m{index}": make_node(index, state=state) for index, state in enumerate(states)}
    assert join_nodes(replace(RUN, phase="waiting"), answers, NAMES).phase == phase


def test_a_leader_that_has_just_taken_over_has_the_last_save_from_the_others() -> None:
    nodes = {f"m{index}": make_node(index, last=replace(make_round(2), saved_at=70.0 + index)) for index in range(2)}
    assert join_nodes(RUN, nodes, NAMES).rounds[-1].saved_at == 71.0
    old = {"m0": make_node(0, last=replace(FIRST, saved_at=99.0))}
    assert join_nodes(RUN, old, NAMES).rounds[-1].saved_at == RUN.rounds[-1].saved_at


def test_without_a_leader_the_newest_round_of_any_node_counts() -> None:
    nodes = [make_node(0, last=FIRST), make_node(1, last=make_round(2)), "too many questions", make_node(2)]
    run = guess_run(nodes, "exp", "", NOW)
    assert (run.phase, run.round, [one.round for one in run.rounds]) == ("running", 2, [1, 2])
    assert guess_run(nodes[:1], "exp", "", NOW).phase == "waiting"
    assert guess_run([], "exp", "", NOW).phase == "forming"


def test_the_records_tell_of_all_rounds_and_a_node_what_it_has_seen_of_its_own() -> None:
    stored = [RoundView(round=number, world_size=4, node_count=2, ended=because("loss")) for number in (1, 2)]
    own = [make_round(2, error="KeyError: 1", saved_at=5.0, ended=because("as seen here")), make_round(3)]
    rounds = merge_rounds(stored, own)
    assert [(one.round, one.error, one.saved_at, one.ended) for one in rounds] == [
        (1, "", 0.0, because("loss")), (2, "KeyError: 1", 5.0, because("loss")), (3, "", 0.0, None),
    ]  # fmt: skip
