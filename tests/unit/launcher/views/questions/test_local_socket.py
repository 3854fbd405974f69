"""Which agent of this machine is meant by a name."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions import local_socket
from launcher.views.questions.messages import Question
from launcher.views.requests import Identify, ReadState
from rendezvous import __version__


def make_agent(run_id: str, pid: int, job: str = "") -> local_socket.LocalAgent:
    return local_socket.LocalAgent(name=f"meshrun.0.{pid}", run_id=run_id, node="h0", version=__version__, job=job)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"error":"no\\nmeshrun: all is well\\u001b[2J"}\n', r"run exp: 'no\nmeshrun: all is well\x1b[2J'"),
        (b'{"error":3}\n', "run exp: its agent returned an error that cannot be read"),
        (b'{"error":\n', "run exp: its agent returned an error that cannot be read"),
    ],
)
def test_an_error_of_an_agent_of_another_user_is_a_line(line: bytes, said: str) -> None:
    source = local_socket.QuestionSource(lambda question, limit_s: line, "exp")
    for ask in (source.read_run, source.ask_why):
        with pytest.raises(TemporaryError) as refused:
            ask()
        assert str(refused.value) == said


@pytest.mark.parametrize(
    ("more", "kind"), [(b"", TemporaryError), (b',"is_silent":true', local_socket.SilentNodeError)]
)
def test_a_node_that_has_not_answered_is_told_from_other_errors(more: bytes, kind: type[TemporaryError]) -> None:
    source = local_socket.QuestionSource(
        lambda question, limit_s: b'{"error":"h1 has not answered in time"%b}\n' % more, "exp"
    )
    with pytest.raises(TemporaryError, match="h1 has not answered in time") as refused:
        source.read_node("h1", ReadState())
    assert type(refused.value) is kind


def test_what_agents_call_themselves_is_shown_without_controls_and_none_is_no_name() -> None:
    source = local_socket.QuestionSource(lambda question, limit_s: b"", "none")
    with pytest.raises(TemporaryError) as refused:
        source.read_run()
    assert str(refused.value) == "the agent of the run without an id on this machine has ended while it was asked"
    agent = local_socket._read_identity(
        "meshrun.1.2", b'{"run_id": "a\\nb", "node": "\\u001b[2J", "version": "9\\n"}\n'
    )
    assert agent is not None
    assert (agent.run_id, agent.node, agent.version) == (r"'a\nb'", r"'\x1b[2J'", r"'9\n'")


@pytest.mark.parametrize("line", [b"[" * 100_000 + b"\n", b"\xff\n", b"{}\n", b'{"run_id": {}}\n', b"\n"])
def test_what_says_nothing_of_a_run_is_no_agent(line: bytes) -> None:
    assert local_socket._read_identity("meshrun.0.1", line) is None


def test_an_agent_of_another_version_is_asked_nothing_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = local_socket.LocalAgent(name="meshrun.0.1", run_id="exp", node="n1", version="9.1")
    monkeypatch.setattr(local_socket, "_ask_all", lambda names, *_: (dict.fromkeys(names, b""), set()))
    monkeypatch.setattr(local_socket, "exchange", None)
    for ask in (lambda: local_socket.require_version(other), local_socket.ask_runs([other], 1.0)[0].read_run):
        with pytest.raises(UsageError) as refused:
            ask()
        sentence = f"the agent of run exp has meshrun 9.1 on node n1, this is meshrun {__version__}"
        assert (str(refused.value), refused.value.hint) == (sentence, "use meshctl of meshrun 9.1")


def test_a_socket_whose_name_is_no_agents_is_left_out() -> None:
    right, name = listen(f"9000{os.getpid()}")
    wrong, hostile = listen(f"\x1b[31m{os.getpid()}")
    with right, wrong:
        names = list(local_socket.list_socket_names())
    assert name in names
    assert hostile not in names


def listen(last: str) -> tuple[socket.socket, str]:
    name = f"meshrun.{os.geteuid()}.{last}"
    end = socket.socket(socket.AF_UNIX)
    end.bind(f"\0{name}")
    end.listen(4)
    return end, name


def test_an_agent_that_begins_or_ends_meanwhile_is_not_called_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter([["meshrun.0.1", "meshrun.0.2", "meshrun.0.3"], ["meshrun.0.1", "meshrun.0.3", "meshrun.0.4"]])
    answering = local_socket.LocalAgent(name="meshrun.0.1", run_id="exp", node="h", version="9")
    monkeypatch.setattr(local_socket, "list_socket_names", lambda: next(names))
    answers = {
        "meshrun.0.1": b'{"run_id": "exp", "node": "h", "version": "9"}\n',
        "meshrun.0.2": b"",
        "meshrun.0.3": b"",
    }
    monkeypatch.setattr(local_socket, "_ask_all", lambda names, *_: ({name: answers[name] for name in names}, set()))
    assert local_socket.find_local_agents() == ([answering], ["3"])


def test_an_answer_that_comes_byte_by_byte_has_to_come_in_time() -> None:
    listener, name = listen(f"9001{os.getpid()}")
    has_gone = threading.Event()

    def drip() -> None:
        end, _ = listener.accept()
        with end:
            for _ in range(60):
                end.send(b"x")
                if has_gone.wait(0.05):
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with listener, pytest.raises(TimeoutError):
            local_socket.exchange(name, Question(request=Identify()), 0.3)
    finally:
        has_gone.set()
        thread.join()
