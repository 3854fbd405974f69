"""Events in memory: each is read once, and how many were dropped is told."""

from __future__ import annotations

import msgspec
import pytest

from launcher.views import event_buffer
from launcher.views.event_buffer import EventBuffer
from launcher.views.requests import PAGE_BYTES_MAX
from launcher.views.run_events import RemarkMade, decode_event


def fill(buffer: EventBuffer, count: int, text: str = "x") -> None:
    for number in range(count):
        buffer.take(RemarkMade(at=float(number), run_id="r", node="n0", sentence=f"{number} {text}"))


def read_all(buffer: EventBuffer) -> list[str]:
    found, after = [], -1
    while True:
        page = buffer.read(after)
        found += [msgspec.json.decode(line)["sentence"] for line in page.lines]
        after = page.next_after
        if page.is_last:
            return found


def test_pages_have_every_event_once_and_the_oldest_go_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = EventBuffer()
    fill(buffer, 1000, "y" * 200)
    assert buffer.read(5) == buffer.read(5)
    assert read_all(buffer) == [f"{number} {'y' * 200}" for number in range(1000)]
    assert max(sum(map(len, buffer.read(after).lines)) for after in (-1, 400)) <= PAGE_BYTES_MAX
    buffer = EventBuffer()
    fill(buffer, 2)
    page = buffer.read(1)
    assert (page.lines, page.next_after, page.is_last) == ((), 1, True)
    buffer = EventBuffer()
    monkeypatch.setattr(event_buffer, "EVENTS_MAX", 10)
    fill(buffer, 25)
    page = buffer.read(-1)
    assert (page.first, page.dropped, len(page.lines), page.next_after) == (15, 15, 10, 24)
    assert buffer.read(20).dropped == 0
    small = EventBuffer()
    monkeypatch.setattr(event_buffer, "BYTES_MAX", 500)
    fill(small, 25)
    assert 1 < len(small.read(-1).lines) < 10
    monkeypatch.undo()
    buffer = EventBuffer()
    fill(buffer, 1)
    event = decode_event(buffer.read(-1).lines[0])
    assert isinstance(event, RemarkMade)
    assert (event.at, event.node, event.sentence) == (0.0, "n0", "0 x")
