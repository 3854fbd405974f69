"""Which rank is slow: planted waits, and the line that comes out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence
from launcher.diagnosis.stragglers import describe_straggler, find_stragglers
from launcher.worker.grid import WorkerMesh

MESH = WorkerMesh(("dp", "tp"), (2, 4), 0, ("dp", "tp"))
HERE = dict.fromkeys(range(8), "h0")
TWO_NODES = {rank: f"h{rank // 4}" for rank in range(8)}
COUNT, PERIOD_MS = 20, 500
COMPUTE = (Frame(function="forward", file="/home/me/model.py", line=12),)


def group(name: str, late_ms: int, start_ms: int = 0, lengths_ms: tuple[int, ...] = ()) -> GroupCalls:
    """Calls 101 to 120, each entered `late_ms` after its time; the first two are entered in time."""
    at = [start_ms + number * PERIOD_MS + (late_ms if number > 1 else 0) for number in range(COUNT)]
    call = Call(number=120, operation="all_reduce")
    gaps = tuple(after - before for before, after in pairwise(at))
    return GroupCalls(name=name, description="mesh_tp", calls=(call,), entered_ms=(at[0], *gaps), lengths_ms=lengths_ms)


def see(rank: int, *groups: GroupCalls) -> RankEvidence:
    return RankEvidence(rank=rank, state="runs", cpu=0.9, stack=COMPUTE, groups=groups)


def test_who_arrives_last_is_named_and_none_that_waited_in_another_group() -> None:
    ranks = [see(rank, group("t", 120 if rank == 5 else 0)) for rank in range(4, 8)]
    (found,) = find_stragglers(ranks, HERE)
    assert describe_straggler(found, ranks, MESH) == (
        "rank 5 (dp=1 tp=1) arrives last in 18 of 20 collectives of tp [4-7]; the 3 others wait 120 ms on average, "
        "24 % of the time, while it computes"
    )
    # Rank 5 is slow; rank 4 waits for it in tp, and so comes late to dp, where rank 0 waits for it.
    ranks = [see(4, group("t", 0), group("d", 120)), see(5, group("t", 120)), see(0, group("d", 0))]
    assert [one.rank for one in find_stragglers(ranks, HERE)] == [5]


def test_clocks_of_two_nodes_are_not_compared_but_each_ranks_own_waits() -> None:
    ranks = [see(rank, group("t", 0, start_ms=0 if rank < 4 else 7_000)) for rank in range(8)]
    assert find_stragglers(ranks, TWO_NODES) == []
    assert [one.rank for one in find_stragglers(ranks[3:5], HERE)] == [4]  # it would be seen
    lengths = {rank: tuple([3 if rank == 6 else 90] * COUNT) for rank in range(8)}
    ranks = [see(rank, group("t", 0, start_ms=rank * 999, lengths_ms=lengths[rank])) for rank in range(8)]
    (found,) = find_stragglers(ranks, TWO_NODES)
    assert (found.rank, found.last_count, found.wait_ms) == (6, COUNT, 87)


def test_calls_of_unknown_length_or_few_in_common_tell_nothing() -> None:
    lengths = {rank: (90,) * COUNT if rank != 5 else (-1,) * 16 + (90,) * (COUNT - 16) for rank in range(8)}
    ranks = [see(rank, group("t", 0, lengths_ms=lengths[rank])) for rank in range(8)]
    assert find_stragglers(ranks, HERE) == []
    ranks = [see(rank, group("t", 120 if rank == 5 else 0)) for rank in range(4, 8)]
    (ahead,) = ranks[0].groups or ()
    last = replace(ahead.calls[0], number=133)
    ranks[0] = replace(ranks[0], groups=(replace(ahead, calls=(last,)),))
    assert find_stragglers(ranks, HERE) == []


@pytest.mark.parametrize("late_ms", [9, 0, 24], ids=["little", "none", "little of the time"])
def test_what_is_little_is_not_told(late_ms: int) -> None:
    ranks = [see(rank, group("t", late_ms if rank == 5 else 0)) for rank in range(4, 8)]
    assert find_stragglers(ranks, HERE) == []
