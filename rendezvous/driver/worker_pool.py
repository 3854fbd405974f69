"""A pool of threads for work that may be slow: none before there is work, and never more than allowed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], object]


class WorkerPool:
    """Does work in the order given, up to `count` pieces at a time; call `submit` from one thread."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy_count = 0  # pieces of work submitted and not yet done
        self._count_lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Have the work done as soon as a thread is free; a thread is started if none is and `count` allows.

        Raises RuntimeError if no thread is to be had and there is none.
        """
        with self._count_lock:
            self._busy_count += 1
            is_short = self._busy_count > len(self._threads)
        self._queue.put(work)
        if is_short and len(self._threads) < self._count:
            # Daemon threads: a call that hangs in the network must not keep the process from exiting.
            thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a process that exits gets no more threads: the existing ones do the work
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)

    def join(self, limit_s: float) -> bool:
        """Wait for the submitted work, for `limit_s` at most; return whether all of it was done."""
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            finally:
                with self._count_lock:
                    self._busy_count -= 1
