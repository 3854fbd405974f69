"""meshctl top: what its texts and tables hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import top_state
from launcher.meshctl.live.events import read_event
from launcher.meshctl.live.top_state import TopState
from launcher.observe.goodput import Goodput
from launcher.observe.timeline import RoundSummary
from tests.support.reasons import because
from tests.support.run_reports import NOW, REPORT, make_event, make_node, make_rank

GOODPUT = Goodput(total_s=100.0, trained_s=93.0, lost_s={"failure": 5.0, "start": 2.0})


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> TopState:
    monkeypatch.setattr(top_state, "format_clock", lambda at, now: f"T{at - now:+.0f}")
    found = TopState("exp")
    found.report = replace(REPORT, goodput=GOODPUT)
    return found


def test_the_head_says_how_the_run_is(state: TopState) -> None:
    assert state.describe_head(NOW) == [
        "run exp: round 2 runs 4 ranks on 2 nodes for 1 min",
        "mesh dp=2, tp=2   leader h0   restarts 1 of 3",
        "goodput 93 %: trained 1 min 33 s of 1 min 40 s; lost 5.0 s to failure, 2.0 s to start",
        "lost: h9   no answer: h7",
    ]


def test_tables_of_nodes_and_rounds(state: TopState) -> None:
    assert state.make_node_table().rows[0][:4] == ("h0 *", "running", "0-1", "-")
    assert state.make_node_table().rows[-1] == ("h7", "no answer", "", "", "", "")
    rows = state.make_round_table(NOW).rows
    assert rows == (
        ("2", "T-60", "1m00s", "4 on 2", "runs"),
        ("1", "T-120", "30s", "6 on 2", "node h9 is lost"),
    )


def test_ranks_are_sorted_by_what_one_looks_for(state: TopState) -> None:
    ranks = (
        make_rank(0, cores=0.5, rss_bytes=10, progress_age_s=100.0),
        make_rank(1, cores=0.1, rss_bytes=30, state="failed", exit_code=1),
        make_rank(2, cores=0.9, rss_bytes=20, progress_age_s=1.0),
    )
    state.report = replace(REPORT, nodes=(make_node(0, ranks=ranks),))
    orders = {}
    for _ in top_state.SORT_KEYS:
        orders[state.sort_key] = [row[0] for row in state.make_rank_table().rows]
        state.change_sort()
    assert orders == {
        "rank": ["0", "1", "2"], "cpu": ["2", "0", "1"], "memory": ["1", "2", "0"], "progress": ["0", "2", "1"],
        "state": ["1", "0", "2"],
    }  # fmt: skip
    assert state.sort_key == "rank"


def test_how_the_run_ended_stays(state: TopState) -> None:
    state.is_over = True
    assert state.describe_head(NOW)[0].startswith(
        "run exp: no longer has an agent on this machine: it was last seen in round 2"
    )
    line = make_event("agent_ended", "h0", "08:00:00.000", exit_code=1, verdict="failure", reason="a worker failed")
    event = read_event(line, "h0")
    assert event is not None
    state.take_events([event])
    assert state.describe_head(NOW)[0] == (
        "run exp: has ended: the agent ended with exit code 1, the job: failure: a worker failed"
    )


def test_names_and_errors_cannot_control_the_terminal(state: TopState) -> None:
    rude = "\x1b[2J"
    bad = RoundSummary(
        round=1, began_at=NOW, ended_at=NOW, world_size=1, node_count=1, ranks=(), restart_count=0, waited_s=0.0,
        reason=because(rude), failure_class=because(rude), error=rude,
    )  # fmt: skip
    node = make_node(0, node=rude, waiting=because(rude), ranks=(make_rank(0, phase=rude, place=rude),))
    state.report = replace(REPORT, nodes=(node,), missing=(rude,), rounds=(bad,), leader=rude)
    tables = (state.make_rank_table(), state.make_node_table(), state.make_round_table(NOW))
    texts = [cell for table in tables for row in table.rows for cell in row] + state.describe_head(NOW)
    assert not any("\x1b" in text for text in texts)
