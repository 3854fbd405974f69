"""What an agent keeps for its journal, and how its threads ask it."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from launcher.agent.inspection import observer as observer_module
from launcher.agent.inspection.bridge import PENDING_MAX, Bridge
from launcher.agent.inspection.inspection import Inspection
from launcher.agent.inspection.messages import Inspect
from launcher.agent.inspection.observer import DELAY_S, KEPT_MAX, START_PAUSE_S, History, Observer
from launcher.model.concurrency import LateThread
from launcher.model.errors import TemporaryError
from launcher.observe.local_socket import Question, QuestionSource
from launcher.observe.node_report import ReadState
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


class Client:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def answer(self, text: bytes) -> None:
        self.got.append(text)


def refuse_import(*_: object) -> Inspection:
    raise ImportError("cannot import name 'NEW' from 'launcher'")


def test_what_fails_costs_one_sentence_and_never_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(observer_module, "log", said.append)
    journal, sinks, client = BrokenJournal(), [BrokenSink(), BrokenSink()], Client()
    history = History(lambda: journal, lambda: 5.0, is_wanted=True)  # type: ignore[arg-type, return-value]
    observer = Observer(history, {}, refuse_import, lambda: None, "r", sinks)
    history.take("one")
    history.take("two")
    observer.advance(5.0 + DELAY_S)
    history.take("three")
    history.add_hang("hang", (0,), "rank 0 hangs", ())
    observer.take_note("m1", Inspect(id="1", node="", request=ReadState()))
    observer.answer(client, Question(kind="inspect"), 7.0)
    observer.finish()
    assert journal.taken == ["one", "two", "three"]
    assert said == ["what is shown of this run is not complete: OverflowError: year is out of range"]
    assert client.got == [b"{\"error\":\"ImportError: cannot import name 'NEW' from 'launcher'\"}"]
    assert all(sink.is_closed for sink in sinks)


def test_a_journal_that_cannot_be_made_is_not_tried_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(observer_module, "log", said.append)
    history = History(refuse_import, lambda: 5.0, is_wanted=True)  # type: ignore[arg-type]
    observer = Observer(history, {}, refuse_import, lambda: None, "r")
    history.take("one")
    observer.advance(5.0 + DELAY_S)
    history.take("two")
    assert observer.wake_at == float("inf")
    assert len(history._kept) == 1, "what cannot be told is not kept"
    observer.finish()
    assert len(said) == 1


def test_a_note_that_fails_before_the_first_message_costs_no_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer_module, "log", [].append)
    history, made = make_history(is_wanted=True)
    observer = Observer(history, {}, refuse_import, lambda: None, "r")
    observer.take_note("m1", Inspect(id="1", node="", request=ReadState()))
    history.take("one")
    observer.advance(5.0 + DELAY_S)
    assert [journal.taken for journal in made] == [["one"]]


def test_a_missing_thread_is_tried_again_every_second_until_it_runs() -> None:
    history, _ = make_history(is_wanted=False)
    sink = BrokenSink()
    observer = Observer(history, {}, refuse_import, lambda: None, "r", [sink])
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

    def make(bridge: Bridge) -> Mock:
        if (problem := tries.pop(0)) is not None:
            raise problem
        return page

    history, _ = make_history(is_wanted=True)
    history.open()
    observer = Observer(history, {}, refuse_import, lambda: None, "r", make_page=make)
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


def test_a_thread_is_answered_by_the_loop() -> None:
    woken = threading.Event()
    bridge = Bridge(woken.set)
    source = QuestionSource(bridge.exchange, "r")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(source.ask_why()))
    thread.start()
    assert woken.wait(30)
    ((waiter, question),) = bridge.take()
    assert question == Question(kind="why")
    waiter.answer(b'{"kind":"healthy"}')
    thread.join(30)
    assert got == [b'{"kind":"healthy"}\n']


def test_a_loop_that_does_not_answer_costs_a_sentence() -> None:
    bridge = Bridge(lambda: None)
    with pytest.raises(TimeoutError):
        bridge.exchange(Question(kind="why"), 0.0)
    source = QuestionSource(lambda question, limit_s: bridge.exchange(question, 0.0), "r")
    with pytest.raises(TemporaryError, match=r"the agent of run r .* has not answered in time"):
        source.read_run()
    for _ in range(PENDING_MAX - 2):
        with pytest.raises(TimeoutError):
            bridge.exchange(Question(kind="why"), 0.0)
    with pytest.raises(BlockingIOError):
        bridge.exchange(Question(kind="why"), 0.0)


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
