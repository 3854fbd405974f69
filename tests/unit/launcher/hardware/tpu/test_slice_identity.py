"""Which slice a TPU host is in, and that ranks follow its hosts: RANK is the worker id plus what slices before have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from launcher.hardware.tpu.slice_identity import SliceIdentity, find_identity, read_identity
from launcher.locality.contract import Level
from launcher.locality.merge import MergedLevels, SourceResult, merge
from launcher.model import mesh as meshes
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, encode_description
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from launcher.placement.limits import Costs, Limits
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember

HOSTS = tuple(f"train-slice-0-{index}.train" for index in range(4))
# What a pod of GKE with a v6e-16 is told, as a public repository shows it.
GKE = {
    "TPU_ACCELERATOR_TYPE": "v6e-16",
    "TPU_TOPOLOGY": "4x4",
    "TPU_HOST_BOUNDS": "2,2,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": ",".join(HOSTS),
    "MEGASCALE_NUM_SLICES": "1",
    "MEGASCALE_SLICE_ID": "0",
    "MEGASCALE_COORDINATOR_ADDRESS": HOSTS[0],
}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (GKE, SliceIdentity(HOSTS[0], 2, 4, HOSTS)),
        (
            {**GKE, "MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "1", "TPU_NAME": "of-the-whole-job"},
            SliceIdentity(HOSTS[0], 2, 4, HOSTS, 1, 3),
        ),
        # One host; GKE lists it as localhost.
        (
            {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "HOSTNAME": "pod-7"},
            SliceIdentity("pod-7", 0, 1, ("localhost",)),
        ),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_NAME": "my-tpu"}, SliceIdentity("my-tpu", 0, 1, ("localhost",))),
        (
            {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_NAME": "of-the-whole-job", "HOSTNAME": "pod-7"},
            SliceIdentity("pod-7", 0, 1, ("localhost",)),
        ),
        # As metadata servers list hosts, and addresses that only look so.
        (
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "u:0:10.0.0.2,u:1:10.0.0.3"},
            SliceIdentity("10.0.0.2", 1, 2, ("10.0.0.2", "10.0.0.3")),
        ),
        (
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2"},
            SliceIdentity("fd00::1", 1, 2, ("fd00::1", "fd00::2")),
        ),
        # Nobody lists the hosts: the grid of hosts, or the type, says how many there are.
        ({"TPU_WORKER_ID": "1", "TPU_HOST_BOUNDS": "1,1,2", "TPU_NAME": "t"}, SliceIdentity("t", 1, 2)),
        ({"TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_NAME": "t"}, SliceIdentity("t", 1, 2)),
        ({"TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16", "MEGASCALE_SLICE_ID": "0"}, SliceIdentity("0", 1, 2)),
        # The index of a pod in its Job, where there is nothing better.
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JOB_COMPLETION_INDEX": "1"}, SliceIdentity("a", 1, 2, ("a", "b"))),
        # JAX, too, takes an empty one for "one slice".
        ({**GKE, "MEGASCALE_NUM_SLICES": "", "MEGASCALE_SLICE_ID": ""}, SliceIdentity(HOSTS[0], 2, 4, HOSTS)),
        ({"HOSTNAME": "laptop", "TPU_NAME": "t"}, None),
    ],
)
def test_a_host_knows_its_slice(environ: Mapping[str, str], found: SliceIdentity | None) -> None:
    assert find_identity(environ) == found


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "neither TPU_WORKER_ID nor TPU_WORKER_HOSTNAMES is set"),
        ({"TPU_WORKER_ID": "one", "TPU_WORKER_HOSTNAMES": "a"}, "TPU_WORKER_ID='one' is not a whole number from 0"),
        ({**GKE, "TPU_WORKER_ID": "4"}, "TPU_WORKER_ID=4 is not below the 4 of TPU_WORKER_HOSTNAMES"),
        ({**GKE, "TPU_WORKER_ID": "-1"}, "TPU_WORKER_ID='-1' is not a whole number from 0"),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b"},
            "TPU_WORKER_HOSTNAMES says that the slice has 2 hosts, and no TPU_WORKER_ID which this is",
        ),
        ({**GKE, "TPU_WORKER_HOSTNAMES": "a,b,a"}, "TPU_WORKER_HOSTNAMES lists a twice"),
        ({**GKE, "TPU_WORKER_HOSTNAMES": "a,,c"}, "TPU_WORKER_HOSTNAMES holds '', which is no name of a host"),
        (
            {**GKE, "TPU_WORKER_HOSTNAMES": "a,b\x1bc"},
            r"TPU_WORKER_HOSTNAMES holds 'b\x1bc', which is no name of a host",
        ),
        ({**GKE, "MEGASCALE_SLICE_ID": "1"}, "MEGASCALE_SLICE_ID=1 is not below MEGASCALE_NUM_SLICES=1"),
        ({"TPU_WORKER_ID": "1"}, "TPU_WORKER_ID=1, but nothing says how many hosts the slice has"),
        (
            {"TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_NAME": "\x1b[2J"},
            "nothing names this slice of 2 hosts: TPU_WORKER_HOSTNAMES and TPU_NAME are not set",
        ),
    ],
)
def test_what_cannot_be_is_no_slice_and_says_why(environ: Mapping[str, str], reason: str) -> None:
    assert read_identity(environ) == (None, reason)


@pytest.mark.parametrize(
    ("hostnames", "pattern"),
    [
        (HOSTS, "train-slice-0-{}.train"),
        (("t1v-n-0-w-0", "t1v-n-0-w-1"), "t1v-n-0-w-{}"),
        (("a", "b"), ""),
        (("10.0.0.1", "10.0.0.2"), ""),
        (("x0", "x1", "x3"), ""),
        ((f"{'x' * 254}0", f"{'x' * 254}1"), ""),  # longer than others would take
        ((), ""),
    ],
)
def test_names_that_count_are_one_pattern(hostnames: tuple[str, ...], pattern: str) -> None:
    assert SliceIdentity("s", 0, len(hostnames), hostnames).host_pattern == pattern


def test_that_gke_calls_a_slice_by_its_node_pool_is_no_contradiction() -> None:
    own = SourceResult("slice", (Level("slice", "train-0-0", "TPU_WORKER_HOSTNAMES"),), "")
    pool = SourceResult("kubernetes", (Level("slice", "pool-v6e", "node label cloud.google.com/gke-nodepool"),), "")
    assert merge((own, pool)) == MergedLevels(own.levels, ())
    assert len(merge((SourceResult("file", pool.levels, ""), own)).remarks) == 1, "the user's word may be a mistake"


# Through the planner: what nodes say of themselves, and what each is given.


def host(slice: str, worker_id: int, hosts: int = 4, slots: int = 1, name: str = "") -> Description:
    return Description(
        slot_count=slots,
        address="10.0.0.1",
        role="default",
        name=name or f"{slice}-{worker_id}",
        machine=f"{slice}{worker_id}",
        locality=(("slice", slice),),
        index=worker_id,
        slice_hosts=hosts,
        host_pattern=f"{slice}-{{}}",
    )


def plan(
    members: Sequence[Description], mesh: str = "dp=*", previous: Mapping[str, str] | None = None, nodes_min: int = 1
) -> PlanReady | PlanRefused:
    roster = tuple(RosterMember(one.name, encode_description(one), 4000, order) for order, one in enumerate(members, 1))
    planner = PlannerAdapter(meshes.parse(mesh), Limits(nodes_min=nodes_min), Costs())
    return planner.plan(MakePlan(7, 1, roster, previous or {}))


def shares(planned: PlanReady | PlanRefused) -> dict[str, NodeAssignment]:
    assert isinstance(planned, PlanReady), planned
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


def test_slices_of_one_host_are_joined_as_well() -> None:
    told = shares(plan([host(name, 0, hosts=1, slots=8) for name in ("x", "y")]))
    assert sorted((share.slice_index, share.slice_count, share.ranks[0]) for share in told.values()) == [
        (0, 2, 0),
        (1, 2, 8),
    ]


def test_slices_of_one_host_may_have_one_name() -> None:
    told = shares(plan([replace(host("job", 0, hosts=1), name=name) for name in ("x", "y", "z")]))
    assert sorted((share.slice_index, share.slice_count) for share in told.values()) == [(0, 3), (1, 3), (2, 3)]


def test_where_one_node_is_in_no_slice_there_are_none() -> None:
    other = Description(slot_count=1, address="10.0.0.9", role="default", name="z", machine="z")
    told = shares(plan([*(host(name, 0, hosts=1) for name in "xy"), other]))
    assert {(share.slice_index, share.slice_count) for share in told.values()} == {(0, 0)}


def test_a_slice_that_lost_a_host_stands_by_and_the_others_count_from_zero() -> None:
    first = plan(SCRAMBLED)
    before = shares(first)
    assert isinstance(first, PlanReady)
    lost = next(name for name in before if before[name].slice_index == 0 and before[name].ranks == (1,))
    second = plan([one for one in SCRAMBLED if one.name != lost], previous=first.assignments)
    after = shares(second)
    assert isinstance(second, PlanReady)
    assert {name[0] for name in after} == {"a", "b", "c"} - {lost[0]}
    assert {(share.slice_index, share.slice_count) for share in after.values()} == {(0, 2), (1, 2)}
    assert all(share.ranks == (share.slice_index * 4 + int(name[2:]),) for name, share in after.items())
    assert f"slice {lost[0]} has 3 of 4 hosts and lacks worker 1 ({lost[0]}-1)" in " ".join(second.reasons)


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ((0, 1, 3), "slice a has 3 of 4 hosts and lacks worker 2 (a-2)"),
        ((1,), "slice a has 1 of 4 hosts and lacks workers 0, 2-3 (a-0, a-2, a-3)"),
    ],
)
def test_half_a_slice_runs_nothing_and_says_who_is_missing(there: Sequence[int], sentence: str) -> None:
    refused = plan([host("a", worker_id) for worker_id in there])
    assert isinstance(refused, PlanRefused)
    assert sentence in refused.reason


def test_a_replacement_that_comes_before_its_predecessor_is_gone_stands_by() -> None:
    first = plan(SCRAMBLED)
    assert isinstance(first, PlanReady)
    early = host("a", 2, name="a-2-new")
    both = plan([*SCRAMBLED, early], previous=first.assignments)
    assert isinstance(both, PlanReady)
    assert {name: share.ranks for name, share in shares(both).items()} == {
        name: share.ranks for name, share in shares(first).items()
    }
    why = "a-2-new and a-2 are both worker 2 of slice a: a-2-new stands by until a-2 is gone"
    assert both.spare_reasons == {"a-2-new": why}
    after = shares(plan([*(one for one in SCRAMBLED if one.name != "a-2"), early], previous=first.assignments))
    assert after["a-2-new"].ranks == shares(first)["a-2"].ranks


@pytest.mark.parametrize("other", [host("a", 1, hosts=8, name="x"), host("a", 0, hosts=0, name="x")])
def test_a_node_that_claims_a_slice_of_another_size_stands_by_alone(other: Description) -> None:
    planned = plan([other, *(host("a", index) for index in (3, 1, 0, 2))])
    assert isinstance(planned, PlanReady)
    assert {name: share.ranks for name, share in shares(planned).items()} == {f"a-{at}": (at,) for at in range(4)}
    assert planned.spare_reasons == {"x": f"x says that slice a has {other.slice_hosts} hosts, and others say 4"}


def test_complete_slices_are_preferred_to_larger_ones_that_are_not() -> None:
    planned = plan(
        [*(host("big", index, hosts=8) for index in range(5)), *(host("a", index) for index in (1, 0, 3, 2))]
    )
    assert {name: share.ranks for name, share in shares(planned).items()} == {f"a-{at}": (at,) for at in range(4)}
    assert isinstance(planned, PlanReady)
    assert "slices of 8 hosts cannot be used beside those of 4" in planned.remarks


def numbered(numbers: Mapping[int, int]) -> PlanReady | PlanRefused:
    """One slice of four; `numbers`: worker id -> --node-rank."""
    members = [replace(host("a", index), node_rank=number, master_addr="m") for index, number in numbers.items()]
    roster = tuple(RosterMember(one.name, encode_description(one), 4000, order) for order, one in enumerate(members, 1))
    planner = PlannerAdapter(meshes.parse("dp=*"), Limits(nodes_min=4, nodes_max=4), Costs(), node_count=4)
    return planner.plan(MakePlan(7, 1, roster, {}))


def test_given_node_ranks_are_kept_if_they_follow_the_worker_ids() -> None:
    told = shares(numbered({2: 2, 0: 0, 3: 3, 1: 1}))
    assert {name: share.ranks for name, share in told.items()} == {f"a-{index}": (index,) for index in range(4)}


def test_numbers_that_do_not_are_refused_as_rank_0_would_not_be_the_master() -> None:
    refused = numbered({0: 3, 1: 2, 2: 1, 3: 0})
    assert isinstance(refused, PlanRefused)
    assert refused.reason == (
        "a-2 is worker 2 of slice a and is given --node-rank 1: the numbers of a slice's hosts must follow their "
        "worker ids one by one"
    )
