"""What is known of a run, in rows and columns: `status`, `ps`, `top` and the page show these, each in its own form.

A row is a label with a sentence; one that needs a look has a kind, too, by which the page colours it. A column has the
field of a rank that it shows, and how; the page has the same formats in its script, since it gets eight ranks of each
of a thousand nodes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from launcher.model import ranges
from launcher.model.errors import describe
from launcher.model.text import format_duration, format_list
from launcher.views.run_view import ENDED, FORMING, RUNNING, SILENT, NodeView, RankView, RoundView, RunView
from launcher.views.sentences import explain_node, explain_shortness, format_failure, format_goodput

SLOW_S = 60.0
"""Without a sign of progress: then the rank needs a look."""
RANK_KINDS = {
    "ok": "running",
    "slow": f"no sign of progress for {SLOW_S:g} s",
    "held": "stopped or blocked",
    "bad": "failed",
    "done": "succeeded",
    "quiet": "ended, or not known",
}
"""Of a rank, each with what it means."""
_OF_STATES = {"failed": "bad", "succeeded": "done", "terminated": "quiet", "unknown": "quiet"}
NAMES_MAX, REASONS_MAX = 12, 8
Key = TypeVar("Key")


class Row(NamedTuple):
    """A row of a run's description."""

    label: str
    text: str
    kind: str = ""
    """Of a rank, or the state of a node; "" if it needs no look."""
    rank: int = -1
    """The first that it is about, -1 for none."""
    node: str = ""


class RankColumn(NamedTuple):
    """A column of the table of ranks."""

    header: str
    field: str
    """Of a RankView; "node" is the name of its node."""
    form: str = "text"
    """A key of `FORMS`."""
    priority: int = 0
    """The higher, the sooner it is left out; 0 never."""


# fmt: off
RANK_COLUMNS = (
    RankColumn("rank", "rank", "count"),
    RankColumn("node", "node"),
    RankColumn("pid", "pid", "id"),
    RankColumn("state", "state", "state"),
    RankColumn("cpu", "cores", "cores"),
    RankColumn("memory", "rss_bytes", "size"),
    RankColumn("step", "step", "count", 1),
    RankColumn("progress", "progress_age_s", "age", 2),
    RankColumn("place", "place", "text", 3),
    RankColumn("phase", "phase", "text", 4),
    RankColumn("devmem", "device_memory_bytes", "share", 5),
    RankColumn("device", "device", "text", 7),
    RankColumn("read", "read_bytes", "size", 8),
    RankColumn("written", "written_bytes", "size", 9),
)
# fmt: on


def format_size(count: int) -> str:
    """ "64M", "1.0G", "-" for less than nothing; powers of 1024."""
    if count < 0:
        return "-"
    size = float(count)
    for unit in ("", "K", "M", "G", "T"):
        if size < 1000:
            return f"{size:.0f}{unit}" if size >= 10 or not unit else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.0f}P"


def _format_share(used: int, rank: RankView) -> str:
    return "-" if used < 0 else f"{format_size(used)}/{format_size(rank.device_memory_total_bytes)}"


FORMS: dict[str, Callable[[Any, RankView], str]] = {
    "text": lambda text, _: text or "-",
    "id": lambda number, _: str(number or "-"),
    "state": lambda state, rank: f"{state} ({rank.exit_code})" if state == "failed" else state,
    "count": lambda count, _: str(count) if count >= 0 else "-",
    "cores": lambda cores, _: f"{cores:.1f}" if cores >= 0 else "-",
    "size": lambda count, _: format_size(count or -1),
    "age": lambda age_s, _: f"{format_duration(age_s)} ago" if age_s >= 0 else "-",
    "share": _format_share,
}
"""How a value is shown; all but "text" and "state" are numbers."""


def classify_rank(rank: RankView) -> str:
    """Return its kind, one of `RANK_KINDS`."""
    if rank.state == "running":
        return "slow" if rank.progress_age_s >= SLOW_S else "ok"
    return _OF_STATES.get(rank.state, "held")


def list_rows(run: RunView, common: str = "") -> list[Row]:
    """List what is known of a run as a whole, below its headline. `common`: the place that all nodes share."""
    nodes = {state: [one for one in run.nodes if one.state == state] for state in ("leaving", "quarantined", SILENT)}
    spares = [node for node in run.nodes if node.state in ("spare", "waiting") and not node.ranks]
    present = [node for node in run.nodes if node.state not in (SILENT, "lost")]  # those may have said something before
    steps = [step for node in present for step in (node.step, *(rank.step for rank in node.ranks)) if step >= 0]
    low, high = min(steps, default=-1), max(steps, default=-1)
    rows = [
        Row("why", describe(run.reason) if run.reason and run.phase not in (ENDED, FORMING) else ""),
        Row("hang", "; ".join(run.hang), "slow"),
        Row("failure", format_failure(run.failure), "bad"),
        *_list_rank_rows(present),
        Row("mesh", format_mesh(run)),
        Row("leader", run.leader or ("none" if run.phase != ENDED else "")),
        Row("workers", f"meet at {run.coordinator}" if run.coordinator and run.phase == RUNNING else ""),
        Row("place", f"all nodes are on {common}" if common else ""),
        Row("restarts", _format_restarts(run)),
        Row("goodput", format_goodput(run.goodput)),
        Row("step", (f"{low:,} to {high:,}" if low < high else f"{high:,}") if steps else ""),
        Row("lost", _format_lost(run), "lost", node=run.lost[0][0] if run.lost else ""),
        _make_node_row(SILENT, nodes[SILENT], ": no answer"),
        _make_node_row("leaving", nodes["leaving"], ""),
        Row("spares", format_reasons(spares) if run.round else ""),
        Row("quarantined", format_reasons(nodes["quarantined"]), "quarantined"),
        Row("drained", format_names(run.drained)),
        Row("asked", format_list(run.requests, 4)),
        Row("not shown", explain_shortness(run), "quiet"),
    ]
    return [row for row in rows if row.text]


def _list_rank_rows(nodes: Sequence[NodeView]) -> list[Row]:
    """List the ranks that need a look, by kind."""
    found: dict[str, list[RankView]] = {"bad": [], "held": [], "slow": []}
    for node in nodes:
        for rank in node.ranks:
            if (kind := classify_rank(rank)) in found:
                found[kind].append(rank)
    rows = []
    for kind, ranks in found.items():
        numbers = sorted(rank.rank for rank in ranks)
        if kind == "slow" and ranks:
            what = f"no sign of progress for {format_duration(max(rank.progress_age_s for rank in ranks))}"
        else:
            what = RANK_KINDS[kind]
        named = format_list(ranges.format_ranges(numbers).split(", "), REASONS_MAX)
        rows.append(Row("ranks", f"{named}: {what}" if ranks else "", kind, min(numbers, default=-1)))
    return rows


def _make_node_row(label: str, nodes: Sequence[NodeView], suffix: str) -> Row:
    names = [node.name for node in nodes]
    return Row(label, format_names(names) + suffix if names else "", label, node=names[0] if names else "")


def format_mesh(run: RunView) -> str:
    """Format pp=4, dp=7, tp=8: the mesh with the sizes of this round, or as the user requested it."""
    axes = [axis.partition("=")[0] for axis in run.mesh.split(",") if axis]
    if len(axes) != len(run.shape):
        return run.mesh
    return ", ".join(f"{axis}={size}" for axis, size in zip(axes, run.shape, strict=True))


def _format_restarts(run: RunView) -> str:
    count, most = run.restart_count, run.max_restarts
    parts = [f"{count:,} of {most:,}" if count <= most else f"{count:,}"] if count or most else []
    return ", ".join(parts + ([f"{run.short_rounds} short rounds in a row"] if run.short_rounds > 1 else []))


def _format_lost(run: RunView) -> str:
    """h2 in round 1, h7-h9 in round 3: those that have not come back."""
    by_round = group_names((round, name) for name, round in run.lost)
    return ", ".join(f"{format_names(names)} in round {round}" for round, names in sorted(by_round.items()))


def format_reasons(nodes: Sequence[NodeView]) -> str:
    """h4, h7: no whole replica left; h9: slower."""
    by_reason = group_names((explain_node(node), node.name) for node in nodes)
    parts = [format_names(names) + (f": {reason}" if reason else "") for reason, names in sorted(by_reason.items())]
    return "; ".join(parts[:REASONS_MAX]) + (f"; and {len(parts) - REASONS_MAX} more" if parts[REASONS_MAX:] else "")


def group_names(pairs: Iterable[tuple[Key, str]]) -> dict[Key, list[str]]:
    """Return the names by what each has in common with others."""
    found: dict[Key, list[str]] = {}
    for key, name in pairs:
        found.setdefault(key, []).append(name)
    return found


def format_names(names: Iterable[str]) -> str:
    return format_list(ranges.merge_names(names), NAMES_MAX)


def explain_end(past: RoundView) -> str:
    """Explain what ended a round, as far as that is known: the reason; the exception (rank 7: its class)."""
    how = describe(past.failure_class)
    failure = f" (rank {past.failed_rank}: {how})" if how and past.failed_rank >= 0 else ""
    return "; ".join(filter(None, (describe(past.ended), past.error))) + failure
