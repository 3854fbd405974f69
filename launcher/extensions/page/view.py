"""What the page shows of a run, made from what its nodes say of themselves.

A page with a thousand nodes reads this every few seconds, so a rank is a row of a table here, without the names of its
fields, and times are rounded. What a node has said is remembered while it is silent, or lost: the picture keeps its
shape, and shows what was last known there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from launcher.locality.merge import order_known_levels
from launcher.model.errors import describe
from launcher.views.goodput import Goodput
from launcher.views.node_report import NodeReport, RankReport, RunReport

SILENT, LOST = "silent", "lost"
_OF_SOURCE = ("round", "world_size", "node_count", "restart_count", "max_restarts")
LOST_MAX = 200
"""Lost nodes that are shown, the first by name: a run of months may have lost thousands."""


class RankRow(Struct, frozen=True, kw_only=True, array_like=True):
    """A worker, as in `RankReport`; -1 is unknown."""

    rank: int
    state: str
    step: int
    progress_age_s: float
    """Since its last sign of progress."""
    cores: float
    rss_bytes: int
    phase: str
    place: str
    pid: int
    exit_code: int | None
    sentence: str
    device: str
    device_memory_bytes: int
    device_memory_total_bytes: int
    read_bytes: int
    written_bytes: int
    started_at: float
    """In whole seconds."""


class NodeView(Struct, frozen=True, kw_only=True):
    """A node."""

    name: str
    state: str
    """As in `NodeReport`, "silent" for one that has not answered in time, or "lost"."""
    path: tuple[str, ...] = ()
    """Its domain at each of the run's levels, "" for unknown."""
    seen_s: float = 0.0
    """Time since its last answer, -1 if it never answered."""
    is_leader: bool = False
    waiting: str = ""
    round: int = 0
    slot_count: int = 0
    version: str = ""
    pid: int = 0
    rss_bytes: int = 0
    store_latency_s: float = -1.0
    log_dir: str = ""
    ranks: tuple[RankRow, ...] = ()


class RunView(Struct, frozen=True, kw_only=True):
    """A run."""

    run_id: str
    now: float
    """Seconds since 1970 by the clock of the rounds' times."""
    leader: str
    state: str
    """"running" or "waiting"."""
    waiting: str
    problem: str
    """Why there is nothing newer, "" if there is."""
    age_s: float
    """Age of this view."""
    round: int
    world_size: int
    node_count: int
    restart_count: int
    max_restarts: int
    mesh: tuple[tuple[str, int], ...]
    """Axes and their sizes."""
    levels: tuple[str, ...]
    """Of the network, outermost first."""
    nodes: tuple[NodeView, ...]
    rounds: tuple[dict[str, Any], ...]
    """As the leader saw them: a `RoundSummary` with sentences, and without the ranks of a node."""
    goodput: Goodput | None
    """As the leader computed it."""
    checkpoint_count: int
    hang_count: int
    schema: int = 1


class SeenNode(Struct, frozen=True, kw_only=True):
    """What a node has said last, and when that came, by the reader's monotonic clock."""

    report: NodeReport
    at: float


def remember(seen: Mapping[str, SeenNode], report: RunReport, now: float) -> dict[str, SeenNode]:
    """Return what is known of each node that the report names, with what is new in it."""
    named = {*report.missing, *report.lost}
    known = {name: one for name, one in seen.items() if name in named}
    return {**known, **{one.node: SeenNode(report=one, at=now) for one in report.nodes}}


def make_view(report: RunReport, seen: Mapping[str, SeenNode], now: float) -> RunView:
    """Make the view of a report. `now`: on the clock of `seen`."""
    leader = next((one for one in report.nodes if one.is_leader), None)
    active = next((one for one in (leader, *report.nodes) if one is not None and one.round), leader)
    known = [*report.nodes, *(one.report for one in seen.values())]
    levels = order_known_levels(one.locality for one in known)
    nodes = [_make_node(one, one.state, 0.0, levels) for one in report.nodes]
    for names, state in ((report.missing, SILENT), (report.lost[:LOST_MAX], LOST)):
        for name in names:
            before = seen.get(name)
            if before is None:
                nodes.append(NodeView(name=name, state=state, path=("",) * len(levels), seen_s=-1.0))
            else:
                nodes.append(_make_node(before.report, state, now - before.at, levels))
    source = active or (report.nodes[0] if report.nodes else None)
    return RunView(
        run_id=report.run_id,
        now=leader.at if leader is not None else report.at,
        leader=report.leader,
        state="running" if source is not None and source.round else "waiting",
        waiting=describe(source.waiting) if source is not None else "",
        problem="",
        age_s=0.0,
        mesh=tuple(zip(source.mesh_axes, source.mesh_shape, strict=False)) if source is not None else (),
        levels=levels,
        nodes=tuple(nodes),
        rounds=tuple(replace(one, ranks=()).describe() for one in report.rounds),
        goodput=report.goodput,
        **{name: getattr(source, name, 0) for name in _OF_SOURCE},
        **{name: getattr(leader, name, 0) for name in ("checkpoint_count", "hang_count")},
    )


def _make_node(report: NodeReport, state: str, seen_s: float, levels: tuple[str, ...]) -> NodeView:
    place = dict(report.locality)
    return NodeView(
        name=report.node,
        state=state,
        path=tuple(place.get(level, "") for level in levels),
        seen_s=round(seen_s, 1),
        is_leader=report.is_leader and state not in (SILENT, LOST),
        waiting=describe(report.waiting),
        round=report.round,
        slot_count=report.slot_count or len(report.ranks),
        version=report.version,
        pid=report.agent_pid,
        rss_bytes=report.agent_rss_bytes,
        store_latency_s=round(report.store_latency_s, 4),
        log_dir=report.log_dir,
        ranks=tuple(_make_row(one) for one in report.ranks),
    )


def _make_row(one: RankReport) -> RankRow:
    row = msgspec.convert(one, RankRow, from_attributes=True)
    return replace(
        row, progress_age_s=round(one.progress_age_s, 1), cores=round(one.cores, 2), started_at=round(one.started_at)
    )
