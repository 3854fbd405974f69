"""A thread that tells a user's command or address of events, one after another, each within a limit.

What waits is bounded: beyond that the oldest goes. Nothing waits for the thread but the end of the agent, for a moment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from launcher.model.concurrency import NO_THREAD, LateThread
from launcher.model.errors import sanitize

END_LIMIT_S = 3.0
"""For what is still to be told when the agent ends."""
NO_VARIABLES: Mapping[str, str] = {}


class Teller:
    """`label`: the option and its value.

    `warn` gets a sentence about what could not be told, once until it can be again.
    """

    def __init__(self, label: str, waiting_max: int, warn: Callable[[str], None]) -> None:
        self._label = label
        self._warn = warn
        self._changed = threading.Condition()  # of the two that follow
        self._waiting: deque[tuple[bytes, Mapping[str, str]]] = deque(maxlen=waiting_max)
        self._is_closing = False
        self._has_warned = False
        self.thread = LateThread(self._run, "teller")

    def tell(self, line: bytes, variables: Mapping[str, str]) -> str:
        """Tell of an event, a line of JSON; return what went wrong, "" for nothing."""
        raise NotImplementedError

    def put(self, line: bytes, variables: Mapping[str, str] = NO_VARIABLES) -> bool:
        """Have an event's line told; return whether the oldest that waited is dropped for it."""
        with self._changed:
            is_full = len(self._waiting) == self._waiting.maxlen
            self._waiting.append((line, variables))
            self._changed.notify()
        self.thread.start()
        return is_full

    def drop(self) -> None:
        """Do not tell what still waits."""
        with self._changed:
            self._waiting.clear()

    def close(self) -> None:
        """Wait a moment for what is still to be told."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if not self.thread.finish(END_LIMIT_S):
            why = NO_THREAD if self.thread.is_missing else f"it still runs after {END_LIMIT_S:g} s"
            self._complain(f"the last event was not sent: {why}")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                line, variables = self._waiting.popleft()
            try:
                problem = self.tell(line, variables)
            except Exception as error:  # urllib raises many kinds, and none may end the thread
                # Other kinds may repeat an address, and those of chats are secrets.
                problem = (sanitize(str(error)) if isinstance(error, OSError) else "") or type(error).__name__
            if problem:
                self._complain(problem)
            else:
                self._has_warned = False

    def _complain(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{self._label}: {problem}")
