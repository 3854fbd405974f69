"""One recorded view of a run, through every way of showing it: they say the same."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from launcher.extensions.metrics.exposition import encode_report
from launcher.extensions.metrics.paths import describe_readiness
from launcher.extensions.metrics.table import METRICS
from launcher.extensions.page.document import load_document, save_document
from launcher.extensions.page.shared_run import SharedRun
from launcher.logs.reports.report import WorkerFailure
from launcher.meshctl.live.events import format_events
from launcher.meshctl.live.listing import ListedRun, describe_runs
from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.live.top_state import TopState
from launcher.meshctl.status import describe
from launcher.views.event_view import read_event
from launcher.views.http.http_server import refuse, say
from launcher.views.questions.local_socket import LocalAgent
from launcher.views.rows import list_rows
from launcher.views.run_json import encode_run
from launcher.views.run_view import Goodput, NodeView, RunView, join_nodes
from rendezvous.records import Verdict
from tests.support.reasons import because
from tests.support.run_reports import FIRST, NOW, FakeSource, make_node, make_rank, make_round, make_silent

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
    rows = {label: row for label, *row in page["rows"]}
    assert {label: text for label, (text, *_) in rows.items()} == dict(row[:2] for row in list_rows(run))
    assert all(" ".join(text.split()) in one for one in told for text, *_ in rows.values())
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


RUDE = "\x1b[2J\u202e</script><b>\\x"
"""Clears a terminal, turns the text around, is markup."""


def make_rude() -> RunView:
    """Make a run in which every text of a node or a worker is `RUDE`."""
    texts = {"name": RUDE, "log_dir": RUDE, "version": RUDE, "locality": (("rack", RUDE), (RUDE, RUDE)), "off": (RUDE,)}
    rank = make_rank(0, state="failed", exit_code=1, place=RUDE, phase=RUDE, device=RUDE, sentence=RUDE)
    other = make_rank(1, state=RUDE, progress_age_s=99.0)
    failed = replace(FIRST, cause="failure", ended=because(RUDE), error=RUDE, failed_rank=0, nodes=(RUDE,),
                     failure_class=because(RUDE))  # fmt: skip
    failure = WorkerFailure(
        rank=0, local_rank=0, pid=1, exit_code=1, time="", host=RUDE, coordinates=RUDE, exception=RUDE, log_file=RUDE
    )
    return replace(
        RUN, run_id=RUDE, job=RUDE, leader=RUDE, mesh=f"{RUDE}=2", coordinator=RUDE, reason=because(RUDE),
        phase="running", options={RUDE: RUDE}, lost=((RUDE, 1),), drained=(RUDE,), requests=(RUDE,), faults=(RUDE,),
        rounds=(failed, make_round(2, hang=(RUDE,), mesh=RUDE)), failure=failure,
        nodes=(
            make_node(0, ranks=(rank, other), why=because(RUDE), **texts),
            make_node(1, ranks=(), state="spare", why=because(RUDE), **texts),
            make_node(2, ranks=(), state="quarantined", why=because(RUDE), **texts),
            make_node(3, ranks=(), state=RUDE, **texts),
            replace(make_silent("h3"), name=RUDE),
        ),
    )  # fmt: skip


def test_no_view_lets_a_name_control_a_terminal_or_become_markup() -> None:
    run = make_rude()
    top = TopState(RUDE)
    top.report, top.problem = run, RUDE
    line = msgspec.json.encode({"event": "remark", "time": "", "node": RUDE, "rank": RUDE, "sentence": RUDE}).decode()
    event = read_event(line, RUDE)
    assert event is not None
    listed = ListedRun(
        run_id=RUDE, run=run, agents=[LocalAgent(name="meshrun.0.1", run_id=RUDE, node=RUDE, version="", script=RUDE)]
    )
    told = {
        "status": describe(run),
        "ps": describe_ranks(run),
        "top": top.describe_head(NOW) + top.describe_ranks(),
        "events": "\n".join(format_events([event], NOW)),
        "list": describe_runs([listed], has_store=False),
        "readiness": say(*describe_readiness(make_node(0, state="waiting", why=because(RUDE)))).body.decode(),
        "refusal": refuse("/x", 503, RUDE).body.decode(),
    }
    assert not {name for name, text in told.items() if "\x1b" in text or "\u202e" in text}
    source = FakeSource(run)
    source.events[""], source.files[RUDE] = [line], []
    saved = save_document(SharedRun(source), has_stacks=False).decode()
    assert "\x1b" not in saved
    assert saved.count("</script>") == load_document()[0].decode().count("</script>")
    for one in (encode_run(run), msgspec.json.decode(SharedRun(FakeSource(run)).read_run().body)):
        assert msgspec.json.decode(msgspec.json.encode(one))["leader"] == RUDE, "programs get it as it is"
    page, _ = encode_report(replace(LEADER, name=RUDE, run_id=RUDE, version=RUDE), "")
    families = [*text_string_to_metric_families(page.decode())]
    assert {sample.labels["node"] for family in families for sample in family.samples} == {RUDE}
