"""The table of workers, and what is said below it."""

from __future__ import annotations

from msgspec.structs import replace

from launcher.meshctl.live.ranks import describe_ranks
from launcher.views.node_report import NodeReport, RunReport
from tests.support.reasons import because
from tests.support.run_reports import REPORT, make_node


def test_what_nodes_say_cannot_move_the_cursor_or_add_lines() -> None:
    node = NodeReport(
        node="h0", member_id="h0-1", run_id="exp", version="1", at=1.0, started_at=0.0, agent_pid=1, state="waiting",
        waiting=because("for\n\x1b[2Jh1\u202e"),
    )  # fmt: skip
    report = RunReport(run_id="exp", at=1.0, leader="h0", nodes=(node,), missing=("h2\n",))
    assert describe_ranks(report).split("\n") == ["h0: for\\n\\x1b[2Jh1\\u202e", "h2\\n: no answer"]


def test_a_sentence_that_begins_with_the_state_stands_alone() -> None:
    waiting = make_node(0, ranks=(), state="waiting", waiting=because("waiting for nodes: 1 of 2"))
    spare = make_node(1, ranks=(), state="spare", waiting=because("all places are taken"))
    assert describe_ranks(replace(REPORT, nodes=(waiting, spare), missing=())).split("\n") == [
        f"{spare.node}: spare: all places are taken",
        f"{waiting.node}: waiting for nodes: 1 of 2",
    ]
