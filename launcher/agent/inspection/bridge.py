"""How a thread of the agent's own, a server of metrics or of the page, asks what another process asks by the socket.

The question goes into a queue, which the agent's loop reads beside its socket; the answer is the same line of JSON.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.observe.local_socket import Question

PENDING_MAX = 64


class Waiter:
    """A thread that waits for its answer."""

    def __init__(self) -> None:
        self.line = b""
        self.is_done = threading.Event()

    def answer(self, text: bytes) -> None:
        self.line = text + b"\n"
        self.is_done.set()


class Bridge:
    """`wake` may be called from any thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._questions: deque[tuple[Waiter, Question]] = deque()

    def exchange(self, question: Question, limit_s: float) -> bytes:
        """Ask from another thread than the loop's. Raises OSError: TimeoutError, or BlockingIOError for too many."""
        if len(self._questions) >= PENDING_MAX:
            raise BlockingIOError(11, f"{PENDING_MAX} questions are waiting already")
        waiter = Waiter()
        self._questions.append((waiter, question))
        self._wake()
        if not waiter.is_done.wait(limit_s):
            raise TimeoutError
        return waiter.line

    def take(self) -> Iterator[tuple[Waiter, Question]]:
        """Yield what has been asked, in the loop's thread."""
        while self._questions:
            yield self._questions.popleft()
