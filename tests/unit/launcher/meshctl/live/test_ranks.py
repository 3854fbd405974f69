"""The table of workers, and what is said below it."""

from __future__ import annotations

from launcher.meshctl.live.ranks import describe_ranks
from launcher.observe.node_report import NodeReport, RunReport


def test_what_nodes_say_cannot_move_the_cursor_or_add_lines() -> None:
    node = NodeReport(
        node="h0", member_id="h0-1", run_id="exp", version="1", at=1.0, started_at=0.0, agent_pid=1, state="waiting",
        waiting="for\n\x1b[2Jh1\u202e",
    )  # fmt: skip
    report = RunReport(run_id="exp", at=1.0, leader="h0", nodes=(node,), missing=("h2\n",))
    assert describe_ranks(report).split("\n") == ["h0: waiting: for\\x0a\\x1b[2Jh1\\u202e", "h2\\x0a: no answer"]
