"""The part that has questions about the run answered, and acts on what is concluded about its workers.

`launcher/views/questions` takes the questions and answers those about the run and its nodes. One about what the workers
do goes to the leader, which has all examine theirs (`Examination`). It is imported and made with the first question,
note or failure.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct, field

from launcher.diagnosis.answer import Conclusion, list_gaps, render_answer
from launcher.diagnosis.part.examination import ANSWER_LIMIT_S, Examination
from launcher.diagnosis.part.facts import CountersRead, CountersWanted, SilenceChanged
from launcher.diagnosis.part.messages import Evidence, decode_note
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
from launcher.views.questions.messages import Diagnose, Examine, Expect, Inspect, PassedRequest, Reply
from launcher.views.questions.question_server import Answerer, Finish, QuestionServer
from launcher.views.questions.survey import Survey
from launcher.views.requests import ReadState, Replace
from launcher.views.run_events import HangEnded, HangReported
from launcher.views.run_view import NodeView
from launcher.views.sentences import describe_wait
from rendezvous.errors import EXIT_USELESS
from rendezvous.events import LeaveRequest, NoteReceived, PassOn
from rendezvous.reasons import Reason
from rendezvous.records import Keys

_ASK_WITHIN_S = 8.0
"""Over which nodes that ask for the leader's reason are spread: a thousand do after the same event, and its reporter
holds 64 requests, those of people too.
"""
_ASK_AGAIN_S = 10.0
"""After no node was known to lead: an election takes a few seconds."""
TakeConclusion = Callable[[Conclusion | None], object]
"""Takes an answer; None if nobody has answered in time."""


class Inquiries(Struct, eq=False):
    """The part that answers whoever asks, and acts on what is concluded."""

    server: QuestionServer
    examination: Examination
    running: RunningRound
    effects: deque[Effect]
    """What the pieces ask of the kernel."""
    on_hang: str
    """"report" or "restart"."""
    draw: Callable[[], float] = random.random
    """Returns a number from 0 to 1."""

    _facts: deque[Fact] = field(default_factory=deque)
    _untold_silence: str = ""  # of this node; said once all are silent: one that waits for another's save is well
    _silent_round: int = 0  # in which this node has made no progress since
    _has_complained: bool = False
    _reason_at: float = math.inf  # when the leader is asked why no round starts
    _may_ask_again: bool = False

    def __post_init__(self) -> None:
        examine, diagnose = self.examination.examine, self.examination.diagnose
        self.server.answerers[Examine] = Answerer(examine, Evidence)
        self.server.answerers[Diagnose] = Answerer(diagnose, Conclusion, ANSWER_LIMIT_S)
        self.server.answerers[Replace] = Answerer(self._make_way)

    @property
    def wake_at(self) -> float:
        if self._facts or self.effects:
            return -math.inf
        return min(self.server.wake_at, self.examination.wake_at, self._reason_at)

    def take(self, fact: Fact) -> None:
        self._facts.append(fact)

    def advance(self, now: float) -> Iterable[Effect]:
        while self._facts:
            self._attempt(partial(self._handle, self._facts.popleft(), now))
        if now >= self._reason_at:
            self._reason_at = math.inf
            self._attempt(partial(self._ask_for_reason, now))
        for task in self.server.list_due(now):
            self._attempt(task)
        for conclusion in self.examination.advance(now):
            self.effects.extend(self._take_conclusion(conclusion))
        return [self.effects.popleft() for _ in range(len(self.effects))]

    def close(self) -> None:
        self.examination.close()
        self.server.close()

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
            case PassOn(token, text):
                self.server.put_stored(token, text, self.effects.append, now)
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
        member = self.server.surveys.member
        leader = member.leader
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

        if leader.member_id != member.member_id:
            self.server.ask(ReadState(of_run=False), leader.member_id, take, now)

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
        hang = HangReported(
            kind=answer.kind, ranks=answer.culprits, sentence=sentence, details=tuple(details), folders=answer.folders
        )
        yield Publish(hang)
        if self.on_hang != "restart" or not is_current or self.running.share is None:
            return
        to_end = conclusion.to_end or (0,)
        own = tuple(local for local, rank in enumerate(self.running.share.ranks) if rank in to_end)
        yield EndWorkers(conclusion.round, own, "no sign of progress")

    def ask_why(self, take: TakeConclusion, now: float) -> None:
        """Ask the leader which rank the job waits for; `take` gets the answer once it comes."""
        self.server.ask(Diagnose(), "", lambda asked: take(_find_conclusion(asked)), now)

    def _make_way(self, request: Replace, finish: Finish, now: float) -> None:
        """Have this node leave for a later attempt of this run."""
        own, job = self.server.identity, Keys(self.server.surveys.member.joined_root)
        if request.run_id == own["run_id"] and request.attempt > job.attempt:
            reason = Reason.of("replaced", attempt=str(request.attempt), node=own["node"])
            self.effects.append(LeaveRequest(reason, EXIT_USELESS))
        finish({}, "")

    def take_note(self, member_id: str, text: str, now: float) -> None:
        """Handle a note of an agent; one of an unknown kind is ignored."""
        match decode_note(text):
            case Inspect() | Expect() | Reply() | PassedRequest() as note:
                self.server.take_note(member_id, note, now)
            case None:
                pass
            case note:
                self.examination.take_note(member_id, note, now)


def _find_conclusion(asked: Survey) -> Conclusion | None:
    return next((one for one in asked.answers.values() if isinstance(one, Conclusion)), None)
