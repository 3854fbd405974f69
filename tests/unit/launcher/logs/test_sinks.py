"""Files and consoles that refuse what they are given, and the lines that a filter copies."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.logs.sinks import Console, LineFilter, LogFile


class Warnings:
    def __init__(self) -> None:
        self.by_key: dict[str, list[str]] = {}

    def __call__(self, key: str, sentence: str) -> None:
        self.by_key.setdefault(key, []).append(sentence)

    @property
    def sentences(self) -> list[str]:
        return [sentence for sentences in self.by_key.values() for sentence in sentences]


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The nearest thing to a full disk that a test may have: EFBIG instead of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_file_keeps_what_was_there_and_makes_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("before\n")
    file = LogFile(str(path), Warnings())
    file.write(memoryview(b"after\n"))
    file.close()
    assert path.read_text() == "before\nafter\n"
    path = tmp_path / "attempt_0" / "3" / "stdout.log"
    warnings = Warnings()
    tmp_path.joinpath("attempt_0").touch()
    file = LogFile(str(path), warnings)
    file.write(memoryview(b"lost\n"))
    tmp_path.joinpath("attempt_0").unlink()
    file.write(memoryview(b"kept\n"))
    file.close()
    assert path.read_text() == "[meshrun: 5 bytes are missing here: Not a directory]\nkept\n"
    assert len(warnings.sentences) == 1


def test_a_full_disk_is_one_sentence_and_one_line_in_the_file_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    warnings = Warnings()
    file = LogFile(str(path), warnings)
    with files_no_larger_than(10):
        file.write(memoryview(b"0123\n"))
        file.write(memoryview(b"567890123\n"))  # 5 bytes of it fit
        file.write(memoryview(b"nothing of it\n"))
    file.write(memoryview(b"again\n"))
    file.write(memoryview(b"and again\n"))
    file.close()
    assert path.read_text() == ("0123\n56789\n[meshrun: 19 bytes are missing here: File too large]\nagain\nand again\n")
    (sentence, *_) = warnings.sentences
    assert sentence == (
        f"cannot write to {path}: File too large; output is missing from log files until that is over; "
        "training continues"
    )
    assert len(warnings.by_key) == 1


def test_a_full_disk_behind_the_console_is_noted_there_when_it_is_over(tmp_path: Path) -> None:
    warnings = Warnings()
    fd = os.open(tmp_path / "console", os.O_WRONLY | os.O_CREAT)
    console = Console(fd, "stdout", warnings)
    with files_no_larger_than(10):
        console.put(b"0123456789abcdef\n")
        console.flush()
    console.put(b"again\n")
    console.flush()
    os.close(fd)
    assert (tmp_path / "console").read_text() == (
        "0123456789\n[meshrun: 7 bytes are missing here: File too large]\nagain\n"
    )
    assert warnings.sentences == [
        "cannot write to stdout: File too large; workers' output is missing there until there is space; "
        "training continues"
    ]


def test_a_console_never_takes_more_than_fits() -> None:
    read_fd, write_fd = os.pipe()
    console = Console(write_fd, "stdout", Warnings())
    line = b"x" * 99 + b"\n"
    for _ in range(30_000):
        console.put(line)
    console.flush()  # nobody reads: a blocking write would hang here
    assert console.pending_size
    assert os.get_blocking(write_fd), "others use this descriptor too"
    taken = os.read(read_fd, 4_000_000)
    while console.pending_size:
        console.flush()
        taken += os.read(read_fd, 4_000_000)
    assert taken == line * 30_000
    console.close()
    os.close(read_fd)
    os.close(write_fd)


def test_what_a_full_pipe_holds_ends_with_a_whole_line() -> None:
    read_fd, write_fd = os.pipe()
    console = Console(write_fd, "stdout", Warnings())
    console.put((b"x" * 100 + b"\n") * 30_000)
    console.flush()
    os.read(read_fd, 10_000)
    console.flush()
    assert console.pending_size
    # Somebody else may write next.
    assert os.read(read_fd, 4_000_000).endswith(b"\n")
    console.close()
    os.close(read_fd)
    os.close(write_fd)


def test_a_console_that_was_closed_or_has_stopped_holds_nobody() -> None:
    ours, theirs = pty.openpty()
    console = Console(theirs, "stdout", Warnings())
    console.put((b"x" * 100 + b"\n") * 30_000)
    console.flush()
    assert console.pending_size
    console.close()
    os.close(ours)
    os.close(theirs)
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    console = Console(write_fd, "stdout", Warnings())
    console.put(b"hello\n")
    console.flush()
    console.close()
    assert console.pending_size == 0
    os.close(read_fd)


def test_a_socket_can_be_the_console() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        console = Console(ours.fileno(), "stdout", Warnings())
        line = b"x" * 99 + b"\n"
        console.put(line * 30_000)
        console.flush()
        assert console.pending_size
        taken = b""
        while len(taken) < 3_000_000:
            taken += theirs.recv(1 << 20)
            console.flush()
        assert taken == line * 30_000
        console.close()


@pytest.mark.parametrize(
    ("texts", "block", "prefix", "copies"),
    [
        (("apple", "plum"), b"[default0]:an apple\n[default0]:a pear\n[default0]:plum\n", b"[default0]:",
         b"[default0]:an apple\n[default0]:plum\n"),
        # Nothing is looked for in the prefix, nor across two lines.
        (("default",), b"[default0]:loss 1\n[default0]:the default\n", b"[default0]:", b"[default0]:the default\n"),
        (("a\nb",), b"a\nb\n", b"", b""),
        # Texts are compared as bytes.
        (("\N{LATIN SMALL LETTER E WITH ACUTE}", "\udcfe"), b"\xff\xfe \xc3\xa9 \x00\n\xff\n", b"",
         b"\xff\xfe \xc3\xa9 \x00\n"),
        # The file is there without a line, too.
        (("apple",), b"[default0]:pear\n", b"[default0]:", b""),
    ],
)  # fmt: skip
def test_lines_that_hold_one_of_the_texts_are_copied_with_their_prefix(
    tmp_path: Path, texts: tuple[str, ...], block: bytes, prefix: bytes, copies: bytes
) -> None:
    found = LineFilter(texts, LogFile(str(tmp_path / "log"), lambda key, sentence: pytest.fail(sentence)))
    found.take(block, len(prefix))
    found.close()
    assert (tmp_path / "log").read_bytes() == copies


def test_a_stream_that_goes_on_when_another_has_ended_adds_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    found = LineFilter(("a",), LogFile(str(path), lambda key, sentence: None))
    for block in (b"a1\n", b"a2\n"):
        found.take(block, 0)
        found.close()
    assert path.read_bytes() == b"a1\na2\n"
