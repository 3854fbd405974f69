"""What a node says of its workers when readings of the kernel fail, or go down."""

from __future__ import annotations

import pytest

from launcher.views.node import local_state
from launcher.views.node.local_state import LocalState
from launcher.views.node.process_use import ProcessUse
from launcher.views.run_view import RankView
from tests.support.run_reports import make_node


def test_what_a_worker_has_spent_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[dict[int, ProcessUse]] = [
        {7: ProcessUse(cpu_s=9.0, rss_bytes=1, read_bytes=50, written_bytes=60)},
        {},
        {7: ProcessUse(cpu_s=4.0, rss_bytes=1, read_bytes=70, written_bytes=10)},
    ]
    monkeypatch.setattr(local_state, "measure_use", lambda pids: readings.pop(0))
    state = LocalState()
    worker = RankView(rank=0, local_rank=0, pid=7, started_at=1.0)
    found = []
    for now in (10.0, 11.0, 12.0):
        (rank,) = state.report(make_node(0, at=now), (worker,), {}, now).ranks
        found.append((rank.cpu_s, rank.read_bytes, rank.written_bytes))
    assert found == [(9.0, 50, 60), (9.0, 50, 60), (9.0, 70, 60)]
