"""An event as all views show it: who, when, and in which words.

It is made of a line of `--events`, which has the fields for programs. For root, agents of other users may answer
anything, so what is missing or of another kind costs the words and no view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from launcher.model.ranges import format_ranges, merge_names
from launcher.model.text import format_count, format_duration, format_list
from launcher.views.run_events import parse_time
from rendezvous.records import name_run

SAME_S = 2.0
"""Events of one node within this time may say the same, and equal ones of several nodes are one."""
_SAID_BY = {
    ("waiting", ""): ("round_started", "waiting"),
    ("round_stopping", ""): ("round_ended",),
    ("worker_ended", "terminated"): ("round_ended",),
}
_COMMON = {
    ("worker_started", ""): "started",
    ("worker_ended", "terminated"): "were ended",
    ("worker_ended", "succeeded"): "succeeded",
}


class EventView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as a node has reported it."""

    at: float
    """Seconds since 1970 by the node's clock."""
    node: str
    sentence: str
    line: str = ""
    """Its JSON."""
    kind: str = ""
    rank: int = -1
    common: str = ""
    """What many ranks do at once, "started", shown once for all of them; "" for other events."""
    said_by: tuple[str, ...] = ()
    """Kinds of events that say it, too, or make it of no interest."""


def read_event(line: str, node: str) -> EventView | None:
    """Read a line of a node; None for what is no event."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
    kind, rank = str(fields.get("event", "")), fields.get("rank", -1)
    has_rank = isinstance(rank, int) and rank >= 0
    place = kind, str(fields.get("outcome", ""))
    return EventView(
        at=parse_time(str(fields.get("time", ""))),
        node=str(fields.get("node", "") or node),
        sentence=describe_event(fields),
        line=line,
        kind=kind,
        rank=rank if has_rank else -1,
        common=_COMMON.get(place, "") if has_rank else "",
        said_by=_SAID_BY.get(place, ()),
    )


def omit_repeated(events: Sequence[EventView]) -> list[EventView]:
    """Leave out what another event of its node says as well within a moment: that a round is being ended, if it has.

    `events`: by time.
    """
    last: dict[tuple[str, str], float] = {}
    kept = []
    for event in reversed(events):
        if all(last.get((event.node, kind), math.inf) - event.at > SAME_S for kind in event.said_by):
            kept.append(event)
        last[event.node, event.kind] = event.at
    return kept[::-1]


def describe_in_full(fields: dict[str, Any]) -> str:
    """Describe an event in a sentence, and the failure behind it: which rank, how, its log, its last lines."""
    root = fields.get("root_cause")
    sentence = f"{name_run(str(fields.get('run_id', '')))}: {describe_event(fields)}"
    if not isinstance(root, dict) or not root:
        return sentence
    log = f"; log {root.get('node')}:{root['log_file']}" if root.get("log_file") else ""
    who = f"rank {root.get('rank')} on {root.get('node')}: {_describe_cause(root)}{log}"
    return "\n".join([sentence, who, *map(str, root.get("last_lines") or ())])


class EventLine(NamedTuple):
    """An event of one node, or the same of several at the first one's time."""

    at: float
    node: str
    """Names of all of them."""
    sentence: str


def group_events(events: Sequence[EventView]) -> list[EventLine]:
    """Make lines of events, which are by time."""
    groups: list[dict[tuple[str, int], EventView]] = []  # by node and rank
    last: dict[str, dict[tuple[str, int], EventView]] = {}
    for event in omit_repeated(events):
        key, place = event.common or event.sentence, (event.node, event.rank)
        group = last.get(key)
        if group is None or place in group or event.at - next(iter(group.values())).at > SAME_S:
            group = last[key] = {}
            groups.append(group)
        group[place] = event
    return [_make_line(list(group.values())) for group in groups]


def _make_line(group: list[EventView]) -> EventLine:
    first = group[0]
    sentence = first.sentence
    if len(group) > 1 and first.common:
        sentence = f"ranks {format_ranges(sorted({event.rank for event in group}))} {first.common}"
    return EventLine(first.at, format_list(merge_names(event.node for event in group), 4), sentence)


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


def _describe_cause(one: dict[str, Any]) -> str:
    details = ", ".join(str(one[name]) for name in ("failure_class", "error") if one.get(name))
    return details or f"exit code {one['exit_code']}"


def _describe_failure(one: dict[str, Any]) -> str:
    who = f"rank {one['rank']}: " if one["rank"] >= 0 else ""
    return f"round {one['round']} failed: {who}{_describe_cause(one)}{_add('; log ', one, 'log_file')}"


def _describe_round_end(one: dict[str, Any]) -> str:
    step = f", at step {one['step']}" if one.get("step", -1) >= 0 else ""
    return f"round {one['round']} ended after {format_duration(one['ran_s'])}{step}{_add(': ', one, 'reason')}"


def _describe_agent_end(one: dict[str, Any]) -> str:
    said = _add(", the job: ", one, "verdict") + _add(": ", one, "reason")
    return f"the agent ended with exit code {one['exit_code']}{said}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "agent_started": lambda one: f"the agent started, {format_count(one['worker_count'], 'worker')} per node",
    **dict.fromkeys(("waiting", "hang_ended", "remark", "notice"), lambda one: str(one["sentence"])),
    "round_started": _describe_round_start,
    "worker_started": lambda one: f"rank {one['rank']} started (pid {one['pid']})",
    "worker_ended": _describe_worker_end,
    "failure_found": _describe_failure,
    "checkpoint_saved": lambda one: f"a checkpoint was saved in round {one['round']}",
    "hang_reported": lambda one: f"no progress: {'; '.join([one['sentence'], *one.get('details', ())])}",
    "nodes_requested": lambda one: f"requested nodes, {one['wanted']} in all: {one['reason']}",
    "round_stopping": lambda one: f"round {one['round']} is being ended: {one['reason'] or one['cause']}",
    "round_ended": _describe_round_end,
    "agent_ended": _describe_agent_end,
}
