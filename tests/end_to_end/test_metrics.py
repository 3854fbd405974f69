"""Debian's Prometheus and promtool on what agents say, and on the files in examples/monitoring."""

from __future__ import annotations

from pathlib import Path

from launcher.metrics.exposition import encode_report
from launcher.metrics.report_cache import ReportCache
from launcher.metrics.requirements import open_listener
from launcher.metrics.server import MetricsServer
from tests.support.prometheus import FOLDER, PrometheusServer, list_queries, run_promtool
from tests.support.reports import FixedSource, make_report
from tests.support.waiting import wait_until

VARIABLES = {"$run": "exp-41", "$node": ".*", "$__rate_interval": "5m"}


def test_promtool_has_no_remark_on_a_page() -> None:
    assert run_promtool("check", "metrics", input=encode_report(make_report(), "")[0]) == ""


def test_promtool_accepts_the_configuration_and_the_alerts() -> None:
    assert "SUCCESS" in run_promtool("check", "config", str(FOLDER / "prometheus.yml"))
    assert "SUCCESS" in run_promtool("check", "rules", str(FOLDER / "alerts.yml"))
    assert "SUCCESS" in run_promtool("test", "rules", str(FOLDER / "alerts_test.yml"))


def test_every_panel_has_something_to_show_and_every_alert_is_evaluated(tmp_path: Path) -> None:
    server = MetricsServer(open_listener("127.0.0.1", 0), ReportCache(FixedSource(make_report())))
    with PrometheusServer(tmp_path / "prometheus", [f"127.0.0.1:{server.port}"], [FOLDER / "alerts.yml"]) as prometheus:
        assert prometheus.wait_for('meshrun_round{run="exp-41", node="n0"}') == 2
        prometheus.wait_for("rate(meshrun_worker_cpu_seconds_total[1m])")
        for query in list_queries():
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            assert prometheus.query(query), query
        rules = wait_until(lambda: [one for one in prometheus.list_rules() if one[1] != "unknown"])
        assert {health for _, health in rules} == {"ok"}
    server.close()
