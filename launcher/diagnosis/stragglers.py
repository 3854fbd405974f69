"""Which rank is slow: it arrives last at the collectives of its group, and all others wait for it each time.

Told by how long each rank waits, never by the time per step, which is the same on all: everybody waits for the slowest.
Where the recorder says how long a call took (NCCL), each rank's own figures are compared, and the one whose calls are
short while those of all others are long has come last. Where it does not (gloo), the times of arrival are, but only
between ranks of one node: clocks of two machines are never compared.

One that is late in a group because it waited for another in a second group is no straggler, so who waits long anywhere
is not named. It is a line in a report, and never a reason to do something to the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from launcher.diagnosis.evidence import GroupCalls, RankEvidence
from launcher.diagnosis.verdict import describe_ranks, format_members, is_communicating, name_group
from launcher.worker.grid import WorkerMesh

CALLS_MIN = 8
OFTEN = 0.7
"""Share of the calls at which a straggler is the last."""
WAIT_MIN_MS = 10.0
WAIT_SHARE_MIN = 0.05
"""Of the time from one call to the next: less is not worth a line."""
_BUSY = 0.5  # cores


class Straggler(Struct, frozen=True, kw_only=True):
    """A rank for which the others of a group usually wait."""

    rank: int
    group: str
    ranks: tuple[int, ...]
    """The ranks of the group."""
    last_count: int
    """To how many of the group's `count` calls it came last."""
    count: int
    wait_ms: float
    """How long the others waited for it, per call."""
    period_ms: float
    """The time from one call to the next."""


def find_stragglers(ranks: Sequence[RankEvidence], nodes: Mapping[int, str]) -> list[Straggler]:
    """Return the ranks that others wait for again and again, the one that costs most first. `nodes`: rank -> node."""
    candidates: list[Straggler] = []
    longest_wait: defaultdict[int, float] = defaultdict(float)
    for label, calls in _collect(ranks, nodes):
        waits = _measure_waits(calls)
        if len(waits) < CALLS_MIN:
            continue
        for rank in calls:
            longest_wait[rank] = max(longest_wait[rank], sum(wait[rank] for wait in waits) / len(waits))
        candidates += _find_last(label, calls, waits)
    found = [one for one in candidates if longest_wait[one.rank] < one.wait_ms / 2]
    best: dict[int, Straggler] = {}
    for one in sorted(found, key=lambda one: -one.wait_ms):
        best.setdefault(one.rank, one)
    return list(best.values())


def describe_straggler(one: Straggler, ranks: Sequence[RankEvidence], mesh: WorkerMesh) -> str:
    """Describe a straggler: "rank 5 (tp=1) arrives last in 19 of 20 collectives of tp [4-7]; ..."."""
    evidence = next(each for each in ranks if each.rank == one.rank)
    others = "the other waits" if len(one.ranks) == 2 else f"the {len(one.ranks) - 1} others wait"
    sentence = (
        f"{describe_ranks([one.rank], mesh)} arrives last in {one.last_count} of {one.count} collectives of "
        f"{one.group}; {others} {one.wait_ms:.0f} ms on average, {100 * one.wait_ms / one.period_ms:.0f} % of the time"
    )
    if evidence.state in ("runs", "sleeps") and not is_communicating(evidence):
        sentence += ", while it computes" if evidence.cpu >= _BUSY else ", while it computes nothing on its CPUs"
    return sentence


def _collect(ranks: Sequence[RankEvidence], nodes: Mapping[int, str]) -> Iterator[tuple[str, dict[int, GroupCalls]]]:
    """Yield the calls of ranks that can be compared: of a group by their own durations, else of a group on a node."""
    groups: defaultdict[tuple[str, str], dict[int, GroupCalls]] = defaultdict(dict)
    for one in sorted(ranks, key=lambda one: one.rank):
        for group in one.groups or ():
            if group.entered_ms:
                groups[group.name, group.description][one.rank] = group
    for (_, description), calls in groups.items():
        parts: defaultdict[str, dict[int, GroupCalls]] = defaultdict(dict)
        for rank, group in calls.items():
            parts["" if all(each.lengths_ms for each in calls.values()) else nodes[rank]][rank] = group
        for part in parts.values():
            if len(part) > 1:
                yield f"{name_group(description)} {format_members(list(part))}", part


def _measure_waits(calls: Mapping[int, GroupCalls]) -> list[dict[int, float]]:
    """Return, for each number that all have, how long each rank waited for the one that came last, in ms."""
    has_lengths = all(group.lengths_ms for group in calls.values())
    values: dict[int, dict[int, float]] = {}
    for rank, group in calls.items():
        first = group.last - len(group.entered_ms) + 1
        told = group.lengths_ms if has_lengths else tuple(-at for at in accumulate(group.entered_ms))
        values[rank] = {number: value for number, value in enumerate(told, first) if value >= 0 or not has_lengths}
    common = sorted(set.intersection(*(set(each) for each in values.values())))
    waits = []
    for number in common:
        shortest = min(each[number] for each in values.values())
        waits.append({rank: each[number] - shortest for rank, each in values.items()})
    return waits


def _find_last(
    label: str, calls: Mapping[int, GroupCalls], waits: Sequence[Mapping[int, float]]
) -> Iterator[Straggler]:
    any_calls = next(iter(calls.values()))
    period_ms = max(1.0, sum(any_calls.entered_ms[1:]) / (len(any_calls.entered_ms) - 1))
    for rank in calls:
        last = [wait for wait in waits if wait[rank] == 0 and any(wait.values())]
        if len(last) < OFTEN * len(waits):
            continue
        wait_ms = sum(sum(wait.values()) / (len(calls) - 1) for wait in last) / len(last)
        if wait_ms >= max(WAIT_MIN_MS, WAIT_SHARE_MIN * period_ms):
            yield Straggler(
                rank=rank,
                group=label,
                ranks=tuple(calls),
                last_count=len(last),
                count=len(waits),
                wait_ms=wait_ms,
                period_ms=period_ms,
            )
