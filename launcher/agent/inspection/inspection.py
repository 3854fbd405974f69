"""Who looks at the run from this node, what this node says when it is looked at, and the leader's part between both.

A question goes to the leader, which sends it on to those it is about and returns their replies one by one, so nothing
of a run's size is collected on its way. Who asks waits until all have replied, or a limit is over. An agent that
leads, and the agent of a job of one machine, do the same: their notes come back to them.

Nothing here waits. What takes time is done by the `Reporter`; `advance` hands out what is complete.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.agent.diagnosis.question_socket import Connection
from launcher.agent.inspection.messages import (
    Expect,
    Inspect,
    InspectionMessage,
    PassedRequest,
    Reply,
    encode_inspection,
)
from launcher.agent.inspection.reporter import Kind, Reporter
from launcher.model.errors import describe_bug
from launcher.model.text import format_list
from launcher.observe.local_socket import Question
from launcher.observe.node_report import (
    EventPage,
    LogPage,
    NodeReply,
    NodeReport,
    NodeRequest,
    ReadState,
    RunReport,
)
from rendezvous import codec
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, Event, SendNote
from rendezvous.member import notes

if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

LIMIT_S = 3.0
"""Until who asks gets what has come; less than what `local_socket` waits."""
PENDING_MAX = 256
LOST_CAUSES = ("loss", "isolation", "leaving")
_NO_LEADER = "no leader has answered: the nodes may be electing one, or this node may be cut off from it"


class Inspected(Struct, kw_only=True):
    """A question to all nodes, and the answers so far."""

    until: float
    takes: list[Callable[[Inspected], object]]
    """Called with the result; several if the same question was asked more than once."""
    is_of_all: bool = False
    line: bytes = b""
    """Space for the first of them to keep its answer."""
    members: dict[str, str] | None = None
    """Names of the members that were asked; None before the leader has said."""
    leader: str = ""
    replies: dict[str, Reply] = field(default_factory=dict)
    error: str = ""

    @property
    def is_complete(self) -> bool:
        return bool(self.error) or (self.members is not None and self.members.keys() <= self.replies.keys())


class Inspection:
    """`make_answer` returns what makes this node's reply to a request: work for the reporter, of a kind."""

    def __init__(
        self,
        run_id: str,
        member: MemberMachine,
        submit: Callable[[Event], None],
        reporter: Reporter,
        make_answer: Callable[[NodeRequest], tuple[Kind, Callable[[], NodeReply]]],
    ) -> None:
        self._run_id = run_id
        self._member = member
        self._submit = submit
        self._reporter = reporter
        self._make_answer = make_answer
        self._pending: dict[str, Inspected] = {}

    @property
    def wake_at(self) -> float:
        """When to call `advance`."""
        return min((-math.inf if one.is_complete else one.until for one in self._pending.values()), default=math.inf)

    def answer(self, connection: Connection, question: Question, now: float) -> None:
        """Begin to answer a question of kind "inspect" or "inspect_node"; `advance` finishes it."""
        request = question.request
        if question.kind == "inspect":
            self.inspect("", ReadState(), partial(_answer_run, connection, self._run_id), now)
        elif request is None:
            _refuse(connection, "the question has no request")
        elif question.node:
            self.inspect(question.node, request, partial(_answer_one, connection), now)
        else:
            self.reply_alone(request, partial(_answer_one, connection))

    def inspect(self, node: str, request: NodeRequest, take: Callable[[Inspected], object], now: float) -> None:
        """Ask a node by name or member id, or all with ""; `advance` calls `take` with what has come."""
        asked = Inspected(until=now + LIMIT_S, takes=[take], is_of_all=not node and request == ReadState())
        if sum(len(one.takes) for one in self._pending.values()) >= PENDING_MAX:
            asked.error = f"{PENDING_MAX} questions are already waiting for answers"
            take(asked)
            return
        same = next((one for one in self._pending.values() if one.is_of_all and not one.is_complete), None)
        if asked.is_of_all and same is not None:  # 200 who look at 1,000 nodes shall not cost 200,000 replies
            same.takes.append(take)
            return
        question = Inspect(id=os.urandom(8).hex(), node=node, request=request)
        if not (self._member.list_members() or notes.fits(encode_inspection(question))):
            asked.error = "the question is too long for a message: ask on the leader's node"
            take(asked)
            return
        self._pending[question.id] = asked
        self._send(TO_LEADER, question)

    def reply_alone(self, request: NodeRequest, take: Callable[[Inspected], object]) -> None:
        """Answer for this node without any other."""
        own_id = self._member.member_id
        asked = Inspected(until=0.0, takes=[take], members={own_id: ""}, leader="")

        def finish(reply: Reply) -> None:
            asked.replies[own_id] = reply
            take(asked)

        self._make_reply("", own_id, request, finish)

    def take_note(self, member_id: str, note: InspectionMessage) -> None:
        """Handle a note of an agent."""
        match note:
            case Inspect() as question:
                self._pass_on(member_id, question)
            case PassedRequest(id=id, asker=asker, request=request):
                self._make_reply(id, asker, request, lambda reply: self._send(member_id, reply))
            case Expect(id=id, members=members, leader=leader) if id in self._pending:
                self._pending[id].members, self._pending[id].leader = members, leader
            case Reply(asker=asker) if asker in (TO_LEADER, TO_ROUND, TO_ALL):
                pass  # no member's id: it would come back to this agent for ever
            case Reply(id=id, asker=asker) as reply:
                if asker != self._member.member_id:
                    self._send(asker, reply)  # this agent leads
                elif id in self._pending:
                    self._pending[id].error = reply.error if not reply.member_id else self._pending[id].error
                    self._pending[id].replies[reply.member_id] = reply

    def advance(self, now: float) -> None:
        """Send what is done, and give up what has taken too long."""
        self._reporter.advance()
        for id, asked in list(self._pending.items()):
            if asked.is_complete or now >= asked.until:
                del self._pending[id]
                for take in asked.takes:
                    take(asked)

    def _pass_on(self, asker: str, question: Inspect) -> None:
        """The leader's part: find those it is about, tell the asker who they are, and ask them."""
        members = self._member.list_members()
        if not members:  # it leads no more
            return
        own_id = self._member.member_id
        chosen = {one: name for one, name in members.items() if question.node in ("", one)}
        chosen = chosen or {one: name for one, name in members.items() if name == question.node}
        expect, error = Expect(id=question.id, members=chosen, leader=own_id), ""
        if not chosen:
            error = f"unknown node {question.node}; the nodes are {format_list(sorted(members.values()), 8)}"
        elif asker != own_id and not notes.fits(encode_inspection(expect)):
            leader = members.get(own_id, own_id)
            error = f"{len(chosen):,} nodes are more than a message can name: ask on {leader}, which leads"
        if error:
            self._send(asker, Reply(id=question.id, asker=asker, member_id="", error=error))
            return
        self._send(asker, expect)
        for member_id in chosen:
            request = question.request
            if isinstance(request, ReadState) and not question.node:  # the leader knows all rounds
                request = replace(request, has_rounds=member_id == own_id)
            self._send(member_id, PassedRequest(id=question.id, asker=asker, request=request))

    def _make_reply(self, id: str, asker: str, request: NodeRequest, finish: Callable[[Reply], object]) -> None:
        own_id = self._member.member_id

        def take(result: object, problem: str) -> None:
            reply = Reply(
                id=id,
                asker=asker,
                member_id=own_id,
                report=result if isinstance(result, NodeReport) else None,
                events=result if isinstance(result, EventPage) else None,
                logs=result if isinstance(result, LogPage) else None,
                error=problem,
            )
            finish(reply)

        try:
            kind, work = self._make_answer(request)
        except Exception as error:  # the loop has workers to look after
            take(None, describe_bug(error))
            return
        self._reporter.submit(kind, work, take)

    def _send(self, to: str, message: InspectionMessage) -> None:
        text = encode_inspection(message)
        if isinstance(message, Reply) and not notes.fits(text):
            text = encode_inspection(shorten_reply(message))
        self._submit(SendNote(to, text))


def shorten_reply(reply: Reply) -> Reply:
    """Shorten a reply that no note can hold: a node with hundreds of workers, or rounds with long errors."""
    if reply.report is None:
        return replace(reply, events=None, logs=None, error="the answer is too long for a message")
    rounds = tuple(replace(one, error=one.error[:200], ranks=()) for one in reply.report.rounds[-20:])
    short = replace(reply, report=replace(reply.report, rounds=rounds))
    if notes.fits(encode_inspection(short)):
        return short
    return replace(reply, report=replace(reply.report, rounds=(), ranks=reply.report.ranks[:100]))


def make_run_report(asked: Inspected, run_id: str, at: float) -> RunReport:
    """Put the replies of all members together. `at`: seconds since 1970."""
    reports = [reply.report for reply in asked.replies.values() if reply.report is not None]
    nodes = sorted(reports, key=lambda one: (one.group_rank < 0, one.group_rank, one.node))
    leader = next((one for one in nodes if one.member_id == asked.leader), None)
    members = asked.members or {}
    historian = leader if leader is not None and leader.rounds else None
    if historian is None:  # no leader has answered, or it has been a spare so far
        historian = max(nodes, key=lambda one: (len(one.rounds), one is leader, -one.started_at), default=None)
    rounds = historian.rounds if historian is not None else ()
    present = {one.node for one in nodes} | set(members.values())
    gone = {name for one in rounds if one.cause in LOST_CAUSES for name in one.nodes}
    return RunReport(
        run_id=run_id,
        at=at,
        leader=members.get(asked.leader, ""),
        nodes=tuple(replace(one, rounds=one.rounds[-1:]) for one in nodes),
        missing=tuple(sorted(name for one, name in members.items() if one not in asked.replies)),
        lost=tuple(sorted(gone - present)),
        rounds=rounds,
        goodput=historian.goodput if historian is not None else None,
    )


def _answer_run(connection: Connection, run_id: str, asked: Inspected) -> None:
    if asked.members is None:
        _refuse(connection, asked.error or _NO_LEADER)
        return
    asked.line = asked.line or codec.encode(make_run_report(asked, run_id, time.time()))
    connection.answer(asked.line)


def _answer_one(connection: Connection, asked: Inspected) -> None:
    reply = next(iter(asked.replies.values()), None)
    found = None if reply is None else reply.report or reply.events or reply.logs
    if found is not None:
        connection.answer(codec.encode(found))
    elif reply is not None:
        _refuse(connection, reply.error)
    else:
        silent = f"{next(iter(asked.members.values()), 'the node')} has not answered in time" if asked.members else ""
        _refuse(connection, asked.error or silent or _NO_LEADER)


def _refuse(connection: Connection, sentence: str) -> None:
    connection.answer(codec.encode({"error": sentence}))
