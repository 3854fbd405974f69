"""Ranks follow the hosts of TPU slices: RANK is the worker id plus what slices before have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from launcher.model import mesh as meshes
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.limits import Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from tests.support.placement.members import node, told


def host(slice: str, worker_id: int, hosts: int = 4, slots: int = 1, name: str = "") -> Description:
    return node(
        name or f"{slice}-{worker_id}", f"slice={slice}", slot_count=slots, machine=f"{slice}{worker_id}",
        index=worker_id, slice_hosts=hosts, host_pattern=f"{slice}-{{}}",
    )  # fmt: skip


def try_plan(
    members: Sequence[Description], mesh: str = "dp=*", previous: Mapping[str, str] | None = None, numbers: int = 0
) -> PlanReady | PlanRefused:
    roster = tuple(RosterMember(one.name, encode_description(one), order) for order, one in enumerate(members, 1))
    limits = Limits(nodes_min=numbers or 1, nodes_max=numbers or None)
    planner = PlannerAdapter(meshes.parse(mesh), limits, Costs(), node_count=numbers)
    found: PlanReady | PlanRefused = told(planner.plan(MakePlan(7, 1, roster, previous or {})))
    return found


def plan(
    members: Sequence[Description], mesh: str = "dp=*", previous: Mapping[str, str] | None = None, numbers: int = 0
) -> PlanReady:
    planned = try_plan(members, mesh, previous, numbers)
    assert isinstance(planned, PlanReady), planned
    return planned


def shares(planned: PlanReady) -> dict[str, NodeAssignment]:
    return {name: decode_assignment(text) for name, text in planned.assignments.items()}


# In the order of joining, which is no order.
NAMES = ("b3", "a2", "c1", "b0", "a0", "c3", "a3", "b1", "c0", "a1", "c2", "b2")
SCRAMBLED = [host(name[0], int(name[1])) for name in NAMES]


@pytest.mark.parametrize("slots", [1, 4])
def test_rank_is_worker_id_plus_slice_times_hosts(slots: int) -> None:
    """For one process on each host, and by chips for one on each chip."""
    members = [host(one.name[0], one.index or 0, slots=slots) for one in SCRAMBLED]
    told = shares(plan(members, "dp=*" if slots == 1 else "dp=*,tp=4"))
    assert len(told) == 12
    for name, share in told.items():
        worker_id = int(name[2:])
        first = share.slice_index * 4 + worker_id
        assert share.ranks == tuple(range(first * slots, (first + 1) * slots))
        assert share.slice_count == 3
        assert share.slice_index == {told[f"{name[0]}-0"].ranks[0] // (4 * slots)}.pop()


def test_slices_of_one_host_are_joined_and_may_have_one_name() -> None:
    told = shares(plan([host(name, 0, hosts=1, slots=8) for name in ("x", "y")]))
    assert sorted((share.slice_index, share.slice_count, share.ranks[0]) for share in told.values()) == [
        (0, 2, 0),
        (1, 2, 8),
    ]
    told = shares(plan([replace(host("job", 0, hosts=1), name=name) for name in ("x", "y", "z")]))
    assert sorted((share.slice_index, share.slice_count) for share in told.values()) == [(0, 3), (1, 3), (2, 3)]
    other = Description(slot_count=1, address="10.0.0.9", role="default", name="z", machine="z")
    told = shares(plan([*(host(name, 0, hosts=1) for name in "xy"), other]))
    assert {(share.slice_index, share.slice_count) for share in told.values()} == {(0, 0)}


def test_a_slice_that_lost_a_host_or_is_incomplete_stands_by() -> None:
    first = plan(SCRAMBLED)
    before = shares(first)
    lost = next(name for name in before if before[name].slice_index == 0 and before[name].ranks == (1,))
    second = plan([one for one in SCRAMBLED if one.name != lost], previous=first.assignments)
    after = shares(second)
    assert {name[0] for name in after} == {"a", "b", "c"} - {lost[0]}
    assert {(share.slice_index, share.slice_count) for share in after.values()} == {(0, 2), (1, 2)}
    assert all(share.ranks == (share.slice_index * 4 + int(name[2:]),) for name, share in after.items())
    missing = f"level=slice domain={lost[0]} present=3 hosts=4 missing=1 indices=1 names={lost[0]}-1"
    assert missing in " ".join(second.reasons)
    big = [host("big", index, hosts=8) for index in range(5)]
    planned = plan([*big, *(host("a", index) for index in (1, 0, 3, 2))])
    assert {name: share.ranks for name, share in shares(planned).items()} == {f"a-{at}": (at,) for at in range(4)}
    assert "slices-differ others=8 usual=4" in planned.remarks


@pytest.mark.parametrize(
    ("there", "spelt"),
    [
        ((0, 1, 3), "domain=a present=3 hosts=4 missing=1 indices=2 names=a-2"),
        ((1,), "domain=a present=1 hosts=4 missing=3 indices=0, 2-3 names=a-0,a-2,a-3"),
    ],
)
def test_half_a_slice_runs_nothing_and_says_who_is_missing(there: Sequence[int], spelt: str) -> None:
    refused = try_plan([host("a", worker_id) for worker_id in there])
    assert isinstance(refused, PlanRefused)
    assert spelt in refused.reason


def test_a_replacement_that_comes_before_its_predecessor_is_gone_stands_by() -> None:
    first = plan(SCRAMBLED)
    early = host("a", 2, name="a-2-new")
    both = plan([*SCRAMBLED, early], previous=first.assignments)
    assert {name: share.ranks for name, share in shares(both).items()} == {
        name: share.ranks for name, share in shares(first).items()
    }
    why = "waits why=(same-worker node=a-2-new other=a-2 worker=2 slice=a) node=a-2-new other=a-2"
    assert both.spare_reasons == {"a-2-new": why}
    after = shares(plan([*(one for one in SCRAMBLED if one.name != "a-2"), early], previous=first.assignments))
    assert after["a-2-new"].ranks == shares(first)["a-2"].ranks


@pytest.mark.parametrize("other", [host("a", 1, hosts=8, name="x"), host("a", 0, hosts=0, name="x")])
def test_a_node_that_claims_a_slice_of_another_size_stands_by_alone(other: Description) -> None:
    planned = plan([other, *(host("a", index) for index in (3, 1, 0, 2))])
    assert {name: share.ranks for name, share in shares(planned).items()} == {f"a-{at}": (at,) for at in range(4)}
    assert planned.spare_reasons == {"x": f"slice-size node=x hosts={other.slice_hosts} slice=a usual=4"}


def numbered(numbers: Mapping[int, int]) -> list[Description]:
    """One slice of four; `numbers`: worker id -> --node-rank."""
    return [replace(host("a", index), node_rank=number, master_addr="m") for index, number in numbers.items()]


def test_given_node_ranks_are_kept_if_they_follow_the_worker_ids_and_refused_else() -> None:
    told = shares(plan(numbered({2: 2, 0: 0, 3: 3, 1: 1}), numbers=4))
    assert {name: share.ranks for name, share in told.items()} == {f"a-{index}": (index,) for index in range(4)}
    refused = try_plan(numbered({0: 3, 1: 2, 2: 1, 3: 0}), numbers=4)
    assert isinstance(refused, PlanRefused)
    assert refused.reason == ("worker-order node=a-2 worker=2 slice=a rank=1")
