"""The threads in which this node's answers are made: the agent's loop has workers to look after.

One for the node's state, one for its logs, since a log directory on a dead file system holds whoever reads from it, one
for the diagnosis of all ranks, since thousands take a while, and one for requests of people, which wait for the leader.
Each has a queue with a limit; beyond it a request is refused in a sentence. While no thread is to be had for it, the
work is done in the loop, which takes milliseconds: a probe of /healthz that gets no answer may end a healthy pod. Logs
and requests are refused then.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, field

from launcher.model.concurrency import NO_THREAD, start_thread
from launcher.model.errors import describe_bug

PENDING_MAX = 64

Kind = Literal["state", "logs", "diagnosis", "requests"]
_SLOW = {"logs": "its logs cannot be read", "requests": "no request can be handed in"}
"""What is said of those that the loop cannot do itself."""
_Task = tuple[Callable[[], object], Callable[[Any, str], object]]


class Reporter(Struct, eq=False):
    """The threads start with the first task of their kind."""

    wake: Callable[[], None]
    """Called from any thread when something is done."""

    _done: deque[Callable[[], object]] = field(default_factory=deque)
    _queues: dict[Kind, queue.Queue[_Task]] = field(default_factory=dict)  # of the kinds whose thread runs

    def submit(self, kind: Kind, work: Callable[[], object], take: Callable[[Any, str], object]) -> None:
        """Do `work` in the thread of this kind; `advance` calls `take` with its result, or None and a sentence."""
        if kind not in self._queues:
            tasks: queue.Queue[_Task] = queue.Queue(PENDING_MAX)
            if start_thread(self._run, f"report {kind}", tasks) is None:
                if kind in _SLOW:
                    self._finish(take, None, f"{_SLOW[kind]}: {NO_THREAD}")
                else:
                    self._do(work, take)
                return
            self._queues[kind] = tasks
        try:
            self._queues[kind].put_nowait((work, take))
        except queue.Full:
            self._finish(take, None, f"{PENDING_MAX} requests are already waiting on this node")

    @property
    def has_results(self) -> bool:
        """Whether `advance` has something to hand over."""
        return bool(self._done)

    def advance(self) -> None:
        """Hand over what is done, in the caller's thread."""
        while self._done:
            self._done.popleft()()

    def _run(self, tasks: queue.Queue[_Task]) -> None:
        while True:
            self._do(*tasks.get())

    def _do(self, work: Callable[[], object], take: Callable[[Any, str], object]) -> None:
        result: object = None
        problem = ""
        try:
            result = work()
        except Exception as error:  # a bug here must cost an answer, and no job
            problem = describe_bug(error)
        self._finish(take, result, problem)

    def _finish(self, take: Callable[[Any, str], object], result: object, problem: str) -> None:
        self._done.append(lambda: take(result, problem))
        self.wake()
