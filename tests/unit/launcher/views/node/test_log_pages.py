"""Pages of log files: every byte of every line once, however the file grows between them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launcher.views.node.log_pages import LogSource, find_tail, read_page
from launcher.views.requests import PAGE_BYTES_MAX, LogCursor, ReadLogs


def make_sources(folder: Path, texts: dict[tuple[int, int], bytes]) -> list[LogSource]:
    """Files by round and rank."""
    sources = []
    for (number, rank), text in texts.items():
        path = folder / f"{number}.{rank}"
        path.write_bytes(text)
        sources.append(LogSource(name=path.name, path=str(path), rank=rank, stream="stdout", round=number))
    return sources


def read_all(sources: list[LogSource], live_round: int = 0, **request: int) -> dict[str, str]:
    found: dict[str, str] = {}
    cursors: tuple[LogCursor, ...] = ()
    for _ in range(1000):
        page = read_page(sources, ReadLogs(tail_lines=-1, cursors=cursors, **request), live_round)
        for chunk in page.chunks:
            found[chunk.file] = found.get(chunk.file, "") + chunk.data
        cursors = page.cursors
        if page.is_last:
            return found
    raise AssertionError("it does not end")


def test_many_files_are_read_to_their_ends_and_a_busy_one_gets_the_page(tmp_path: Path) -> None:
    texts = {(1, rank): b"".join(b"%d line %d\n" % (rank, line) for line in range(5000)) for rank in range(8)}
    found = read_all(make_sources(tmp_path, texts))
    assert found == {f"1.{rank}": text.decode() for (_, rank), text in texts.items()}
    texts = {(1, rank): b"" for rank in range(63)} | {(1, 63): b"line\n" * 100_000}
    page = read_page(make_sources(tmp_path, texts), ReadLogs(tail_lines=-1), 1)
    assert [len(chunk.data) for chunk in page.chunks] == [PAGE_BYTES_MAX]


def test_a_long_line_comes_in_pieces_and_the_last_waits_for_its_end(tmp_path: Path) -> None:
    text = ("ä" * PAGE_BYTES_MAX).encode() + b"\nend\n"
    assert read_all(make_sources(tmp_path, {(1, 0): text}), live_round=1) == {"1.0": text.decode()}
    sources = make_sources(tmp_path, {(1, 0): b"whole\nhal"})
    assert read_all(sources, live_round=1) == {"1.0": "whole\n"}
    assert read_all(sources, live_round=0) == {"1.0": "whole\nhal"}, "its worker has ended"


def test_the_newest_round_is_shown_and_an_older_one_goes_on_where_it_was(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, {(1, 0): b"old\n", (2, 0): b"new\n"})
    assert read_all(sources) == {"2.0": "new\n"}
    assert read_all(sources, round=1) == {"1.0": "old\n"}
    page = read_page(sources, ReadLogs(cursors=(LogCursor("1.0", 0),), tail_lines=-1), 2)
    assert {chunk.file for chunk in page.chunks} == {"1.0", "2.0"}


def test_a_round_between_two_pages_is_read_and_old_ones_are_let_go(tmp_path: Path) -> None:
    texts = {(number, 0): b"%d\n" % number for number in range(1, 5)}
    sources = make_sources(tmp_path, texts)
    page = read_page(sources, ReadLogs(cursors=(LogCursor("1.0", 2),), tail_lines=-1), 4)
    assert [chunk.data for chunk in page.chunks] == ["2\n", "3\n", "4\n"]
    assert [cursor.file for cursor in page.cursors] == ["2.0", "3.0", "4.0"]
    page = read_page(sources, ReadLogs(cursors=page.cursors, tail_lines=-1), 4)
    assert [cursor.file for cursor in page.cursors] == ["3.0", "4.0"]
    assert read_page(sources, ReadLogs(cursors=page.cursors, tail_lines=-1), 4).chunks == ()


def test_a_name_that_is_no_file_is_not_read_and_without_files_it_is_said_how_to_keep_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    sources = make_sources(tmp_path, {(1, 0): b"line\n"})
    names = ("../secret", str(tmp_path / "secret"), "secret")
    page = read_page(sources, ReadLogs(cursors=tuple(LogCursor(name, 0) for name in names), tail_lines=-1), 0)
    assert [chunk.data for chunk in page.chunks] == ["line\n"]
    assert "--log-dir" in read_page([], ReadLogs(), 1).remark
    assert read_page([], ReadLogs(), 0).remark == "no worker is running here, and there is no output of earlier ones"


def test_a_truncated_file_is_read_from_its_beginning_and_that_is_said_once(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, {(1, rank): b"a line\n" for rank in range(2)})
    cursors = tuple(LogCursor(source.name, 7) for source in sources)
    Path(sources[0].path).write_text("new\n")
    page = read_page(sources, ReadLogs(cursors=cursors), 1)
    assert [(chunk.offset, chunk.data) for chunk in page.chunks] == [(0, "new\n")]
    assert page.remark == "the log of stdout of rank 0 was truncated; it is read from its beginning"
    assert read_page(sources, ReadLogs(cursors=page.cursors), 1).remark == ""
    Path(sources[0].path).unlink()  # its worker still writes to it, and nobody can read that
    page = read_page(sources, ReadLogs(cursors=page.cursors), 1)
    assert (page.chunks, page.remark) == ((), "")


def make_ring(lines: Iterable[int], kept_size: int) -> LogSource:
    """Return a stream that had these lines, of which the last bytes are kept."""
    data = b"".join(b"line %d\n" % number for number in lines)
    return LogSource(name="1/0/stdout", rank=0, stream="stdout", round=1, ring=(len(data), data[-kept_size:]))


def test_of_a_stream_without_a_file_what_is_kept_is_read_each_line_once() -> None:
    page = read_page([make_ring(range(6), 1000)], ReadLogs(tail_lines=2), 1)
    assert [chunk.data for chunk in page.chunks] == ["line 4\nline 5\n"]
    page = read_page([make_ring(range(8), 21)], ReadLogs(cursors=page.cursors), 1)
    assert [chunk.data for chunk in page.chunks] == ["line 6\nline 7\n"]
    assert read_page([make_ring(range(8), 21)], ReadLogs(cursors=page.cursors), 1).chunks == ()
    page = read_page([make_ring(range(20, 90), 24)], ReadLogs(cursors=page.cursors), 1)  # those between are gone
    assert [chunk.data for chunk in page.chunks] == ["line 87\nline 88\nline 89\n"]
    assert "some were gone before they were read" in page.remark
    page = read_page([make_ring(range(20, 90), 24)], ReadLogs(cursors=page.cursors), 1)
    assert (page.chunks, page.remark) == ((), "")
    page = read_page([make_ring(range(20, 90), 16)], ReadLogs(tail_lines=-1), 0)
    assert [chunk.data for chunk in page.chunks] == ["line 88\nline 89\n"]


def test_an_offset_beyond_the_end_or_before_the_start_is_harmless(tmp_path: Path) -> None:
    sources = make_sources(tmp_path, {(1, 0): b"line\n"})
    for offset in (-5, 10**30):
        read_page(sources, ReadLogs(cursors=(LogCursor("1.0", offset),)), 0)


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=30), st.integers(0, 40))
def test_a_tail_begins_with_a_whole_line(lines: list[bytes], count: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        data = b"".join(line + b"\n" for line in lines)
        file.write(data)
        file.flush()
        source = LogSource(name="1.0", path=file.name, rank=0, stream="stdout", round=1)
        start = find_tail(source, count)
        assert data[start:] == b"".join(line + b"\n" for line in lines[max(0, len(lines) - count) :] if count)
