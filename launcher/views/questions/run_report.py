"""What is made of the reports of nodes: one of the run, and one that fits into a note."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from launcher.views.node_report import NodeReport, RunReport
from launcher.views.questions.messages import is_sendable

LOST_CAUSES = ("loss", "isolation", "leaving")


def make_run_report(
    answers: Mapping[str, object], members: Mapping[str, str], leader_id: str, run_id: str, at: float
) -> RunReport:
    """Put the answers of all members, by member id, together. `at`: seconds since 1970."""
    reports = [one for one in answers.values() if isinstance(one, NodeReport)]
    nodes = sorted(reports, key=lambda one: (one.group_rank < 0, one.group_rank, one.node))
    leader = next((one for one in nodes if one.member_id == leader_id), None)
    historian = leader if leader is not None and leader.rounds else None
    if historian is None:  # no leader has answered, or it has been a spare so far
        historian = max(nodes, key=lambda one: (len(one.rounds), one is leader, -one.started_at), default=None)
    rounds = historian.rounds if historian is not None else ()
    present = {one.node for one in nodes} | set(members.values())
    gone = {name for one in rounds if one.cause in LOST_CAUSES for name in one.nodes}
    return RunReport(
        run_id=run_id,
        at=at,
        leader=members.get(leader_id, ""),
        nodes=tuple(replace(one, rounds=one.rounds[-1:]) for one in nodes),
        missing=tuple(sorted(name for one, name in members.items() if one not in answers)),
        lost=tuple(sorted(gone - present)),
        rounds=rounds,
        goodput=historian.goodput if historian is not None else None,
    )


def shorten_report(report: NodeReport) -> NodeReport:
    """Shorten a report that no note can hold: of hundreds of workers, or of rounds with long errors."""
    rounds = tuple(replace(one, error=one.error[:200], ranks=(), hang=()) for one in report.rounds)
    short = replace(report, rounds=rounds[-20:])
    return short if is_sendable(short) else replace(report, rounds=(), ranks=report.ranks[:100])
