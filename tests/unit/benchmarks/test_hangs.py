"""The simulated hang of the benchmark, on eight ranks: everyone waits, and the culprit is found."""

from __future__ import annotations

import pytest

from benchmarks import hangs
from launcher.worker.grid import WorkerMesh


def test_the_simulated_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "MESH", WorkerMesh(("pp", "dp", "tp"), (2, 2, 2), 0, ("pp", "dp", "tp")))
    monkeypatch.setattr(hangs, "CULPRIT", 5)
    assert [hangs.find_wait(rank) for rank in range(8)] == ["pp", "pp", "pp", "pp", "tp", "", "dp", "dp"]
    shown = hangs.merge([hangs.read(rank, hangs.make_dump(rank)) for rank in range(8)])
    assert "4 more ranks wait for these." in shown
    assert "ranks 0, 1, 2, 3, 4, 6, 7: asleep" in shown
