"""Which parts an agent has, and what each is made of: features, which launcher/parts/part.py tells of the run.

None of them is needed before the first workers run, so each is imported when it is made.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher import extensions
from launcher.agent.membership import NodeContext, NodeMembership
from launcher.config.config import MonitoringOptions
from launcher.logs.layout import LogLayout
from launcher.model.console import format_time, log
from launcher.model.node import Slot
from launcher.parts.host import Watcher
from launcher.parts.part import (
    LATER_S,
    Effect,
    LatePart,
    Part,
    QuitSignalled,
    Ready,
    RoundStarting,
    RunningRound,
    VictimSuspected,
    WaitUnexplained,
)
from launcher.ranks.spec_builder import WorkerSpecBuilder
from launcher.supervisor.messages import Exited
from launcher.views.questions.local_listener import open_listener
from rendezvous import __version__
from rendezvous.events import NoteReceived, PassOn

if TYPE_CHECKING:
    from _socket import socket

    from launcher.config.options.readers import HangLimits
    from launcher.diagnosis.request import LocalRound
    from launcher.logs.pump import OutputPump
    from launcher.views.node.journal import Journal
    from launcher.views.node.node_answers import NodeAnswers
    from launcher.views.questions.messages import Question
    from launcher.views.sinks.event_file import EventSink

UNFINISHED_S = 60.0
"""How long no further worker of the job has ended well when the ones that still run are mentioned."""
Ask = Callable[["Question", float], bytes]
"""Asks this agent from another of its threads, as other processes do. Raises OSError."""


class PartContext(NodeContext, frozen=True, kw_only=True):
    """What parts may look at. None of it is theirs to change but `parts` and `sinks`, before the first round."""

    layout: LogLayout
    host: str
    slots: Sequence[Slot]
    reason: str
    """Explains the number of slots."""
    pump: OutputPump | None
    spec_builder: WorkerSpecBuilder
    membership: NodeMembership
    running: RunningRound
    sinks: list[Callable[[], EventSink]]
    """Make what events go to, once there are any; extensions add theirs."""


def add_parts(node: PartContext) -> None:
    """Add the parts that are asked for, in the order in which they are told.

    That of the notices is there already (`node_main`).

    Raises UsageError for what can never work.
    """
    config, layout, parts, started_at = node.config, node.layout, node.parts, time.time()
    is_written = bool(node.sinks) or (layout.keeps_files and not layout.is_temporary)
    journal = LatePart(
        "the view of this run",
        lambda: _make_journal(node, started_at),
        LATER_S if is_written or not config.extensions.keys().isdisjoint(extensions.PARTS) else math.inf,
        is_written=is_written,
    )
    parts.add(journal)
    by_others = (NoteReceived, PassOn, Ready, VictimSuspected, QuitSignalled, WaitUnexplained)
    asked: dict[type, float] = dict.fromkeys(by_others, 0.0)
    limits = config.hangs.hang_limits
    if limits is not None:
        parts.add(LatePart("--hang-timeout", lambda: _make_progress(node, limits, asked), {RoundStarting: LATER_S}))
    parts.add(
        LatePart("ranks that have ended", lambda: _make_early_ends(node), {Exited: UNFINISHED_S, NoteReceived: 0.0})
    )
    listener = open_listener()
    name = "" if listener is None else listener.getsockname()[1:].decode()

    def open_journal() -> Journal:
        from launcher.views.node.journal_part import JournalPart

        part = journal.open()
        assert isinstance(part, JournalPart)
        return part.read()

    def ask(question: Question, limit_s: float) -> bytes:
        from launcher.views.questions.local_socket import exchange

        if not name:
            raise OSError(0, "this system does not allow the agent to open its socket")
        return exchange(name, question, limit_s)

    inquiries = LatePart(
        "questions about this run",
        lambda: _make_inquiries(node, watcher, listener, open_journal, started_at),
        asked,
        discard=None if listener is None else listener.close,
    )
    watcher = parts.add(inquiries)
    if listener is not None:
        watcher.register(listener.fileno())
    for option, entry in extensions.PARTS.items():
        if option in config.extensions:
            extensions.load_entry(entry)(node, ask)
    journal.is_written |= bool(node.sinks)  # with those of extensions


def _make_journal(node: PartContext, started_at: float) -> Part:
    from launcher.views.node.journal import Journal
    from launcher.views.node.journal_part import JournalPart
    from launcher.views.run_events import AgentStarted

    config, layout = node.config, node.layout
    sinks = [make() for make in node.sinks]
    if layout.keeps_files and not layout.is_temporary:
        from launcher.views.sinks.event_file import KEPT_FILE, EventFile

        sinks.append(EventFile(KEPT_FILE, "--log-dir", log, lambda: layout.job_dir and layout.root))
    started = AgentStarted(
        at=started_at,
        run_id=layout.run_id,
        node=node.host,
        pid=os.getpid(),
        version=__version__,
        worker_count=len(node.slots),
        reason=node.reason,
    )
    axes = tuple(axis.name for axis in config.placement.mesh.axes) if config.placement.mesh is not None else ()
    writes, find_failure = [sink.write for sink in sinks], node.membership.driver.machine.find_failure
    return JournalPart(Journal(started, config.workers.max_restarts, axes, writes, find_failure), sinks)


def _make_progress(node: PartContext, limits: HangLimits, asked: dict[type, float]) -> Part:
    """Make what watches the workers. `asked`: of which facts whoever examines them is made; those of this part, too."""
    from launcher.diagnosis.part.facts import CountersWanted, SilenceChanged
    from launcher.diagnosis.part.progress_part import ProgressPart

    asked |= dict.fromkeys((CountersWanted, SilenceChanged), 0.0)
    return ProgressPart(limits, node.running, node.shared_page, node.pump, node.spec_builder.list_unpumped)


def _make_early_ends(node: PartContext) -> Part:
    from launcher.diagnosis.part.early_ends import EarlyEnds

    return EarlyEnds(node.host, node.running, UNFINISHED_S, log)


def _make_inquiries(
    node: PartContext,
    watcher: Watcher,
    listener: socket | None,
    open_journal: Callable[[], Journal],
    started_at: float,
) -> Part:
    """Make what answers for this node's workers."""
    from launcher.diagnosis.part.examination import Examination
    from launcher.diagnosis.part.inquiries import Inquiries
    from launcher.diagnosis.part.local_examiner import LocalExaminer
    from launcher.views.questions.messages import Submit
    from launcher.views.questions.question_server import Answerer, QuestionServer
    from launcher.views.questions.question_socket import QuestionSocket
    from launcher.views.questions.reporter import Reporter
    from launcher.views.questions.submitter import Submitter
    from launcher.views.questions.survey import Surveys

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
    from launcher.diagnosis.request import LocalRound, Target

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


def open_sinks(options: MonitoringOptions, is_leader: Callable[[], bool]) -> list[Callable[[], EventSink]]:
    """Open what --events and --notify name. Raises UsageError for what cannot be."""
    if not options.events and not options.notify:
        return []
    from launcher.views.sinks.event_file import EventFile
    from launcher.views.sinks.notifier import Notifier

    sinks: list[Callable[[], EventSink]] = []
    if options.events:
        file = EventFile(options.events, options.origins["events"], log)
        sinks.append(lambda: file)
    if options.notify:
        notifier = Notifier(options.notify, options.origins["notify"], is_leader, log)
        sinks.append(lambda: notifier)
    return sinks
