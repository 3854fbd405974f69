"""What an etcd says of itself: requests by kind, bytes, events, memory, from the page that it has for Prometheus.

Counters grow from the server's start, so what matters is the difference of two looks: `Figures` are subtracted.
"""

from __future__ import annotations

import re
import urllib.request
from typing import NamedTuple

_LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_METHOD = re.compile(r'grpc_method="(\w+)"')


class Figures(NamedTuple):
    """Counters, but for `memory_bytes`, `database_bytes` and `watchers`, which are how things stand.

    `requests`: messages by method; a stream's count one by one. `answers`: the same, from etcd. `bytes_in`,
    `bytes_out`: of messages, without gRPC's frames. `fsyncs`: of the log: each stands for a batch of writes.
    """

    requests: dict[str, float]
    answers: dict[str, float]
    bytes_in: float
    bytes_out: float
    commits: float
    fsyncs: float
    cpu_s: float
    memory_bytes: float
    database_bytes: float
    watchers: float

    def since(self, before: Figures) -> Figures:
        """What has been counted since then."""
        return Figures(
            requests=_less(self.requests, before.requests),
            answers=_less(self.answers, before.answers),
            bytes_in=self.bytes_in - before.bytes_in,
            bytes_out=self.bytes_out - before.bytes_out,
            commits=self.commits - before.commits,
            fsyncs=self.fsyncs - before.fsyncs,
            cpu_s=self.cpu_s - before.cpu_s,
            memory_bytes=self.memory_bytes,
            database_bytes=self.database_bytes,
            watchers=self.watchers,
        )


def _less(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    found = {method: count - before.get(method, 0.0) for method, count in now.items()}
    return {method: count for method, count in sorted(found.items()) if count}


def read(text: str) -> Figures:
    """The figures in a page."""
    plain: dict[str, float] = {}
    received: dict[str, float] = {}
    sent: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        method = _METHOD.search(labels)
        if name == "grpc_server_msg_received_total" and method:
            received[method[1]] = received.get(method[1], 0.0) + float(value)
        elif name == "grpc_server_msg_sent_total" and method:
            sent[method[1]] = sent.get(method[1], 0.0) + float(value)
        else:
            plain[name] = plain.get(name, 0.0) + float(value)
    return Figures(
        requests={method: count for method, count in received.items() if count},
        answers={method: count for method, count in sent.items() if count},
        bytes_in=plain.get("etcd_network_client_grpc_received_bytes_total", 0.0),
        bytes_out=plain.get("etcd_network_client_grpc_sent_bytes_total", 0.0),
        commits=plain.get("etcd_server_proposals_committed_total", 0.0),
        fsyncs=plain.get("etcd_disk_wal_fsync_duration_seconds_count", 0.0),
        cpu_s=plain.get("process_cpu_seconds_total", 0.0),
        memory_bytes=plain.get("process_resident_memory_bytes", 0.0),
        database_bytes=plain.get("etcd_mvcc_db_total_size_in_bytes", 0.0),
        watchers=plain.get("etcd_debugging_mvcc_watcher_total", 0.0),
    )


def figures(url: str) -> Figures:
    """Ask the server at `url`, http://HOST:PORT."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=30) as answer:
        return read(answer.read().decode())
