"""Which nodes are not used for a while because they were lost, or their workers failed first, repeatedly.

A node is known by its name and its machine's boot id, so joining under a new member id changes nothing and a reboot
clears it. Only a list of strikes is stored; quarantines follow from the strikes and the time alone, so a leader that
takes over computes the same ones, and dropping a strike is enough to forgive it.

A rank that fails first on two nodes is the job's own fault (a poisoned batch kills rank 0 anywhere): its strikes do not
count against any node. A worker may also say by itself that its node is at fault: once is enough then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from rendezvous.reasons import Reason
from rendezvous.settings import Settings

STRIKES_MAX = 1000  # the newest are kept: some 50 kB in a seal that every member reads


class Strike(Struct, frozen=True):
    """A node was lost, or `rank` failed there before any other, at `at` on the leader's clock."""

    node: str
    at: float
    rank: int = -1


class Quarantine(Struct, frozen=True):
    """Until when a node is not used, and why."""

    until: float
    reason: Reason


# docs/internals/decisions/agreement.md#0013-quarantine-computed-from-strikes
def find_quarantines(
    losses: Sequence[Strike], first_failures: Sequence[Strike], settings: Settings, *, blamed: Sequence[Strike] = ()
) -> dict[str, Quarantine]:
    """Return the quarantine of each node that has one, by node; some may be over."""
    found: dict[str, Quarantine] = {}
    poisoned = find_poisoned_ranks(first_failures)
    own_faults = [strike for strike in first_failures if strike.rank not in poisoned]
    for strikes, limit, cause in (
        (losses, settings.flap_limit, "losses"),
        (own_faults, settings.quarantine_failures, "failures"),
        (blamed, 1, "blame"),
    ):
        for node, quarantine in _list_quarantines(strikes, limit, cause, settings):
            if node not in found or found[node].until < quarantine.until:
                found[node] = quarantine
    return found


def _list_quarantines(
    strikes: Iterable[Strike], limit: int, cause: str, settings: Settings
) -> Iterable[tuple[str, Quarantine]]:
    """Yield the quarantines: `limit` strikes within the window make one; each further strike doubles its length."""
    by_node: dict[str, list[float]] = {}
    for strike in strikes:
        by_node.setdefault(strike.node, []).append(strike.at)
    for node, times in by_node.items():
        last = max(times)
        count = sum(1 for at in times if last - at <= settings.quarantine_window_s)
        if 0 < limit <= count:
            doublings = min(count - limit, 60)  # beyond any limit, and still a number
            duration_s = min(settings.quarantine_first_s * 2.0**doublings, settings.quarantine_max_s)
            window_s = settings.quarantine_window_s
            reason = Reason.of("quarantined", cause=cause, times=count, window_s=window_s, duration_s=duration_s)
            yield node, Quarantine(last + duration_s, reason)


def find_poisoned_ranks(first_failures: Iterable[Strike]) -> set[int]:
    """Return the ranks that failed first on more than one node."""
    nodes: dict[int, set[str]] = {}
    for strike in first_failures:
        nodes.setdefault(strike.rank, set()).add(strike.node)
    return {rank for rank, rank_nodes in nodes.items() if rank >= 0 and len(rank_nodes) > 1}


def drop_old_strikes(strikes: Sequence[Strike], now: float, settings: Settings) -> tuple[Strike, ...]:
    """Return the strikes that may still matter, at most the newest STRIKES_MAX."""
    since = now - settings.quarantine_window_s - settings.quarantine_max_s
    return tuple(strike for strike in strikes if strike.at >= since)[-STRIKES_MAX:]
