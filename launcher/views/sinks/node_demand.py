"""Whether a run has fewer nodes than it wants, and whether that should be said now. Nothing here reads a clock.

What is said goes to something that can provide nodes: a command of the user's, or an engine below the launcher. It is
told the state, "wanted 4, present 3, since 18:00", never a difference, so that it may be told twice, late, or by
another leader. It hears of each state that has lasted for a moment, of one that lasts again and again with longer and
longer pauses, and once more when all nodes are there, so that it can withdraw what it has asked for.

    decision = decide_demand(history, wanted=4, present=3, now=now)
    if decision.reason: ...                     # say it
    history = decision.history                  # and decide again at decision.next_at, or when a figure changes
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.mesh import Mesh
from launcher.model.text import format_count, format_duration

SETTLE_S = 10.0
"""How long figures must not have changed: nodes come and go in groups, and an agent that restarts is back by then."""
PAUSE_S = 30.0
"""Between two requests, whatever changes meanwhile: what provides nodes asks an API with a limit of its own. That all
are there is said at once."""
REPEAT_FIRST_S = 120.0
"""Until the same figures are said again, twice as long each further time: the first request may have been lost."""
REPEAT_MAX_S = 3600.0


class DemandHistory(Struct, frozen=True, kw_only=True):
    """What was observed and requested so far."""

    figures: tuple[int, int] | None = None
    """Wanted and present, as of the last decision."""
    changed_at: float = -math.inf
    """When `figures` last changed."""
    below_since: float | None = None
    """Since when nodes have been missing, None if none are."""
    said: tuple[int, int] | None = None
    said_at: float = -math.inf
    repeat_count: int = 0
    is_owed: bool = False
    """A request may be open that has to be withdrawn once all nodes have joined; also true for a new leader, which
    cannot know.
    """


class DemandDecision(Struct, frozen=True, kw_only=True):
    """Whether to run the command now."""

    history: DemandHistory
    reason: str
    """Why the numbers should be sent now, "" if they should not."""
    next_at: float
    """When to decide again."""


# docs/internals/decisions/0058-requests-for-nodes-by-a-command.md
def decide_demand(history: DemandHistory, wanted: int, present: int, now: float) -> DemandDecision:
    """Decide whether a run of `present` nodes that wants `wanted` should say so now. Times are of one clock."""
    figures, is_below = (wanted, present), present < wanted
    if figures != history.figures:
        history = replace(history, figures=figures, changed_at=now, repeat_count=0)
    since = (now if history.below_since is None else history.below_since) if is_below else None
    history = replace(history, below_since=since)
    if not is_below and not history.is_owed:
        return DemandDecision(history=history, reason="", next_at=math.inf)
    is_repeat = is_below and figures == history.said
    pause_s = _compute_repeat_s(history.repeat_count) if is_repeat else PAUSE_S if is_below else 0.0
    due_at = max(history.changed_at + SETTLE_S, history.said_at + pause_s)
    if now < due_at:
        return DemandDecision(history=history, reason="", next_at=due_at)
    count = history.repeat_count + is_repeat
    said = replace(history, said=figures, said_at=now, repeat_count=count, is_owed=is_below)
    next_at = now + _compute_repeat_s(count) if is_below else math.inf
    return DemandDecision(
        history=said, reason=_describe(wanted, present, 0.0 if since is None else now - since), next_at=next_at
    )


def _compute_repeat_s(repeat_count: int) -> float:
    return float(min(REPEAT_MAX_S, REPEAT_FIRST_S * 2.0 ** min(repeat_count, 30)))


def choose_wanted(nodes_min: int, nodes_max: int | None, target_nodes: int, useful: int | None) -> int:
    """Return how many nodes a run wants: as many as it may have and its mesh can use.

    `nodes_max` None: any number; `useful` None: the mesh can use any number (see `count_useful_nodes`). Where neither
    is bounded, it wants what it was told to start with, `target_nodes` (0: not told), or the least.
    """
    bounds = [bound for bound in (nodes_max, useful) if bound is not None]
    return max(nodes_min, min(bounds) if bounds else target_nodes)


def count_useful_nodes(mesh: Mesh, elastic_max: int | None, slot_count: int) -> int | None:
    """Return how many nodes with so many slots the largest world of the mesh fills; None if it has no largest."""
    if mesh.elastic_axis is not None and elastic_max is None:
        return None
    world_size = mesh.replica_size * (elastic_max or 1 if mesh.elastic_axis is not None else 1)
    return -(-world_size // max(1, slot_count))


def _describe(wanted: int, present: int, below_s: float) -> str:
    if present >= wanted:
        return f"wanted {format_count(wanted, 'node')}, present {present}"
    return f"wanted {format_count(wanted, 'node')}, present {present}, for {format_duration(below_s)}"
