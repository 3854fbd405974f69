"""What an etcd says of itself: requests by kind, bytes, writes and memory, from its page for Prometheus."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import NamedTuple

_LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_METHOD = re.compile(r'grpc_method="(\w+)"')
_COUNTERS = {
    "bytes_in": "etcd_network_client_grpc_received_bytes_total",
    "bytes_out": "etcd_network_client_grpc_sent_bytes_total",
    "commits": "etcd_server_proposals_committed_total",
    "cpu_s": "process_cpu_seconds_total",
}
_LEVELS = {"memory_bytes": "process_resident_memory_bytes", "database_bytes": "etcd_mvcc_db_total_size_in_bytes"}


class Figures(NamedTuple):
    """Since the server's start; what matters is the difference of two looks.

    `requests`: messages by method; a stream's count one by one. `answers`: the same, from etcd. `counters`: bytes of
    messages without gRPC's frames, writes, CPU time. `levels`: how things stand.
    """

    requests: Counter[str]
    answers: Counter[str]
    counters: dict[str, float]
    levels: dict[str, float]

    def count_since(self, before: Figures) -> dict[str, object]:
        """What has been counted since then, by name, and the levels of now."""
        counted = {name: value - before.counters[name] for name, value in self.counters.items()}
        messages = {"requests": self.requests - before.requests, "answers": self.answers - before.answers}
        return {**{name: dict(sorted(each.items())) for name, each in messages.items()}, **counted, **self.levels}


def parse(page: str) -> Figures:
    """The figures in a page."""
    plain: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    messages = {"grpc_server_msg_received_total": requests, "grpc_server_msg_sent_total": answers}
    for name, labels, value in _LINE.findall(page):
        method = _METHOD.search(labels)
        if name in messages and method:
            messages[name][method[1]] += float(value)  # type: ignore[assignment]
        else:
            plain[name] += float(value)  # type: ignore[assignment]
    counters, levels = ({name: float(plain[key]) for name, key in each.items()} for each in (_COUNTERS, _LEVELS))
    return Figures(+requests, +answers, counters, levels)


def read(url: str) -> Figures:
    """Ask the server at `url`, http://HOST:PORT."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=30) as answer:
        return parse(answer.read().decode())
