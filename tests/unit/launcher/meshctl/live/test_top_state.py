"""meshctl top: what its texts and tables hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.meshctl import status
from launcher.meshctl.live import top_state
from launcher.meshctl.live.top_state import TopState
from launcher.meshctl.status import describe
from launcher.views.event_view import read_event
from launcher.views.run_view import Goodput, NodeView
from tests.support.reasons import because
from tests.support.run_reports import NOW, REPORT, make_event, make_node, make_rank

GOODPUT = Goodput(total_s=100.0, trained_s=93.0, lost_s={"failure": 5.0, "start": 2.0})


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> TopState:
    monkeypatch.setattr(status, "format_clock", lambda at, now: f"T{at - now:+.0f}")
    found = TopState("exp")
    found.report = replace(REPORT, goodput=GOODPUT)
    return found


def test_the_head_is_that_of_meshctl_status(state: TopState) -> None:
    head = state.describe_head(NOW)
    assert describe(replace(REPORT, goodput=GOODPUT)).startswith(head)
    assert "now       round 2 runs 4 ranks on 2 nodes, since T-60 (1 min)\n" in head
    assert "goodput   93 %: trained 1 min 33 s of 1 min 40 s; lost 5.0 s to failure, 2.0 s\n" in head
    assert "lost      h9 in round 1\nsilent    h7: no answer\n" in head
    assert TopState("exp").describe_head(NOW) == "run exp: waiting for its agents to answer"


def test_ranks_are_sorted_by_what_one_looks_for(state: TopState) -> None:
    ranks = (
        make_rank(0, cores=0.5, rss_bytes=10, progress_age_s=100.0),
        make_rank(1, cores=0.1, rss_bytes=30, state="failed", exit_code=1),
        make_rank(2, cores=0.9, rss_bytes=20, progress_age_s=1.0),
    )
    state.report = replace(REPORT, nodes=(make_node(0, ranks=ranks),))
    orders = {}
    for _ in top_state.SORT_KEYS:
        orders[state.sort_key] = [line.split()[0] for line in state.describe_ranks().splitlines()[1:]]
        state.change_sort()
    assert orders == {
        "rank": ["0", "1", "2"], "cpu": ["2", "0", "1"], "memory": ["1", "2", "0"], "progress": ["0", "2", "1"],
        "state": ["1", "0", "2"],
    }  # fmt: skip
    assert state.sort_key == "rank"


def test_how_the_run_ended_stays(state: TopState) -> None:
    state.ending = "run exp no longer has an agent on this machine: it was last seen in round 2"
    assert state.describe_head(NOW).endswith(f"\n{state.ending}")
    line = make_event("agent_ended", "h0", "08:00:00.000", exit_code=1, verdict="failure", reason="a worker failed")
    event = read_event(line, "h0")
    assert event is not None
    state.take(None, [event], ending=state.ending)
    ended = "run exp has ended: the agent ended with exit code 1, the job: failure: a worker failed"
    assert state.describe_head(NOW).endswith(f"\n{ended}")


def test_names_and_errors_cannot_control_the_terminal(state: TopState) -> None:
    rude = "\x1b[2J"
    node = make_node(0, name=rude, why=because(rude), ranks=(make_rank(0, phase=rude, place=rude),))
    state.report = replace(REPORT, nodes=(node, NodeView(name=rude)), leader=rude)
    texts = [state.describe_ranks(), state.describe_head(NOW)]
    assert not any("\x1b" in text for text in texts)
