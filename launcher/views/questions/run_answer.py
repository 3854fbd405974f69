"""What is made of the answers of nodes: one view of the run, and one of a node that fits into a note."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from launcher.views.questions.messages import is_sendable
from launcher.views.run_view import NodeView, RoundView, RunView, guess_run, join_nodes


def make_run_view(
    answers: Mapping[str, object], members: Mapping[str, str], leader_id: str, run_id: str, at: float
) -> RunView:
    """Put the answers of all members, by member id, together. `at`: seconds since 1970."""
    leader = answers.get(leader_id)
    run = leader.run if isinstance(leader, NodeView) else None
    if run is None:
        run = guess_run(answers.values(), run_id, members.get(leader_id, ""), at)
    return join_nodes(run, answers, members)


def shorten_view(node: NodeView) -> NodeView:
    """Shorten a view that no note can hold: of hundreds of workers, or of rounds with long errors."""
    if (run := node.run) is not None:
        run = replace(run, nodes=(), rounds=tuple(map(_shorten_round, run.rounds[-20:])))
    if is_sendable(short := replace(node, run=run)):
        return short
    run = replace(run, rounds=run.rounds[-1:], failure=None, options={}, faults=()) if run is not None else None
    last = _shorten_round(node.last) if node.last is not None else None
    return replace(node, run=run, last=last, ranks=node.ranks[:100])


def _shorten_round(one: RoundView) -> RoundView:
    return replace(one, error=one.error[:200], ranks=())
