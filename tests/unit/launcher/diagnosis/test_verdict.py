"""Which rank a job waits for: planted situations on meshes, and the ranks and sentences that come out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence
from launcher.diagnosis.verdict import Diagnosis, describe_ranks, diagnose, find_places
from launcher.worker.grid import WorkerMesh

TWO = WorkerMesh(("dp",), (2,), 0, ("dp",))
FOUR = WorkerMesh(("dp",), (4,), 0, ("dp",))
CUBE = WorkerMesh(("pp", "dp", "tp"), (2, 2, 2), 0, ("pp", "dp", "tp"))

WAIT = (Frame(function="all_reduce", file="/lib/torch/distributed/distributed_c10d.py", line=3000),)
LOAD = (Frame(function="load", file="/home/me/loader.py", line=31), Frame(function="<module>", file="train.py", line=5))


def group(
    name: str, last: int, operation: str = "all_reduce", shape: str = "[4]", is_open: bool = False, age_s: float = 312.4
) -> GroupCalls:
    call = Call(number=last, operation=operation, shape=shape, is_open=is_open, age_s=age_s)
    return GroupCalls(name=name, description=name.partition("/")[0], calls=(call,))


def see(rank: int, *groups: GroupCalls, stack: tuple[Frame, ...] | None = WAIT, **more: Any) -> RankEvidence:
    return RankEvidence(rank=rank, **{"state": "sleeps", "stack": stack, "groups": groups, **more})


def waits(name: str, number: int, **how: Any) -> GroupCalls:
    return group(name, number, is_open=True, **how)


def tell(found: Diagnosis) -> list[str]:
    """Its kind and whom it names, and its sentences."""
    return [f"{found.kind}: {', '.join(map(str, found.culprits)) or 'nobody'}", *found.sentences]


def test_a_rank_that_has_not_entered_what_others_wait_in_is_named() -> None:
    ranks = [see(rank, waits("default_pg", 9)) for rank in range(4)]
    ranks[2] = see(2, group("default_pg", 8), stack=LOAD)
    assert tell(diagnose(ranks, FOUR)) == [
        "late: 2",
        "rank 2 has not entered all_reduce 9 of default_pg [0-3]; 3 others have waited for 312 s",
        "rank 2 is in load (loader.py:31), asleep",
    ]


@pytest.mark.parametrize("has_recorder", [True, False])
def test_a_rank_that_has_given_up_is_not_the_one_that_others_wait_for(has_recorder: bool) -> None:
    gone = RankEvidence(rank=0, state="ended", exit_code=1, has_given_up=True)
    calls = (waits("default_pg", 9),) if has_recorder else ()
    ranks = [gone, see(1, *calls), see(2, *calls), see(3, *calls, stack=LOAD)]
    if has_recorder:
        ranks[3] = see(3, group("default_pg", 8), stack=LOAD)
    assert diagnose(ranks, FOUR).culprits == (3,)
    assert diagnose([replace(gone, has_given_up=False), *ranks[1:]], FOUR).culprits != (3,)


def test_of_two_the_one_that_has_not_given_up_is_named_and_of_replicas_the_one_that_is_stuck() -> None:
    gone = RankEvidence(rank=0, state="ended", exit_code=1, has_given_up=True)
    assert diagnose([gone, see(1, stack=LOAD)], TWO).culprits == (1,)
    assert diagnose([gone, see(1)], TWO).culprits == ()
    ranks = [see(rank, follow(1000 if rank < 2 else 500, is_open=rank < 2), stack=LOAD) for rank in range(4)]
    found = diagnose(ranks, FOUR)
    assert found.sentences[0].startswith("all 2 members have entered all_reduce 1000 of default_pg [0, 1]")


def follow(last: int, *, is_open: bool, operation: str = "all_reduce") -> GroupCalls:
    """Two calls of the default group, of which the last may be open."""
    calls = tuple(
        Call(number=number, operation=operation, is_open=is_open and number == last, age_s=312.4)
        for number in (last - 1, last)
    )
    return GroupCalls(name="0", description="default_pg", calls=calls)


@pytest.mark.parametrize("other", [500, 1500], ids=["behind", "ahead"])
def test_replicas_whose_groups_are_named_alike_are_not_mixed(other: int) -> None:
    """Ranks 0 and 1 have a default group, 2 and 3 another. Rank 1 does not come."""
    ranks = [
        see(0, follow(1000, is_open=True)),
        see(1, follow(999, is_open=False), stack=LOAD),
        *(see(rank, follow(other, is_open=False), stack=LOAD) for rank in (2, 3)),
    ]
    found = diagnose(ranks, FOUR)
    assert (found.kind, found.culprits) == ("late", (1,))


def test_one_that_only_sends_or_has_never_used_the_group_is_late_as_well() -> None:
    ranks = [see(0, follow(1000, is_open=True, operation="broadcast")), see(1, follow(500, is_open=False), stack=LOAD)]
    assert diagnose(ranks, TWO).culprits == (1,)
    ranks = [see(0, waits("default_pg", 1)), see(1, stack=LOAD)]
    assert diagnose(ranks, TWO).culprits == (1,)


def test_a_chain_of_waits_is_followed_to_its_end() -> None:
    """Rank 5 loads; rank 4 waits for it in tp, 0 for 4 in pp, 1 for 0 in tp, 2 and 3 in dp."""
    ranks = [see(rank, group("mesh_tp/0", 5)) for rank in range(8)]
    ranks[5] = see(5, group("mesh_tp/c", 4), stack=LOAD)
    ranks[4] = see(4, waits("mesh_tp/c", 5))
    ranks[0] = see(0, waits("mesh_pp/a", 3), group("mesh_tp/a", 4))
    ranks[1] = see(1, waits("mesh_tp/a", 5))
    ranks[2] = see(2, waits("mesh_dp/a", 7))
    ranks[3] = see(3, waits("mesh_dp/b", 7))
    found = diagnose(ranks, CUBE)
    assert (found.kind, found.culprits) == ("late", (5,))
    assert found.sentences[0].startswith(
        "rank 5 (pp=1 dp=0 tp=1) has not entered all_reduce 5 of tp [4, 5]; 1 other has waited"
    )
    assert found.sentences[1] == "4 more ranks wait for these"


def test_different_operations_or_sizes_under_one_number_are_a_mismatch() -> None:
    ranks = [see(rank, waits("default_pg", 4)) for rank in range(4)]
    ranks[3] = see(3, waits("default_pg", 4, operation="all_gather"))
    assert tell(diagnose(ranks, FOUR)) == [
        "mismatch: 3",
        "the members of default_pg [0-3] call different operations as call 4: all_reduce by ranks 0, 1, 2, "
        "all_gather by rank 3",
    ]
    ranks = [see(rank, waits("default_pg", 4, shape=f"[{rank + 4}]")) for rank in range(2)]
    assert tell(diagnose(ranks, TWO)) == [
        "mismatch: 0, 1",
        "the members of default_pg [0, 1] call different operations as call 4: all_reduce of [4] by rank 0, "
        "all_reduce of [5] by rank 1",
    ]


def test_sizes_that_may_differ_and_operations_in_which_nobody_waits_are_no_mismatch() -> None:
    ranks = [see(rank, waits("default_pg", 4, operation="all_to_all", shape=f"[{rank}]")) for rank in range(2)]
    assert diagnose(ranks, TWO).kind == "stuck"
    ranks = [see(rank, group("default_pg", 4, operation=name, age_s=0.5)) for rank, name in enumerate(("x", "y"))]
    assert diagnose(ranks, TWO).kind == "healthy"


def test_nobody_is_accused_where_all_are_stopped_or_one_has_ended() -> None:
    ranks = [see(0, waits("default_pg", 4), state="ended"), see(1, group("default_pg", 3), stack=LOAD)]
    assert diagnose(ranks, TWO).culprits == (0,)
    ranks = [see(rank, state="stopped", stack=None) for rank in range(4)]
    assert (diagnose(ranks, FOUR).kind, diagnose(ranks, FOUR).culprits) == ("unclear", ())
    ranks = [*(see(rank, waits("default_pg", 4)) for rank in range(3)), see(3, groups=None, stack=None)]
    assert (diagnose(ranks, FOUR).kind, diagnose(ranks, FOUR).culprits) == ("unknown", (3,))


def test_a_group_named_like_an_axis_has_its_own_members_and_the_caller_of_a_script_is_none() -> None:
    ranks = [see(rank) for rank in range(8)]
    ranks[0], ranks[2] = see(0, waits("mesh_tp", 5)), see(2, group("mesh_tp", 4), stack=LOAD)
    found = diagnose(ranks, CUBE)
    assert found.culprits == (2,)
    assert "of tp [0, 2]" in found.sentences[0]
    # torch's `record` stands below every frame of a script that uses it.
    record = Frame(function="wrapper", file="/lib/torch/distributed/elastic/multiprocessing/errors/__init__.py", line=1)
    ranks = [see(rank, groups=None, stack=(*(LOAD if rank == 1 else WAIT), record)) for rank in range(2)]
    assert (diagnose(ranks, TWO).kind, diagnose(ranks, TWO).culprits) == ("odd", (1,))


def test_two_groups_in_opposite_order_are_a_deadlock_and_where_all_are_in_the_network_is_at_fault() -> None:
    ranks = [see(0, waits("a", 3), group("b", 6)), see(1, group("a", 2), waits("b", 7))]
    assert tell(diagnose(ranks, TWO)) == [
        "deadlock: 0, 1",
        "ranks 0, 1 wait for each other",
        "rank 0 waits in all_reduce 3 of a [0, 1] for rank 1",
        "rank 1 waits in all_reduce 7 of b [0, 1] for rank 0",
    ]
    assert tell(diagnose([see(rank, waits("default_pg", 4)) for rank in range(4)], FOUR)) == [
        "stuck: nobody",
        "all 4 members have entered all_reduce 4 of default_pg [0-3], and for 312 s none has left it: check the "
        "network and the devices",
    ]


@pytest.mark.parametrize(
    ("state", "told"),
    [("stopped", "is stopped by a signal or a debugger"), ("blocked", "blocked in the kernel (nfs_wait)")],
)
def test_one_that_is_held_inside_is_named(state: str, told: str) -> None:
    ranks = [see(rank, waits("default_pg", 4)) for rank in range(4)]
    ranks[1] = replace(ranks[1], state=state, wait="nfs_wait")
    found = diagnose(ranks, FOUR)
    assert (found.kind, found.culprits) == ("stuck", (1,))
    assert found.sentences[1].endswith(told)


def test_one_in_a_stuck_or_unrecorded_call_is_no_culprit() -> None:
    ranks = [see(0, waits("a", 3)), see(1, group("a", 2), waits("b", 7)), see(2, waits("b", 7))]
    found = diagnose([*ranks, see(3)], FOUR)
    assert (found.kind, found.culprits) == ("stuck", ())
    assert "all_reduce 7 of b [1, 2]" in found.sentences[0]
    # Rank 0 sends to rank 2 outside the recorder; rank 3 loads, and rank 2 waits for it.
    ranks = [see(0, group("x", 3)), see(1, waits("x", 4)), see(2, waits("y", 4)), see(3, group("y", 3), stack=LOAD)]
    assert diagnose(ranks, FOUR).culprits == (3,)
    found = diagnose([see(0, group("x", 3)), see(1, waits("x", 4))], TWO)
    assert (found.kind, found.culprits) == ("unclear", ())
    assert found.sentences[0].startswith("others wait for rank 0 in a communication that is not")


def test_a_rank_that_has_ended_or_is_stopped_is_named() -> None:
    ranks = [see(0, waits("default_pg", 4)), see(1, stack=None, groups=None, state="ended", exit_code=0)]
    assert tell(diagnose(ranks, TWO)) == [
        "late: 1",
        "rank 1 has not entered all_reduce 4 of default_pg [0, 1]; 1 other has waited for 312 s",
        "rank 1 has ended with exit code 0",
    ]
    ranks = [see(rank, waits("mesh_tp/0", 4)) for rank in range(4)]
    ranks[3] = see(3, groups=None, state="stopped")
    mesh = WorkerMesh(("tp",), (4,), 0, ("tp",))
    assert tell(diagnose([replace(one, groups=rename(one)) for one in ranks], mesh)) == [
        "late: 3",
        "rank 3 has not been seen in all_reduce 4 of tp [0-3]; 3 others have waited for 312 s",
        "rank 3 is stopped by a signal or a debugger",
    ]


@pytest.mark.parametrize("more", [{"groups": None}, {"is_truncated": True}], ids=["no recorder", "forgotten"])
def test_a_rank_is_not_late_for_what_its_recorder_cannot_tell(more: dict[str, Any]) -> None:
    ranks = [see(0, waits("default_pg", 4)), replace(see(1, group("other", 1)), **more)]
    assert diagnose(ranks, TWO).kind == "stuck"


def test_without_recorders_those_outside_or_the_few_are_named() -> None:
    ranks = [see(rank, groups=None) for rank in range(4)]
    ranks[1] = see(1, groups=None, stack=LOAD, state="runs")
    assert tell(diagnose(ranks, FOUR)) == [
        "odd: 1",
        "rank 1 is in load (loader.py:31), running",
        "of the other 3 ranks, rank 0 is in all_reduce (distributed_c10d.py:3000), asleep",
    ]
    step = (Frame(function="step", file="train.py", line=7),)
    ranks = [see(rank, groups=None, stack=LOAD if rank in (6, 7) else step) for rank in range(8)]
    assert diagnose(ranks, CUBE).culprits == (6, 7)
    assert diagnose(ranks[:1] + ranks[6:7], TWO).kind == "unclear"
    assert describe_ranks([4, 5, 6, 7], CUBE) == "all of pp=1"
    assert describe_ranks([2, 3], CUBE) == "all of pp=0 dp=1"
    assert describe_ranks([1, 2], CUBE) == "ranks 1, 2"
    assert describe_ranks([0], CUBE) == "rank 0 (pp=0 dp=0 tp=0)"


def test_a_silent_node_is_told_and_of_those_inside_they_that_stay() -> None:
    assert tell(diagnose([see(rank, waits("default_pg", 4)) for rank in (0, 1, 3)], FOUR)) == [
        "unknown: 2",
        "rank 2 has not been seen in all_reduce 4 of default_pg [0-3]; 3 others have waited for 312 s",
        "nothing is known about rank 2: its node has not answered",
    ]
    assert diagnose([see(0, waits("default_pg", 4)), see(1, group("default_pg", 3), stack=LOAD)], FOUR).culprits == (1,)
    ranks = [see(rank, group("default_pg", 4)) for rank in range(4)]
    ranks[1] = see(1, waits("default_pg", 4))
    found = diagnose(ranks, FOUR)
    assert (found.kind, found.sentences[0].partition(": ")[0]) == (
        "stuck",
        "all 4 members have entered all_reduce 4 of default_pg [0-3], and for 312 s rank 1 has not left it",
    )


def rename(one: RankEvidence) -> tuple[GroupCalls, ...] | None:
    return one.groups and tuple(replace(group, name="11") for group in one.groups)


def test_where_nobody_waits_long_or_something_else_may_hold_it_nobody_is_accused() -> None:
    ranks = [see(rank, waits("default_pg", 9, age_s=0.9)) for rank in range(4)]
    ranks[2] = see(2, group("default_pg", 8, age_s=1.4), stack=LOAD, state="runs")
    assert tell(diagnose(ranks, FOUR)) == [
        "healthy: nobody",
        "no rank has been waiting for another for more than 1 s",
        "the last collective was entered 0.9 s ago",
    ]
    ranks = [see(rank, group("default_pg", 9, age_s=2.0), stack=LOAD) for rank in range(4)]
    assert diagnose(ranks, FOUR).kind == "healthy"
    for other in (
        {"state": "stopped"},
        {"stack": WAIT},
        {"groups": None},
        {"groups": (group("default_pg", 9, age_s=61.0),)},
    ):
        assert diagnose([*ranks[:3], replace(ranks[3], **other)], FOUR).kind != "healthy"
    assert diagnose(ranks[:3], FOUR).kind != "healthy"


def test_what_has_called_the_script_is_no_communication() -> None:
    """torch's `record` stands below every frame of a script that uses it."""
    record = Frame(function="wrapper", file="/lib/torch/distributed/elastic/multiprocessing/errors/__init__.py", line=1)
    ranks = [see(rank, groups=None, stack=(*(LOAD if rank == 1 else WAIT), record)) for rank in range(2)]
    assert (diagnose(ranks, TWO).kind, diagnose(ranks, TWO).culprits) == ("odd", (1,))


def test_of_those_inside_only_they_that_stay_are_told() -> None:
    ranks = [see(rank, group("default_pg", 4)) for rank in range(4)]
    ranks[1] = see(1, waits("default_pg", 4))
    found = diagnose(ranks, FOUR)
    assert (found.kind, found.sentences[0].partition(": ")[0]) == (
        "stuck",
        "all 4 members have entered all_reduce 4 of default_pg [0-3], and for 312 s rank 1 has not left it",
    )


def stands_at(function: str, line: int, *inside: Frame, folder: str = "/job") -> tuple[Frame, ...]:
    return (*inside, Frame(function=function, file=f"{folder}/train.py", line=line), *LOAD[-1:])


LOCK = Frame(function="Condition.wait", file="/usr/lib/python3.11/threading.py", line=327)


def test_where_no_rank_is_odd_it_is_told_which_ranks_are_where() -> None:
    """The same line in another folder, or as another reader names the function, is the same place."""
    two = [see(0, stack=stands_at("send", 9, LOCK)), see(1, stack=stands_at("load", 13))]
    unclear = diagnose(two, TWO)
    assert (unclear.kind, unclear.culprits) == ("unclear", ())
    assert unclear.sentences == (
        "it is unclear which rank the others wait for: the ranks are at 2 lines",
        "rank 0 is in send (train.py:9), inside Condition.wait (threading.py:327), asleep",
        "rank 1 is in load (train.py:13), asleep",
    )
    four = [see(rank, stack=stands_at("send" if rank % 2 else "load", 9, folder=f"/n{rank}")) for rank in range(4)]
    four[3] = see(3, stack=stands_at("Model.send", 9), state="runs")
    found = diagnose(four, FOUR)
    assert found.sentences[1:] == (
        "ranks 0, 2 are in load (train.py:9), asleep",
        "ranks 1, 3 are in send (train.py:9), asleep",
    )
    assert [(place.ranks, place.function, place.line) for place in find_places(four)] == [
        ((0, 2), "load", 9),
        ((1, 3), "send", 9),
    ]


def test_where_all_are_at_one_line_or_no_stack_is_known_that_is_told() -> None:
    told = "it is unclear which rank the others wait for: "
    one = diagnose([see(rank, stack=stands_at("step", 9)) for rank in range(4)], FOUR)
    assert one.sentences == (f"{told}all ranks are at one line", "ranks 0, 1, 2, 3 are in step (train.py:9), asleep")
    none = diagnose([see(rank, stack=None) for rank in range(4)], FOUR)
    assert none.sentences == (f"{told}no stack is known", "ranks 0, 1, 2, 3 are asleep, stack unknown")


def test_the_collective_in_which_some_wait_is_told_with_their_place() -> None:
    ranks = [see(0, waits("default_pg", 4)), see(1, stack=stands_at("fetch", 17, WAIT[0]))]
    found = diagnose(ranks, TWO)
    assert (found.kind, found.culprits) == ("unclear", ())
    assert found.sentences[1].endswith("asleep, waiting in all_reduce 4 of default_pg")
    assert found.sentences[2].startswith("rank 1 is in fetch (train.py:17), inside all_reduce (")


def test_of_very_many_places_the_first_are_told() -> None:
    mesh = WorkerMesh(("dp",), (99,), 0, ("dp",))
    found = diagnose([see(rank, stack=stands_at(f"f{rank}", 9)) for rank in range(99)], mesh)
    assert len(found.sentences) == 8
    assert found.sentences[-1] == "93 more ranks are at 93 other places"


@pytest.mark.parametrize(
    ("late", "kind", "is_sure"),
    [
        (see(1, group("default_pg", 8), stack=LOAD), "late", True),
        (RankEvidence(rank=1, state="sleeps", stack=LOAD), "late", False),
        (RankEvidence(rank=1, state="stopped", stack=LOAD), "late", True),
        (RankEvidence(rank=1, state="ended", exit_code=0), "late", True),
        (RankEvidence(rank=1, state="sleeps"), "unknown", False),
    ],
    ids=["recorded", "a stack", "stopped", "ended", "nothing"],
)
def test_a_culprit_is_sure_if_its_recorder_or_its_state_shows_it(late: RankEvidence, kind: str, is_sure: bool) -> None:
    found = diagnose([see(0, waits("default_pg", 9)), late], TWO)
    assert (found.kind, found.culprits, found.is_sure) == (kind, (1,), is_sure)
