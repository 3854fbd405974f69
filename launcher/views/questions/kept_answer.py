"""An answer that many readers share: it is asked for once in a while, however many they are.

Who comes while the question is under way waits for its answer, also for the error that says why there is none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from launcher.model.errors import TemporaryError, UsageError
from rendezvous.errors import MeshrunError

WAIT_LIMIT_S = 20.0
Answer = TypeVar("Answer")


class KeptAnswer(Generic[Answer]):
    """May be read from any thread. `clock`: monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # held while it is made anew
        self._at = float("-inf")
        self._value: Answer | None = None
        self._error: MeshrunError | None = None

    def read(self, age_s: float, ask: Callable[[], Answer]) -> Answer:
        """Return the answer if it is younger than `age_s`, else ask; raise the error that was kept for as long.

        Raises TemporaryError, and UsageError if `ask` does.
        """
        if not self._lock.acquire(timeout=WAIT_LIMIT_S):
            raise TemporaryError(f"the run has not answered for {WAIT_LIMIT_S:g} s")
        try:
            if self._clock() - self._at >= age_s:
                try:
                    self._value, self._error = ask(), None
                except (TemporaryError, UsageError) as error:
                    self._value, self._error = None, error
                self._at = self._clock()
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._value  # type: ignore[return-value]
        finally:
            self._lock.release()
