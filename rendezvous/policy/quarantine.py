"""Which nodes sit out for a while, since they were lost, or broke their workers, again and again.

A node is known by its name and its machine's boot id, so coming back under a new member id changes nothing and a
reboot clears it. What is remembered is a list of marks; benches follow from the marks and the time alone, so that
a leader that takes over finds the same ones, and forgiving is to leave a mark out.

A rank that fails first on two different nodes is the job's own fault (a poisoned batch kills rank 0 wherever it
is): its marks count against nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rendezvous.settings import Settings
from rendezvous.values import NamedTuple

STRIKES_MAX = 1000  # the newest are kept: some 50 kB in a seal that every member reads


class Strike(NamedTuple):
    """A node was lost, or `rank` failed there before any other, at `at` on the leader's clock."""

    node: str
    at: float
    rank: int = -1


class Quarantine(NamedTuple):
    """Until when a node sits out, and why."""

    until: float
    reason: str


# docs/internals/decisions/agreement.md#0013-quarantine-computed-from-strikes
def find_quarantines(
    losses: Sequence[Strike], first_failures: Sequence[Strike], settings: Settings
) -> Mapping[str, Quarantine]:
    """Every node with a bench, by node; some may be over."""
    found = dict(_list_quarantines(losses, settings.flap_limit, "lost", settings))
    poisoned = find_poisoned_ranks(first_failures)
    own_faults = [mark for mark in first_failures if mark.rank not in poisoned]
    for node, bench in _list_quarantines(
        own_faults, settings.quarantine_failures, "its workers failed first", settings
    ):
        if node not in found or found[node].until < bench.until:
            found[node] = bench
    return found


def _list_quarantines(
    strikes: Iterable[Strike], limit: int, what: str, settings: Settings
) -> Iterable[tuple[str, Quarantine]]:
    """`limit` marks within the window make a bench; each further one makes one that is twice as long."""
    by_node: dict[str, list[float]] = {}
    for mark in strikes:
        by_node.setdefault(mark.node, []).append(mark.at)
    for node, times in by_node.items():
        last = max(times)
        count = sum(1 for at in times if last - at <= settings.quarantine_window_s)
        if 0 < limit <= count:
            doublings = min(count - limit, 60)  # beyond any limit, and still a number
            duration_s = min(settings.quarantine_first_s * 2.0**doublings, settings.quarantine_max_s)
            reason = f"{what} {count} times within {settings.quarantine_window_s:g} s, quarantined for {duration_s:g} s"
            yield node, Quarantine(last + duration_s, reason)


def find_poisoned_ranks(first_failures: Iterable[Strike]) -> set[int]:
    nodes: dict[int, set[str]] = {}
    for mark in first_failures:
        nodes.setdefault(mark.rank, set()).add(mark.node)
    return {rank for rank, where in nodes.items() if rank >= 0 and len(where) > 1}


def drop_old_strikes(strikes: Sequence[Strike], now: float, settings: Settings) -> tuple[Strike, ...]:
    """The marks that may still matter."""
    since = now - settings.quarantine_window_s - settings.quarantine_max_s
    return tuple(mark for mark in strikes if mark.at >= since)[-STRIKES_MAX:]
