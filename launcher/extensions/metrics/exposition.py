"""A node's report in the words of Prometheus: the metrics of the table, encoded by prometheus_client.

A reader may ask for Prometheus' own text or for OpenMetrics; the library knows both.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from launcher.extensions.metrics.table import METRICS
from launcher.views.run_view import NodeView


class ReportCollector(Collector):
    """The families of one report, as the encoders of prometheus_client take them."""

    def __init__(self, report: NodeView) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        own = (self._report.run_id, self._report.name)
        for metric in METRICS:
            labels = ("run", "node", *metric.labels)
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.full_name, metric.help, labels=labels)
            for values, sample in metric.read(self._report):
                family.add_metric((*own, *values), sample)
            if family.samples:
                yield family


def encode_report(report: NodeView, accept: str) -> tuple[bytes, str]:
    """Return the page of a report, and its content type. `accept`: the reader's Accept header, "" for none."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # prometheus_client 0.26 compares a version that is no number
        encode, content_type = choose_encoder("")
    return encode(ReportCollector(report)), content_type
