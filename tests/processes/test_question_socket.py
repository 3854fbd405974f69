"""The socket at which an agent answers its own user: who may ask, and what those that ask wrongly may not do."""

from __future__ import annotations

import math
import os
import resource
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.views.questions import question_socket
from launcher.views.questions.local_listener import SOCKET_NAME
from launcher.views.questions.messages import Diagnose, Question
from launcher.views.questions.question_socket import (
    CONNECTIONS_MAX,
    LINE_MAX,
    REFUSED_MAX,
    REFUSED_PAUSE_S,
    SHORT_MAX,
    SHORTAGE_PAUSE_S,
    Connection,
    QuestionSocket,
)
from launcher.views.requests import Identify
from rendezvous import codec
from tests.support.processes.questions import open_question_socket
from tests.support.waiting import wait_until

WHY = codec.encode(Question(request=Diagnose())) + b"\n"
IDENTIFY = codec.encode(Question(request=Identify())) + b"\n"


@pytest.fixture
def poll() -> select.poll:
    return select.poll()


@pytest.fixture
def server(poll: select.poll) -> Iterator[QuestionSocket]:
    opened = open_question_socket(poll)
    yield opened
    opened.close()


def connect() -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(60)
    end.connect("\0" + SOCKET_NAME.format(uid=os.geteuid(), pid=os.getpid()))
    return end


def take_one(server: QuestionSocket) -> tuple[Connection, Question]:
    found: list[tuple[Connection, Question]] = []
    wait_until(lambda: found.extend(server.take(0.0)) or found, 60, "a question")
    (one,) = found
    return one


def test_a_question_in_two_parts_is_answered_with_a_line(server: QuestionSocket) -> None:
    with connect() as end:
        end.sendall(WHY[:9])
        assert list(server.take(0.0)) == []
        end.sendall(WHY[9:])
        connection, question = take_one(server)
        assert question == Question(request=Diagnose())
        connection.answer(b"{}")
        assert end.makefile("rb").read() == b"{}\n"


@pytest.mark.parametrize(
    "text",
    [b"{\n", b"[]\n", b'{"request": 3}\n', b"\xff\n", b'{"unknown": ' + b"[" * 50_000 + b"\n", b"x" * (LINE_MAX + 1)],
    ids=["half", "a list", "a number", "bytes", "deep", "endless"],
)
def test_what_is_no_question_is_closed_and_costs_nobody_else(server: QuestionSocket, text: bytes) -> None:
    with connect() as wrong, connect() as right:
        wrong.sendall(text)
        right.sendall(IDENTIFY)
        wrong.setblocking(False)
        found: list[object] = []

        def is_closed() -> bool:
            for connection, question in server.take(0.0):
                connection.close()
                found.append(question.request)
            try:
                return wrong.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        wait_until(is_closed, 60, "the end of the wrong one")
        assert found == [Identify()]


def test_of_too_many_the_last_are_closed_until_others_have_gone(server: QuestionSocket) -> None:
    ends = []
    for _ in range(CONNECTIONS_MAX):
        ends.append(connect())
        list(server.take(0.0))
    with connect() as late:
        list(server.take(0.0))
        assert late.recv(1) == b""
    ends.pop().close()
    list(server.take(0.0))
    with connect() as end:
        end.sendall(WHY)
        connection, _ = take_one(server)
        connection.close()
    for one in ends:
        one.close()


def test_another_user_is_not_heard(server: QuestionSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_socket, "read_user", lambda end: os.geteuid() + 1)
    with connect() as end:
        end.sendall(WHY)
        assert list(server.take(0.0)) == []
        with pytest.raises(ConnectionResetError):  # closed with what it has said unread
            end.recv(1)


def test_root_is(server: QuestionSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_socket, "read_user", lambda end: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with socket.socket(socket.AF_UNIX) as end:
        end.connect("\0" + SOCKET_NAME.format(uid=os.getuid(), pid=os.getpid()))
        end.sendall(WHY)
        connection, _ = take_one(server)
        connection.close()


def test_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    server = open_question_socket(select.poll())
    with connect():
        list(server.take(0.0))
        server.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_who_ask_at_once_are_answered(server: QuestionSocket) -> None:
    ends: list[socket.socket] = []

    def ask() -> None:
        ends.append(connect())
        ends[-1].sendall(IDENTIFY)

    for _ in range(4 * CONNECTIONS_MAX):
        ask()
    for connection, _ in server.take(0.0):
        connection.answer(b"{}")
        if len(ends) <= 6 * CONNECTIONS_MAX:  # others come while these are read
            ask()
    for end in ends:
        with end:
            assert end.recv(10) == b"{}\n"


def test_a_flood_wakes_the_loop_no_more_until_a_pause_is_over(
    server: QuestionSocket, poll: select.poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(question_socket, "read_user", lambda end: os.geteuid() + 1)
        for _ in range(REFUSED_MAX):
            assert server.wake_at == math.inf
            connect().close()
            assert list(server.take(5.0)) == []
    assert server.wake_at == 5.0 + REFUSED_PAUSE_S
    with connect() as end:
        end.sendall(WHY)
        assert poll.poll(0) == [], "it would wake the loop"
        assert list(server.take(5.0)) == []
        ((connection, question),) = server.take(server.wake_at)
        assert question == Question(request=Diagnose())
        connection.close()
    assert server.wake_at == math.inf
    with connect():
        assert poll.poll(0) != []


def test_connections_that_ask_nothing_are_a_flood_too(server: QuestionSocket) -> None:
    for _ in range(REFUSED_MAX):
        with connect() as end:
            end.sendall(b"nothing\n")
            list(server.take(0.0))
    assert server.wake_at == REFUSED_PAUSE_S


def test_without_a_descriptor_who_asks_waits_for_one(
    server: QuestionSocket, poll: select.poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect() as end:
        end.sendall(WHY)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard[1]))
        try:
            assert list(server.take(1.0)) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, hard)
        assert server.wake_at == 1.0 + SHORTAGE_PAUSE_S
        assert poll.poll(0) == []
        ((connection, _),) = server.take(server.wake_at)
        connection.answer(b"{}")
        assert end.recv(10) == b"{}\n"


def test_without_a_thread_a_long_answer_is_written_at_once(
    server: QuestionSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_socket, "start_thread", lambda *_: None)
    monkeypatch.setattr(question_socket, "SHORT_LIMIT_S", 20.0)
    with connect() as end, ThreadPoolExecutor(1) as reader:
        end.sendall(WHY)
        connection, _ = take_one(server)
        read = reader.submit(lambda: end.makefile("rb").read())
        connection.answer(b"x" * (4 * SHORT_MAX))
        assert read.result(60) == b"x" * (4 * SHORT_MAX) + b"\n"
