"""Renders the status of a job as text: readable without colour, on 80 columns, at 3 nodes and at 1,000.

First the job and its phase, then the nodes, then the history. Up to a screenful of nodes each has a line; of more,
those that need attention have one, and the rest are ranges in a summary by state. `--nodes` gives every node its
line. Text from the store is cut to the width of its column, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.meshctl.status.places import LocalityColumn, summarize_locality
from launcher.meshctl.status.state import ENDED, FORMING, RUNNING, STOPPING, NodeState, Overview
from launcher.model import ranges
from launcher.model.text import WIDTH, format_count, format_list, wrap_labelled
from rendezvous.records import RoundHistory

NODES_MAX = 24
HISTORY_MAX = 8
FAULTS_MAX = 5
RANGES_MAX = 12
_LABEL_WIDTH = 10  # width of the first column
_NAME_MAX, _CELL_MAX, _PLACE_MAX = 22, 12, 18  # with the other columns 80 letters
_HEALTHY_STATES = ("running", "succeeded", "spare", "stopped", "waiting")  # states that need no attention
_EXPLAINED_ABOVE = ("spare", "quarantined")  # with their reasons, once for all who have the same
_SILENCE_MAX_S = 3.0  # without a keep-alive: with the usual lease two have been missed


def describe(overview: Overview, *, all_nodes: bool = False) -> str:
    """Describe the overview. `all_nodes`: a line for each node, however many there are."""
    stand = summarize_locality(overview.nodes)
    parts = (
        _format_job(overview, stand.common),
        _format_nodes(overview, all_nodes, stand),
        _format_history(overview.history),
        _format_faults(overview.faults),
    )
    return "\n".join(filter(None, parts)).removesuffix("\n")


def format_headline(overview: Overview) -> str:
    """Format what the job does now, in one sentence."""
    if overview.verdict is not None:
        ended = {"success": "succeeded", "failure": "failed", "stopped": "was stopped"}
        how = ended.get(overview.verdict.kind, "has ended")
        why = f": {overview.verdict.reason}" if overview.verdict.kind != "success" else ""
        return f"{how} in round {overview.verdict.round}, exit code {overview.verdict.exit_code}{why}"
    if overview.phase == FORMING:
        return f"no round yet, {format_count(len(overview.nodes), 'node')} there"
    world = f"{format_count(overview.world_size, 'rank')} on {format_count(len(overview.active), 'node')}"
    if overview.phase == RUNNING:
        return f"round {overview.round} runs {world}"
    doing = "is being stopped" if overview.phase == STOPPING else "is over, the next one is not sealed yet"
    return f"round {overview.round} {doing}: {overview.stop_reason}"


def format_mesh(overview: Overview) -> str:
    """Format pp=4, dp=7, tp=8: the mesh with the sizes of this round, or as the user requested it."""
    axes = [axis.partition("=")[0] for axis in overview.mesh.split(",")]
    if len(axes) != len(overview.shape):
        return overview.mesh
    return ", ".join(f"{axis}={size}" for axis, size in zip(axes, overview.shape, strict=True))


def _format_job(overview: Overview, common: str) -> str:
    spares = [node for node in overview.nodes if node.state in ("spare", "waiting") and not node.ranks]
    quarantined = [node for node in overview.nodes if node.state == "quarantined"]
    restarts = format_count(overview.restart_count, "restart") + " charged" if overview.restart_count else ""
    if overview.short_rounds > 1:
        restarts += f"{', ' if restarts else ''}{overview.short_rounds} short rounds in a row"
    rows = (
        ("run", f"{overview.run_id}, job {overview.job_key}"),
        ("now", format_headline(overview)),
        ("why", overview.reason if overview.phase not in (ENDED, FORMING) else ""),
        ("mesh", format_mesh(overview)),
        ("leader", overview.leader or ("none" if overview.phase != ENDED else "")),
        ("workers", f"meet at {overview.coordinator}" if overview.coordinator and overview.phase == RUNNING else ""),
        ("place", f"all nodes are on {common}" if common else ""),
        ("restarts", restarts),
        ("spares", _format_reasons(spares) if overview.round else ""),
        ("quarantined", _format_reasons(quarantined)),
        ("drained", _format_names(overview.drained)),
        ("asked", format_list(overview.requests, 4)),
    )
    return "".join(_wrap(label, text) for label, text in rows if text)


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


def _format_nodes(overview: Overview, all_nodes: bool, locality: LocalityColumn) -> str:
    nodes = overview.nodes
    if not nodes:
        return ""
    if all_nodes or len(nodes) <= NODES_MAX:
        return _format_table(nodes, locality)
    unusual = [node for node in nodes if _needs_attention(node)]
    by_state: dict[str, list[str]] = {}
    for node in nodes:
        by_state.setdefault(node.state, []).append(node.name)
    summary = "".join(
        _wrap(state, f"{format_count(len(names), 'node')}: {_format_names(names)}")
        for state, names in sorted(by_state.items(), key=lambda row: (-len(row[1]), row[0]))
    )
    more = f"and {len(unusual) - NODES_MAX:,} more; --nodes shows all\n" if len(unusual) > NODES_MAX else ""
    return summary + (f"\n{_format_table(unusual[:NODES_MAX], locality)}{more}" if unusual else "")


def _needs_attention(node: NodeState) -> bool:
    return node.state not in _HEALTHY_STATES or (node.silent_s or 0.0) > _SILENCE_MAX_S


def _format_table(nodes: Sequence[NodeState], locality: LocalityColumn) -> str:
    head = ("node", "state", "ranks", *([locality.header] if locality.cells else []), "last seen", "")
    rows = [head]
    for node in nodes:
        place = [locality.cells[node.member_id]] if locality.cells else []
        why = ", ".join(filter(None, ("leads" if node.is_leader else "", node.why)))
        rows.append(
            (
                _truncate(node.name, _NAME_MAX),
                node.state,
                _format_ranks(node.ranks),
                *(_truncate(cell, _PLACE_MAX) for cell in place),
                _format_last_seen(node),
                why,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    text = ""
    for row in rows:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
        why = escape_unprintable(row[-1])
        if len(line) + 2 + len(why) <= WIDTH:
            text += f"{line}  {why}".rstrip() + "\n"
        elif row[1] in _EXPLAINED_ABOVE:
            text += line.rstrip() + "\n"
        else:
            text += line.rstrip() + "\n" + _wrap("", _truncate(why, 2 * WIDTH))
    return text


def _format_ranks(values: Sequence[int]) -> str:
    return _truncate(ranges.format_ranges(values) if values else "-")


def _format_last_seen(node: NodeState) -> str:
    return f"{node.silent_s:.0f} s ago" if node.silent_s is not None else "-"


# --- history ---


def _format_history(history: Sequence[RoundHistory]) -> str:
    if not history:
        return ""
    shown = history[-HISTORY_MAX:]
    hidden = len(history) - len(shown)
    text = _wrap("history", f"{format_count(hidden, 'earlier round')} not shown") if hidden else ""
    for past in shown:
        world = f"{format_count(past.world_size, 'rank')} on {format_count(past.node_count, 'node')}"
        why = past.reason.partition(";")[0]  # the planner's further reasons are in the JSON
        ran = f"; ended after {format_duration(past.ran_s)}: {past.ended}" if past.ended else ""
        text += _wrap(f"round {past.round}", f"{world}: {why}{ran}")
    return text


def _format_faults(faults: Sequence[str]) -> str:
    shown = [_truncate(escape_unprintable(fault), 2 * WIDTH) for fault in faults[:FAULTS_MAX]]
    more = [f"and {len(faults) - FAULTS_MAX:,} more"] if len(faults) > FAULTS_MAX else []
    return "".join(_wrap("unread" if index == 0 else "", fault) for index, fault in enumerate([*shown, *more]))


# --- texts ---


def format_duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 5 s, 2 h 40 min, 3 d 4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def escape_unprintable(text: str) -> str:
    """Return the text in one line: line ends and control characters are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _truncate(text: str, most: int = _CELL_MAX) -> str:
    text = escape_unprintable(text)
    return text if len(text) <= most else text[: most - 3] + "..."


def _wrap(label: str, text: str) -> str:
    return wrap_labelled(label, escape_unprintable(text), _LABEL_WIDTH)
