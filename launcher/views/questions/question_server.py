"""Where questions come in on an agent, by any way, and from where they are answered.

A process of this user asks by the socket, a person elsewhere through the store, other agents by notes. What the run or
its nodes say of themselves is answered here; who else knows an answer, as launcher/diagnosis does, registers for the
kind of its request. Nothing waits: a question that no one answers ends with its limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct, field

from launcher.model.errors import describe_bug
from launcher.parts.part import Effect
from launcher.views.questions.messages import (
    AgentRequest,
    Diagnose,
    Expect,
    Inspect,
    PassedRequest,
    Question,
    RefusedQuestion,
    Reply,
    Submit,
    pack,
)
from launcher.views.questions.question_socket import Connection, QuestionSocket
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.survey import Survey, Surveys
from launcher.views.requests import Identify, NodeRequest, ReadRun, ReadState, Replace
from launcher.views.run_view import make_run_view
from rendezvous import __version__, codec
from rendezvous.events import AnswerCommand

if TYPE_CHECKING:
    from launcher.views.node.node_answers import NodeAnswers

LIMIT_S = 3.0
"""Until who looks at the run gets what has come; less than what `local_socket` waits."""
STORED_MAX = 400_000
"""Letters of what may be written to the store, packed: with eight ranks each, about a thousand nodes."""
SHORTER_MAX = 3
"""How often an answer may be made shorter: a run loses details, then its ranks, then its nodes."""
_NO_LEADER = "no leader has answered: the nodes may be electing one, or this node may be cut off from it"
Finish = Callable[[Any, str], object]
"""Takes an answer, or several, or None and a sentence."""


class StoreAsker(Struct):
    """Somebody who has asked through the store."""

    token: str
    ask: Callable[[Effect], object]

    _packed: str = ""

    def has_room(self, text: bytes) -> bool:
        self._packed = pack(text)
        return len(self._packed) <= STORED_MAX

    def answer(self, text: bytes) -> None:
        if not self.has_room(text):
            refusal = f"the answer has {len(text):,} bytes, too many for the store: ask on a node of the run"
            self._packed = pack(codec.encode(RefusedQuestion(error=refusal)))
        self.ask(AnswerCommand(self.token, self._packed))


Asker = Connection | StoreAsker
"""Who waits for one line, for which there should be room."""


class Answerer(NamedTuple):
    """Who answers a kind of request on this node: `answer` gets the request, a `Finish` and the time."""

    answer: Callable[[Any, Finish, float], object]
    kind: type[Struct] = Struct
    """Of the answer, for who asks another node."""
    limit_s: float = LIMIT_S


class QuestionServer(Struct, eq=False):
    """The questions that are open here."""

    surveys: Surveys
    reporter: Reporter
    make_answers: Callable[[], NodeAnswers]
    identity: Mapping[str, str]
    """What is said to who asks which run this is: fields of a `LocalAgent`, without those known here."""
    question_socket: QuestionSocket | None
    """Where processes ask; None for nowhere."""
    answerers: dict[type, Answerer] = field(default_factory=dict)

    _answers: NodeAnswers | None = None

    @property
    def wake_at(self) -> float:
        socket_at = self.question_socket.wake_at if self.question_socket is not None else float("inf")
        return -float("inf") if self.reporter.has_results else min(self.surveys.wake_at, socket_at)

    def list_due(self, now: float) -> Iterable[Callable[[], object]]:
        """List what is to be done now, each apart: one that fails must not cost the others."""
        for asker, question in self.question_socket.take(now) if self.question_socket is not None else ():
            yield partial(self.put, asker, question, now)
        yield self.reporter.advance
        yield partial(self.surveys.advance, now)

    def close(self) -> None:
        if self.question_socket is not None:
            self.question_socket.close()

    def put_stored(self, token: str, text: str, ask: Callable[[Effect], object], now: float) -> None:
        """Begin to answer a question that has come through the store."""
        asker = StoreAsker(token, ask)
        try:
            question = codec.find_decoder(Question).decode(text)
        except (msgspec.MsgspecError, RecursionError):
            _answer(asker, None, "the question cannot be read")
        else:
            if isinstance(question.request, (Replace, Submit)):
                _answer(asker, None, "only a process of this node can ask for that")
                return
            self.put(asker, question, now)

    def put(self, asker: Asker, question: Question, now: float) -> None:
        """Begin to answer a question."""
        match question.request:
            case Identify():
                asker.answer(
                    codec.encode({**self.identity, "version": __version__, "job": self.surveys.member.joined_root})
                )
            case ReadRun():
                answer_run = partial(_answer_run, asker, self.identity["run_id"])
                self.surveys.ask(Survey(request=ReadState(), until=now + LIMIT_S, takes=[answer_run]))
            case request if isinstance(request, Diagnose) or (question.node and isinstance(request, NodeRequest)):
                self.ask(request, question.node, partial(_answer_one, asker), now)
            case request:
                self.answer(request, partial(_answer, asker), now)

    def ask(self, request: AgentRequest, node: str, take: Callable[[Survey], object], now: float) -> None:
        """Ask a node, or who else the request is for; `take` gets what has come."""
        answerer = self.answerers.get(type(request))
        kind, limit_s = (answerer.kind, answerer.limit_s) if answerer is not None else (None, LIMIT_S)
        self.surveys.ask(Survey(request=request, node=node, answer_kind=kind, until=now + limit_s, takes=[take]))

    def take_note(self, member_id: str, note: Inspect | Expect | Reply | PassedRequest, now: float) -> None:
        """Handle a note of an agent."""
        if isinstance(note, PassedRequest):
            self.answer(note.request, partial(self.surveys.reply, member_id, note), now)
        else:
            self.surveys.take_note(member_id, note)

    def answer(self, request: AgentRequest | Replace | Submit, finish: Finish, now: float) -> None:
        """Have this node answer a request."""
        try:
            if (answerer := self.answerers.get(type(request))) is not None:
                answerer.answer(request, finish, now)
                return
            self._answers = self._answers or self.make_answers()
            kind, work = self._answers.answer(request, now)  # type: ignore[arg-type]
            self.reporter.submit(kind, work, finish)
        except Exception as error:  # the loop has workers to look after
            finish(None, describe_bug(error))


def _answer_run(asker: Asker, run_id: str, asked: Survey) -> None:
    if asked.members is None:
        _answer(asker, None, asked.error or _NO_LEADER)
        return
    if asked.result is None:
        asked.result = make_run_view(asked.answers, asked.members, asked.leader, run_id, time.time())
        asked.line = codec.encode(asked.result)
    _answer(asker, asked.result, "", asked.line)


def _answer_one(asker: Asker, asked: Survey) -> None:
    found = next(iter(asked.answers.values()), None)
    if found is None and asked.members and not asked.error:
        late = f"{next(iter(asked.members.values()))} has not answered in time"
        found = RefusedQuestion(error=late, is_silent=True)
    if isinstance(found, str):
        _answer(asker, None, found)
    else:
        _answer(asker, found, asked.error or _NO_LEADER)


def _answer(asker: Asker, answer: Any, problem: str, text: bytes = b"") -> None:
    """Answer by what is encoded as `text`, or by less where there is no room for it."""
    if answer is None:
        answer = RefusedQuestion(error=problem)
    text = text or codec.encode(answer)
    for _ in range(SHORTER_MAX if hasattr(answer, "shorten") else 0):
        if not asker.has_room(text):
            answer = answer.shorten()
            text = codec.encode(answer)
    asker.answer(text)
