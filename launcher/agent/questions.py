"""What answers questions about this node: of its user, of other agents, and of who diagnoses all ranks.

Imported with the first question: neither a start nor a job at which nobody looks pays for it.
"""

from __future__ import annotations

from _socket import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.agent.membership import PartContext
from launcher.diagnosis.part.examination import Examination
from launcher.diagnosis.part.inquiries import Inquiries
from launcher.diagnosis.part.local_examiner import LocalExaminer
from launcher.diagnosis.request import LocalRound, Target
from launcher.model.console import format_time
from launcher.parts.host import Watcher
from launcher.parts.part import Effect, Part
from launcher.views.node.journal import Journal
from launcher.views.questions.messages import Submit
from launcher.views.questions.question_server import Answerer, QuestionServer
from launcher.views.questions.question_socket import QuestionSocket
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.submitter import Submitter
from launcher.views.questions.survey import Surveys

if TYPE_CHECKING:
    from launcher.views.node.node_answers import NodeAnswers


def make_inquiries(
    node: PartContext,
    watcher: Watcher,
    listener: socket | None,
    open_journal: Callable[[], Journal],
    started_at: float,
) -> Part:
    """Make the part. `listener`: of this agent's socket; `started_at`: when the agent did, in seconds since 1970."""
    machine, layout = node.membership.driver.machine, node.layout
    effects: deque[Effect] = deque()
    reporter = Reporter(node.wakeup.wake)
    server = QuestionServer(
        Surveys(machine, effects.append),
        reporter,
        lambda: _make_answers(node, open_journal),
        {
            "run_id": layout.run_id,
            "node": node.host,
            "script": node.config.workers.script,
            "started": format_time(started_at),
        },
        None if listener is None else QuestionSocket(watcher, listener),
    )
    secret = None if node.startup is None else node.startup.credentials.secret
    submitter = Submitter(node.membership.driver, secret, layout.run_id, reporter, effects.append)
    server.answerers[Submit] = Answerer(submitter.answer)
    examination = Examination(
        LocalExaminer(node.supervisor, watcher),
        server.surveys,
        reporter,
        lambda: read_local_round(node),
        node.host,
        layout.make_incident_path,
        keeps_failures=not layout.is_temporary,
    )
    return Inquiries(server, examination, node.running, effects, node.config.hangs.on_hang)


def _make_answers(node: PartContext, open_journal: Callable[[], Journal]) -> NodeAnswers:
    from launcher.views.node.device_memory import make_device_memory
    from launcher.views.node.local_state import LocalState
    from launcher.views.node.node_answers import NodeAnswers

    memory = make_device_memory(node.slots)
    return NodeAnswers(
        open_journal=open_journal,
        driver=node.membership.driver,
        slots=node.slots,
        shared_page=node.shared_page,
        pump=node.pump,
        describe_rank=node.spec_builder.describe_rank,
        parts=node.parts,
        running=node.running,
        locality=node.membership.locality,
        find_log_dir=lambda: node.layout.root,
        state=LocalState(memory.read if memory else None),
    )


def read_local_round(node: PartContext) -> LocalRound | None:
    """Return what is looked at of the round that runs here; None before its workers are started."""
    running, share, builder = node.running, node.running.share, node.spec_builder
    if not running.has_workers or share is None:
        return None
    files = running.files.get(running.number, {})
    targets = (
        Target(
            rank=share.ranks[local_rank],
            pid=pid,
            socket_path=builder.find_recorder_socket(local_rank),
            outputs=tuple(path for (rank, _), path in files.items() if rank == share.ranks[local_rank]),
        )
        for local_rank, pid in running.pids.items()
    )
    return LocalRound(
        number=running.number,
        mesh=builder.make_worker_mesh(share),
        targets=tuple(targets),
        exit_codes={share.ranks[local_rank]: exit_code for local_rank, exit_code in running.exit_codes.items()},
    )
