"""The agent's own lines on stderr: how long it waits for a reader."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from launcher import console


class Reader:
    """A pipe in the place of stderr, and every wait for room in it, in seconds: waiting takes no time here."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.dup2(write_end, 2)
        os.close(write_end)

    def poll(self) -> Reader:
        return self

    def register(self, descriptor: int, events: int) -> None:
        assert (descriptor, events) == (2, select.POLLOUT)

    def __call__(self, limit_ms: float) -> bool:
        self.waits.append(limit_ms / 1000)
        return bool(select.select([], [2], [], 0)[1])

    def fill(self) -> None:
        while select.select([], [2], [], 0)[1]:
            os.write(2, bytes(select.PIPE_BUF))

    def read(self) -> bytes:
        data = b""
        while select.select([self._read_end], [], [], 0)[0]:
            data += os.read(self._read_end, 1 << 20)
        return data.lstrip(b"\0")

    def close(self) -> None:
        os.close(self._read_end)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Reader]:
    stderr = os.dup(2)
    reader = Reader()

    class Poll:
        register = reader.register
        poll = reader.__call__

    monkeypatch.setattr(console.select, "poll", Poll)
    monkeypatch.setattr(console, "_is_unread", False)
    yield reader
    reader.close()
    os.dup2(stderr, 2)
    os.close(stderr)


def test_a_line_comes_out_whole(reader: Reader) -> None:
    console.tell("näh \udcff")
    assert reader.read() == "meshrun: näh \\udcff\n".encode()


def test_it_waits_once_for_a_reader_who_does_not_read_and_again_once_he_does(reader: Reader) -> None:
    reader.fill()
    console.tell("one")
    console.tell("two")
    assert reader.waits == [console.PATIENCE_S, 0]
    assert reader.read() == b""
    console.tell("three")
    assert reader.read() == b"meshrun: three\n"
    reader.fill()
    console.tell("four")
    assert reader.waits[3:] == [console.PATIENCE_S]


def test_the_last_words_are_worth_a_wait_all_the_same(reader: Reader) -> None:
    reader.fill()
    console.tell("one")
    console.say("report", patience_s=7)
    assert reader.waits == [console.PATIENCE_S, 7]


def test_a_closed_stderr_is_no_trouble(reader: Reader) -> None:
    reader.close()
    console.tell("into the void")
    reader._read_end = os.open(os.devnull, os.O_RDONLY)
