"""The threads in which this node's reports and log pages are made: the agent's loop has workers to look after.

Two threads, since a log directory on a dead file system holds whoever reads from it, and the state of the node shall be
seen nevertheless. Each has a queue with a limit; beyond it a request is refused in a sentence.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from launcher.model.errors import describe_bug

PENDING_MAX = 64


class Reporter:
    """`wake` may be called from any thread. The threads start with the first task of their kind."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._done: deque[Callable[[], None]] = deque()
        self._queues: dict[str, queue.Queue[tuple[Callable[[], object], Callable[[object, str], None]]]] = {}

    def submit(self, kind: str, work: Callable[[], object], take: Callable[[object, str], None]) -> None:
        """Do `work` in the thread of this kind; `advance` calls `take` with its result, or None and a sentence."""
        tasks = self._queues.get(kind)
        if tasks is None:
            tasks = self._queues[kind] = queue.Queue(PENDING_MAX)
            threading.Thread(target=self._run, args=(tasks,), name=f"report {kind}", daemon=True).start()
        try:
            tasks.put_nowait((work, take))
        except queue.Full:
            self._done.append(lambda: take(None, f"this node is still busy with {PENDING_MAX} requests before"))
            self._wake()

    def advance(self) -> None:
        """Hand over what is done, in the caller's thread."""
        while self._done:
            self._done.popleft()()

    def _run(self, tasks: queue.Queue[tuple[Callable[[], object], Callable[[object, str], None]]]) -> None:
        while True:
            work, take = tasks.get()
            result: object = None
            problem = ""
            try:
                result = work()
            except Exception as error:  # a bug here must cost an answer, and no job
                problem = describe_bug(error)
            self._done.append(lambda take=take, result=result, problem=problem: take(result, problem))  # type: ignore[misc]
            self._wake()
