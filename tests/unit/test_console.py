"""The agent's own lines on stderr: how long it waits for a reader."""

from __future__ import annotations

import os
import select

import pytest

from launcher import console


class Reader:
    """A pipe in the place of stderr, used in a `with`, and every wait for room in it: waiting takes no time here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits_s: list[float] = []
        self._monkeypatch = monkeypatch

    def __enter__(self) -> Reader:
        self._stderr = os.dup(2)
        self._read_end, write_end = os.pipe()
        os.dup2(write_end, 2)
        os.close(write_end)
        self._monkeypatch.setattr(console.select, "poll", lambda: self)
        self._monkeypatch.setattr(console, "_is_unread", False)
        return self

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        os.close(self._read_end)

    def register(self, descriptor: int, events: int) -> None:
        assert (descriptor, events) == (2, select.POLLOUT)

    def poll(self, limit_ms: float) -> bool:
        self.waits_s.append(limit_ms / 1000)
        return self._has_room()

    def _has_room(self) -> bool:
        return bool(select.select([], [2], [], 0)[1])

    def fill(self) -> None:
        while self._has_room():
            os.write(2, bytes(select.PIPE_BUF))

    def read(self) -> bytes:
        """What was written since the last time, without what filled the pipe."""
        data = b""
        while select.select([self._read_end], [], [], 0)[0]:
            data += os.read(self._read_end, 1 << 20)
        return data.lstrip(b"\0")


def test_a_line_comes_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        console.tell("näh \udcff")
        assert reader.read() == "meshrun: näh \\udcff\n".encode()


def test_it_waits_once_for_a_reader_who_does_not_read_and_again_once_he_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        console.tell("one")
        console.tell("two")
        assert reader.waits_s == [console.PATIENCE_S, 0]
        assert reader.read() == b""
        console.tell("three")
        assert reader.read() == b"meshrun: three\n"
        reader.fill()
        console.tell("four")
        assert reader.waits_s[3:] == [console.PATIENCE_S]


def test_the_last_words_are_worth_a_wait_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        console.tell("one")
        console.say("report", patience_s=7)
        assert reader.waits_s == [console.PATIENCE_S, 7]


def test_a_stderr_that_has_gone_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch):
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), 2)
        console.tell("into the void")
