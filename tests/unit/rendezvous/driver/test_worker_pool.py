"""Hired threads: no more than agreed, and none where a process gets no more."""

from __future__ import annotations

import threading

import pytest

from rendezvous.driver.worker_pool import WorkerPool

LIMIT_S = 30.0


def test_a_process_at_its_end_has_the_work_done_by_the_threads_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    hired = WorkerPool("request", 2)
    is_free, done = threading.Event(), threading.Event()
    hired.submit(lambda: is_free.wait(LIMIT_S))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        hired.submit(done.set)
        with pytest.raises(RuntimeError):
            WorkerPool("farewell", 1).submit(done.set)
    is_free.set()
    assert done.wait(LIMIT_S)
    assert hired.join(LIMIT_S)
