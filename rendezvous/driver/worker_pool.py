"""Threads hired for work that may take its time: none before there is work, and never more than agreed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], object]


class WorkerPool:
    """Does pieces of work in the order given, up to `count` of them at a time; call `do` from one thread."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy_count = 0  # pieces of work given and not yet done
        self._count_lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Have it done as soon as a thread is free; one more is hired if none is and the number allows."""
        with self._count_lock:
            self._busy_count += 1
            is_short = self._busy_count > len(self._threads)
        self._queue.put(work)
        if is_short and len(self._threads) < self._count:
            # Daemons: a call that hangs in a driver of the network must not keep the process from its exit.
            thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a process at its end gets no more threads: those that are there will do it
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)

    def join(self, limit_s: float) -> bool:
        """Let what was given be done, for `limit_s` at most; whether all of it was."""
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
