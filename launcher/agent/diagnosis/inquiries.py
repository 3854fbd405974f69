"""Who asks what this job's workers do, or how the run is, and gets the answer: this user's processes, and the store.

It serves the socket of this node's user. A question about the workers goes to the leader, which has all examine theirs
(`Examination`); one about the run, or about a node, to those nodes. What this node is asked by others is answered here,
too. It is imported and made with the first question.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from launcher.agent.diagnosis.examination import ANSWER_LIMIT_S, Examination
from launcher.agent.diagnosis.question_socket import Connection, QuestionSocket
from launcher.agent.inspection.messages import (
    Answer,
    Diagnose,
    Examine,
    Expect,
    Inspect,
    PassedRequest,
    Reply,
    Request,
    decode_note,
)
from launcher.agent.inspection.observer import Observer
from launcher.agent.inspection.reporter import Reporter
from launcher.agent.inspection.run_report import make_run_report
from launcher.agent.inspection.survey import Survey, Surveys
from launcher.diagnose.answer import Conclusion
from launcher.model.errors import describe_bug
from launcher.observe.local_socket import Question, RefusedQuestion
from launcher.observe.node_report import ReadState
from rendezvous import codec
from rendezvous.events import AnswerCommand, Event

if TYPE_CHECKING:
    from launcher.agent.inspection.node_answers import NodeAnswers

ANSWER_MAX = 60_000
"""Bytes of an answer that goes through the store; a longer one goes without the stacks."""
INSPECT_LIMIT_S = 3.0
"""Until who looks at the run gets what has come; less than what `local_socket` waits."""
_NO_LEADER = "no leader has answered: the nodes may be electing one, or this node may be cut off from it"
TakeConclusion = Callable[[Conclusion | None], object]
"""Takes an answer; None if nobody has answered in time."""


class Inquiries:
    """`poll`: the loop's. `identify`: what is said to who asks which run this is, fields of a `LocalAgent`.

    `observer`: has what this node says of itself. `listener`: the descriptor at which processes ask, registered with
    `poll`.
    """

    def __init__(
        self,
        poll: select.poll,
        surveys: Surveys,
        examination: Examination,
        reporter: Reporter,
        observer: Observer,
        submit: Callable[[Event], None],
        identify: Callable[[], dict[str, str]],
        listener: int | None,
    ) -> None:
        self._surveys = surveys
        self.examination = examination
        self._reporter = reporter
        self._observer = observer
        self._submit = submit
        self._identify = identify
        self._socket = None if listener is None else QuestionSocket(poll, listener)
        self._answers: NodeAnswers | None = None

    @property
    def wake_at(self) -> float:
        """When to call `advance`."""
        socket_at = self._socket.wake_at if self._socket is not None else math.inf
        return min(self._surveys.wake_at, self.examination.wake_at, socket_at)

    def ask_why(self, take: TakeConclusion, now: float) -> None:
        """Ask the leader which rank the job waits for; `take` gets the answer once it comes."""
        self._surveys.ask(
            Survey(request=Diagnose(), until=now + ANSWER_LIMIT_S, takes=[lambda asked: take(_find_conclusion(asked))])
        )

    def pass_on(self, token: str, now: float) -> None:
        """Answer a request that somebody has made through the store."""
        self.ask_why(lambda found: self._submit(AnswerCommand(token, encode_answer(found).decode())), now)

    def take_note(self, member_id: str, text: str, now: float) -> None:
        """Handle a note of an agent; one of an unknown kind is ignored."""
        match decode_note(text):
            case Inspect() | Expect() | Reply() as note:
                self._observer.attempt(partial(self._surveys.take_note, member_id, note))
            case PassedRequest() as order:
                self._answer_node(order.request, partial(self._surveys.reply, member_id, order), now)
            case None:
                pass
            case note:
                self.examination.take_note(member_id, note, now)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded without a question of this node."""
        for connection, question in self._socket.take(now) if self._socket is not None else ():
            self._observer.attempt(partial(self.answer, connection, question, now))
        self._observer.attempt(self._reporter.advance)
        self._observer.attempt(partial(self._surveys.advance, now))
        return self.examination.advance(now)

    def answer(self, connection: Connection, question: Question, now: float) -> None:
        """Begin to answer a question."""
        request, until = question.request, now + INSPECT_LIMIT_S
        if question.kind == "why":
            self.ask_why(lambda found: connection.answer(encode_answer(found)), now)
        elif question.kind == "inspect":
            answer_run = partial(_answer_run, connection, self._identify()["run_id"])
            self._surveys.ask(Survey(request=ReadState(), until=until, takes=[answer_run]))
        elif question.kind != "inspect_node":
            connection.answer(codec.encode(self._identify()))
        elif request is None:
            _refuse(connection, "the question has no request")
        elif question.node:
            answer_one = partial(_answer_one, connection)
            self._surveys.ask(Survey(node=question.node, request=request, until=until, takes=[answer_one]))
        else:
            self._answer_node(request, partial(_answer, connection), now)

    def close(self) -> None:
        self.examination.close()
        if self._socket is not None:
            self._socket.close()

    def _answer_node(self, request: Request, finish: Callable[[Any, str], object], now: float) -> None:
        """Have this node answer a request; `finish` takes an answer, or several, or None and a sentence."""
        try:
            if isinstance(request, Examine):
                self.examination.examine(request, finish, now)
            elif isinstance(request, Diagnose):
                self.examination.diagnose(finish, now)
            else:
                self._answers = self._answers or self._observer.make_answers()
                kind, work = self._answers.answer(request)
                self._reporter.submit(kind, work, finish)
        except Exception as error:  # the loop has workers to look after
            finish(None, describe_bug(error))


def encode_answer(conclusion: Conclusion | None) -> bytes:
    """Encode an answer for `meshctl`; "{}" if there is none."""
    if conclusion is None:
        return b"{}"
    text = codec.encode(conclusion)
    return text if len(text) <= ANSWER_MAX else codec.encode(replace(conclusion, stacks=""))


def _find_conclusion(asked: Survey) -> Conclusion | None:
    return next((one for one in asked.answers.values() if isinstance(one, Conclusion)), None)


def _answer_run(connection: Connection, run_id: str, asked: Survey) -> None:
    if asked.members is None:
        _refuse(connection, asked.error or _NO_LEADER)
        return
    if not asked.line:
        asked.line = codec.encode(make_run_report(asked.answers, asked.members, asked.leader, run_id, time.time()))
    connection.answer(asked.line)


def _answer_one(connection: Connection, asked: Survey) -> None:
    found = next(iter(asked.answers.values()), None)
    if isinstance(found, str):
        _refuse(connection, found)
    elif found is not None:
        _answer(connection, found, "")
    elif asked.error or not asked.members:
        _refuse(connection, asked.error or _NO_LEADER)
    else:
        _refuse(connection, f"{next(iter(asked.members.values()))} has not answered in time", is_silent=True)


def _answer(connection: Connection, answer: Answer | None, problem: str) -> None:
    if answer is None:
        _refuse(connection, problem)
    else:
        connection.answer(codec.encode(answer))


def _refuse(connection: Connection, sentence: str, *, is_silent: bool = False) -> None:
    connection.answer(codec.encode(RefusedQuestion(error=sentence, is_silent=is_silent)))
