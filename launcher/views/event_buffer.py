"""The last events of this node, kept in memory for whoever asks for them: `meshctl events`, a page, a notifier.

Each event has a number. A reader asks for those after the last one it has, so it gets each once, however often its
request is repeated, and learns how many were dropped before it came. Memory is bounded by count and by bytes, and so is
each line: of an exception with a message of a megabyte, its beginning is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import asdict, replace

from launcher.views.requests import PAGE_BYTES_MAX, EventPage
from launcher.views.run_events import RunEvent, encode_event

EVENTS_MAX = 2000
BYTES_MAX = 1 << 20
LINE_MAX = PAGE_BYTES_MAX // 4


class EventBuffer:
    """The lines of the newest events."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._first = 0  # the number of the oldest line
        self._size = 0

    def take(self, event: RunEvent) -> None:
        """Add an event; the oldest go when there are too many."""
        line = encode_event(event).decode()
        for text_max in (4000, 400):
            if len(line) > LINE_MAX:
                line = encode_event(_shorten(event, text_max)).decode()
        self._lines.append(line)
        self._size += len(line)
        while len(self._lines) > EVENTS_MAX or (self._size > BYTES_MAX and len(self._lines) > 1):
            self._size -= len(self._lines.popleft())
            self._first += 1

    def read(self, after: int) -> EventPage:
        """Return the events after number `after`, as many as fit in a page."""
        return make_page(self._lines, self._first, after)


def make_page(kept: Sequence[str], first: int, after: int, bytes_max: int = PAGE_BYTES_MAX) -> EventPage:
    """Return those after number `after` of the lines that are kept, of which the first has the number `first`."""
    start = min(max(after + 1, first), first + len(kept))
    lines: list[str] = []
    size = 0
    for line in islice(kept, start - first, None):
        if lines and size + len(line) > bytes_max:
            break
        lines.append(line)
        size += len(line)
    end = start + len(lines)
    return EventPage(
        lines=tuple(lines),
        first=start,
        next_after=end - 1,
        dropped=max(0, first - after - 1),
        is_last=end >= first + len(kept),
    )


def _shorten(event: RunEvent, text_max: int) -> RunEvent:
    """Cut the long texts of an event, not its line, which has to stay JSON."""
    texts = {name: value for name, value in asdict(event).items() if isinstance(value, str)}
    return replace(event, **{name: f"{text[:text_max]}..." for name, text in texts.items() if len(text) > text_max})
