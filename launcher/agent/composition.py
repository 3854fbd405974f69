"""Which parts an agent has, and what each is made of: features, which launcher/parts/part.py tells of the run.

None of them is needed before the first workers run, so each is imported when it is made.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher import extensions
from launcher.agent.membership import PartContext
from launcher.config.config import MonitoringOptions
from launcher.model.console import log
from launcher.parts.part import (
    LATER_S,
    LatePart,
    Part,
    QuitSignalled,
    Ready,
    RoundStarting,
    VictimSuspected,
    WaitUnexplained,
)
from launcher.supervisor.messages import Exited
from launcher.views.questions.local_listener import open_listener
from rendezvous import __version__
from rendezvous.events import NoteReceived, PassOn

if TYPE_CHECKING:
    from launcher.config.options.readers import HangLimits
    from launcher.views.node.journal import Journal
    from launcher.views.questions.messages import Question
    from launcher.views.sinks.event_file import EventSink

UNFINISHED_S = 60.0
"""How long no further worker of the job has ended well when the ones that still run are mentioned."""


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

    def make_inquiries() -> Part:
        from launcher.agent import questions

        return questions.make_inquiries(node, watcher, listener, open_journal, started_at)

    inquiries = LatePart(
        "questions about this run",
        make_inquiries,
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
    find = node.membership.driver.machine.find_failure
    return JournalPart(Journal(started, config.workers.max_restarts, config.placement.mesh, sinks, find))


def _make_progress(node: PartContext, limits: HangLimits, asked: dict[type, float]) -> Part:
    """Make what watches the workers. `asked`: of which facts whoever examines them is made; those of this part, too."""
    from launcher.diagnosis.part.facts import CountersWanted, SilenceChanged
    from launcher.diagnosis.part.progress_part import ProgressPart

    asked |= dict.fromkeys((CountersWanted, SilenceChanged), 0.0)
    return ProgressPart(limits, node.running, node.shared_page, node.pump, node.spec_builder.list_unpumped)


def _make_early_ends(node: PartContext) -> Part:
    from launcher.diagnosis.part.early_ends import EarlyEnds

    return EarlyEnds(node.host, node.running, UNFINISHED_S, log)


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
