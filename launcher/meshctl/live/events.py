"""`meshctl events`: what has happened on all nodes of a run, by time; the same on several nodes at once is one line.

Clocks of nodes differ a little, so their events are ordered by what each node's clock said. With --follow an event
waits a moment for earlier ones of other nodes; one that comes later than that is shown when it comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from launcher.meshctl.live.poller import NodeAnswer, NodePoller, PolledNode
from launcher.meshctl.table import format_clock
from launcher.model.console import escape
from launcher.model.ranges import format_ranges, merge_names
from launcher.model.text import format_count, format_duration, format_list
from launcher.views.questions.run_source import RunSource
from launcher.views.requests import EventPage, ReadEvents
from launcher.views.run_events import parse_time
from rendezvous.records import name_run

HOLD_S = 0.5
SAME_S = 2.0
"""Equal events of several nodes within this time are one."""
_WAIT_S = 0.1
_COMMON = {
    ("worker_started", ""): "started",
    ("worker_ended", "terminated"): "were ended",
    ("worker_ended", "succeeded"): "succeeded",
}


class SeenEvent(Struct, frozen=True, kw_only=True):
    """An event as a node has reported it."""

    at: float
    """Seconds since 1970 by the node's clock."""
    node: str
    sentence: str
    line: str
    """Its JSON."""
    kind: str = ""
    rank: int = -1
    common: str = ""
    """What many ranks do at once, "started", shown once for all of them; "" for other events."""


def show_events(
    source: RunSource,
    write: Callable[[Iterable[str]], object],
    warn: Callable[[str], object],
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the events of a run until there is nothing more to come. Raises TemporaryError if nothing can be read.

    `write` gets lines for stdout, `warn` a sentence for stderr.
    """
    collector = EventCollector(warn)
    poller = NodePoller(source, warn)
    waiting: list[tuple[float, SeenEvent]] = []
    is_last = False
    while not is_last:
        for answer in poller.poll(collector.make_request, _WAIT_S):
            waiting += [(time.monotonic(), event) for event in collector.take(answer)]
        is_last = poller.is_over or (not follow and poller.has_all)
        if is_last or poller.has_all:  # where nothing is due, `write` still finds its reader gone
            until = math.inf if is_last else time.monotonic() - HOLD_S
            due = sorted((event for came, event in waiting if came <= until), key=lambda event: (event.at, event.node))
            waiting = [one for one in waiting if one[0] > until]
            write([event.line for event in due] if as_json else format_events(due, time.time()))
    if poller.is_over and poller.report is not None:
        warn(f"{name_run(poller.report.run_id)} {poller.describe_end()}")


class EventCollector(Struct):
    """Asks nodes for the events after those that they have told."""

    warn: Callable[[str], object]
    """Gets a sentence for stderr."""
    _last: dict[str, int] = field(default_factory=dict)  # number of the last event of each node, by member id

    def make_request(self, node: PolledNode) -> ReadEvents:
        return ReadEvents(after=self._last.get(node.member_id, -1))

    def take(self, answer: NodeAnswer) -> list[SeenEvent]:
        """Return the events of a node's page."""
        node, page = answer.node, answer.reply
        assert isinstance(page, EventPage), page
        if page.dropped:
            self.warn(f"{escape(node.name)}: {format_count(page.dropped, 'event')} are no longer available")
        self._last[node.member_id] = page.next_after
        return [event for line in page.lines if (event := read_event(line, node.name)) is not None]


def read_event(line: str, node: str) -> SeenEvent | None:
    """Read a line of a node; None for what is no event."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    kind, rank = str(fields.get("event", "")), fields.get("rank", -1)
    has_rank = isinstance(rank, int) and rank >= 0
    return SeenEvent(
        at=parse_time(str(fields.get("time", ""))),
        node=str(fields.get("node", "") or node),
        sentence=describe_event(fields),
        line=line,
        kind=kind,
        rank=rank if has_rank else -1,
        common=_COMMON.get((kind, str(fields.get("outcome", ""))), "") if has_rank else "",
    )


def format_events(events: list[SeenEvent], now: float) -> list[str]:
    """Format events in order, the same of several nodes as one line at the first one's time."""
    groups: list[dict[tuple[str, int], SeenEvent]] = []  # by node and rank
    last: dict[str, dict[tuple[str, int], SeenEvent]] = {}
    for event in events:
        key, place = event.common or event.sentence, (event.node, event.rank)
        group = last.get(key)
        if group is None or place in group or event.at - next(iter(group.values())).at > SAME_S:
            group = last[key] = {}
            groups.append(group)
        group[place] = event
    return [_format_group(list(group.values()), now) for group in groups]


def _format_group(group: list[SeenEvent], now: float) -> str:
    first = group[0]
    names = format_list(merge_names(event.node for event in group), 4)
    sentence = first.sentence
    if len(group) > 1 and first.common:
        sentence = f"ranks {format_ranges(sorted({event.rank for event in group}))} {first.common}"
    return escape(f"{format_clock(first.at, now)}  {names}  {sentence}")


def describe_event(fields: dict[str, Any]) -> str:
    """Describe an event in a sentence; one that is none of ours by its name and fields."""
    kind = str(fields.get("event", ""))
    describe = _SENTENCES.get(kind)
    try:
        if describe is not None:
            return describe(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass  # for root, agents of other users may answer anything
    rest = {name: value for name, value in fields.items() if name not in ("schema", "event", "time", "run_id", "node")}
    return f"{kind}: {msgspec.json.encode(rest).decode()[:200]}"


def _add(before: str, one: dict[str, Any], name: str) -> str:
    """Return what is said of a field; "" if the event does not have it."""
    return f"{before}{one[name]}" if one.get(name) else ""


def _describe_round_start(one: dict[str, Any]) -> str:
    world = f"{format_count(one['world_size'], 'rank')} on {format_count(one['node_count'], 'node')}"
    restarts = f", {one['restart_count']} of {one['max_restarts']} restarts" if one.get("restart_count") else ""
    return f"round {one['round']} starts: {world}{_add(', ', one, 'mesh')}{restarts}"


def _describe_worker_end(one: dict[str, Any]) -> str:
    how = "succeeded" if one["outcome"] == "succeeded" else "was ended"
    if one["outcome"] == "failed":
        code = one["exit_code"]
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return f"rank {one['rank']} {how}{_add(': ', one, 'sentence')}"


def _describe_failure(one: dict[str, Any]) -> str:
    details = ", ".join(str(one[name]) for name in ("failure_class", "error") if one.get(name))
    details = details or f"exit code {one['exit_code']}"
    who = f"rank {one['rank']}: " if one["rank"] >= 0 else ""
    return f"round {one['round']} failed: {who}{details}{_add('; log ', one, 'log_file')}"


def _describe_round_end(one: dict[str, Any]) -> str:
    step = f", at step {one['step']}" if one.get("step", -1) >= 0 else ""
    return f"round {one['round']} ended after {format_duration(one['ran_s'])}{step}{_add(': ', one, 'reason')}"


def _describe_agent_end(one: dict[str, Any]) -> str:
    said = _add(", the job: ", one, "verdict") + _add(": ", one, "reason")
    return f"the agent ended with exit code {one['exit_code']}{said}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "agent_started": lambda one: f"the agent started, {format_count(one['worker_count'], 'worker')} per node",
    "waiting": lambda one: str(one["sentence"]),
    "round_started": _describe_round_start,
    "worker_started": lambda one: f"rank {one['rank']} started (pid {one['pid']})",
    "worker_ended": _describe_worker_end,
    "failure_found": _describe_failure,
    "checkpoint_saved": lambda one: f"a checkpoint was saved in round {one['round']}",
    "hang_reported": lambda one: f"no progress: {'; '.join([one['sentence'], *one.get('details', ())])}",
    "hang_ended": lambda one: str(one["sentence"]),
    "remark": lambda one: str(one["sentence"]),
    "notice": lambda one: str(one["sentence"]),
    "nodes_requested": lambda one: f"requested nodes, {one['wanted']} in all: {one['reason']}",
    "round_stopping": lambda one: f"round {one['round']} is being ended: {one['reason'] or one['cause']}",
    "round_ended": _describe_round_end,
    "agent_ended": _describe_agent_end,
}
