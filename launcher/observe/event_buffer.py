"""The last events of this node, kept in memory for whoever asks for them: `meshctl events`, a page, a notifier.

Each event has a number. A reader asks for those after the last one it has, so it gets each once, however often its
request is repeated, and learns how many were dropped before it came. Memory is bounded by count and by bytes.
"""

from __future__ import annotations

from collections import deque

from launcher.observe.node_report import PAGE_BYTES_MAX, EventPage
from launcher.observe.run_events import RunEvent, encode_event

EVENTS_MAX = 2000
BYTES_MAX = 1 << 20


class EventBuffer:
    """The lines of the newest events."""

    def __init__(self, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._lines: deque[str] = deque()
        self._first = 0  # the number of the oldest line
        self._size = 0

    def take(self, event: RunEvent) -> None:
        """Add an event; the oldest go when there are too many."""
        line = encode_event(event).decode()
        self._lines.append(line)
        self._size += len(line)
        while len(self._lines) > self._events_max or (self._size > self._bytes_max and len(self._lines) > 1):
            self._size -= len(self._lines.popleft())
            self._first += 1

    def read(self, after: int) -> EventPage:
        """Return the events after number `after`, as many as fit in a page."""
        start = max(after + 1, self._first)
        end = self._first + len(self._lines)
        lines: list[str] = []
        size = 0
        for number in range(start, end):
            line = self._lines[number - self._first]
            if lines and size + len(line) > PAGE_BYTES_MAX:
                break
            lines.append(line[:PAGE_BYTES_MAX])
            size += len(line)
        return EventPage(
            lines=tuple(lines),
            first=start,
            next_after=start + len(lines) - 1,
            dropped=max(0, self._first - after - 1),
            is_last=start + len(lines) >= end,
        )
