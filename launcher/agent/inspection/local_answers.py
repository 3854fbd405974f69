"""Questions that come to this agent's socket, and what is answered there: a run's report, a node's state, its pages."""

from __future__ import annotations

import time
from functools import partial

from launcher.agent.diagnosis.question_socket import Asker
from launcher.agent.inspection.inspection import Inspected, Inspection, make_run_report
from launcher.observe.local_socket import Question
from launcher.observe.node_report import ReadState
from rendezvous import codec

_NO_LEADER = "no agent that leads has answered: the nodes may be choosing one, or be cut off from it"


def answer_question(inspection: Inspection, run_id: str, asker: Asker, question: Question, now: float) -> None:
    """Begin to answer a question of kind "inspect" or "inspect_node"; `Inspection.advance` finishes it."""
    request = question.request
    if question.kind == "inspect":
        inspection.inspect("", ReadState(), partial(_answer_run, asker, run_id), now)
    elif request is None:
        _refuse(asker, "the question has no request")
    elif question.node:
        inspection.inspect(question.node, request, partial(_answer_one, asker), now)
    else:
        inspection.reply_alone(request, partial(_answer_one, asker))


def _answer_run(asker: Asker, run_id: str, asked: Inspected) -> None:
    if asked.members is None:
        _refuse(asker, asked.error or _NO_LEADER)
        return
    asked.line = asked.line or codec.encode(make_run_report(asked, run_id, time.time()))
    asker.answer(asked.line)


def _answer_one(asker: Asker, asked: Inspected) -> None:
    reply = next(iter(asked.replies.values()), None)
    found = None if reply is None else reply.report or reply.events or reply.logs
    if found is not None:
        asker.answer(codec.encode(found))
    elif reply is not None:
        _refuse(asker, reply.error)
    else:
        silent = f"{next(iter(asked.members.values()), 'the node')} has not answered in time" if asked.members else ""
        _refuse(asker, asked.error or silent or _NO_LEADER)


def _refuse(asker: Asker, sentence: str) -> None:
    asker.answer(codec.encode({"error": sentence}))
