"""What each metric says of a report, and what is left out of one that does not know."""

from __future__ import annotations

import pytest

from launcher.extensions.metrics.table import METRICS
from launcher.views.run_view import NodeView
from tests.support.reports import make_rank, make_report


def read(name: str, report: NodeView) -> dict[tuple[str, ...], float]:
    (metric,) = [one for one in METRICS if one.full_name == name]
    return dict(metric.read(report))


def test_every_value_of_a_full_report_is_told_and_states_are_complete_from_the_start() -> None:
    report = make_report()
    empty = [metric.full_name for metric in METRICS if not list(metric.read(report))]
    assert empty == []
    idle = make_report(state="waiting", round=0, ranks=(), round_count=0, end_counts={}, failure_counts={})
    assert read("meshrun_node_state", idle)[("waiting",)] == 1
    assert sum(read("meshrun_node_state", idle).values()) == 1
    assert set(read("meshrun_rounds_ended_total", idle).values()) == {0}
    assert ("loss",) in read("meshrun_rounds_ended_total", idle)
    assert ("user code",) in read("meshrun_failures_total", idle)
    assert read("meshrun_rounds_total", idle) == {(): 0}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("meshrun_store_latency_seconds", "store_latency_s"),
        ("meshrun_step", "step"),
    ],
)
def test_what_an_agent_does_not_know_is_left_out(name: str, field: str) -> None:
    assert read(name, make_report(**{field: -1})) == {}
    assert read(name, make_report(**{field: 0})) == {(): 0.0}


def test_what_concerns_the_run_is_told_by_the_leader_also_where_it_is_a_spare() -> None:
    spare = make_report(state="spare", round=0, ranks=())
    assert (read("meshrun_round", spare), read("meshrun_run_round", spare)) == ({(): 0}, {(): 2})
    assert read("meshrun_goodput_ratio", spare) == {(): 0.8}
    assert read("meshrun_lost_seconds", spare)["failure",] == 15.0
    assert (read("meshrun_nodes", spare), read("meshrun_spare_nodes", spare)) == ({(): 3}, {(): 1})
    other = make_report(is_leader=False, run=None)
    for name in ("nodes", "spare_nodes", "run_round", "goodput_ratio", "lost_seconds", "restarts_charged"):
        assert read(f"meshrun_{name}", other) == {}


def test_only_workers_that_run_and_have_figures_have_samples() -> None:
    ranks = (make_rank(0), make_rank(1, state="blocked"), make_rank(2, state="failed", rss_bytes=0))
    report = make_report(ranks=ranks)
    assert read("meshrun_worker_resident_memory_bytes", report).keys() == {("0",), ("1",)}
    states = read("meshrun_ranks", report)
    assert (states["running",], states["blocked",], states["failed",], states["succeeded",]) == (1, 1, 1, 0)
    report = make_report(ranks=(make_rank(0, progress_age_s=-1.0, step=-1, device_memory_bytes=-1),))
    assert read("meshrun_worker_progress_age_seconds", report) == {}
    assert read("meshrun_worker_step", report) == {}
    assert read("meshrun_worker_device_memory_used_bytes", report) == {}
