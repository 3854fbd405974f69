"""A question to all nodes, or some: who was asked, who has answered or cannot, and when it is complete or too late.

A question goes to the leader, which sends it on to those it is about and returns their replies one by one, so nothing
of a run's size is collected on its way. Who asks waits until all have replied, or a limit is over. An agent that
leads, and the agent of a job of one machine, do the same: their notes come back to them.

How a run is shown and which rank it waits for are asked like this; what a node answers is not decided here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from launcher.model.text import format_list
from launcher.views.questions.messages import (
    AgentRequest,
    Diagnose,
    Expect,
    Inspect,
    PassedRequest,
    Reply,
    encode_note,
    is_sendable,
)
from launcher.views.requests import REPLY_KINDS, ReadState
from launcher.views.run_view import NodeView, RoundView
from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, SendNote
from rendezvous.member import notes

if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

PENDING_MAX = 256


class Survey(Struct, kw_only=True, eq=False):
    """A question to nodes, and the answers so far."""

    request: AgentRequest
    answer_kind: type[Any] | None = None
    """What answers it; None for what a NodeRequest has."""
    node: str = ""
    """A name or a member id, "" for all nodes."""
    until: float
    """When it ends with what it has."""
    takes: list[Callable[[Any], object]]
    """Called with this survey at its end; several if the same question was asked more than once."""
    result: Any = None
    """Space for the first of them to keep what it makes of the answers, and its line."""
    line: bytes = b""
    members: dict[str, str] | None = None
    """Names of the members that were asked; None before the leader has said."""
    leader: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    """By member id: of the kind that answers the request, or a sentence from one that cannot answer."""
    error: str = ""
    """Why nobody was asked."""

    def add(self, member_id: str, answer: Any) -> None:
        self.answers[member_id] = answer

    @property
    def is_complete(self) -> bool:
        return self.members is not None and self.members.keys() <= self.answers.keys()

    @property
    def has_ended(self) -> bool:
        return bool(self.error) or self.is_complete

    @property
    def is_of_run(self) -> bool:
        """Whether it asks what all who look at the run ask."""
        return not self.node and self.request == ReadState()


class Surveys(Struct, eq=False):
    """The surveys of this node, and the leader's part in those of others. Nothing here waits: `advance` ends them."""

    member: MemberMachine
    submit: Callable[[SendNote], None]

    _pending: dict[str, Survey] = field(default_factory=dict)

    @property
    def wake_at(self) -> float:
        """When to call `advance`."""
        return min((-math.inf if one.has_ended else one.until for one in self._pending.values()), default=math.inf)

    def ask(self, survey: Survey) -> None:
        """Begin a survey for somebody outside of the agent; with too many it ends at once."""
        if sum(len(one.takes) for one in self._pending.values()) >= PENDING_MAX:
            survey.error = f"{PENDING_MAX} questions are already waiting for answers"
            _end(survey)
            return
        same = next((one for one in self._pending.values() if one.is_of_run and not one.has_ended), None)
        if survey.is_of_run and same is not None:  # 200 who look at 1,000 nodes shall not cost 200,000 replies
            same.takes += survey.takes
            return
        self.begin(survey)

    def begin(self, survey: Survey) -> None:
        """Ask the nodes that a survey is about."""
        question = Inspect(id=os.urandom(8).hex(), node=survey.node, request=survey.request)
        if not (self.member.list_members() or notes.fits(encode_note(question))):
            survey.error = "the question is too long for a message: ask on the leader's node"
            _end(survey)
            return
        self._pending[question.id] = survey
        self.send(TO_LEADER, question)

    def take_note(self, member_id: str, note: Inspect | Expect | Reply) -> None:
        """Handle a note of an agent."""
        match note:
            case Inspect() as question:
                self._pass_on(member_id, question)
            case Expect(id=id, members=members, leader=leader) if id in self._pending:
                self._pending[id].members, self._pending[id].leader = members, leader
            case Reply(asker=asker) if asker in (TO_LEADER, TO_ROUND, TO_ALL):
                pass  # no member's id: it would come back to this agent for ever
            case Reply(asker=asker) as reply if asker != self.member.member_id:
                self.send(asker, reply)  # this agent leads
            case Reply(id=id) as reply if id in self._pending:
                _add_reply(self._pending[id], reply)

    def advance(self, now: float) -> None:
        """End what is complete, and what has taken too long."""
        for id, survey in list(self._pending.items()):
            if survey.has_ended or now >= survey.until:
                del self._pending[id]
                _end(survey)

    def reply(self, to: str, order: PassedRequest, answer: Struct | None, problem: str = "") -> None:
        """Send an answer of this node, or a sentence for why there is none. `to`: the leader that has passed it on."""
        if isinstance(answer, NodeView) and not is_sendable(answer):
            answer = shorten_view(answer)
        elif answer is not None and not is_sendable(answer):
            answer, problem = None, "the answer is too long for a message"
        reply = Reply(
            id=order.id,
            asker=order.asker,
            member_id=self.member.member_id,
            answer=Raw(codec.encode(answer)),
            error=problem.encode(errors="replace").decode(),  # it may name a file
        )
        self.send(to, reply)

    def _pass_on(self, asker: str, question: Inspect) -> None:
        """The leader's part: find those it is about, tell the asker who they are, and ask them."""
        members = self.member.list_members()
        if not members:  # it leads no more
            return
        own_id = self.member.member_id
        node = own_id if isinstance(question.request, Diagnose) else question.node
        chosen = {one: name for one, name in members.items() if node in ("", one)}
        chosen = chosen or {one: name for one, name in members.items() if name == node}
        expect, error = Expect(id=question.id, members=chosen, leader=own_id), ""
        if not chosen:
            error = f"unknown node {node}; the nodes are {format_list(sorted(members.values()), 8)}"
        elif asker != own_id and not notes.fits(encode_note(expect)):
            leader = members.get(own_id, own_id)
            error = f"a message cannot name {len(chosen):,} nodes: ask on the leader's node, {leader}"
        if error:
            self.send(asker, Reply(id=question.id, asker=asker, member_id="", error=error))
            return
        self.send(asker, expect)
        for member_id in chosen:
            request = question.request
            if isinstance(request, ReadState) and not node:
                request = replace(request, of_run=member_id == own_id)
            self.send(member_id, PassedRequest(id=question.id, asker=asker, request=request))

    def send(self, to: str, note: Struct) -> None:
        """Send a note by the agreement."""
        self.submit(SendNote(to, encode_note(note)))


def _add_reply(survey: Survey, reply: Reply) -> None:
    """Add what a node has replied; one that makes no sense counts as lost."""
    if not reply.member_id:
        survey.error = reply.error
    elif reply.error:
        survey.add(reply.member_id, reply.error)
    else:
        try:
            kind = survey.answer_kind or REPLY_KINDS[type(survey.request)]
            answer = codec.decode(kind, bytes(reply.answer), "the answer")
        except RecordError:
            return
        survey.add(reply.member_id, answer)


def _end(survey: Survey) -> None:
    for take in survey.takes:
        take(survey)


def shorten_view(node: NodeView) -> NodeView:
    """Shorten a view that no note can hold: of hundreds of workers, or of rounds with long errors."""
    if (run := node.run) is not None:
        run = replace(run, nodes=(), rounds=tuple(map(_shorten_round, run.rounds[-20:])))
    if is_sendable(short := replace(node, run=run)):
        return short
    run = replace(run, rounds=run.rounds[-1:], failure=None, options={}, faults=()) if run is not None else None
    last = _shorten_round(node.last) if node.last is not None else None
    return replace(node, run=run, last=last, ranks=node.ranks[:100])


def _shorten_round(one: RoundView) -> RoundView:
    return replace(one, error=one.error[:200], ranks=())
