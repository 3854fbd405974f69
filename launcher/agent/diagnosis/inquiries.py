"""Who asks what this job's workers do, from this node's side, and who gets the answer.

It follows the round on this node, serves the socket of this node's user, and remembers for each question what its
answer is for. What examines (`examination`, and all that concludes) is imported with the first question.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from launcher.agent.diagnosis.local_round import LocalRound
from launcher.agent.diagnosis.question_socket import Asker, QuestionSocket
from launcher.agent.inspection.bridge import Bridge
from launcher.diagnose.request import Target
from launcher.model.console import log
from launcher.model.errors import describe_bug
from launcher.observe.local_socket import Question
from launcher.worker.grid import WorkerMesh
from rendezvous import codec
from rendezvous.events import AnswerCommand, Event

if TYPE_CHECKING:
    from launcher.agent.diagnosis.examination import Examination
    from launcher.agent.diagnosis.messages import Conclusion, Message, Purpose

_GIVEN_UP = b"{}"
ANSWER_MAX = 60_000
"""Bytes of an answer that goes through the store; a longer one goes without the stacks."""


class Inquiries:
    """`poll`: the loop's. `identify`: what is said to who asks which run this is, fields of a `LocalAgent`.

    `inspect`: answers those who look at the run or a node (launcher/agent/inspection). `bridge`: of this agent's
    threads, which ask as other processes do. `listener`: the descriptor at which those ask, registered with `poll`.
    """

    def __init__(
        self,
        poll: select.poll,
        make_examination: Callable[[], Examination],
        submit: Callable[[Event], None],
        identify: Callable[[], dict[str, str]],
        inspect: Callable[[Asker, Question, float], object],
        bridge: Bridge,
        listener: int | None,
    ) -> None:
        self._make_examination = make_examination
        self._examination: Examination | None = None
        self._submit = submit
        self._identify = identify
        self._inspect = inspect
        self._bridge = bridge
        self._pending: dict[str, Callable[[Conclusion | None], object]] = {}
        self._round: LocalRound | None = None
        self._targets: dict[int, Target] = {}
        self._socket = None if listener is None else QuestionSocket(poll, listener)

    @property
    def wake_at(self) -> float:
        listen_at = self._socket.wake_at if self._socket is not None else math.inf
        return min(self._examination.wake_at, listen_at) if self._examination is not None else listen_at

    @property
    def examination(self) -> Examination | NoExamination:
        if self._examination is None:
            try:
                self._examination = self._make_examination()
            except (OSError, ImportError, MemoryError) as error:
                # Nothing is left to import it with: who asks next tries again.
                log(f"the workers cannot be looked at now: {describe_bug(error)}")
                return NoExamination()
            if self._round is not None:
                self._examination.begin(self._round)
        return self._examination

    # --- the round on this node ---

    def begin(self, number: int, mesh: WorkerMesh, targets: Sequence[Target]) -> None:
        """A round begins. `targets`: by local rank, without pids, which `add_worker` brings."""
        self._targets = dict(enumerate(targets))
        self._round = LocalRound(number, mesh, [], {})
        if self._examination is not None:
            self._examination.begin(self._round)

    def add_worker(self, local_rank: int, pid: int) -> None:
        """Note that a worker runs its program."""
        if self._round is not None and local_rank in self._targets:
            target = msgspec.structs.replace(self._targets[local_rank], pid=pid)
            self._round = self._round._replace(targets=[*self._round.targets, target])
            if self._examination is not None:
                self._examination.update(self._round)

    def end_worker(self, local_rank: int, exit_code: int) -> None:
        """Note how a worker has ended."""
        if self._round is not None and local_rank in self._targets:
            self._round.exit_codes[self._targets[local_rank].rank] = exit_code

    def end(self) -> None:
        """Nothing of the round is left."""
        self._round = None
        if self._examination is not None:
            self._examination.end()

    # --- questions ---

    def ask(self, take_answer: Callable[[Conclusion | None], object], now: float) -> None:
        """Ask the leader; `take_answer` gets None if nobody has answered in time."""
        id = self.examination.ask("question", now)
        if id:
            self._pending[id] = take_answer
        else:
            take_answer(None)

    def pass_on(self, token: str, now: float) -> None:
        """Answer a request that somebody has made through the store."""
        self.ask(partial(self._answer_command, token), now)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded without a question of this node."""
        for asker, question in self._take_questions(now):
            if question.kind == "why":
                self.ask(partial(_answer, asker), now)
            elif question.kind in ("inspect", "inspect_node"):
                self._inspect(asker, question, now)
            else:
                asker.answer(codec.encode(self._identify()))
        if self._examination is None:
            return []
        left = []
        for conclusion in self._examination.advance(now):
            take_answer = self._pending.pop(conclusion.id, None)
            if take_answer is not None:
                take_answer(conclusion)
            else:
                left.append(conclusion)
        for id in self._examination.list_given_up(now):
            if id in self._pending:
                self._pending.pop(id)(None)
        return left

    def _take_questions(self, now: float) -> Iterator[tuple[Asker, Question]]:
        if self._socket is not None:
            yield from self._socket.take(now)
        yield from self._bridge.take()

    def take_counters(self) -> dict[int, tuple[object, ...]] | None:
        """Return how far each rank's groups have come, once after `examination.count_calls`."""
        return self._examination.take_counters() if self._examination is not None else None

    def close(self) -> None:
        if self._examination is not None:
            self._examination.close()
        if self._socket is not None:
            self._socket.close()

    def _answer_command(self, token: str, conclusion: Conclusion | None) -> None:
        self._submit(AnswerCommand(token, encode_answer(conclusion).decode()))


class NoExamination:
    """In place of one that cannot be made now: nothing is asked, and nothing answered."""

    def ask(self, purpose: Purpose, now: float) -> str:
        return ""

    def take_note(self, member_id: str, note: Message, now: float) -> None:
        pass

    def report_silence(self, sentence: str, now: float) -> None:
        pass

    def count_calls(self, now: float) -> None:
        pass


def encode_answer(conclusion: Conclusion | None) -> bytes:
    """Encode an answer for `meshctl`; "{}" if there is none."""
    if conclusion is None:
        return _GIVEN_UP
    text = codec.encode(conclusion)
    return text if len(text) <= ANSWER_MAX else codec.encode(msgspec.structs.replace(conclusion, stacks=""))


def _answer(asker: Asker, conclusion: Conclusion | None) -> None:
    asker.answer(encode_answer(conclusion))
