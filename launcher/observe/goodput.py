"""How much of a run's time was training, and what the rest was lost to.

Time between rounds is lost to what ended the round before: a failure, the loss of a node, growth; before the first
round, to the start. Time inside a round counts as training, but for the work that a failure or a loss undid: what
came after the last checkpoint that the workers reported. Without such reports nobody knows how much that was, and it
counts as training.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from launcher.observe.timeline import RoundSummary

START = "start"
UNDOING = ("failure", "loss", "isolation")
"""The causes after which the workers begin again at their last checkpoint."""


class Goodput(Struct, frozen=True, kw_only=True):
    """Seconds since the run began here: all, those of training, and those lost, by cause."""

    total_s: float
    trained_s: float
    lost_s: dict[str, float]

    @property
    def ratio(self) -> float:
        """The part of the time that was training, 0 to 1; 0 before there is any."""
        return self.trained_s / self.total_s if self.total_s > 0 else 0.0


def compute_goodput(rounds: Sequence[RoundSummary], began_at: float, now: float) -> Goodput:
    """Compute it for a run that this agent has followed since `began_at`. All times: seconds since 1970."""
    lost: dict[str, float] = {}
    trained = 0.0
    at, cause = began_at, START
    for one in rounds:
        lost[cause] = lost.get(cause, 0.0) + max(0.0, one.began_at - at)
        at = one.ended_at or now
        kept_until = one.saved_at if one.saved_at and one.cause in UNDOING else at
        trained += max(0.0, kept_until - one.began_at)
        cause = one.cause or "unknown"
        lost[cause] = lost.get(cause, 0.0) + max(0.0, at - kept_until)
    if not rounds or rounds[-1].ended_at:
        lost[cause] = lost.get(cause, 0.0) + (max(0.0, now - at) if cause != "end" else 0.0)
    return Goodput(
        total_s=trained + sum(lost.values()),
        trained_s=trained,
        lost_s={name: seconds for name, seconds in lost.items() if seconds > 0},
    )
