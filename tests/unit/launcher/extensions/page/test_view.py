"""What the page shows of a run: nodes that answer, are silent, or lost, and where they stand."""

from __future__ import annotations

from msgspec.structs import replace

from launcher.extensions.page.view import LOST_MAX, make_view, remember
from launcher.views.node_report import RunReport
from tests.support.page.fake_run import make_report, silence


def test_a_silent_node_keeps_its_place_and_levels_their_order() -> None:
    before, after = make_report(4, 8, 0.0), silence(make_report(4, 8, 30.0))
    assert after.missing == ("h1",)
    seen = remember(remember({}, before, 100.0), after, 130.0)
    view = make_view(after, seen, 130.0)
    node = next(one for one in view.nodes if one.name == "h1")
    assert (node.state, node.seen_s, node.path) == ("silent", 30.0, ("p0", "l0"))
    assert [rank.rank for rank in node.ranks] == list(range(8, 16))
    report = make_report(4, 8, 0.0, calm=True)
    nodes = [replace(one, locality=()) for one in report.nodes]
    nodes[0] = replace(nodes[0], locality=(("zone", "a"), ("leaf", "l1")))
    nodes[1] = replace(nodes[1], locality=(("zone", "a"), ("pod", "p1"), ("leaf", "l2")))
    view = make_view(replace(report, nodes=tuple(nodes)), {}, 0.0)
    assert view.levels == ("zone", "pod", "leaf")
    assert [one.path for one in view.nodes[:3]] == [("a", "", "l1"), ("a", "p1", "l2"), ("", "", "")]


def test_a_run_has_a_view_before_any_answer_and_with_few_of_many_lost_nodes() -> None:
    report = replace(make_report(4, 8, 0.0), lost=tuple(f"x{index}" for index in range(5000)))
    view = make_view(report, {}, 0.0)
    assert sum(one.state == "lost" for one in view.nodes) == LOST_MAX
    seen = remember({}, make_report(64, 8, 0.0), 1.0)
    gone = replace(make_report(4, 8, 0.0), missing=(), lost=())
    assert remember(seen, gone, 2.0).keys() == {one.node for one in gone.nodes}
    view = make_view(RunReport(run_id="r", at=5.0, leader="", nodes=(), missing=("h0",)), {}, 0.0)
    assert (view.state, view.round, [one.state for one in view.nodes]) == ("waiting", 0, ["silent"])
