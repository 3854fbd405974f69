"""Which nodes are quarantined by the strikes in a seal, computed by other means than the protocol does."""

from __future__ import annotations

from rendezvous.records import Seal
from rendezvous.settings import Settings

ROUNDED_S = 0.0021  # ages are kept in milliseconds, and two of them are compared


def list_quarantined(seal: Seal, settings: Settings, ago_s: float = 0.0) -> dict[str, float]:
    """The nodes in quarantine at the seal, or `ago_s` before it, and for how much longer."""
    found: dict[str, float] = {}
    ranks: dict[int, set[str]] = {}
    for node, rank, _ in seal.first_failures:
        ranks.setdefault(rank, set()).add(node)
    own = [(node, age) for node, rank, age in seal.first_failures if rank < 0 or len(ranks[rank]) < 2]
    for marks, limit in ((seal.losses, settings.flap_limit), (own, settings.quarantine_failures)):
        for node in {node for node, _ in marks}:
            ages = sorted(age for name, age in marks if name == node)
            count = sum(1 for age in ages if age - ages[0] <= settings.quarantine_window_s + ROUNDED_S)
            if limit and count >= limit:
                length_s = settings.quarantine_first_s
                for _ in range(count - limit):
                    length_s = min(2 * length_s, settings.quarantine_max_s)
                left_s = min(length_s, settings.quarantine_max_s) - ages[0] + ago_s
                if left_s > 0:
                    found[node] = max(left_s, found.get(node, 0.0))
    return found
