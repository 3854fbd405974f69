"""The files for Prometheus and Grafana in examples/monitoring name what there is, and nothing else.

What Prometheus itself says of them: tests/end_to_end/test_metrics.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from launcher.extensions.metrics.table import METRICS
from tests.support.documents.recipes import KUBERNETES
from tests.support.prometheus import FOLDER, list_queries, read_board

LABELS = {metric.full_name: {"run", "node", *metric.labels} for metric in METRICS}
BOARD = read_board()
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def list_expressions() -> Iterator[str]:
    yield from list_queries()
    yield from (note["expr"] for note in BOARD["annotations"]["list"])
    yield from (rule["expr"] for rule in RULES)


@pytest.mark.parametrize("name", ["prometheus.yml", "alerts.yml", "alerts_test.yml", "dashboard.json"])
def test_every_metric_that_is_named_exists(name: str) -> None:
    named = set(re.findall(r"\bmeshrun_\w+", (FOLDER / name).read_text()))
    assert named - LABELS.keys() == set()


def test_every_label_is_one_of_its_metric_and_the_guide_lists_every_metric() -> None:
    expressions = list(list_expressions())
    selected = [pair for one in expressions for pair in re.findall(r"(meshrun_\w+)\{([^}]*)\}", one)]
    assert len(selected) > 30
    for metric, selector in selected:
        assert set(re.findall(r"(\w+)=", selector)) <= LABELS[metric], (metric, selector)
    guide = (FOLDER.parents[1] / "docs/reference/metrics.md").read_text()
    rows = [
        f"| `{metric.full_name}` | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS
    ]
    assert re.findall(r"^\| `meshrun_.*$", guide, re.MULTILINE) == rows


def test_a_missing_agent_is_looked_for_under_the_name_that_scrapes_have() -> None:
    [alert] = [rule for rule in RULES if "up{" in rule["expr"]]
    [job] = re.findall(r'job="(\w+)"', alert["expr"])
    assert job in {
        each["job_name"] for each in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    }
    monitor = yaml.safe_load((KUBERNETES / "trainer/chart/files/pod-monitor.yaml").read_text())["spec"]
    assert monitor["selector"]["matchLabels"][monitor["jobLabel"]] == job


def test_alerts_of_a_job_are_one_for_each_run() -> None:
    for rule in RULES:
        assert "up{" in rule["expr"] or re.match(r"(max|count) by \(run\) ", rule["expr"]), rule["alert"]


def test_every_alert_says_what_and_what_to_do_and_is_tested() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in RULES} == tested
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
