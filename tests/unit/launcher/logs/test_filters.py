"""Lines that somebody looks for: which are copied, and that one file holds them whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.logs.filters import LineFilter
from launcher.logs.sinks import LogFile


def copied(path: Path, texts: tuple[str, ...], *blocks: bytes, prefix: bytes = b"[default0]:") -> bytes:
    found = LineFilter(texts, LogFile(str(path), lambda key, sentence: pytest.fail(sentence)))
    found.add_stream()
    for block in blocks:
        found.take(block, len(prefix))
    found.remove_stream()
    return path.read_bytes()


def test_lines_that_hold_one_of_the_texts_are_copied_with_their_prefix(tmp_path: Path) -> None:
    block = b"[default0]:an apple\n[default0]:a pear\n[default0]:apple and pear\n[default0]:plum\n"
    assert copied(tmp_path / "log", ("apple", "plum"), block) == (
        b"[default0]:an apple\n[default0]:apple and pear\n[default0]:plum\n"
    )


def test_nothing_is_looked_for_in_the_prefix(tmp_path: Path) -> None:
    block = b"[default0]:loss 1\n[default0]:the default\n"
    assert copied(tmp_path / "log", ("default",), block) == b"[default0]:the default\n"


def test_a_text_across_two_lines_is_not_one(tmp_path: Path) -> None:
    assert copied(tmp_path / "log", ("a\nb",), b"a\nb\n", prefix=b"") == b""


def test_invalid_utf8_and_non_ascii_texts_are_compared_as_bytes(tmp_path: Path) -> None:
    block = b"\xff\xfe \xc3\xa9 \x00\n" + b"\xff\n"
    assert copied(tmp_path / "log", ("\N{LATIN SMALL LETTER E WITH ACUTE}", "\udcfe"), block, prefix=b"") == (
        b"\xff\xfe \xc3\xa9 \x00\n"
    )


def test_the_file_is_there_before_the_first_line_and_without_one(tmp_path: Path) -> None:
    assert copied(tmp_path / "log", ("apple",), b"[default0]:pear\n") == b""


def test_a_stream_that_begins_when_all_others_have_ended_adds_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    found = LineFilter(("a",), LogFile(str(path), lambda key, sentence: None))
    for block in (b"a1\n", b"a2\n"):
        found.add_stream()
        found.take(block, 0)
        found.remove_stream()
    assert path.read_bytes() == b"a1\na2\n"
