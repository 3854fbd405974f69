"""Who asks on this node and gets the answer: sockets, requests through the store, and what waits in vain."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from launcher.agent.diagnosis.inquiries import ANSWER_MAX, Inquiries, encode_answer
from launcher.agent.diagnosis.local_round import LocalRound
from launcher.agent.diagnosis.messages import Conclusion
from launcher.agent.inspection.bridge import Bridge
from launcher.diagnose.answer import make_answer
from launcher.diagnose.request import Target
from launcher.diagnose.verdict import Diagnosis
from launcher.observe.local_socket import Question
from launcher.worker.grid import WorkerMesh
from rendezvous.events import AnswerCommand

MESH = WorkerMesh(axes=("dp",), shape=(2,), rank=0, group_names=("dp",))
ANSWER = make_answer(Diagnosis(kind="unclear", culprits=(), sentences=("unclear",)), (), MESH)


class FakeExamination:
    """Concludes what it is told to."""

    wake_at = float("inf")

    def __init__(self) -> None:
        self.rounds: list[LocalRound | None] = []
        self.asked: list[str] = []
        self.concluded: list[Conclusion] = []
        self.given_up: list[str] = []

    def begin(self, local_round: LocalRound) -> None:
        self.rounds.append(local_round)

    update = begin

    def end(self) -> None:
        self.rounds.append(None)

    def ask(self, purpose: str, now: float) -> str:
        self.asked.append(f"id{len(self.asked)}")
        return self.asked[-1]

    def advance(self, now: float) -> list[Conclusion]:
        found, self.concluded = self.concluded, []
        return found

    def list_given_up(self, now: float) -> list[str]:
        found, self.given_up = self.given_up, []
        return found

    def close(self) -> None:
        pass


class FakeAsker:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def answer(self, text: bytes) -> None:
        self.lines.append(text)


class Bench:
    def __init__(self) -> None:
        self.examination = FakeExamination()
        self.submitted: list[Any] = []
        self.inspected: list[str] = []
        self.bridge = Bridge(lambda: None)
        examination: Any = self.examination
        self.inquiries = Inquiries(
            select.poll(),
            lambda: examination,
            self.submitted.append,
            lambda: {"run_id": "night", "node": "h1"},
            lambda asker, question, now: self.inspected.append(question.kind),
            self.bridge,
            None,
        )

    def ask(self, kind: str) -> FakeAsker:
        """A question, as if it had come to the socket."""
        asker: Any = FakeAsker()
        self.bridge._questions.append((asker, Question(kind=kind)))
        self.inquiries.advance(0.0)
        return asker  # type: ignore[no-any-return]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.inquiries.close()


def conclude(id: str, **more: Any) -> Conclusion:
    return Conclusion(id=id, round=1, purpose="question", answer=ANSWER, **more)


def test_each_question_gets_its_own_answer(bench: Bench) -> None:
    first, second = bench.ask("why"), bench.ask("why")
    bench.examination.concluded = [conclude("id1", stacks="second"), conclude("id0", stacks="first")]
    assert bench.inquiries.advance(0.0) == []
    texts = [msgspec.json.decode(line, type=Conclusion).stacks for one in (first, second) for line in one.lines]
    assert texts == ["first", "second"]


def test_a_question_without_an_answer_is_answered_with_that_and_no_more(bench: Bench) -> None:
    asker = bench.ask("why")
    bench.examination.given_up = ["id0", "unknown"]
    bench.inquiries.advance(0.0)
    assert asker.lines == [b"{}"]
    late = conclude("id0")
    bench.examination.concluded = [late]
    assert bench.inquiries.advance(0.0) == [late], "it is nobody's any more"


def test_what_nobody_here_has_asked_is_returned(bench: Bench) -> None:
    assert bench.inquiries.advance(0.0) == []
    bench.ask("why")
    found = conclude("")
    bench.examination.concluded = [found]
    assert bench.inquiries.advance(0.0) == [found]


def test_other_questions_are_told_apart(bench: Bench) -> None:
    assert bench.ask("run").lines == [b'{"run_id":"night","node":"h1"}']
    assert bench.ask("inspect").lines == []
    assert bench.inspected == ["inspect"]
    assert bench.examination.asked == []


def test_a_run_whose_name_is_no_text_answers(bench: Bench) -> None:
    bench.inquiries._identify = lambda: {"run_id": "l\udcff", "node": "h1"}
    assert bench.ask("run").lines == [b'{"run_id":"l?","node":"h1"}']


def test_a_request_through_the_store_is_answered_there(bench: Bench) -> None:
    bench.inquiries.pass_on("token", 0.0)
    bench.examination.concluded = [conclude("id0")]
    bench.inquiries.advance(0.0)
    (event,) = bench.submitted
    assert isinstance(event, AnswerCommand)
    assert (event.token, msgspec.json.decode(event.text, type=Conclusion).round) == ("token", 1)


def test_an_answer_that_is_too_long_goes_without_stacks() -> None:
    short, long = (encode_answer(conclude("x", stacks="s" * size)) for size in (100, ANSWER_MAX))
    assert msgspec.json.decode(short, type=Conclusion).stacks
    assert msgspec.json.decode(long, type=Conclusion).stacks == ""


def test_workers_are_known_once_they_run_and_their_codes_by_rank(bench: Bench) -> None:
    targets = [Target(rank=rank, pid=0) for rank in (4, 5)]
    bench.inquiries.begin(7, MESH, targets)
    bench.inquiries.add_worker(1, 4711)
    bench.inquiries.end_worker(1, 3)
    bench.inquiries.end_worker(9, 1)
    assert bench.examination.rounds == [], "it is made for the first question"
    bench.ask("why")
    bench.inquiries.add_worker(0, 4710)
    bench.inquiries.end()
    bench.inquiries.add_worker(0, 1)
    first, second, last = bench.examination.rounds
    assert first is not None
    assert second is not None
    assert (first.number, [(one.rank, one.pid) for one in first.targets]) == (7, [(5, 4711)])
    assert first.exit_codes == {5: 3}
    assert [one.rank for one in second.targets] == [5, 4]
    assert last is None


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("x"), MemoryError()], ids=repr)
def test_an_examination_that_cannot_be_made_now_is_made_later(error: Exception) -> None:
    bench = Bench()
    examination = bench.examination
    tries: list[Exception | None] = [error, None]

    def make() -> Any:
        if (problem := tries.pop(0)) is not None:
            raise problem
        return examination

    bench.inquiries._make_examination = make
    bench.inquiries.ask(lambda conclusion: None, 5.0)
    assert examination.asked == []
    bench.inquiries.ask(lambda conclusion: None, 5.0)
    assert examination.asked == ["id0"]
