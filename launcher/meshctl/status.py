"""Formats the status of a run as text on 80 columns without colour.

First the job and its phase, then the nodes, then the history. Up to a screenful of nodes each has a line; of more,
those that need attention have one, and the rest are ranges in a summary by state. `--nodes` gives every node its
line. Text from the store is cut to the width of its column, and control characters are escaped.

Of the nodes' localities the common part is shown once, and the differing part in a column. Names of domains are often
long and differ in their last letters (`nn-67ec43a6722b34afb`), so those are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from launcher.locality.merge import order_known_levels
from launcher.meshctl.table import align, format_clock, measure_width, truncate
from launcher.model import ranges
from launcher.model.console import escape
from launcher.model.errors import describe as describe_reason
from launcher.model.text import WIDTH, format_count, format_duration, wrap_labelled
from launcher.views.rows import explain_end, format_names, group_names, list_rows
from launcher.views.run_view import ENDED, FORMING, RUNNING, NodeView, RoundView, RunView
from launcher.views.sentences import explain_node, format_headline, format_verdict, format_world
from rendezvous.reasons import Reason
from rendezvous.records import UNNAMED_RUN

NODES_MAX = 24
HISTORY_MAX = 8
FAULTS_MAX = 5
_LABEL_WIDTH = 10  # width of the first column
_NAME_MAX, _CELL_MAX, _PLACE_MAX = 22, 12, 18  # with the other columns 80 letters
_DOMAIN_MAX = 8
_LEVELS_MAX = 6  # the innermost ones; --json has all
_HEALTHY_STATES = ("running", "succeeded", "spare", "stopped", "waiting")  # states that need no attention
_EXPLAINED_ABOVE = ("spare", "quarantined", "waiting")  # with their reasons, once for all who have the same
_SILENCE_MAX_S = 3.0  # without a keep-alive: with the usual lease two have been missed


def describe(run: RunView, *, all_nodes: bool = False) -> str:
    """Describe the run. `all_nodes`: a line for each node, however many there are."""
    locality = _summarize_locality(run.nodes)
    parts = (
        describe_head(run, locality.common),
        _format_nodes(run.nodes, all_nodes, locality),
        _format_history(run),
        _format_faults(run.faults),
    )
    return "\n".join(filter(None, parts)).removesuffix("\n")


def describe_head(run: RunView, common: str = "") -> str:
    """Describe what is known of the run as a whole. `common`: the part of the network that all nodes share."""
    job = f", job {run.job}" if run.job else ""
    name = "without an id" if run.run_id == UNNAMED_RUN else run.run_id
    rows = [("run", f"{name}{job}"), _format_now(run), *(row[:2] for row in list_rows(run, common))]
    return "".join(_wrap(label, text) for label, text in rows)


def _format_now(run: RunView) -> tuple[str, str]:
    """Format the headline with its clock time and age."""
    last = run.rounds[-1] if run.rounds else None
    if (verdict := run.verdict) is not None:
        return "ended", format_verdict(verdict) + _format_age(run, "at", verdict.ended_at, " ago")
    headline = format_headline(run)
    began_at = last.began_at if last is not None and last.round == run.round else 0.0
    return "now", headline + (_format_age(run, "since", began_at) if run.phase == RUNNING else "")


def _format_age(run: RunView, word: str, at: float, suffix: str = "") -> str:
    if not at or not run.at:
        return ""
    return f", {word} {format_clock(at, run.at)} ({format_duration(max(0.0, run.at - at))}{suffix})"


# --- nodes ---


def _format_nodes(nodes: Sequence[NodeView], all_nodes: bool, locality: LocalityColumn) -> str:
    if not nodes:
        return ""
    if all_nodes or len(nodes) <= NODES_MAX:
        return _format_table(nodes, locality)
    by_state = group_names((node.state, node.name) for node in nodes)
    summary = "".join(
        _wrap(state, f"{format_count(len(names), 'node')}: {format_names(names)}")
        for state, names in sorted(by_state.items(), key=lambda row: (-len(row[1]), row[0]))
    )
    unusual = [node for node in nodes if node.state not in _HEALTHY_STATES or (node.silent_s or 0.0) > _SILENCE_MAX_S]
    more = f"and {len(unusual) - NODES_MAX:,} more; --nodes shows all\n" if len(unusual) > NODES_MAX else ""
    return summary + (f"\n{_format_table(unusual[:NODES_MAX], locality)}{more}" if unusual else "")


def _format_table(nodes: Sequence[NodeView], locality: LocalityColumn) -> str:
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


def _format_row(node: NodeView, locality: LocalityColumn) -> tuple[str, ...]:
    return (
        truncate(node.name, _NAME_MAX),
        node.state,
        truncate(ranges.format_ranges([rank.rank for rank in node.ranks]) if node.ranks else "-", _CELL_MAX),
        *([truncate(locality.cells[node.member_id], _PLACE_MAX)] if locality.cells else []),
        f"{node.silent_s:.0f} s ago" if node.silent_s is not None else "-",
        ", ".join(filter(None, ("leads" if node.is_leader else "", explain_node(node)))),
    )


class LocalityColumn(NamedTuple):
    """The network in a table of nodes."""

    common: str
    """What all nodes share, "zone a, spine s1", or empty."""
    header: str
    """Of the column."""
    cells: Mapping[str, str]
    """By member id; empty without a column."""


def _summarize_locality(nodes: Sequence[NodeView]) -> LocalityColumn:
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


def _format_history(run: RunView) -> str:
    history = run.rounds
    hidden = len(history) - HISTORY_MAX
    text = _wrap("history", f"{format_count(hidden, 'earlier round')} not shown") if hidden > 0 else ""
    said = [_find_first(run.reason)] if run.reason and run.phase not in (ENDED, FORMING) else []
    for past in history[-HISTORY_MAX:]:
        first = _find_first(past.reason)
        why = "" if first in said else describe_reason(first)
        reason = f": {why}" if why else ""
        said.append(first)
        clock = f"{format_clock(past.began_at, run.at)}  " if past.began_at and run.at else ""
        world = format_world(past.world_size, past.node_count)
        text += _wrap(f"round {past.round}", f"{clock}{world}{reason}{_format_end(past)}")
    return text


def _format_end(past: RoundView) -> str:
    return f"; ended after {format_duration(past.ran_s)}: {explain_end(past)}" if past.ended is not None else ""


def _find_first(reason: Reason | None) -> Reason | None:
    return replace(reason, also=()) if reason is not None else None  # the planner's further reasons are in the JSON


def _format_faults(faults: Sequence[str]) -> str:
    shown = [truncate(fault, 2 * WIDTH) for fault in faults[:FAULTS_MAX]]
    more = [f"and {len(faults) - FAULTS_MAX:,} more"] if len(faults) > FAULTS_MAX else []
    return "".join(_wrap("unread" if index == 0 else "", fault) for index, fault in enumerate([*shown, *more]))


# --- texts ---


def _wrap(label: str, text: str) -> str:
    return wrap_labelled(escape(label), escape(text), _LABEL_WIDTH)
