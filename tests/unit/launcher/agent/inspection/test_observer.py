"""What an agent keeps for its journal, and how its threads ask it."""

from __future__ import annotations

import os
import socket
from typing import NoReturn
from unittest.mock import Mock

import pytest

from launcher.agent.inspection import observer as observer_module
from launcher.agent.inspection.observer import DELAY_S, KEPT_MAX, START_PAUSE_S, History, Observer
from launcher.model.concurrency import LateThread
from launcher.model.errors import TemporaryError
from launcher.observe.local_socket import QuestionSource
from tests.support.threads import no_threads


class FakeJournal:
    def __init__(self) -> None:
        self.taken: list[object] = []

    def take(self, message: object, at: float) -> None:
        self.taken.append(message)


def make_history(*, is_wanted: bool) -> tuple[History, list[FakeJournal]]:
    made: list[FakeJournal] = []

    def make() -> FakeJournal:
        made.append(FakeJournal())
        return made[-1]

    return History(make, lambda: 5.0, is_wanted=is_wanted), made  # type: ignore[arg-type]


def test_a_wanted_journal_is_made_a_moment_after_the_first_message() -> None:
    history, made = make_history(is_wanted=True)
    assert history.wake_at == float("inf")
    history.take("one")
    assert history.wake_at == 5.0 + DELAY_S
    assert made == []
    history.open()
    history.take("two")
    assert made[0].taken == ["one", "two"]
    assert history.wake_at == float("inf")


def test_another_journal_is_made_before_its_messages_are_many() -> None:
    history, made = make_history(is_wanted=False)
    for number in range(KEPT_MAX):
        assert history.wake_at == float("inf")
        history.take(number)
    assert history.wake_at == 5.0
    history.advance()
    assert made[0].taken == list(range(KEPT_MAX))


class BrokenJournal(FakeJournal):
    def take(self, message: object, at: float) -> None:
        super().take(message, at)
        raise OverflowError("year is out of range")

    def add_hang(self, *_: object) -> None:
        raise OverflowError("year is out of range")


class BrokenSink:
    def __init__(self) -> None:
        self.is_closed = False
        self.thread = LateThread(lambda: None, "sink")

    def write(self, event: object) -> None: ...

    def close(self) -> None:
        self.is_closed = True
        raise RuntimeError("closed twice")


def refuse_import(*_: object) -> NoReturn:
    raise ImportError("cannot import name 'NEW' from 'launcher'")


def test_what_fails_costs_one_sentence_and_never_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(observer_module, "log", said.append)
    journal, sinks = BrokenJournal(), [BrokenSink(), BrokenSink()]
    history = History(lambda: journal, lambda: 5.0, is_wanted=True)  # type: ignore[arg-type, return-value]
    observer = Observer(history, {}, refuse_import, sinks)
    history.take("one")
    history.take("two")
    observer.advance(5.0 + DELAY_S)
    history.take("three")
    history.add_hang("hang", (0,), "rank 0 hangs", ())
    observer.attempt(observer.make_answers)
    observer.finish()
    assert journal.taken == ["one", "two", "three"]
    assert said == ["the view of this run is incomplete: OverflowError: year is out of range"]
    assert all(sink.is_closed for sink in sinks)


def test_a_journal_that_cannot_be_made_is_not_tried_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(observer_module, "log", said.append)
    history = History(refuse_import, lambda: 5.0, is_wanted=True)  # type: ignore[arg-type]
    observer = Observer(history, {}, refuse_import)
    history.take("one")
    observer.advance(5.0 + DELAY_S)
    history.take("two")
    assert observer.wake_at == float("inf")
    assert len(history._kept) == 1, "what cannot be told is not kept"
    observer.finish()
    assert len(said) == 1


def test_a_question_that_fails_before_the_first_message_costs_no_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer_module, "log", [].append)
    history, made = make_history(is_wanted=True)
    observer = Observer(history, {}, refuse_import)
    observer.attempt(observer.make_answers)
    history.take("one")
    observer.advance(5.0 + DELAY_S)
    assert [journal.taken for journal in made] == [["one"]]


def test_a_missing_thread_is_tried_again_every_second_until_it_runs() -> None:
    history, _ = make_history(is_wanted=False)
    sink = BrokenSink()
    observer = Observer(history, {}, refuse_import, [sink])
    with no_threads():
        sink.thread.start()
        assert observer.wake_at <= 7.0
        observer.advance(7.0)
        assert observer.wake_at == 7.0 + START_PAUSE_S
    observer.advance(7.5)
    assert not sink.thread.has_started
    observer.advance(8.0)
    assert sink.thread.has_started
    assert observer.wake_at == float("inf")


SHORTAGES = [OSError(24, "Too many open files"), ImportError("x.so: Too many open files", path="x.so"), MemoryError()]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_page_that_lacks_descriptors_or_memory_is_made_later(error: Exception) -> None:
    tries: list[Exception | None] = [error, None]
    page = Mock()

    def make(ask: object) -> Mock:
        if (problem := tries.pop(0)) is not None:
            raise problem
        return page

    history, _ = make_history(is_wanted=True)
    history.open()
    observer = Observer(history, {}, refuse_import, make_page=make)
    observer.advance(7.0)
    observer.advance(8.0)
    page.advance.assert_called_once_with()


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_journal_that_lacks_descriptors_or_memory_is_made_later_with_all(error: Exception) -> None:
    made: list[FakeJournal] = []
    lacks = True

    def make() -> FakeJournal:
        if lacks:
            raise error
        made.append(FakeJournal())
        return made[-1]

    history = History(make, lambda: 5.0, is_wanted=False)  # type: ignore[arg-type, return-value]
    history.take("one")
    history.advance()
    history.take("two")
    assert history.wake_at == 5.0 + DELAY_S
    lacks = False
    history.advance()
    assert made[0].taken == ["one", "two"]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_job_that_ends_at_once_has_a_journal_only_if_it_is_written(is_wanted: bool) -> None:
    history, made = make_history(is_wanted=is_wanted)
    history.take("one")
    history.finish()
    assert [journal.taken for journal in made] == ([["one"]] if is_wanted else [])


def test_an_agent_without_a_socket_cannot_be_asked_by_its_threads() -> None:
    observer = Observer(make_history(is_wanted=False)[0], {}, refuse_import)
    with pytest.raises(TemporaryError, match=r"the agent of run r .* cannot be asked: this system"):
        QuestionSource(observer.ask, "r").read_run()


def test_a_loop_that_does_not_answer_costs_a_sentence() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0meshrun.{os.geteuid()}.{os.getpid()}.{int.from_bytes(os.urandom(4), 'big')}")
        listener.listen()
        observer = Observer(make_history(is_wanted=False)[0], {}, refuse_import)
        observer.socket_name = listener.getsockname()[1:].decode()
        source = QuestionSource(lambda question, limit_s: observer.ask(question, 0.01), "r")
        with pytest.raises(TemporaryError, match=r"the agent of run r .* has not answered in time"):
            source.read_run()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"", "has ended while it was asked"),
        (b'{"error":"no node is called x"}\n', "run r: no node is called x"),
        (b'{"run_id":3}\n', "an answer that cannot be read"),
    ],
)
def test_an_answer_that_is_none_becomes_a_sentence(line: bytes, sentence: str) -> None:
    with pytest.raises(TemporaryError, match=sentence):
        QuestionSource(lambda question, limit_s: line, "r").read_run()
