"""A run that no agent answers for any more: from the files in its log directory, or from its records in the store.

An agent keeps its events beside the logs of its workers (`events.jsonl`). They are replayed here into what the node
last knew, so that a run that has ended is shown by the same views as one that goes on. The store has of it what the
nodes had agreed on: its rounds and how it has ended, but no output.

Whoever may write to a log directory may have put anything there: nothing is read but regular files within it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion, HangAnswer
from launcher.logs.layout import make_file_name
from launcher.logs.reports.report import WorkerFailure
from launcher.model.errors import describe, sanitize
from launcher.views.event_buffer import make_page
from launcher.views.event_view import EventView, read_event
from launcher.views.goodput import TimeSpent, compute_goodput
from launcher.views.node.log_pages import LogSource, read_page
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.questions.messages import Diagnose, Question, RefusedQuestion
from launcher.views.requests import ReadEvents, ReadLogs, ReadRun
from launcher.views.run_events import (
    AgentEnded,
    RemarkMade,
    RootCause,
    RoundEnded,
    RoundStarted,
    RoundStopping,
    RunEvent,
    decode_event,
    encode_event,
)
from launcher.views.run_view import ENDED, NodeView, RoundView, RunView, find_lost_nodes, guess_run, join_nodes
from launcher.views.sentences import format_failure, format_headline
from launcher.views.sinks.event_file import KEPT_FILE
from launcher.views.timeline import RunTimeline
from rendezvous import codec
from rendezvous.reasons import Reason
from rendezvous.records import Verdict, name_run

_EVENTS_MAX = 64 << 20
"""Bytes of a run's events that are read, of each directory the newest: of a run of months, too."""
_PAGE_MAX = 1 << 20
"""Bytes of a page of them."""
_RANDOM = re.compile(r"_[0-9a-f]{8}\Z")
_NO_OUTPUT = "the store keeps no output: set --log-dir to the log directory, on a node of the run"
_SENTENCES = ("summary", "failure_class", "reason", "sentence")
"""The field of an event that has the sentence of its reason."""
_HINT = "meshctl events shows what happened before, and meshctl logs the output of the workers"


class KeptNode(Struct, frozen=True):
    """What is left of a node."""

    view: NodeView
    lines: Sequence[str] = ()
    """Its events."""
    sources: Sequence[LogSource] = ()
    """Its log files."""
    rounds: Sequence[RoundView] = ()
    last: Mapping[type, RunEvent] = {}
    """The last event of each kind."""


class EndedSource(QuestionSource):
    """A source of what is left: `nodes` by member id. `origin`: where it is from, if that is to be said."""

    is_live = False

    def __init__(self, run: RunView, nodes: Mapping[str, KeptNode], origin: str = "") -> None:
        super().__init__(self.answer, run.run_id)
        self.origin = origin
        self._run = run
        self._nodes = nodes

    def answer(self, question: Question, limit_s: float = 0.0) -> bytes:
        """Answer as an agent would."""
        return codec.encode(self._find(question)) + b"\n"

    def _find(self, question: Question) -> Struct:
        request, name = question.request, question.node
        if isinstance(request, ReadRun):
            return self._run
        if isinstance(request, Diagnose):
            return self._conclude()
        found = [self._nodes[name]] if name in self._nodes else []
        found = found or [node for node in self._nodes.values() if name in ("", node.view.name)]
        if not found:
            return RefusedQuestion(error=f"nothing is left of node {name}", is_silent=True)
        match request:
            case ReadEvents(after=after):
                lines = [line for node in found for line in node.lines]
                return make_page(lines, 0, after, _PAGE_MAX)
            case ReadLogs():
                page = read_page(found[0].sources, request, 0)
                return page if found[0].view.log_dir else replace(page, remark=_NO_OUTPUT)
        return found[0].view

    def _conclude(self) -> Conclusion:
        run = self._run
        failure = f"the first failure: {format_failure(run.failure)}" if run.failure is not None else ""
        hang = run.rounds[-1].hang if run.rounds else ()
        sentences = (f"{name_run(run.run_id)} {format_headline(run)}", failure, *hang)
        answer = HangAnswer(kind="unclear", sentences=tuple(filter(None, sentences)), hint=_HINT)
        return Conclusion(round=run.round, answer=answer)


# --- files ---


def find_run_dir(log_dir: str, run_id: str | None) -> str:
    """Return the newest directory of this run below --log-dir; of any without an id. "" if there is none.

    The directory itself may be given, too, or how an id begins. --log-dir may have a name like that of a run: it is one
    only if it has no runs.
    """
    beginning = "" if run_id is None else make_file_name(run_id)
    try:
        with os.scandir(log_dir) as entries:
            found = [
                (name.startswith(beginning), name == beginning, entry.stat().st_mtime, entry.path)
                for entry in entries
                if (name := _read_name(entry.name)) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return ""
    own = _read_name(os.path.realpath(log_dir))
    for fits, *_, path in sorted(found, reverse=True):
        if (fits or own) and _find_folders(path):
            return path if fits else ""
    return log_dir if own and own.startswith(beginning) and _find_folders(log_dir) else ""


def _read_name(path: str) -> str:
    """Return the run in the name of its directory; "" if it has none."""
    return os.path.basename(path)[:-9] if _RANDOM.search(path) else ""


def open_run_dir(run_dir: str) -> EndedSource:
    """Read what the agents of a run have left in its directory; `find_run_dir` has found it."""
    folders = {os.path.basename(folder): folder for folder in _find_folders(run_dir)}
    return read_folders(folders, f"the files in {sanitize(run_dir)}")


def read_folders(folders: Mapping[str, str], origin: str = "") -> EndedSource:
    """Read what agents have left in the log directories of their nodes, by member id."""
    nodes = {name: _read_folder(folder, name, _EVENTS_MAX // len(folders)) for name, folder in folders.items()}
    by_name: dict[str, list[str]] = {}  # each restart of an agent has a directory
    for member_id in sorted(nodes, key=lambda member_id: -nodes[member_id].view.at):
        by_name.setdefault(nodes[member_id].view.name, []).append(member_id)
    joined = {newest: _join([nodes[newest], *(nodes[one] for one in older)]) for newest, *older in by_name.values()}
    return EndedSource(_build_run(nodes, joined), joined, origin)


def _join(nodes: Sequence[KeptNode]) -> KeptNode:
    """Return the first of a node's directories with what the others have, too: its own numbers and names stay."""
    first, *others = nodes
    lines = [line for node in nodes for line in node.lines]
    sources = list(first.sources)
    for node in others:
        folder = os.path.basename(node.view.log_dir)
        sources += [replace(one, name=f"{folder}/{one.name}") for one in node.sources]
    return replace(first, lines=lines, sources=sources)


def read_lost_events(run: RunView) -> list[EventView]:
    """Read the events of nodes that are lost, where they have kept them in a directory that is seen here, too."""
    parents = {os.path.dirname(node.log_dir) for node in run.nodes if node.log_dir}
    folders = [(name, os.path.join(parent, make_file_name(name))) for name, _ in run.lost for parent in parents]
    lines = ((line, name) for name, folder in folders for line in _read_lines(folder, _EVENTS_MAX // len(folders)))
    return [event for line, name in lines if (event := read_event(line, name)) is not None]


def has_events(folder: str) -> bool:
    """Return whether an agent has kept its events in a node's log directory."""
    return next(_read_lines(folder, 1), None) is not None


def _find_folders(run_dir: str) -> list[str]:
    """List the directories of nodes: that of the run is one itself, if it has one node."""
    try:
        names = sorted(os.listdir(run_dir))
    except OSError:
        return []
    folders = [run_dir, *(path for name in names if not os.path.islink(path := os.path.join(run_dir, name)))]
    return list(filter(has_events, folders))


def _read_folder(folder: str, member_id: str, size_max: int) -> KeptNode:
    timeline, lines, last = RunTimeline(), [], dict[type, RunEvent]()
    newest = RunEvent(node=member_id)
    for line in _read_lines(folder, size_max):
        if (event := decode_event(line)) is not None:
            lines.append(line)
            last[type(event)] = newest = replace(event, run_id=event.run_id or newest.run_id)
            sentence = next((text for name in _SENTENCES if (text := getattr(event, name, ""))), "")
            timeline.take(event, Reason.of("views/sentence", sentence=sentence))
    for worker in timeline.workers.values():
        worker.state = "unknown" if worker.state == "running" else worker.state
    ended, rounds = last.get(AgentEnded), timeline.rounds
    view = NodeView(
        name=newest.node,
        member_id=member_id,
        run_id=newest.run_id,
        at=newest.at,
        state="gone" if isinstance(ended, AgentEnded) and ended.verdict else "leaving" if ended is not None else "lost",
        ranks=tuple(timeline.workers[index] for index in sorted(timeline.workers)),
        last=rounds[-1] if rounds else None,
        step=rounds[-1].step if rounds else -1,
        log_dir=folder,
    )
    return KeptNode(view, lines, _list_sources(folder, rounds), rounds, last)


def _read_lines(folder: str, size_max: int) -> Iterator[str]:
    path = os.path.join(folder, KEPT_FILE)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or not found.st_size:
                return
            if found.st_size > size_max:
                file.seek(-size_max, os.SEEK_END)
                file.readline()
            yield from file.read(size_max).decode(errors="replace").split("\n")  # splitlines() would tear a U+2028
    except (OSError, ValueError):
        return


def _list_sources(folder: str, rounds: Sequence[RoundView]) -> list[LogSource]:
    """List the log files of these rounds, by the layout of launcher/logs/layout.py."""
    found, top = [], os.path.realpath(folder)
    for one in rounds:
        attempt = f"attempt_{one.restart_count}"
        later = f"{attempt}.round_{one.round}"  # of a second round with the same restart count
        attempt = later if os.path.isdir(os.path.join(folder, later)) else attempt
        for local_rank, rank in enumerate(one.ranks):
            for stream in ("stdout", "stderr"):
                name = f"{attempt}/{local_rank}/{stream}.log"
                path = os.path.realpath(os.path.join(folder, name))
                if path.startswith(f"{top}/") and os.path.isfile(path):
                    found.append(LogSource(name=name, path=path, rank=rank, stream=stream, round=one.round))
    return found


def _build_run(nodes: Mapping[str, KeptNode], newest: Mapping[str, KeptNode]) -> RunView:
    seen = [one for node in nodes.values() for one in node.rounds]
    rounds: dict[int, RoundView] = {}  # each as a node saw it that knows its end, with the failure that a node had
    for one in sorted(seen, key=lambda one: (one.round, not one.cause, one.failed_rank < 0, not one.ended_at)):
        first = rounds.setdefault(one.round, replace(one, ranks=()))
        if first.failed_rank < 0:
            first.failed_rank, first.failure_class, first.error = one.failed_rank, one.failure_class, one.error
    events = [event for node in nodes.values() for event in node.last.values()]
    ended = next((event for event in events if isinstance(event, AgentEnded) and event.verdict), None)
    last = max((ended.round if ended is not None else 0, *rounds))
    views = {member_id: node.view for member_id, node in newest.items()}
    if ended is not None:  # of who was in the last round and not lost, the end is not written yet, or never was
        lost = {name for name, number in find_lost_nodes(rounds.values(), ()) if number == last}
        views |= {
            member_id: replace(view, state="gone")
            for member_id, view in views.items()
            if view.state == "lost" and view.name not in lost and view.last is not None and view.last.round == last
        }
    root = (event.root_cause for event in events if isinstance(event, AgentEnded if ended else RoundStopping))
    run = replace(
        guess_run(views.values(), next((view.run_id for view in views.values()), ""), "", time.time()),
        phase=ENDED,
        max_restarts=max((event.max_restarts for event in events if isinstance(event, RoundStarted)), default=0),
        rounds=tuple(rounds.values()),
        verdict=_make_verdict(ended, last) if ended is not None else None,
        stop_reason=None if ended is not None else Reason.of("views/no-end"),
        failure=_make_failure(next(filter(None, root), None)),
    )
    if run.rounds:
        until = ended.at if ended is not None else max(view.at for view in views.values())
        goodput = compute_goodput(run.rounds, TimeSpent(until=run.rounds[0].began_at - run.rounds[0].waited_s), until)
        run = replace(run, mesh=run.rounds[-1].mesh, goodput=goodput)
    return join_nodes(run, views, {member_id: view.name for member_id, view in views.items()})


def _make_verdict(ended: AgentEnded, number: int) -> Verdict:
    reason = Reason.of("views/sentence", sentence=ended.reason)
    kind: Any = ended.verdict
    return Verdict(kind=kind, exit_code=ended.exit_code, round=number, reason=reason, ended_at=ended.at)


def _make_failure(root: RootCause | None) -> WorkerFailure | None:
    if root is None:
        return None
    failure_class, _, why = root.failure_class.partition(": ")
    return WorkerFailure(
        local_rank=-1,
        pid=0,
        time="",
        rank=root.rank,
        exit_code=root.exit_code,
        host=root.node,
        log_file=root.log_file,
        exception=root.error,
        failure_class=failure_class,
        class_reason=why,
    )


# --- records ---


def make_stored_source(run: RunView, origin: str = "") -> EndedSource:
    """Return what the store has of a run: its events are those that its rounds show, of no node."""
    nodes = {node.member_id: KeptNode(node) for node in run.nodes}
    first = next(iter(nodes), "")
    lines = [encode_event(replace(event, run_id=run.run_id, node="-")).decode() for event in _list_events(run)]
    nodes[first] = KeptNode(nodes[first].view if first else NodeView(name="-"), lines)
    return EndedSource(run, nodes, origin)


def _list_events(run: RunView) -> Iterator[RunEvent]:
    unknown: dict[str, Any] = {"ranks": (), "mesh": "", "restart_count": 0, "waited_s": 0.0}
    for one in run.rounds:
        size: dict[str, Any] = {"world_size": one.world_size, "node_count": one.node_count, **unknown}
        why = describe(one.reason)
        yield RoundStarted(at=one.began_at, round=one.round, max_restarts=run.max_restarts, summary=why, **size)
        if one.ended is not None:
            why = describe(one.ended)
            yield RoundEnded(at=one.ended_at, round=one.round, cause=one.cause, reason=why, ran_s=one.ran_s)
    if run.verdict is not None:
        sentence = f"{name_run(run.run_id)} {format_headline(run)}"
        yield RemarkMade(at=run.verdict.ended_at, round=run.round, sentence=sentence)
