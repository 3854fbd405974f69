"""The restart budget: what each round that ended is charged to, carried from seal to seal.

A worker's failure costs one restart, however many ranks fail. A round that lost a node costs nothing: the
broken sockets of its peers are not their fault. Because the loss of a node is seen later than the failures
it causes, a charge stays provisional for a short time and is taken back when a loss explains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rendezvous.records import Seal
from rendezvous.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The budget on the leader's own clock. `charged_at`: one time per charged failure, oldest first."""

    restart_count: int = 0
    charged_at: tuple[float, ...] = ()
    short_rounds: int = 0
    provisional_round: int = 0
    provisional_since: float = -math.inf

    def spent(self, now: float, window_s: float) -> int:
        """Charges that count against the budget now."""
        return sum(1 for at in self.charged_at if now - at <= window_s)

    def with_round_of(self, duration_s: float, settings: Settings) -> Ledger:
        """After a round that ran for so long."""
        is_short = duration_s < settings.min_round_time_s
        return replace(self, short_rounds=self.short_rounds + 1 if is_short else 0)

    def charge(self, round: int, failed_at: float, now: float) -> Ledger:
        """One restart for the failure of `round`."""
        return replace(
            self,
            restart_count=self.restart_count + 1,
            charged_at=(*self.charged_at, now),
            provisional_round=round,
            provisional_since=failed_at,
        )

    def refund(self) -> Ledger:
        """Take back the provisional charge: a node was lost, and that explains the failure."""
        return replace(
            self,
            restart_count=self.restart_count - 1,
            charged_at=self.charged_at[:-1],
            provisional_round=0,
            provisional_since=-math.inf,
        )

    def settle(self, now: float, settle_s: float) -> Ledger:
        """Make a provisional charge final once nothing can explain it any more."""
        if self.provisional_round and now - self.provisional_since > settle_s:
            return replace(self, provisional_round=0, provisional_since=-math.inf)
        return self


def from_seal(seal: Seal, seen_at: float) -> Ledger:
    """The ledger that a seal carries, on the clock of a leader who saw the seal at `seen_at`."""
    return Ledger(
        restart_count=seal.restart_count,
        charged_at=tuple(seen_at - age for age in seal.charge_ages_s),
        short_rounds=seal.short_rounds,
        provisional_round=seal.provisional_round,
        provisional_since=seen_at - seal.provisional_age_s if seal.provisional_round else -math.inf,
    )


def into_seal(seal: Seal, ledger: Ledger, now: float) -> Seal:
    """The seal with the ledger written into it as ages."""
    return replace(
        seal,
        restart_count=ledger.restart_count,
        charge_ages_s=tuple(round(now - at, 3) for at in ledger.charged_at),
        short_rounds=ledger.short_rounds,
        provisional_round=ledger.provisional_round,
        provisional_age_s=round(now - ledger.provisional_since, 3) if ledger.provisional_round else 0.0,
    )
