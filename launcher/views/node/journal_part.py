"""The part that keeps the journal of this run, and hands its events to whom they are written or sent."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack

from msgspec import Struct, field

from launcher.model.console import log
from launcher.model.errors import describe_bug
from launcher.parts.part import RETRY_S, Effect, Fact
from launcher.views.node.journal import Journal


class JournalPart(Struct, eq=False):
    """Feeds the journal in its own time, and closes its sinks at the end."""

    journal: Journal

    _facts: deque[Fact] = field(default_factory=deque)
    _has_complained: bool = False
    _start_at: float = -math.inf  # when threads that are missing are tried again

    @property
    def wake_at(self) -> float:
        if self._facts:
            return -math.inf
        return self._start_at if any(sink.thread.is_missing for sink in self.journal.sinks) else math.inf

    def read(self) -> Journal:
        """Return the journal, with all facts so far."""
        while self._facts:
            fact = self._facts.popleft()
            try:
                self.journal.take(fact)
            except Exception as error:  # one event, and not all that follow
                if not self._has_complained:
                    self._has_complained = True
                    log(f"the view of this run is incomplete: {describe_bug(error)}")
        return self.journal

    def take(self, fact: Fact) -> None:
        self._facts.append(fact)

    def advance(self, now: float) -> Iterable[Effect]:
        self.read()
        missing = [sink.thread for sink in self.journal.sinks if sink.thread.is_missing]
        if now >= self._start_at and missing:
            self._start_at = now + RETRY_S
            for thread in missing:
                thread.start()
        return ()

    def close(self) -> None:
        """Write down what is kept, and let go what was opened."""
        self.read()
        with ExitStack() as stack:  # each is closed, though another fails
            for sink in reversed(self.journal.sinks):
                stack.callback(sink.close)
