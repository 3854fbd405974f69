"""One recorded view of a run, through every way of showing it: they say the same."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from launcher.extensions.metrics.table import METRICS
from launcher.extensions.page.shared_run import SharedRun
from launcher.meshctl.live.listing import ListedRun
from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.live.top_state import TopState
from launcher.meshctl.status import describe
from launcher.views.goodput import Goodput
from launcher.views.run_json import encode_run
from launcher.views.run_view import NodeView, RunView, join_nodes
from rendezvous.records import Verdict
from tests.support.reasons import because
from tests.support.run_reports import FIRST, NOW, FakeSource, make_node, make_round

GOODPUT = Goodput(total_s=100.0, trained_s=93.0, lost_s={"loss": 7.0})
SPARE = NodeView(name="h0", member_id="m0", state="spare", why=because("no whole replica left"))
"""As the leader knows itself: it had ranks in round 1, and leads as a spare now."""
RUN = RunView(
    run_id="exp", phase="running", at=NOW, leader="h0", round=2, world_size=4, restart_count=1, max_restarts=3,
    member_count=4, nodes=(SPARE,), rounds=(FIRST, make_round(2)), goodput=GOODPUT,
)  # fmt: skip
LEADER = make_node(0, state="spare", round=0, last=FIRST, why=because("it runs without this node"), run=RUN)
ANSWERS = {"m0": LEADER, "m1": make_node(1, last=make_round(2)), "m2": make_node(2, last=make_round(2))}
NAMES = {"m0": "h0", "m1": "h1", "m2": "h2", "m3": "h3"}
VIEWS = {
    "a leader that is a spare": join_nodes(RUN, ANSWERS, NAMES),
    "it is being stopped": join_nodes(
        replace(RUN, phase="stopping", stop_reason=because("node h3 is lost")),
        {**ANSWERS, "m1": make_node(1, state="stopping", last=make_round(2))},
        NAMES,
    ),
    "it has ended": replace(
        join_nodes(RUN, {}, NAMES),
        phase="ended",
        verdict=Verdict(kind="failure", exit_code=1, round=2, reason=because("a worker failed"), ended_at=NOW),
    ),
}
HEADLINES = {
    "a leader that is a spare": "round 2 runs 4 ranks on 2 nodes",
    "it is being stopped": "round 2 is being stopped: node h3 is lost",
    "it has ended": "failed in round 2, exit code 1: a worker failed",
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_says_the_same_of_a_run(name: str) -> None:
    run, headline = VIEWS[name], HEADLINES[name]
    top = TopState("exp")
    top.report = run
    page = msgspec.json.decode(SharedRun(FakeSource(run)).read_run().body)
    text = msgspec.json.decode(msgspec.json.encode(encode_run(run)))
    told = [" ".join(one.split()) for one in (describe(run), top.describe_head(NOW))]
    assert all(headline in one for one in (*told, page["now"], text["now"], ListedRun(run_id="exp", run=run).now))
    for one in (page, text):
        assert (one["phase"], one["round"], one["leader"], one["world_size"]) == (run.phase, 2, "h0", 4)
    assert all("93 %" in one for one in told)
    assert text["goodput"] == page["goodput"]
    states = {node.name: node.state for node in run.nodes}
    assert states["h3"] == "silent"
    for one in (page, text):
        assert {node["name"]: node["state"] for node in one["nodes"] if node["state"] != "lost"} == states
    ranks = {rank.rank for node in run.nodes for rank in node.ranks}
    assert {rank["rank"] for node in text["nodes"] for rank in node["ranks"]} == ranks
    assert {row[0] for node in page["nodes"] for row in node["ranks"]} == ranks
    table = [line.split()[0] for line in describe_ranks(run).partition("\n\n")[0].splitlines()[1:]] if ranks else []
    assert set(table) == set(map(str, ranks))


def test_metrics_of_the_leader_are_those_of_the_run() -> None:
    found = {metric.name: dict(metric.read(LEADER)) for metric in METRICS}
    seen = VIEWS["a leader that is a spare"]
    assert found["run_round"] == {(): seen.round}
    assert found["goodput_ratio"] == {(): GOODPUT.ratio}
    assert found["restarts_charged"] == {(): seen.restart_count}
    assert (found["nodes"], found["spare_nodes"]) == ({(): 4}, {(): 1})
