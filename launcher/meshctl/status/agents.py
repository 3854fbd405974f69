"""Derives a job's state from what its agents say: for jobs of one machine, which have no store, and without one named.

The same values as from the store's keys, so that both are shown alike; what only the store knows (requests, drained
nodes, the time since keep-alives) is missing.
"""

from __future__ import annotations

from launcher.meshctl.status import state
from launcher.model.errors import describe
from launcher.views.node_report import NodeReport, RunReport
from launcher.views.timeline import RoundSummary
from rendezvous.reasons import Reason
from rendezvous.records import RoundHistory

UNTOLD = Reason("")
"""What agents do not know of a round: it is shown as nothing."""
_ALIKE = (
    "round", "world_size", "node_count", "began_at", "ended_at", "cause", "failed_rank", "failure_class", "nodes",
)  # fmt: skip
"""Fields of a round that the store keeps as agents tell them."""


def derive_overview(report: RunReport) -> state.Overview:
    """Derive the state of a run from the report of its agents."""
    rounds = report.rounds
    last = rounds[-1] if rounds else None
    nodes = tuple(_derive_node(node, report.leader) for node in report.nodes)
    history = tuple(_derive_history(one) for one in rounds)
    shape = next((node.mesh_shape for node in report.nodes if node.mesh_shape), ())
    axes = next((node.mesh_axes for node in report.nodes if node.mesh_axes), ())
    return state.Overview(
        run_id=report.run_id,
        job_key="",
        phase=_derive_phase(report),
        at=report.at,
        mesh=",".join(f"{axis}={size}" for axis, size in zip(axes, shape, strict=False)) or ",".join(axes),
        shape=shape,
        round=last.round if last is not None else 0,
        world_size=last.world_size if last is not None else 0,
        stop_reason=last.reason if last is not None else None,
        leader=report.leader,
        restart_count=last.restart_count if last is not None else 0,
        max_restarts=max((node.max_restarts for node in report.nodes), default=0),
        nodes=tuple(sorted(nodes, key=lambda node: (not node.ranks, node.ranks, node.name, node.member_id))),
        lost=state.find_lost_nodes(history, {node.name for node in nodes} | set(report.missing)),
        silent=report.missing,
        hang=last.hang if last is not None and not last.ended_at else (),
        history=history,
    )


def _derive_phase(report: RunReport) -> str:
    states = {node.state for node in report.nodes}
    if not report.rounds:
        return state.FORMING
    if report.rounds[-1].ended_at and report.rounds[-1].cause == "end":
        return state.ENDED
    if "stopping" in states or "leaving" in states:
        return state.STOPPING
    return state.RUNNING if not report.rounds[-1].ended_at else state.WAITING


def _derive_node(node: NodeReport, leader: str) -> state.NodeState:
    states = {rank.state for rank in node.ranks}
    own = node.state
    if own == "running" and states and states <= {"succeeded"}:
        own = "succeeded"
    elif own == "running" and "failed" in states:
        own = "failed"
    failed = [f"rank {rank.rank}, exit code {rank.exit_code}" for rank in node.ranks if rank.state == "failed"]
    return state.NodeState(
        name=node.node,
        member_id=node.member_id,
        state=own,
        ranks=tuple(sorted(rank.rank for rank in node.ranks)) if node.round else (),
        slot_count=node.slot_count or len(node.ranks),
        path=tuple(domain for _, domain in node.locality),
        locality=node.locality,
        why=", ".join(
            filter(None, (failed[0] if failed else describe(node.waiting), *(f"{one} is off" for one in node.off)))
        ),
        is_leader=node.node == leader and node.is_leader,
    )


def _derive_history(one: RoundSummary) -> RoundHistory:
    ended = one.reason
    if one.error:
        error = Reason.of("meshctl/error", error=one.error)
        ended = one.reason.add(error) if one.reason is not None else error
    return RoundHistory(
        coordinator="",
        reason=UNTOLD,
        ended=ended if one.ended_at else None,
        ran_s=max(0.0, one.ended_at - one.began_at) if one.ended_at else 0.0,
        **{name: getattr(one, name) for name in _ALIKE},
    )
