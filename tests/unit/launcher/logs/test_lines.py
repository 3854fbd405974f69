"""Chunks in, whole prefixed lines out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.lines import LinePrefixer, split_last_lines

PREFIX = b"[default3]:"

# Few different bytes, so that line ends, carriage returns and both together fall on chunk borders often.
outputs = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b" ", b"\xff\x00", b"[default3]:"]), max_size=40).map(
    b"".join
)


def chunks_of(data: bytes, borders: list[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    return [data[start:end] for start, end in itertools.pairwise(cuts)]


def shown(chunks: list[bytes], limit: int = 1000) -> bytes:
    lines = LinePrefixer(PREFIX, limit)
    return b"".join([*(lines.feed(chunk) for chunk in chunks), lines.finish()])


def last_states(data: bytes) -> list[bytes]:
    """What a terminal would show of each line: what was drawn last, or what was there if that is nothing."""
    lines = []
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        *drawn_over, last = line.split(b"\r")
        state = next((state for state in reversed(drawn_over) if state.strip()), b"")
        lines.append(last or state)
    rest = last if last.strip() else state  # what the stream's end truncates, unless it is blank
    return [*lines[:-1], rest] if rest else lines[:-1]


@given(outputs, st.lists(st.integers(min_value=0), max_size=10))
def test_how_the_bytes_were_cut_into_chunks_does_not_show(data: bytes, borders: list[int]) -> None:
    assert shown(chunks_of(data, borders)) == b"".join(PREFIX + line + b"\n" for line in last_states(data))
    lines = LinePrefixer(PREFIX)
    assert all(released.endswith(b"\n") for chunk in chunks_of(data, borders) if (released := lines.feed(chunk)))


def test_a_line_waits_for_its_end_and_beyond_the_limit_comes_in_pieces() -> None:
    lines = LinePrefixer(PREFIX)
    assert lines.feed(b"loss ") == b""
    assert lines.feed(b"0.25\nacc") == b"[default3]:loss 0.25\n"
    assert lines.finish() == b"[default3]:acc\n"
    lines = shown([b"x" * 40] * 10 + [b"\n", b"next\n"], limit=100).splitlines()
    assert all(line.startswith(PREFIX) for line in lines)
    assert max(map(len, lines)) <= 140 + len(PREFIX)
    assert b"".join(line[len(PREFIX) :] for line in lines) == b"x" * 400 + b"next"
    assert shown([b"10%\r", b"x" * 100, b"\n"], limit=100) == PREFIX + b"x" * 100 + b"\n" + PREFIX + b"\n"


def test_a_progress_bar_shows_its_newest_state_once_a_second_and_no_empty_lines() -> None:
    lines = LinePrefixer(PREFIX)
    released = [lines.feed(b"\r%d%%" % tenth, tenth / 10) for tenth in range(35)]
    assert [line for line in released if line] == [b"[default3]:10%\n", b"[default3]:20%\n", b"[default3]:30%\n"]
    assert lines.feed(b"\r100%\n", 3.5) == b"[default3]:100%\n"
    assert lines.feed(b"epoch 2\n", 3.6) == b"[default3]:epoch 2\n"
    lines = LinePrefixer(PREFIX)
    released = [lines.feed(b"\r%d%%\r      \r" % second, second) for second in range(3)]
    assert released == [b"", b"[default3]:1%\n", b"[default3]:2%\n"]
    assert lines.finish() == b""


@pytest.mark.parametrize(
    ("data", "count", "expected"),
    [
        (b"", 3, ()),
        (b"\n", 3, ()),
        (b"a\nb\nc\nd\n", 2, ("c", "d")),
        (b"a\nb", 5, ("a", "b")),
        (b"a\r\nb\r\n", 5, ("a", "b")),
        (b"10%\r20%\r30%\nValueError", 5, ("30%", "ValueError")),
        (b"\xff\n", 5, ("\N{REPLACEMENT CHARACTER}",)),
    ],
)
def test_the_last_lines_are_text(data: bytes, count: int, expected: tuple[str, ...]) -> None:
    assert split_last_lines(data, count) == expected
