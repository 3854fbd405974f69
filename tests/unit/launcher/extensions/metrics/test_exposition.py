"""Pages as prometheus_client's own parsers read them."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from launcher.extensions.metrics.exposition import encode_report
from launcher.extensions.metrics.table import METRICS
from tests.support.reports import make_rank, make_report

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_both_forms_have_every_metric_and_the_labels(accept: str) -> None:
    page, content_type = encode_report(make_report(), accept)
    parse = parse_openmetrics if accept else parse_text
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain; version=0.0.4")
    samples = [sample for family in parse(page.decode()) for sample in family.samples]
    assert {sample.name for sample in samples} == {metric.full_name for metric in METRICS}
    assert all(sample.labels["run"] == "exp-41" and sample.labels["node"] == "n0" for sample in samples)


def test_a_hostile_name_stays_a_label_and_what_is_not_known_has_no_line() -> None:
    node = 'n"} 1\nmeshrun_evil{x="\\'
    page, _ = encode_report(make_report(name=node), "")
    samples = [sample for family in parse_text(page.decode()) for sample in family.samples]
    assert {sample.labels["node"] for sample in samples} == {node}
    assert "meshrun_evil" not in {sample.name for sample in samples}
    page, _ = encode_report(make_report(run=None, ranks=(make_rank(0, step=-1),)), "")
    assert b"meshrun_nodes" not in page
    assert b"meshrun_worker_step" not in page
    for accept in ("application/openmetrics-text;version=x.y", "text/plain;version=\xff"):
        assert b"meshrun_round{" in encode_report(make_report(), accept)[0]
