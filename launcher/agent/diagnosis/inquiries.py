"""Who asks what this job's workers do, or how the run is, and gets the answer: this user's processes, and the store.

It serves the socket of this node's user. A question about the workers goes to the `Examination`, all others to what
shows the run (launcher/agent/inspection). It is imported and made with the first question.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from launcher.agent.diagnosis.examination import Examination
from launcher.agent.diagnosis.messages import Conclusion
from launcher.agent.diagnosis.question_socket import Connection, QuestionSocket
from launcher.observe.local_socket import Question
from rendezvous import codec
from rendezvous.events import AnswerCommand, Event

ANSWER_MAX = 60_000
"""Bytes of an answer that goes through the store; a longer one goes without the stacks."""


class Inquiries:
    """`poll`: the loop's. `identify`: what is said to who asks which run this is, fields of a `LocalAgent`.

    `inspect`: answers those who look at the run or a node. `listener`: the descriptor at which processes ask,
    registered with `poll`.
    """

    def __init__(
        self,
        poll: select.poll,
        examination: Examination,
        submit: Callable[[Event], None],
        identify: Callable[[], dict[str, str]],
        inspect: Callable[[Connection, Question, float], object],
        listener: int | None,
    ) -> None:
        self.examination = examination
        self._submit = submit
        self._identify = identify
        self._inspect = inspect
        self._socket = None if listener is None else QuestionSocket(poll, listener)

    @property
    def wake_at(self) -> float:
        """When to call `advance`."""
        return min(self.examination.wake_at, self._socket.wake_at if self._socket is not None else math.inf)

    def pass_on(self, token: str, now: float) -> None:
        """Answer a request that somebody has made through the store."""
        self.examination.ask(partial(self._answer_command, token), now)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded without a question of this node."""
        for connection, question in self._socket.take(now) if self._socket is not None else ():
            self.answer(connection, question, now)
        return self.examination.advance(now)

    def answer(self, connection: Connection, question: Question, now: float) -> None:
        """Begin to answer a question."""
        if question.kind == "why":
            self.examination.ask(lambda conclusion: connection.answer(encode_answer(conclusion)), now)
        elif question.kind in ("inspect", "inspect_node"):
            self._inspect(connection, question, now)
        else:
            connection.answer(codec.encode(self._identify()))

    def close(self) -> None:
        self.examination.close()
        if self._socket is not None:
            self._socket.close()

    def _answer_command(self, token: str, conclusion: Conclusion | None) -> None:
        self._submit(AnswerCommand(token, encode_answer(conclusion).decode()))


def encode_answer(conclusion: Conclusion | None) -> bytes:
    """Encode an answer for `meshctl`; "{}" if there is none."""
    if conclusion is None:
        return b"{}"
    text = codec.encode(conclusion)
    return text if len(text) <= ANSWER_MAX else codec.encode(replace(conclusion, stacks=""))
