"""The socket on which an agent is asked: many at once, and what is no question."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from launcher.agent.diagnosis.question_socket import CONNECTIONS_MAX, QuestionSocket
from launcher.observe.local_socket import SOCKET_NAME, Question

ADDRESS = "\0" + SOCKET_NAME.format(uid=os.geteuid(), pid=os.getpid())


@pytest.fixture
def questions() -> Iterator[QuestionSocket]:
    one = QuestionSocket(select.poll())
    yield one
    one.close()


def ask(data: bytes) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(30)
    end.connect(ADDRESS)
    end.sendall(data)
    return end


def test_all_who_ask_at_once_are_answered(questions: QuestionSocket) -> None:
    ends = [ask(b'{"kind":"run"}\n') for _ in range(CONNECTIONS_MAX)]
    taken = 0
    for connection, question in questions.take():
        assert question == Question(kind="run")
        connection.answer(b"{}")
        taken += 1
        if taken <= 3 * CONNECTIONS_MAX:  # others come while these are read
            ends.append(ask(b'{"kind":"run"}\n'))
    for end in ends:
        with end:
            assert end.recv(10) == b"{}\n"
    assert taken == len(ends) > 3 * CONNECTIONS_MAX


@pytest.mark.parametrize(
    "data",
    [
        b'{"kind":"run","more":' + b"[" * 50_000 + b"\n",
        b'{"kind":"run","more":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n",
        b"\xff\n",
        b"{}\n",
        b'{"kind":"inspect_node","request":{"type":"logs","round":"x"}}\n',
        b"x" * 200_000,
    ],
    ids=["deep", "deep and closed", "no text", "no kind", "wrong type", "long"],
)
def test_what_is_no_question_is_hung_up_on(questions: QuestionSocket, data: bytes) -> None:
    end = ask(data[:150_000])
    assert list(questions.take()) == []
    assert list(questions.take()) == []
    with end, ask(b'{"kind":"run"}\n') as other:
        with suppress(ConnectionResetError):  # the kernel's word for data that was not read
            assert end.recv(10) == b""
        ((connection, _),) = questions.take()
        connection.answer(b"{}")
        assert other.recv(10) == b"{}\n"


def test_one_who_asks_nothing_keeps_no_other_from_it(questions: QuestionSocket) -> None:
    silent = [ask(b"") for _ in range(CONNECTIONS_MAX)]
    assert list(questions.take()) == []
    with ask(b'{"kind":"run"}\n') as late:
        assert list(questions.take()) == []
        with pytest.raises(ConnectionResetError):
            late.recv(10)
    for end in silent:
        end.close()
    assert list(questions.take()) == []
    with ask(b'{"kind":"run"}\n') as again:
        for connection, _ in questions.take():
            connection.answer(b"{}")
        assert again.recv(10) == b"{}\n"
