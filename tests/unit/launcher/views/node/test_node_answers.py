"""Pages of events and output go through a note, whatever the workers write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Raw

from launcher.views.event_buffer import EventBuffer
from launcher.views.node.log_pages import LogSource
from launcher.views.node.node_answers import NodeAnswers, fit_event_page, read_log_page
from launcher.views.questions.messages import Reply, encode_note
from launcher.views.requests import EventPage, LogCursor, LogPage, ReadEvents, ReadLogs
from launcher.views.run_events import FailureFound, decode_event
from rendezvous.codec import encode
from rendezvous.member import notes


def is_sendable(page: LogPage | EventPage) -> bool:
    answer = Raw(encode(page))
    return notes.fits(encode_note(Reply(id="i" * 16, asker="a" * 40, member_id="m" * 40, answer=answer)))


@pytest.mark.parametrize("unit", ["\0", '"', "\\", "\x1b[0m", "é", "😀", '{"a": "b"}\n', "x\n"])
@pytest.mark.parametrize("file_count", [1, 200])
def test_all_output_gets_through(tmp_path: Path, unit: str, file_count: int) -> None:
    text = unit * (100_000 // file_count)
    sources = []
    for rank in range(file_count):
        path = tmp_path / str(rank)
        path.write_text(text)
        sources.append(LogSource(name=str(rank), path=str(path), rank=rank, stream="stdout", round=1))
    found = dict.fromkeys((source.name for source in sources), "")
    cursors: tuple[LogCursor, ...] = ()
    is_last = False
    for _ in range(5000):
        page = read_log_page(sources, ReadLogs(tail_lines=-1, cursors=cursors), 0)
        assert is_sendable(page)
        for chunk in page.chunks:
            found[chunk.file] += chunk.data
        cursors, is_last = page.cursors, page.is_last
        if is_last:
            break
    assert is_last
    assert all(one == text for one in found.values())


@pytest.mark.parametrize("unit", ["\0", '"', "😀", "x", "\ud800"])
def test_events_with_endless_texts_get_through_and_are_events(unit: str) -> None:
    buffer = EventBuffer()
    for rank in range(9):
        buffer.take(
            FailureFound(at=1.0, run_id="r", node="n0", rank=rank, exit_code=1, error=unit * 1_000_000, log_file=unit)
        )
    after, ranks = -1, []
    for _ in range(9):
        page = fit_event_page(buffer.read(after))
        assert is_sendable(page)
        after = page.next_after
        for line in page.lines:
            event = decode_event(line)
            assert isinstance(event, FailureFound)
            assert event.error.endswith("...")
            ranks.append(event.rank)
    assert ranks == list(range(9))


def test_events_are_read_in_the_loop_that_adds_to_them() -> None:
    buffer = EventBuffer()
    journal = SimpleNamespace(buffer=buffer)
    others = dict.fromkeys({*NodeAnswers.__struct_fields__} - {"open_journal"})
    answers = NodeAnswers(open_journal=lambda: journal, **others)  # type: ignore[arg-type,return-value]
    failure = FailureFound(at=1.0, run_id="r", node="n0", rank=0, exit_code=1)
    buffer.take(failure)
    _, work = answers.answer(ReadEvents(), 0.0)
    buffer.take(failure)  # while a thread makes the page
    page = work()
    assert isinstance(page, EventPage)
    assert (len(page.lines), page.is_last) == (1, True)
