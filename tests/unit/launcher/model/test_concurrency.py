"""Threads that may be had later."""

from __future__ import annotations

import threading

from launcher.model.concurrency import LateThread, start_thread
from tests.support.threads import no_threads


def test_a_thread_keeps_no_process_and_where_none_is_to_be_had_there_is_none() -> None:
    got: list[object] = []
    thread = start_thread(lambda *words: got.extend(words), "one", 1, "two")
    assert thread is not None
    thread.join(60)
    assert (got, thread.daemon, thread.name) == ([1, "two"], True, "one")
    with no_threads() as wanted:
        assert start_thread(print, "one") is None
    assert wanted == ["one"]
    late = LateThread(lambda: None, "late")
    with no_threads():
        late.start()
    assert late.finish(60.0)
    assert late.has_started


def test_a_late_thread_is_missing_until_it_has_started_and_starts_once() -> None:
    gate, started = threading.Event(), threading.Semaphore(0)

    def run() -> None:
        started.release()
        gate.wait(60)

    late = LateThread(run, "late")
    assert late.finish(0.0), "nothing needs it"
    with no_threads() as wanted:
        late.start()
        late.start()
        assert not late.finish(60.0), "without a wait for what does not run"
        assert (late.is_missing, late.has_started) == (True, False)
    assert wanted == ["late"] * 3
    late.start()
    late.start()
    assert (late.is_missing, late.has_started) == (False, True)
    assert started.acquire(timeout=60)
    assert not started.acquire(blocking=False)
    assert not late.finish(0.0)
    gate.set()
    assert late.finish(60.0)
