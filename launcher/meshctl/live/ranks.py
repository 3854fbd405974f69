"""`meshctl ps`: the workers of a run, each with its node, state, place in the mesh and use of the machine."""

from __future__ import annotations

from launcher.meshctl.table import Column, format_table
from launcher.model.console import escape
from launcher.views.rows import FORMS, RANK_COLUMNS, format_names
from launcher.views.run_view import SILENT, NodeView, RankView, RunView
from launcher.views.sentences import explain_node, explain_shortness
from rendezvous.records import name_run

RankRow = tuple[NodeView, RankView]


def list_ranks(report: RunView) -> list[RankRow]:
    """List all workers with their nodes, by rank."""
    rows = [(node, rank) for node in report.nodes for rank in node.ranks]
    return sorted(rows, key=lambda row: (row[1].rank, row[0].name))


def describe_ranks(report: RunView, width: int = 0) -> str:
    """Describe them as a table, `width` letters wide (0: all columns), and the nodes without workers."""
    rows = list_ranks(report)
    parts = [format_table(make_rank_columns(rows), width)] if rows else []
    idle: dict[str, list[str]] = {}
    for node in report.nodes:
        if not node.ranks and node.state != SILENT:
            state = "" if node.state == "waiting" and node.why else node.state  # the sentence contains it
            idle.setdefault(": ".join(filter(None, (state, explain_node(node)))), []).append(node.name)
    rest = [f"{format_names(names)}: {state}" for state, names in sorted(idle.items())]
    if report.silent:
        rest.append(f"{format_names(report.silent)}: no answer")
    if report.is_short:
        rest.append(explain_shortness(report))
    if rest:
        parts.append("\n".join(map(escape, rest)))
    return "\n\n".join(parts) or f"{name_run(report.run_id)} has no workers"


def make_rank_columns(rows: list[RankRow]) -> list[Column]:
    """Make the columns of a table of workers."""
    return [
        Column(
            one.header,
            tuple(
                node.name if one.field == "node" else FORMS[one.form](getattr(rank, one.field), rank)
                for node, rank in rows
            ),
            one.priority,
            is_right=one.form not in ("text", "state", "age"),
        )
        for one in RANK_COLUMNS
    ]
