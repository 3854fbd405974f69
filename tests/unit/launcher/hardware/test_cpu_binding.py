"""Which CPUs each worker is kept to, on made-up machines of one, two and four NUMA nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.hardware.cpu_binding import CpuTopology, bind, describe_bindings, format_ranges, list_numa_nodes
from launcher.hardware.node_binding import read_topology
from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot
from tests.support.hardware.cpus import cpus, machine

if TYPE_CHECKING:
    from launcher.config.options.readers import NumaMode

MODES: tuple[NumaMode, ...] = ("node", "socket", "exclusive", "core-complex")
NOWHERE = frozenset[int]()
FOUR_GPUS = (1, 1, 0, 0)  # their nodes: two on each, and not in the order of the nodes


def slots(*homes: int | Sequence[int] | None, kind: str = "nvidia") -> list[Slot]:
    """Slots whose devices are on these NUMA nodes; None for one that nobody knows the node of."""
    return [
        Slot(
            index=place,
            devices=tuple(
                Device(kind=kind, index=place, id=f"{place}.{one}", visible=str(place), numa_node=node)
                for one, node in enumerate(home if isinstance(home, Sequence) else [home])
            ),
        )
        for place, home in enumerate(homes)
    ]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two sockets of 8 cores with two threads each: CPUs 0-7 and their twins 16-23, 8-15 and 24-31."""
    threads = {cpu: f"{cpu % 16},{cpu % 16 + 16}" for cpu in range(32)}
    caches = ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31")
    return machine(
        tmp_path / "two", nodes=("0-7,16-23", "8-15,24-31"), threads=threads, caches=caches, sockets=([0], [1])
    )


def bound(mode: NumaMode, root: Path, found: Sequence[Slot], allowed: str | None = None) -> list[str]:
    """The CPUs of each slot as text."""
    topology = read_topology(frozenset(), str(root))
    every = frozenset[int]().union(*topology.nodes.values())
    may = every if allowed is None else frozenset(cpus(allowed))
    return [format_ranges(one.cpus) for one in bind(mode, topology, may, list_numa_nodes(found))]


NEAR = ["8-15,24-31", "8-15,24-31", "0-7,16-23", "0-7,16-23"]
HALVES = ["8-11,24-27", "12-15,28-31", "0-3,16-19", "4-7,20-23"]
FOUR_NODES = {"nodes": ("0-3", "4-7", "8-11", "12-15"), "sockets": ([0, 1], [2, 3])}
TWO_CACHES = {"nodes": ("0-7",), "caches": ("0-1", "2-7")}
NONE = (None, None)


@pytest.mark.parametrize(
    ("made", "mode", "homes", "allowed", "expected"),
    [
        # A worker runs near its GPU.
        (None, "node", FOUR_GPUS, None, NEAR),
        (None, "socket", FOUR_GPUS, None, NEAR),
        (None, "exclusive", FOUR_GPUS, None, HALVES),
        (None, "core-complex", FOUR_GPUS, None, HALVES),
        # A socket may have several nodes.
        (FOUR_NODES, "socket", (1, 2), None, ["0-7", "8-15"]),
        # Cores that do not come out even go to the first workers.
        ({"nodes": ("0-7",)}, "exclusive", (0, 0, 0), None, ["0-2", "3-5", "6-7"]),
        # More workers than caches take turns, the largest first, as far as this process may use them.
        (TWO_CACHES, "core-complex", (0, 0, 0), None, ["2-7", "0-1", "2-7"]),
        (TWO_CACHES, "core-complex", (0, 0, 0), "0-2", ["0-1", "2", "0-1"]),
        # No worker gets a CPU that the agent may not use.
        (None, "node", FOUR_GPUS, "0-3,8-9", ["8-9", "8-9", "0-3", "0-3"]),
        (None, "exclusive", FOUR_GPUS, "0-3,8-9", ["8", "9", "0-1", "2-3"]),
        # Workers whose devices have no known node are dealt out over the nodes.
        (None, "node", (None, *NONE), None, ["0-7,16-23", "0-7,16-23", "8-15,24-31"]),
        (None, "exclusive", (None, *NONE), None, ["0-3,16-19", "4-7,20-23", "8-15,24-31"]),
        ({"nodes": ("0-3", "")}, "node", NONE, None, ["0-3", "0-3"]),  # a node of memory alone gets none
        # GPUs on two NUMA nodes.
        (None, "node", ([1, 0], [1]), None, ["0-31", "8-15,24-31"]),
        (None, "exclusive", (FOUR_GPUS,), None, ["0-31"]),
    ],
)  # fmt: skip
def test_each_worker_gets_the_cpus_of_its_mode(
    two: Path, tmp_path: Path, made: Any, mode: NumaMode, homes: Any, allowed: str | None, expected: list[str]
) -> None:
    root = machine(tmp_path / "made", **made) if made else two
    for kind in ("nvidia", "cpu", "xpu"):
        assert bound(mode, root, slots(*homes, kind=kind), allowed) == expected


def test_nodes_that_workers_cannot_use_or_share_are_refused_with_the_numbers(two: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bound("node", two, slots(*FOUR_GPUS), allowed="0-3")
    assert str(caught.value) == (
        "--numa-binding node: local rank 0 belongs on NUMA node 1, but this process may use none of "
        "its CPUs, 8-15,24-31; it may use 0-3"
    )
    assert "CPUs of every node" in str(caught.value.hint)
    with pytest.raises(UsageError, match="local ranks 0 and 1 have devices on NUMA nodes 0-1"):
        bound("exclusive", two, slots([1, 0], [1]))


def test_more_workers_than_cores_cannot_have_one_each(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=("0-3",), threads={0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    with pytest.raises(UsageError) as caught:
        bound("exclusive", root, slots(0, 0, 0))
    assert str(caught.value) == (
        "--numa-binding exclusive: 3 workers belong on NUMA node 0, where this process may use 2 cores, CPUs 0-3"
    )


def test_a_kernel_that_does_not_tell_of_caches_is_refused_for_them_alone(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=("0-3",))
    assert bound("node", root, slots(None, None)) == ["0-3", "0-3"]
    with pytest.raises(UsageError, match="does not list which CPUs of NUMA node 0 share a cache"):
        bound("core-complex", root, slots(None, None))


def test_a_kernel_without_numa_is_one_node_and_this_machine_can_be_read(tmp_path: Path) -> None:
    topology = read_topology(frozenset({2, 3}), str(tmp_path))
    assert topology.nodes == {0: {2, 3}}
    (only,) = bind("node", topology, frozenset({2, 3}), [NOWHERE])
    assert (only.cpus, only.reason, only.core_count) == (frozenset({2, 3}), "dealt to NUMA node 0", 2)
    allowed = frozenset(os.sched_getaffinity(0))
    found = bind("node", read_topology(allowed), allowed, [NOWHERE])
    assert found[0].cpus <= allowed
    assert found[0].cpus


def test_the_cores_of_a_worker_are_counted_and_decisions_one_sentence(two: Path) -> None:
    topology = read_topology(frozenset(), str(two))
    every, at = frozenset(range(32)), list_numa_nodes(slots(*FOUR_GPUS))
    assert [one.core_count for one in bind("node", topology, every, at)] == [4, 4, 4, 4]
    assert [one.core_count for one in bind("exclusive", topology, every, at)] == [4, 4, 4, 4]
    assert [one.core_count for one in bind("node", topology, frozenset({0, 8}), at)] == [1, 1, 1, 1]
    wide = list_numa_nodes(slots([1, 1], [0, 0]))  # --devices-per-worker 2
    assert [[one.core_count for one in bind(mode, topology, every, wide)] for mode in MODES] == [
        [8, 8], [8, 8], [8, 8], [4, 4],
    ]  # fmt: skip
    found = bind("node", read_topology(frozenset(), str(two)), frozenset(range(10)), [frozenset({1}), NOWHERE])
    assert describe_bindings("node", found) == (
        "--numa-binding node binds local rank 0 to CPUs 8-9 (NUMA node 1), 1 to 0-7 (dealt to NUMA node 0)"
    )


@given(data=st.data(), mode=st.sampled_from(MODES))
def test_every_worker_gets_cpus_it_may_use_or_the_job_is_refused(data: st.DataObject, mode: NumaMode) -> None:
    every = range(data.draw(st.integers(1, 24)))
    nodes = data.draw(st.lists(st.integers(0, 3), min_size=len(every), max_size=len(every)))
    core = {cpu: cpu - cpu % data.draw(st.sampled_from((1, 2)), label="threads") for cpu in every}
    topology = CpuTopology(
        nodes={node: frozenset(cpu for cpu in every if nodes[cpu] == node) for node in set(nodes)},
        socket={cpu: nodes[cpu] // 2 for cpu in every},
        core=core,
        cache={cpu: cpu - cpu % 4 for cpu in every},
    )
    allowed = frozenset(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    at = data.draw(st.lists(st.frozensets(st.sampled_from(sorted(topology.nodes)), max_size=2), min_size=1))
    try:
        found = bind(mode, topology, allowed, at)
    except UsageError:
        return
    assert len(found) == len(at)
    for one in found:
        assert one.cpus
        assert one.cpus <= allowed
        assert one.core_count >= 1
    if mode == "exclusive":
        assert sum(len(one.cpus) for one in found) == len(frozenset[int]().union(*(one.cpus for one in found)))
