"""The files for Prometheus and Grafana in examples/monitoring name what there is, and nothing else.

What Prometheus itself says of them: tests/end_to_end/test_metrics.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import pytest
import yaml

from launcher.extensions.metrics.table import METRICS
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


def test_every_label_that_selects_is_one_of_its_metric() -> None:
    expressions = list(list_expressions())
    selected = [pair for one in expressions for pair in re.findall(r"(meshrun_\w+)\{([^}]*)\}", one)]
    assert len(selected) > 30
    for metric, selector in selected:
        assert set(re.findall(r"(\w+)=", selector)) <= LABELS[metric], (metric, selector)


def test_the_board_shows_every_metric_but_some() -> None:
    text = " ".join(list_expressions())
    missing = {metric.full_name for metric in METRICS if metric.full_name not in text}
    assert missing == {
        "meshrun_build_info",  # in the variables
        "meshrun_round_nodes",  # beside the leader's count of all
        "meshrun_rounds_total",
        "meshrun_trained_seconds",
        "meshrun_worker_start_time_seconds",
    }


def test_panels_have_their_own_places_and_a_text() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["description"].endswith(".") for panel in PANELS)
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
        assert one["x"] + one["w"] <= 24


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


def test_the_guide_lists_every_metric_as_it_says_of_itself() -> None:
    guide = (FOLDER.parents[1] / "docs/guides/metrics.md").read_text()
    rows = [
        f"| `{metric.full_name}` | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS
    ]
    assert re.findall(r"^\| `meshrun_.*$", guide, re.MULTILINE) == rows
