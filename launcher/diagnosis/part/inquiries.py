"""Who asks what this job's workers do, or how the run is, and gets the answer: this user's processes, and the store.

It serves the socket of this node's user. A question about the workers goes to the leader, which has all examine theirs
(`Examination`); one about the run, or about a node, to those nodes. What this node is asked by others is answered here,
too. It is imported and made with the first question, note or failure.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion, list_gaps, render_answer
from launcher.diagnosis.part.examination import ANSWER_LIMIT_S, Examination
from launcher.diagnosis.part.facts import CountersRead, CountersWanted, SilenceChanged
from launcher.diagnosis.part.messages import decode_note
from launcher.logs.reports.report import Finding
from launcher.model.console import log, write_stderr
from launcher.model.errors import describe_bug
from launcher.parts.part import (
    Diagnosed,
    Effect,
    EndWorkers,
    Explained,
    Fact,
    HoldQuit,
    Publish,
    QuitSignalled,
    RunningRound,
    VictimSuspected,
    WaitUnexplained,
)
from launcher.views.questions.local_socket import Question, RefusedQuestion
from launcher.views.questions.messages import (
    Diagnose,
    Examine,
    Expect,
    Inspect,
    PassedRequest,
    Reply,
    Request,
)
from launcher.views.questions.question_socket import Connection, QuestionSocket
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.run_answer import make_run_view
from launcher.views.questions.survey import Survey, Surveys
from launcher.views.requests import ReadState
from launcher.views.run_events import HangEnded, HangReported
from launcher.views.run_view import NodeView
from launcher.views.sentences import describe_wait
from rendezvous import codec
from rendezvous.events import AnswerCommand, NoteReceived, PassOn

if TYPE_CHECKING:
    from launcher.views.node.node_answers import NodeAnswers

ANSWER_MAX = 60_000
"""Bytes of an answer that goes through the store; a longer one goes without the stacks."""
INSPECT_LIMIT_S = 3.0
"""Until who looks at the run gets what has come; less than what `local_socket` waits."""
_ASK_WITHIN_S = 8.0
"""Over which nodes that ask for the leader's reason are spread: a thousand do after the same event, and its reporter
holds 64 requests, those of people too.
"""
_ASK_AGAIN_S = 10.0
"""After no node was known to lead: an election takes a few seconds."""
_NO_LEADER = "no leader has answered: the nodes may be electing one, or this node may be cut off from it"
TakeConclusion = Callable[[Conclusion | None], object]
"""Takes an answer; None if nobody has answered in time."""


class Inquiries(Struct, eq=False):
    """The part that answers whoever asks, and acts on what is concluded."""

    surveys: Surveys
    examination: Examination
    reporter: Reporter
    running: RunningRound
    make_answers: Callable[[], NodeAnswers]
    effects: deque[Effect]
    """What the pieces ask of the kernel."""
    identify: Callable[[], dict[str, str]]
    """Returns what is said to who asks which run this is, fields of a `LocalAgent`."""
    question_socket: QuestionSocket | None
    """Where processes ask; None for nowhere."""
    on_hang: str
    """"report" or "restart"."""
    draw: Callable[[], float] = random.random
    """Returns a number from 0 to 1."""

    _answers: NodeAnswers | None = None
    _facts: deque[Fact] = field(default_factory=deque)
    _untold_silence: str = ""  # of this node; said once all are silent: one that waits for another's save is well
    _silent_round: int = 0  # in which this node has made no progress since
    _has_complained: bool = False
    _reason_at: float = math.inf  # when the leader is asked why no round starts
    _may_ask_again: bool = False

    @property
    def wake_at(self) -> float:
        if self._facts or self.effects or self.reporter.has_results:
            return -math.inf
        socket_at = self.question_socket.wake_at if self.question_socket is not None else math.inf
        return min(self.surveys.wake_at, self.examination.wake_at, socket_at, self._reason_at)

    def take(self, fact: Fact) -> None:
        self._facts.append(fact)

    def advance(self, now: float) -> Iterable[Effect]:
        while self._facts:
            self._attempt(partial(self._handle, self._facts.popleft(), now))
        for connection, question in self.question_socket.take(now) if self.question_socket is not None else ():
            self._attempt(partial(self.answer, connection, question, now))
        if now >= self._reason_at:
            self._reason_at = math.inf
            self._attempt(partial(self._ask_for_reason, now))
        self._attempt(self.reporter.advance)
        self._attempt(partial(self.surveys.advance, now))
        for conclusion in self.examination.advance(now):
            self.effects.extend(self._take_conclusion(conclusion))
        return [self.effects.popleft() for _ in range(len(self.effects))]

    def close(self) -> None:
        self.examination.close()
        if self.question_socket is not None:
            self.question_socket.close()

    def _attempt(self, call: Callable[[], object]) -> None:
        """Do what a question or a note asks for: one that is malformed must not cost the answers to all others."""
        try:
            call()
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                log(f"a question about this run got no answer: {describe_bug(error)}")

    def _handle(self, fact: Fact, now: float) -> None:
        is_current = fact.round == self.running.number and self.running.has_workers  # it may have been kept for a while
        match fact.what:
            case NoteReceived(member_id, text):
                self.take_note(member_id, text, now)
            case PassOn(token):
                self.ask_why(
                    lambda found: self.effects.append(AnswerCommand(token, encode_answer(found).decode())), now
                )
            case VictimSuspected() if is_current:
                self.examination.report_failure()
            case QuitSignalled() if is_current:
                self.effects.append(HoldQuit(now + ANSWER_LIMIT_S))
                self.ask_why(self._show, now)
            case SilenceChanged(is_silent, sentence):
                if not is_silent and not self._untold_silence:
                    log(sentence)
                    self.effects += [Diagnosed(fact.round, Finding()), Publish(HangEnded(sentence=sentence))]
                self._untold_silence = sentence if is_silent else ""
                self._silent_round = fact.round if is_silent else 0
                self.examination.report_silence(now, is_silent=is_silent)
            case WaitUnexplained():
                self._may_ask_again = True
                self._reason_at = now + _ASK_WITHIN_S * self.draw()
            case CountersWanted():
                self.examination.count_calls(lambda counters: self.effects.append(Publish(CountersRead(counters))), now)

    def _ask_for_reason(self, now: float) -> None:
        """Ask who leads why no round starts, and log it; once more later, if no node leads."""
        leader = self.surveys.member.leader
        if self.running.has_workers:
            return
        if leader is None:
            if self._may_ask_again:
                log(describe_wait("", None))
                self._reason_at, self._may_ask_again = now + _ASK_AGAIN_S * (1 + self.draw()), False
            return
        name = leader.node_name

        def take(asked: Survey) -> None:
            report = next(iter(asked.answers.values()), None)
            if not self.running.has_workers:
                log(describe_wait(name, report.why if isinstance(report, NodeView) else None))

        if leader.member_id != self.surveys.member.member_id:
            until, request = now + INSPECT_LIMIT_S, ReadState(of_run=False)
            self.surveys.ask(Survey(node=leader.member_id, request=request, until=until, takes=[take]))

    def _show(self, found: Conclusion | None) -> None:
        """Show what the workers do to who has sent SIGQUIT, and let that go on."""
        write_stderr(render_answer(found.answer).rstrip() if found else "no agent has reported what its workers do")
        self.effects.append(HoldQuit(0.0))

    def _take_conclusion(self, conclusion: Conclusion) -> Iterable[Effect]:
        """Log what the leader has concluded about all workers without a person's question, and act on a hang."""
        is_current = conclusion.round == self.running.number
        answer = conclusion.answer
        if conclusion.purpose == "failure":
            if conclusion.is_news:
                log(f"before round {conclusion.round} was stopped: {answer.sentences[0]}")
                yield Diagnosed(conclusion.round, conclusion.make_finding(ends_workers=False))
            if is_current:
                yield Explained(conclusion.round)
            return
        if conclusion.round != self._silent_round:  # there has been progress since
            return
        silence, self._untold_silence = self._untold_silence, ""
        for sentence in (silence, *answer.sentences, *list_gaps(answer), *answer.folders):
            if sentence:
                log(sentence)
        log(f"hint: {answer.hint}")
        if answer.kind == "healthy":
            self._untold_silence = silence  # so that no hang ends that was none
            if self.on_hang == "restart" and is_current:
                log("no restart: the workers are busy, and none waits for another")
            return
        sentence, *details = answer.sentences
        ends_workers = self.on_hang == "restart" and is_current
        yield Diagnosed(conclusion.round, conclusion.make_finding(ends_workers=ends_workers))
        yield Publish(
            HangReported(
                kind=answer.kind,
                ranks=answer.culprits,
                sentence=sentence,
                details=tuple(details),
                folders=answer.folders,
            )
        )
        if self.on_hang != "restart" or not is_current or self.running.share is None:
            return
        to_end = conclusion.to_end or (0,)
        own = tuple(local for local, rank in enumerate(self.running.share.ranks) if rank in to_end)
        yield EndWorkers(conclusion.round, own, "no sign of progress")

    def ask_why(self, take: TakeConclusion, now: float) -> None:
        """Ask the leader which rank the job waits for; `take` gets the answer once it comes."""
        self.surveys.ask(
            Survey(
                request=Diagnose(),
                answer_kind=Conclusion,
                until=now + ANSWER_LIMIT_S,
                takes=[lambda asked: take(_find_conclusion(asked))],
            )
        )

    def take_note(self, member_id: str, text: str, now: float) -> None:
        """Handle a note of an agent; one of an unknown kind is ignored."""
        match decode_note(text):
            case Inspect() | Expect() | Reply() as note:
                self.surveys.take_note(member_id, note)
            case PassedRequest() as order:
                self._answer_node(order.request, partial(self.surveys.reply, member_id, order), now)
            case None:
                pass
            case note:
                self.examination.take_note(member_id, note, now)

    def answer(self, connection: Connection, question: Question, now: float) -> None:
        """Begin to answer a question."""
        request, until = question.request, now + INSPECT_LIMIT_S
        if question.kind == "why":
            self.ask_why(lambda found: connection.answer(encode_answer(found)), now)
        elif question.kind == "inspect":
            answer_run = partial(_answer_run, connection, self.identify()["run_id"])
            self.surveys.ask(Survey(request=ReadState(), until=until, takes=[answer_run]))
        elif question.kind != "inspect_node":
            connection.answer(codec.encode(self.identify()))
        elif request is None:
            _refuse(connection, "the question has no request")
        elif question.node:
            answer_one = partial(_answer_one, connection)
            self.surveys.ask(Survey(node=question.node, request=request, until=until, takes=[answer_one]))
        else:
            self._answer_node(request, partial(_answer, connection), now)

    def _answer_node(self, request: Request, finish: Callable[[Any, str], object], now: float) -> None:
        """Have this node answer a request; `finish` takes an answer, or several, or None and a sentence."""
        try:
            if isinstance(request, Examine):
                self.examination.examine(request, finish, now)
            elif isinstance(request, Diagnose):
                self.examination.diagnose(finish, now)
            else:
                self._answers = self._answers or self.make_answers()
                kind, work = self._answers.answer(request, now)
                self.reporter.submit(kind, work, finish)
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
        asked.line = codec.encode(make_run_view(asked.answers, asked.members, asked.leader, run_id, time.time()))
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


def _answer(connection: Connection, answer: Struct | None, problem: str) -> None:
    if answer is None:
        _refuse(connection, problem)
    else:
        connection.answer(codec.encode(answer))


def _refuse(connection: Connection, sentence: str, *, is_silent: bool = False) -> None:
    connection.answer(codec.encode(RefusedQuestion(error=sentence, is_silent=is_silent)))
