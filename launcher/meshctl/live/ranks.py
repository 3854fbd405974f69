"""`meshctl ps`: the workers of a run, each with its node, state, place in the mesh and use of the machine."""

from __future__ import annotations

from launcher.meshctl.table import Column, format_age, format_size, format_table
from launcher.model.console import escape
from launcher.model.ranges import merge_names
from launcher.model.text import format_list
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
    ranks = [rank for _, rank in rows]
    return [
        Column("rank", tuple(str(rank.rank) for rank in ranks), is_right=True),
        Column("node", tuple(node.name for node, _ in rows)),
        Column("pid", tuple(str(rank.pid or "-") for rank in ranks), is_right=True),
        Column("state", tuple(map(format_state, ranks))),
        Column("cpu", tuple(format_cores(rank.cores) for rank in ranks), is_right=True),
        Column("memory", tuple(format_size(rank.rss_bytes or -1) for rank in ranks), is_right=True),
        Column("step", tuple(str(rank.step) if rank.step >= 0 else "-" for rank in ranks), 1, is_right=True),
        Column("progress", tuple(format_progress(rank) for rank in ranks), 2),
        Column("place", tuple(rank.place for rank in ranks), 3),
        Column("phase", tuple(rank.phase or "-" for rank in ranks), 4),
        Column("devmem", tuple(map(format_device_memory, ranks)), 5, is_right=True),
        Column("device", tuple(rank.device or "-" for rank in ranks), 7),
        Column("read", tuple(format_size(rank.read_bytes or -1) for rank in ranks), 8, is_right=True),
        Column("written", tuple(format_size(rank.written_bytes or -1) for rank in ranks), 9, is_right=True),
    ]


def format_state(rank: RankView) -> str:
    """running, or failed (1): the exit code."""
    return f"{rank.state} ({rank.exit_code})" if rank.state == "failed" else rank.state


def format_cores(cores: float) -> str:
    """ "1.0": one core all of the time."""
    return f"{cores:.1f}" if cores >= 0 else "-"


def format_progress(rank: RankView) -> str:
    """The age of the last sign of progress."""
    return f"{format_age(rank.progress_age_s)} ago" if rank.progress_age_s >= 0 else "-"


def format_device_memory(rank: RankView) -> str:
    """ "20G/80G" """
    if rank.device_memory_bytes < 0:
        return "-"
    return f"{format_size(rank.device_memory_bytes)}/{format_size(rank.device_memory_total_bytes)}"


def format_names(names: tuple[str, ...] | list[str]) -> str:
    return format_list(merge_names(names))
