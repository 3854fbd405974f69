"""The agent's own lines on stderr: how long it waits for a reader."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from launcher.meshctl.table import format_clock
from launcher.model import console
from launcher.model.console import format_local_time, format_time
from tests.support.waiting import wait_until


class Reader:
    """A pipe in the place of stderr, used in a `with`, and every wait for room in it: waiting takes no time here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits_s: list[float] = []
        self.thief: Callable[[], None] | None = None
        self._monkeypatch = monkeypatch

    def pair(self) -> tuple[int, int]:
        return os.pipe()

    def __enter__(self) -> Reader:
        self._stderr = os.dup(2)
        self._read_end, write_end = self.pair()
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
        console._buffer.clear()

    def register(self, descriptor: int, events: int) -> None:
        assert (descriptor, events) == (2, select.POLLOUT)

    def poll(self, limit_ms: float) -> bool:
        self.waits_s.append(limit_ms / 1000)
        has_room = self._has_room()
        if has_room and self.thief is not None:
            self.thief()
        return has_room

    def _has_room(self) -> bool:
        return bool(select.select([], [2], [], 0)[1])

    def fill(self) -> None:
        while self._has_room():
            os.write(2, bytes(select.PIPE_BUF))

    def fill_to_the_brim(self) -> None:
        os.set_blocking(2, False)
        for size in (select.PIPE_BUF, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(2, bytes(size))
        os.set_blocking(2, True)

    def read(self) -> bytes:
        """What was written since the last time, without what filled the pipe."""
        data = b""
        while select.select([self._read_end], [], [], 0)[0]:
            data += os.read(self._read_end, 1 << 20)
        return data.replace(b"\0", b"")


class Terminal(Reader):
    """The same with a terminal, raw."""

    def pair(self) -> tuple[int, int]:
        leader, follower = os.openpty()
        tty.setraw(follower)
        return leader, follower


class Socket(Reader):
    """The same with a socket, as under systemd."""

    def pair(self) -> tuple[int, int]:
        ours, theirs = socket.socketpair()
        return ours.detach(), theirs.detach()


def test_a_line_comes_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        console.log("näh \udcff")
        assert reader.read() == "meshrun: näh \\udcff\n".encode()


def test_a_log_waits_once_for_a_stalled_reader_and_again_after_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        console.log("one")
        console.log("two")
        assert reader.waits_s == [console.PATIENCE_S, 0]
        assert reader.read() == b""
        console.log("three")
        assert reader.read() == b"meshrun: one\nmeshrun: two\nmeshrun: three\n"
        reader.fill()
        waits = len(reader.waits_s)
        console.log("four")
        assert reader.waits_s[waits] == console.PATIENCE_S


def test_at_the_end_what_was_kept_has_a_last_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        console.log("one")
        reader.read()
        console.finish()
        assert reader.read() == b"meshrun: one\n"
        console.finish()
        assert reader.read() == b""


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        for number in range(2 * console.BUFFER_MAX // 1000):
            console.write_stderr(f"{number:999}")
        reader.read()
        said = b""
        while console._buffer:
            console.finish()
            said += reader.read()
        assert len(said) // 1000 == console.BUFFER_MAX // 1000 + 1


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """A write that waits for the reader is interrupted by an error."""

    def interrupt(signum: int, frame: object) -> None:
        raise AssertionError("the write has blocked")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_blocking")
@pytest.mark.parametrize("kind", [Reader, Terminal, Socket, "another user's pipe"])
def test_room_that_somebody_else_takes_holds_nobody(monkeypatch: pytest.MonkeyPatch, kind: type[Reader] | str) -> None:
    """Between the look and the write a worker fills what it shares with the agent, again and again."""
    with (Reader if isinstance(kind, str) else kind)(monkeypatch) as reader:
        if isinstance(kind, str):
            monkeypatch.setattr(console, "open_unblocked", refuse)
        monkeypatch.setattr(console, "PATIENCE_S", 0.01)
        reader.thief = reader.fill_to_the_brim
        console.log("one")
        reader.thief = None
        said = [reader.read()]  # a terminal hands on in its own time
        console.log("two")
        wait_until(lambda: said.append(reader.read()) or b"two" in said[-1])
        assert b"".join(said) == b"meshrun: one\nmeshrun: two\n"


def refuse(descriptor: int) -> int:
    raise PermissionError


def test_last_words_are_worth_a_wait_and_a_stderr_that_has_gone_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(monkeypatch) as reader:
        reader.fill()
        console.log("one")
        console.write_stderr("report", patience_s=7)
        assert reader.waits_s == [console.PATIENCE_S, 7]
    with Reader(monkeypatch):
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), 2)
        console.log("into the void")


# --- times and colours ---

_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What goes to a file, with none of the state of other tests."""
    monkeypatch.setattr(console, "_stamp_node", None)
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(console.time, "time", lambda: 1_767_225_600.0004)
    return lambda: capfd.readouterr().err


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0.25, "1970-01-01T00:00:00.250Z"),
        (-0.25, "1969-12-31T23:59:59.750Z"),
        (261_795_846_000.0, "10265-12-24T12:20:00.000Z"),
        (1e18, "@1e+18"),
        (-1e18, "@-1e+18"),
        (float("inf"), "@inf"),
        (float("nan"), "@nan"),
    ],
)
def test_any_clock_can_be_told(at: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    assert format_time(at) == text
    assert format_local_time(at) == text.partition(".")[0]
    assert format_clock(at, -1e5) == ("?" if text[0] == "@" else text[: text.index(".")].replace("T", " "))


@pytest.mark.parametrize(("mode", "is_stamped"), [("auto", True), ("on", True), ("off", False)])
def test_lines_in_a_log_begin_with_time_and_node(stderr: Callable[[], str], mode: str, is_stamped: bool) -> None:
    console.begin_stamps(mode, "node3")
    console.log("one")
    console.write_stderr("two\n  lines")
    stamp = "2026-01-01T00:00:00.000Z node3 " if is_stamped else ""
    assert stderr() == f"{stamp}meshrun: one\n{stamp}two\n{stamp}  lines\n"


def test_a_terminal_gets_no_times_of_its_own(stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    console.begin_stamps("auto", "node3")
    monkeypatch.setenv("NO_COLOR", "1")
    console.log("one")
    assert stderr() == "meshrun: one\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("meshrun: error: it failed", "<red>meshrun: error:</> it failed"),
        ("hint: look at /var/log/x, and on", "<cyan>hint:</> look at /var/log/x, and on"),
        ("meshrun: hint: check ulimit -n", "<cyan>meshrun: hint:</> check ulimit -n"),
        ("train.py FAILED", "<red>train.py FAILED</>"),
        ("meshrun: nothing of it / or ./x", "meshrun: nothing of it / or ./x"),
        ("a \x1b[31m file / other: error: here", "a \\x1b[31m file / other: error: here"),
    ],
)
def test_what_counts_is_red(stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch, line: str, shown: str) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    for name, code in {"red": "1;31", "cyan": "1;36", "/": "0"}.items():
        shown = shown.replace(f"<{name}>", f"\x1b[{code}m")
    console.write_stderr(f"first\n{line}")
    assert stderr() == f"first\n{shown}\n"


@pytest.mark.parametrize(
    ("is_terminal", "variables", "is_coloured"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_who_gets_colours(
    stderr: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    variables: dict[str, str],
    is_coloured: bool,
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: is_terminal)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    console.write_stderr("meshrun: error: it failed")
    assert stderr() == f"{_RED if is_coloured else ''}meshrun: error:{_PLAIN if is_coloured else ''} it failed\n"


def test_colours_in_a_pipe_stand_behind_the_stamp(stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.begin_stamps("auto", "node3")
    console.write_stderr("meshrun: error: it failed")
    assert stderr() == f"2026-01-01T00:00:00.000Z node3 {_RED}meshrun: error:{_PLAIN} it failed\n"
