"""What is checked before Ray is asked for anything, and the thread that asks."""

from __future__ import annotations

import sys
import threading
import types
from unittest.mock import MagicMock

import pytest

from launcher.extensions.ray import cluster
from launcher.extensions.ray.cluster import GcsThread, require_version
from launcher.extensions.ray.options import GCS_THREAD
from launcher.model.errors import UsageError


@pytest.mark.parametrize("version", ["2.51.0", "2.60.0", "3.0.0.dev0", "2.100.1"])
def test_newer_versions_are_accepted(version: str) -> None:
    require_version(version)


@pytest.mark.parametrize("version", ["2.50.1", "2.9.3", "1.13.0", "", "unknown"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"needs Ray 2\.51 or newer"):
        require_version(version)


def test_a_call_that_does_not_return_or_fails_delays_and_ends_no_other() -> None:
    gcs, has_returned, calls = GcsThread(), threading.Event(), list[str]()
    gcs.call(has_returned.wait, 0.01)
    gcs.call(lambda: calls.append("dropped"), 0.01)
    gcs.add(lambda: calls.append("kept"))
    has_returned.set()
    assert gcs.close(20.0)
    assert calls == ["kept"]
    gcs, calls = GcsThread(), list[str]()
    gcs.add(lambda: 1 // 0)
    gcs.call(lambda: calls.append("next"), 20.0)
    assert calls == ["next"]
    assert gcs.close(20.0)


def test_a_call_that_does_not_return_is_left_at_the_end() -> None:
    gcs, has_returned, calls = GcsThread(), threading.Event(), list[str]()
    gcs.add(has_returned.wait)
    gcs.add(lambda: calls.append("late"))
    assert not gcs.close(0.01)
    has_returned.set()
    assert gcs.close(20.0)
    assert calls == []


def test_a_request_is_made_again_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = types.SimpleNamespace(RayError=ConnectionError)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(exceptions=exceptions))
    monkeypatch.setattr(cluster, "AGAIN_S", 0.0)
    answers = iter([ConnectionError(), ConnectionError(), None])

    def request() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "taken"

    gcs = GcsThread()
    assert gcs.insist(request) == "taken"
    assert gcs.close(20.0)
    assert gcs.insist(request) is None


def test_a_shutdown_of_ray_that_takes_long_is_left_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    has_returned, ray = threading.Event(), MagicMock()
    for name in ("ray", "ray.util", "ray.util.client"):
        monkeypatch.setitem(sys.modules, name, ray)
    ray.ray.is_connected.return_value = ray.is_initialized.return_value = False
    ray.shutdown = has_returned.wait
    entered = cluster.RayCluster(close_limit_s=0.01)
    entered.connect("auto")
    entered.close()
    thread = next(thread for thread in threading.enumerate() if thread.name == GCS_THREAD)
    has_returned.set()
    thread.join()
