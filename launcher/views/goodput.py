"""How much of a run's time was training, and what the rest was lost to.

Time between rounds is lost to what ended the round before: a failure, the loss of a node, growth; before the first
round, to the start. Time inside a round counts as training, but for the work that a failure or a loss undid: what
came after the last checkpoint that the workers reported, all of the round if that was in an earlier one. In a job
without such reports nobody knows how much that was, and it counts as training.

A clock that is set back, or a report that comes late, makes no time negative or more than it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.views.run_view import Goodput, RoundView

START = "start"
UNDOING = ("failure", "loss", "isolation")
"""The causes after which the workers begin again at their last checkpoint."""


Span = tuple[str, float, int]
"""What it was lost to, or "" for training; seconds; the round of training."""


class TimeSpent(Struct, kw_only=True):
    """How the time up to `until` was spent. All times are seconds since 1970."""

    until: float
    cause: str = START
    """What ended the last round: a pause is lost to it."""
    trained_s: float = 0.0
    lost_s: dict[str, float] = field(default_factory=dict)
    has_saved: bool = False
    """Whether a checkpoint was ever reported."""
    spans: list[Span] | None = None
    """All of it in order; None if that is not wanted."""

    def add(self, one: RoundView, now: float) -> None:
        """Add a round, and the pause before it; one that still runs is counted up to `now`."""
        self._lose(one.began_at)
        self.until = max(one.began_at, one.ended_at or now)
        self.cause = one.cause or "unknown"
        self.has_saved = self.has_saved or one.saved_at > 0
        is_undone = self.has_saved and one.cause in UNDOING
        kept_until = min(max(one.began_at, one.saved_at), self.until) if is_undone else self.until
        self.trained_s += kept_until - one.began_at
        self._keep("", kept_until - one.began_at, one.round)
        self._lose(self.until, kept_until)

    def add_pause(self, now: float) -> None:
        """Add what has been lost since the last round, unless that ended the run."""
        if self.cause != "end":
            self._lose(now)

    def _lose(self, until: float, since: float | None = None) -> None:
        lost_s = max(0.0, until - (self.until if since is None else since))
        self.lost_s[self.cause] = self.lost_s.get(self.cause, 0.0) + lost_s
        self._keep(self.cause, lost_s, 0)

    def _keep(self, cause: str, lasted_s: float, round: int) -> None:
        if self.spans is not None and lasted_s > 0:
            self.spans.append((cause, lasted_s, round))


def compute_goodput(rounds: Iterable[RoundView], before: TimeSpent, now: float) -> Goodput:
    """Compute it from the rounds that are known one by one, and what became of the time before them."""
    spent = replace(before, lost_s=dict(before.lost_s))
    _spend(rounds, spent, now)
    return Goodput(
        total_s=spent.trained_s + sum(spent.lost_s.values()),
        trained_s=spent.trained_s,
        lost_s={name: seconds for name, seconds in spent.lost_s.items() if seconds > 0},
    )


def list_spans(rounds: Sequence[RoundView], since: float, now: float) -> list[Span]:
    """List how the time since then was spent, in order."""
    found: list[Span] = []
    _spend(rounds, TimeSpent(until=since, spans=found), now)
    return found


def _spend(rounds: Iterable[RoundView], spent: TimeSpent, now: float) -> None:
    last = None
    for last in rounds:
        spent.add(last, now)
    if last is None or last.ended_at:
        spent.add_pause(now)
