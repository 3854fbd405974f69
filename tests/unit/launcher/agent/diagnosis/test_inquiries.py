"""Who asks on this node and gets the answer: sockets, requests through the store, and what waits in vain."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import msgspec

from launcher.agent.diagnosis.inquiries import ANSWER_MAX, Inquiries, encode_answer
from launcher.agent.diagnosis.messages import Conclusion
from launcher.diagnose.answer import make_answer
from launcher.diagnose.verdict import Diagnosis
from launcher.observe.local_socket import Question
from launcher.worker.grid import WorkerMesh
from rendezvous.events import AnswerCommand

MESH = WorkerMesh(axes=("dp",), shape=(2,), rank=0, group_names=("dp",))
ANSWER = make_answer(Diagnosis(kind="unclear", culprits=(), sentences=("unclear",)), (), MESH)


class FakeConnection:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def answer(self, text: bytes) -> None:
        self.lines.append(text)


class Bench:
    """Who asks about the workers waits in `asked`."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Conclusion | None], object]] = []
        self.submitted: list[Any] = []
        self.inspected: list[str] = []
        self.identity = {"run_id": "night", "node": "h1"}
        self.inquiries = Inquiries(
            select.poll(),
            self,  # type: ignore[arg-type]
            self.submitted.append,
            lambda: self.identity,
            lambda connection, question, now: self.inspected.append(question.kind),
            None,
        )

    def ask(self, take: Callable[[Conclusion | None], object], now: float) -> None:
        self.asked.append(take)

    def put(self, kind: str) -> FakeConnection:
        """A question, as if it had come to the socket."""
        connection: Any = FakeConnection()
        self.inquiries.answer(connection, Question(kind=kind), 0.0)
        return connection  # type: ignore[no-any-return]


def conclude(**more: Any) -> Conclusion:
    return Conclusion(id="", round=1, purpose="question", answer=ANSWER, **more)


def test_each_question_gets_its_own_answer() -> None:
    bench = Bench()
    first, second = bench.put("why"), bench.put("why")
    bench.asked[1](conclude(stacks="second"))
    bench.asked[0](conclude(stacks="first"))
    texts = [msgspec.json.decode(line, type=Conclusion).stacks for one in (first, second) for line in one.lines]
    assert texts == ["first", "second"]


def test_a_question_without_an_answer_is_answered_with_that() -> None:
    bench = Bench()
    connection = bench.put("why")
    bench.asked[0](None)
    assert connection.lines == [b"{}"]


def test_other_questions_are_told_apart() -> None:
    bench = Bench()
    assert bench.put("run").lines == [b'{"run_id":"night","node":"h1"}']
    assert bench.put("inspect").lines == []
    assert bench.inspected == ["inspect"]
    assert bench.asked == []


def test_a_run_whose_name_is_no_text_answers() -> None:
    bench = Bench()
    bench.identity["run_id"] = "l\udcff"
    assert bench.put("run").lines == [b'{"run_id":"l?","node":"h1"}']


def test_a_request_through_the_store_is_answered_there() -> None:
    bench = Bench()
    bench.inquiries.pass_on("token", 0.0)
    bench.asked[0](conclude())
    (event,) = bench.submitted
    assert isinstance(event, AnswerCommand)
    assert (event.token, msgspec.json.decode(event.text, type=Conclusion).round) == ("token", 1)


def test_an_answer_that_is_too_long_goes_without_stacks() -> None:
    short, long = (encode_answer(conclude(stacks="s" * size)) for size in (100, ANSWER_MAX))
    assert msgspec.json.decode(short, type=Conclusion).stacks
    assert msgspec.json.decode(long, type=Conclusion).stacks == ""
