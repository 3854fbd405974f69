"""The restart budget as a value: how many restarts are used, how a charge is made and refunded, and its way in a seal.

Whether a round is charged is decided in `charge`.

A worker's failure costs one restart, however many ranks fail. A round that lost a node costs nothing: the broken
sockets of its peers are not their fault. Because the loss of a node is noticed later than the failures that it causes,
a charge stays provisional for a short time and is refunded when a loss explains it.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from rendezvous.policy import quarantine
from rendezvous.policy.quarantine import Strike
from rendezvous.reasons import Reason
from rendezvous.records import Seal
from rendezvous.settings import Settings

_STRIKES = ("losses", "first_failures", "blamed")


class RestartBudget(Struct, frozen=True, kw_only=True):
    """The restart budget, with times on the leader's own clock. Fields without a text are those of the Seal."""

    restart_count: int = 0
    charged_at: tuple[float, ...] = ()
    """A time per charged failure, oldest first."""
    short_rounds: int = 0
    provisional_round: int = 0
    provisional_since: float = -math.inf
    port_taken_rounds: int = 0
    losses: tuple[Strike, ...] = ()
    """Strikes for which nodes are quarantined, oldest first; so are `first_failures` and `blamed`."""
    first_failures: tuple[Strike, ...] = ()
    blamed: tuple[Strike, ...] = ()
    best_step: int = -1
    stuck_rounds: int = 0
    same_failure: Reason | None = None
    same_rank: int = -1
    same_failures: int = 0

    def count_spent(self, now: float, window_s: float) -> int:
        """Count the charges of the last `window_s` seconds, which are those that count against the budget at `now`."""
        return sum(1 for at in self.charged_at if now - at <= window_s)

    def add_round(self, duration_s: float, settings: Settings, *, is_futile: bool = False) -> RestartBudget:
        """Return the budget after a round of `duration_s` seconds. `is_futile`: it counts as short in any case."""
        is_short = is_futile or duration_s < settings.min_round_time_s
        return replace(self, short_rounds=self.short_rounds + 1 if is_short else 0)

    def note_step(self, step: int, *, has_failed: bool) -> RestartBudget:
        """Return the budget after a round whose workers got to `step`, -1 for none. `has_failed`: a failure ended it.

        Progress is a step that no earlier round has reached: steps that are done again are none. Without any step ever
        reported nothing is counted.
        """
        if step > self.best_step:
            return replace(self, best_step=step, stuck_rounds=0)
        return replace(self, stuck_rounds=self.stuck_rounds + 1) if has_failed and self.best_step >= 0 else self

    def note_failure(self, rank: int, failure_class: Reason | None) -> RestartBudget:
        """Return the budget after a failure, given as which rank failed and how; -1 and None if that is unknown."""
        is_same = (rank, failure_class) == (self.same_rank, self.same_failure)
        count = (self.same_failures + 1 if is_same else 1) if failure_class else 0
        return replace(self, same_failure=failure_class, same_rank=rank, same_failures=count)

    def charge(self, number: int, failed_at: float, now: float) -> RestartBudget:
        """Charge one restart, provisionally, for the failure of round `number`."""
        return replace(
            self,
            restart_count=self.restart_count + 1,
            charged_at=(*self.charged_at, now),
            provisional_round=number,
            provisional_since=failed_at,
            port_taken_rounds=0,
        )

    def refund(self) -> RestartBudget:
        """Refund the provisional charge, because a node was lost, which explains the failure."""
        return replace(
            self,
            restart_count=self.restart_count - 1,
            charged_at=self.charged_at[:-1],
            provisional_round=0,
            provisional_since=-math.inf,
            first_failures=tuple(strike for strike in self.first_failures if strike.at < self.provisional_since),
            stuck_rounds=max(0, self.stuck_rounds - 1),  # 0 if it made progress; none has come since
        )

    def settle(self, now: float, settle_s: float) -> RestartBudget:
        """Make a provisional charge final once no loss can explain it any more."""
        if self.provisional_round and now - self.provisional_since > settle_s:
            return replace(self, provisional_round=0, provisional_since=-math.inf)
        return self

    def find_quarantines(self, settings: Settings) -> dict[str, quarantine.Quarantine]:
        """Return the quarantine of each node that has one, by node; some may be over."""
        return dict(quarantine.find_quarantines(self.losses, self.first_failures, settings, blamed=self.blamed))

    def trim(self, now: float, settings: Settings) -> RestartBudget:
        """Drop the strikes that are too old to matter."""
        kept = {name: quarantine.drop_old_strikes(getattr(self, name), now, settings) for name in _STRIKES}
        return replace(self, **kept)


_COUNTS = [name for name in RestartBudget.__struct_fields__ if name in Seal.__struct_fields__ and name not in _STRIKES]
"""Fields that a seal has as they are; the rest has times in it, or is one."""


def restore_budget(seal: Seal, seen_at: float) -> RestartBudget:
    """Return the budget that a seal carries, on the clock of a leader that first saw the seal at `seen_at`."""
    counts = {name: getattr(seal, name) for name in _COUNTS}
    return RestartBudget(
        **counts,
        charged_at=tuple(seen_at - age for age in seal.charge_ages_s),
        provisional_since=seen_at - seal.provisional_age_s if seal.provisional_round else -math.inf,
        losses=tuple(Strike(node, seen_at - age) for node, age in seal.losses),
        first_failures=tuple(Strike(node, seen_at - age, rank) for node, rank, age in seal.first_failures),
        blamed=tuple(Strike(node, seen_at - age) for node, age in seal.blamed),
    )


def add_to_seal(seal: Seal, spent: RestartBudget, now: float) -> Seal:
    """Return the seal with the budget in it; times are written as ages."""
    counts = {name: getattr(spent, name) for name in _COUNTS}
    return replace(
        seal,
        **counts,
        charge_ages_s=tuple(compute_age_s(at, now) for at in spent.charged_at),
        provisional_age_s=compute_age_s(spent.provisional_since, now) if spent.provisional_round else 0.0,
        losses=tuple((strike.node, compute_age_s(strike.at, now)) for strike in spent.losses),
        first_failures=tuple(
            (strike.node, strike.rank, compute_age_s(strike.at, now)) for strike in spent.first_failures
        ),
        blamed=tuple((strike.node, compute_age_s(strike.at, now)) for strike in spent.blamed),
    )


def compute_age_s(at: float, now: float) -> float:
    """Return the age of `at` in seconds, to the millisecond."""
    return round(now - at, 3)
