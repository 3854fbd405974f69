"""Formats the status of a job: as text on 80 columns without colour, and as JSON.

First the job and its phase, then the nodes, then the history. Up to a screenful of nodes each has a line; of more,
those that need attention have one, and the rest are ranges in a summary by state. `--nodes` gives every node its
line. Text from the store is cut to the width of its column, and control characters are escaped.

Of the nodes' localities the common part is shown once, and the differing part in a column. Names of domains are often
long and differ in their last letters (`nn-67ec43a6722b34afb`), so those are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace

from launcher.locality.merge import order_known_levels
from launcher.logs.reports.report import WorkerFailure, parse_failure
from launcher.meshctl.status.state import ENDED, FORMING, RUNNING, STOPPING, NodeState, Overview
from launcher.meshctl.table import align, format_clock, measure_width, truncate
from launcher.model import ranges
from launcher.model.console import escape, format_time
from launcher.model.errors import describe as describe_reason
from launcher.model.text import WIDTH, format_count, format_duration, format_list, wrap_labelled
from rendezvous.reasons import Reason
from rendezvous.records import UNNAMED_RUN, RoundHistory, Verdict

NODES_MAX = 24
HISTORY_MAX = 8
FAULTS_MAX = 5
RANGES_MAX = 12
_LABEL_WIDTH = 10  # width of the first column
_NAME_MAX, _CELL_MAX, _PLACE_MAX = 22, 12, 18  # with the other columns 80 letters
_DOMAIN_MAX = 8
_LEVELS_MAX = 6  # the innermost ones; --json has all
_HEALTHY_STATES = ("running", "succeeded", "spare", "stopped", "waiting")  # states that need no attention
_EXPLAINED_ABOVE = ("spare", "quarantined", "waiting")  # with their reasons, once for all who have the same
STATUS_SCHEMA = 1
"""Of `--json`: raised when a field gets another meaning; fields are added without."""
_TIME_MAX = 1e11
"""Seconds since 1970: a later one was not written by an agent."""
_REASONS = ("reason", "stop_reason", "ended")
_SILENCE_MAX_S = 3.0  # without a keep-alive: with the usual lease two have been missed


def encode_overview(overview: Overview) -> dict[str, Any]:
    """Return the overview as values for JSON, by `STATUS_SCHEMA`; a time is a text in RFC 3339, null if unknown."""
    content = to_builtins(overview)
    for told, one in [(content, overview), *zip(content["history"], overview.history, strict=True)]:
        for name in filter(told.__contains__, _REASONS):  # in one order, whatever the hashes of texts are
            told |= _encode_reason(name, getattr(one, name))
    for told, past in zip(content["history"], overview.history, strict=True):
        told["failure_class"] = describe_reason(past.failure_class)
    if overview.verdict is not None:
        content["verdict"] |= _encode_reason("reason", overview.verdict.reason)
        content["verdict"]["failure"] = to_builtins(parse_failure(overview.verdict.failure))
    for node in content["nodes"]:
        node["locality"] = dict(node["locality"])
    return {"schema": STATUS_SCHEMA, "now": format_headline(overview), **encode_times(content)}


def encode_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with each time as a text in RFC 3339, null if unknown: what is named `at`, or ends in `_at`."""
    return {name: _encode_time(name, value) for name, value in record.items()}


def _encode_time(name: str, value: object) -> object:
    if isinstance(value, dict):
        return encode_times(value)
    if isinstance(value, (list, tuple)):
        return [_encode_time("", one) for one in value]
    if (name == "at" or name.endswith("_at")) and isinstance(value, (int, float)):
        return format_time(value) if 0 < value < _TIME_MAX else None
    return value


def _encode_reason(name: str, reason: Reason | None) -> dict[str, str]:
    """Return the sentence of a reason, and beside it the kind, for programs."""
    return {name: describe_reason(reason), f"{name}_kind": "" if reason is None else reason.kind}


def describe(overview: Overview, *, all_nodes: bool = False) -> str:
    """Describe the overview. `all_nodes`: a line for each node, however many there are."""
    locality = _summarize_locality(overview.nodes)
    job = f", job {overview.job_key}" if overview.job_key else ""
    name = "without an id" if overview.run_id == UNNAMED_RUN else overview.run_id
    rows = [("run", f"{name}{job}"), *list_rows(overview, locality.common)]
    parts = (
        "".join(_wrap(label, text) for label, text in rows),
        _format_nodes(overview.nodes, all_nodes, locality),
        _format_history(overview),
        _format_faults(overview.faults),
    )
    return "\n".join(filter(None, parts)).removesuffix("\n")


def format_headline(overview: Overview) -> str:
    """Format what the job does now, in one sentence."""
    if overview.verdict is not None:
        return ("was " if overview.verdict.kind == "stopped" else "") + _format_verdict(overview.verdict)
    if overview.phase == FORMING:
        return f"no round yet, {format_count(len(overview.nodes), 'node')} present"
    if overview.phase == RUNNING:
        return f"round {overview.round} runs {_format_world(overview.world_size, len(overview.active))}"
    if overview.phase == ENDED:  # as agents know it, who write no verdict
        return f"has ended with round {overview.round}{_explain(overview.stop_reason)}"
    doing = "is being stopped" if overview.phase == STOPPING else "is over; the next one has not started yet"
    return f"round {overview.round} {doing}{_explain(overview.stop_reason)}"


def _format_verdict(verdict: Verdict) -> str:
    """Format succeeded in round 3, exit code 0; stopped in round 3, exit code 143: at the request of ann."""
    how = {"success": "succeeded", "failure": "failed", "stopped": "stopped"}.get(verdict.kind, "has ended")
    why = f": {describe_reason(verdict.reason)}" if verdict.kind != "success" else ""
    return f"{how} in round {verdict.round}, exit code {verdict.exit_code}{why}"


def _explain(reason: Reason | None) -> str:
    return f": {describe_reason(reason)}" if reason is not None else ""


def format_failure(failure: WorkerFailure | None) -> str:
    """Format rank 5 (pp=1,tp=1) on h2 failed with exit code 1: ValueError: bad; log h2:/logs/stderr.log."""
    if failure is None:
        return ""
    coordinates = f" ({failure.coordinates})" if failure.coordinates else ""
    exception = f": {failure.exception}" if failure.exception else ""
    log = f"; log {failure.host}:{failure.log_file}" if failure.log_file else ""
    if failure.hang:
        who = f"rank {failure.rank}{coordinates} on {failure.host}"
        return f"{'; '.join(failure.finding) or 'no progress'}; {who} {failure.describe_ending()}{log}"
    return f"rank {failure.rank}{coordinates} on {failure.host} {failure.describe_ending()}{exception}{log}"


def _format_mesh(overview: Overview) -> str:
    """Format pp=4, dp=7, tp=8: the mesh with the sizes of this round, or as the user requested it."""
    axes = [axis.partition("=")[0] for axis in overview.mesh.split(",") if axis]
    if len(axes) != len(overview.shape):
        return overview.mesh
    return ", ".join(f"{axis}={size}" for axis, size in zip(axes, overview.shape, strict=True))


def _format_world(rank_count: int, node_count: int) -> str:
    return f"{format_count(rank_count, 'rank')} on {format_count(node_count, 'node')}"


def list_rows(overview: Overview, common: str = "") -> list[tuple[str, str]]:
    """List what is known of the job as a whole: (label, text). `common`: the part of the network that all nodes share.

    The first row is what the job does now.
    """
    spares = [node for node in overview.nodes if node.state in ("spare", "waiting") and not node.ranks]
    quarantined = [node for node in overview.nodes if node.state == "quarantined"]
    rows = (
        _format_now(overview),
        ("why", describe_reason(overview.reason) if overview.reason and overview.phase not in (ENDED, FORMING) else ""),
        ("hang", "; ".join(overview.hang)),
        ("failure", format_failure(overview.failure)),
        ("mesh", _format_mesh(overview)),
        ("leader", overview.leader or ("none" if overview.phase != ENDED else "")),
        ("workers", f"meet at {overview.coordinator}" if overview.coordinator and overview.phase == RUNNING else ""),
        ("place", f"all nodes are on {common}" if common else ""),
        ("restarts", _format_restarts(overview)),
        ("lost", _format_lost(overview)),
        ("silent", f"{_format_names(overview.silent)}: no answer" if overview.silent else ""),
        ("spares", _format_reasons(spares) if overview.round else ""),
        ("quarantined", _format_reasons(quarantined)),
        ("drained", _format_names(overview.drained)),
        ("asked", format_list(overview.requests, 4)),
    )
    return [(label, text) for label, text in rows if text]


def _format_now(overview: Overview) -> tuple[str, str]:
    """Format the headline with its clock time and age."""
    last = overview.history[-1] if overview.history else None
    if (verdict := overview.verdict) is not None:
        return "ended", _format_verdict(verdict) + _format_age(overview, "at", verdict.ended_at, " ago")
    headline = format_headline(overview)
    began_at = last.began_at if last is not None and last.round == overview.round else 0.0
    return "now", headline + (_format_age(overview, "since", began_at) if overview.phase == RUNNING else "")


def _format_age(overview: Overview, word: str, at: float, suffix: str = "") -> str:
    if not at or not overview.at:
        return ""
    return f", {word} {format_clock(at, overview.at)} ({format_duration(max(0.0, overview.at - at))}{suffix})"


def _format_restarts(overview: Overview) -> str:
    count, most = overview.restart_count, overview.max_restarts
    parts = [f"{count:,} of {most:,}" if count <= most else f"{count:,}"] if count or most else []
    return ", ".join(parts + ([f"{overview.short_rounds} short rounds in a row"] if overview.short_rounds > 1 else []))


def _format_lost(overview: Overview) -> str:
    """h2 in round 1, h7-h9 in round 3: those that have not come back."""
    by_round: dict[int, list[str]] = {}
    for name, round in overview.lost:
        by_round.setdefault(round, []).append(name)
    return ", ".join(f"{_format_names(names)} in round {round}" for round, names in sorted(by_round.items()))


def _format_reasons(nodes: Sequence[NodeState]) -> str:
    """h4, h7: no whole replica left; h9: slower."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        by_reason.setdefault(node.why, []).append(node.name)
    parts = [_format_names(names) + (f": {reason}" if reason else "") for reason, names in sorted(by_reason.items())]
    return "; ".join(parts[:HISTORY_MAX]) + (f"; and {len(parts) - HISTORY_MAX} more" if parts[HISTORY_MAX:] else "")


def _format_names(names: Iterable[str]) -> str:
    return format_list(ranges.merge_names(names), RANGES_MAX)


# --- nodes ---


def _format_nodes(nodes: Sequence[NodeState], all_nodes: bool, locality: LocalityColumn) -> str:
    if not nodes:
        return ""
    if all_nodes or len(nodes) <= NODES_MAX:
        return _format_table(nodes, locality)
    by_state: dict[str, list[str]] = {}
    for node in nodes:
        by_state.setdefault(node.state, []).append(node.name)
    summary = "".join(
        _wrap(state, f"{format_count(len(names), 'node')}: {_format_names(names)}")
        for state, names in sorted(by_state.items(), key=lambda row: (-len(row[1]), row[0]))
    )
    unusual = [node for node in nodes if node.state not in _HEALTHY_STATES or (node.silent_s or 0.0) > _SILENCE_MAX_S]
    more = f"and {len(unusual) - NODES_MAX:,} more; --nodes shows all\n" if len(unusual) > NODES_MAX else ""
    return summary + (f"\n{_format_table(unusual[:NODES_MAX], locality)}{more}" if unusual else "")


def _format_table(nodes: Sequence[NodeState], locality: LocalityColumn) -> str:
    has_ages = any(node.silent_s is not None for node in nodes)
    rows = [("node", "state", "ranks", *([locality.header] if locality.cells else []), "last seen", "")]
    rows += [_format_row(node, locality) for node in nodes]
    rows = [tuple(map(escape, row)) for row in rows]  # states and levels are what nodes say
    if not has_ages:
        rows = [(*row[:-2], row[-1]) for row in rows]
    lines = zip(rows, align(rows), align([row[:-1] for row in rows]), strict=True)
    text = ""
    for (_, state, *_, why), whole, brief in lines:
        if measure_width(whole) <= WIDTH:
            text += f"{whole}\n"
        else:
            text += f"{brief}\n"
            text += "" if state in _EXPLAINED_ABOVE else _wrap("", truncate(why, 2 * WIDTH))
    return text


def _format_row(node: NodeState, locality: LocalityColumn) -> tuple[str, ...]:
    return (
        truncate(node.name, _NAME_MAX),
        node.state,
        truncate(ranges.format_ranges(node.ranks) if node.ranks else "-", _CELL_MAX),
        *([truncate(locality.cells[node.member_id], _PLACE_MAX)] if locality.cells else []),
        f"{node.silent_s:.0f} s ago" if node.silent_s is not None else "-",
        ", ".join(filter(None, ("leads" if node.is_leader else "", node.why))),
    )


class LocalityColumn(NamedTuple):
    """The network in a table of nodes."""

    common: str
    """What all nodes share, "zone a, spine s1", or empty."""
    header: str
    """Of the column."""
    cells: Mapping[str, str]
    """By member id; empty without a column."""


def _summarize_locality(nodes: Sequence[NodeState]) -> LocalityColumn:
    """Return what to show of these nodes' localities."""
    known = [dict(node.locality) for node in nodes]
    levels = order_known_levels(node.locality for node in nodes)
    located = [place for node, place in zip(nodes, known, strict=True) if node.slot_count or place]  # not of the lost
    shared = [level for level in levels if all(located) and len({place.get(level) for place in located}) == 1]
    rest = [level for level in levels if level not in shared][-_LEVELS_MAX:]
    common = ", ".join(f"{level} {_shorten(located[0][level])}" for level in shared)
    if not rest:
        return LocalityColumn(common, "", {})
    cells = {
        node.member_id: "/".join(_shorten(place.get(level, "?")) for level in rest) if place else "-"
        for node, place in zip(nodes, known, strict=True)
    }
    header = "/".join(rest)
    return LocalityColumn(common, header if len(header) <= _PLACE_MAX else "place", cells)


def _shorten(domain: str) -> str:
    return domain if len(domain) <= _DOMAIN_MAX else f"..{domain[2 - _DOMAIN_MAX :]}"


# --- history ---


def _format_history(overview: Overview) -> str:
    history = overview.history
    hidden = len(history) - HISTORY_MAX
    text = _wrap("history", f"{format_count(hidden, 'earlier round')} not shown") if hidden > 0 else ""
    said = [_find_first(overview.reason)] if overview.reason and overview.phase not in (ENDED, FORMING) else []
    for past in history[-HISTORY_MAX:]:
        first = _find_first(past.reason)
        why = "" if first in said else describe_reason(first)
        reason = f": {why}" if why else ""
        said.append(first)
        clock = f"{format_clock(past.began_at, overview.at)}  " if past.began_at and overview.at else ""
        world = _format_world(past.world_size, past.node_count)
        text += _wrap(f"round {past.round}", f"{clock}{world}{reason}{_format_end(past)}")
    return text


def _format_end(past: RoundHistory) -> str:
    if past.ended is None:
        return ""
    how = describe_reason(past.failure_class)
    failure = f" (rank {past.failed_rank}: {how})" if how and past.failed_rank >= 0 else ""
    return f"; ended after {format_duration(past.ran_s)}: {describe_reason(past.ended)}{failure}"


def _find_first(reason: Reason) -> Reason:
    return replace(reason, also=())  # the planner's further reasons are in the JSON


def _format_faults(faults: Sequence[str]) -> str:
    shown = [truncate(fault, 2 * WIDTH) for fault in faults[:FAULTS_MAX]]
    more = [f"and {len(faults) - FAULTS_MAX:,} more"] if len(faults) > FAULTS_MAX else []
    return "".join(_wrap("unread" if index == 0 else "", fault) for index, fault in enumerate([*shown, *more]))


# --- texts ---


def _wrap(label: str, text: str) -> str:
    return wrap_labelled(escape(label), escape(text), _LABEL_WIDTH)
