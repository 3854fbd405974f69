"""Worlds and plans: tables for what people will ask about, properties for what must hold always."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.topology import sort_nodes
from launcher.placement import planner
from launcher.placement.capacity import assess_feasibility, find_largest_world
from launcher.placement.limits import Costs, Limits, NoWorldError, Plan
from launcher.placement.planner import plan as plan_with_costs
from launcher.placement.units import choose_block_size, find_usual_slot_count
from tests.support.placement.members import spell
from tests.support.placement.plans import domains, faults, meshes


def plan(nodes: list[Node], mesh: Mesh, limits: Limits, previous: Plan | None) -> Plan:
    return plan_with_costs(nodes, mesh, limits, Costs(), previous)


def cluster(count: int, slot_count: int = 8, leaf: int = 8) -> list[Node]:
    return [
        Node(id=f"h{index}", slot_count=slot_count, path=(f"leaf-{index // leaf}",), order=index + 1)
        for index in range(count)
    ]


def nodes_of(*slot_counts: int) -> list[Node]:
    return [Node(id="abcdefgh"[index], slot_count=count) for index, count in enumerate(slot_counts)]


# The order of nodes


def one(name: str, *path: str | None, order: int = 0) -> Node:
    return Node(id=name, slot_count=1, path=path, order=order)


@pytest.mark.parametrize(
    ("nodes", "ids"),
    [
        ([one("10.0.0.10"), one("10.0.0.9"), one("10.0.0.2"), one("10.0.0.100")],
         ["10.0.0.2", "10.0.0.9", "10.0.0.10", "10.0.0.100"]),
        ([one("a", "leaf-10"), one("b", "leaf-9")], ["b", "a"]),
        ([one("nowhere"), one("half", "zone", None), one("known", "zone", "leaf")], ["known", "half", "nowhere"]),
        ([one("h01", order=8), one("h1", order=7)], ["h1", "h01"]),  # names that read alike keep the store's order
    ],
)  # fmt: skip
def test_nodes_sort_by_domain_and_by_the_numbers_in_names_the_unknown_last(nodes: list[Node], ids: list[str]) -> None:
    assert [node.id for node in sort_nodes(nodes)] == ids


# Units and worlds


@pytest.mark.parametrize(
    ("mesh", "slot_count", "unit"),
    [
        ("pp=4,dp=*,tp=8", 8, 8),
        ("dp=*,tp=16", 8, 8),
        ("dp=*,cp=2,tp=2", 8, 4),
        ("dp=*,cp=4,tp=4", 8, 8),
        ("dp=*,tp=12", 8, 4),
        ("dp=*,cp=2,tp=12", 8, 4),
        ("dp=*,tp=3", 8, 1),
        ("tp=8,dp=*", 8, 1),
        ("pp=2,tp=4", 8, 8),
        ("dp=*", 8, 1),
    ],
)
def test_the_unit_is_the_innermost_axes_that_fill_a_node(mesh: str, slot_count: int, unit: int) -> None:
    assert choose_block_size(parse(mesh), slot_count) == unit


def test_the_unit_is_made_for_the_commonest_slots_and_two_nodes_with_one_id_are_our_mistake() -> None:
    assert find_usual_slot_count(nodes_of(8, 8, 8, 7, 16)) == 8
    assert find_usual_slot_count(nodes_of(8, 4, 4)) == 8
    with pytest.raises(ValueError, match="same id"):
        assess_feasibility([*cluster(1), *cluster(1)], parse("dp=*"), Limits())


@pytest.mark.parametrize(
    ("mesh", "slot_counts", "limits", "world_size", "node_count", "is_full"),
    [
        ("pp=4,dp=*,tp=8", [8] * 31, Limits(), 224, 28, False),
        ("pp=4,dp=*,tp=8", [8] * 32, Limits(nodes_max=32), 256, 32, True),
        ("pp=4,dp=*,tp=8", [8] * 28, Limits(nodes_max=30), 224, 28, True),
        ("pp=4,dp=*,tp=8", [8] * 27, Limits(nodes_max=30), 192, 24, False),
        ("pp=4,tp=8", [8] * 5, Limits(), 32, 4, True),
        ("dp=*", [8], Limits(nodes_max=1), 8, 1, True),
        ("dp=*", [3, 5], Limits(), 8, 2, False),
        ("dp=*", [1, 1, 8, 8], Limits(nodes_max=2), 16, 2, True),
        ("dp=*,tp=8", [8, 8, 7], Limits(), 16, 2, False),
        ("dp=*,tp=3", [8], Limits(), 6, 1, False),
        ("dp=4", [4, 2, 2, 2], Limits(nodes_min=2), 4, 2, True),
    ],
)
def test_the_world_is_the_largest_whole_number_of_replicas(
    mesh: str, slot_counts: list[int], limits: Limits, world_size: int, node_count: int, is_full: bool
) -> None:
    nodes = [Node(id=f"h{index}", slot_count=count) for index, count in enumerate(slot_counts)]
    answer = assess_feasibility(nodes, parse(mesh), limits)
    assert (answer.world_size, answer.is_full) == (world_size, is_full)
    assert find_largest_world(nodes, parse(mesh), limits).node_count == node_count
    assert plan(nodes, parse(mesh), limits, None).world_size == world_size


@pytest.mark.parametrize(
    ("nodes", "mesh", "limits", "reasons"),
    [
        (cluster(31), "pp=4,dp=*,tp=8", Limits(),
         ("world ranks=224 nodes=28 present=31 why=(largest size=dp=7 rules=) is_most=False; "
          "spares nodes=(names names=h7,h15,h23 count=3)",
          "cost cost=3752 is_least=False",
          "slowest-link axes=pp link=level 1 leaf-0's uplink share=0.677419 is_assumed=True")),
        (cluster(9), "pp=4,dp=*,tp=8", Limits(elastic_max=1),
         ("world ranks=32 nodes=4 present=9 why=(most-allowed size=dp=1) is_most=False; "
          "spares nodes=(names names=h4,h5,h6,h7,h8 count=5)",
          "cost cost=72 is_least=True",
          "slowest-link axes=pp link=host h0's uplink share=1 is_assumed=True")),
        (cluster(1, 2), "dp=2", Limits(),
         ("world ranks=2 nodes=1 present=1 why=(fixed-size mesh=dp=2) is_most=False",)),
        (nodes_of(8, 8, 7), "dp=*,tp=8", Limits(),
         ("world ranks=16 nodes=2 present=3 why=(largest size=dp=2 rules=) is_most=False",
          "unused why=(too-small ranks=8) nodes=(names names=c count=1)",
          "cost cost=160 is_least=True")),
        (nodes_of(8), "dp=*,tp=3", Limits(),
         ("world ranks=6 nodes=1 present=1 why=(largest size=dp=2 rules=) is_most=False",
          "idle-slots slots=2")),
    ],
)  # fmt: skip
def test_the_reason_has_world_and_spares(
    nodes: list[Node], mesh: str, limits: Limits, reasons: tuple[str, ...]
) -> None:
    assert tuple(map(spell, plan(nodes, parse(mesh), limits, None).reasons)) == reasons


@pytest.mark.parametrize(
    ("nodes", "mesh", "limits", "spelt"),
    [
        ([], "dp=*", Limits(), "no-node"),
        (nodes_of(8, 8, 4, 8), "pp=4,dp=*,tp=8", Limits(),
         "nodes-missing mesh=pp=4,dp=*,tp=8 nodes=4 devices=8 present=3 most=0; "
         "odd-nodes nodes=(names names=c (4) count=1)"),
        (nodes_of(2), "tp=4", Limits(), "one-node-too-small mesh=tp=4 ranks=4 devices=2 nnodes=0"),
        (cluster(9), "pp=4,dp=*,tp=8", Limits(nodes_max=3),
         "nodes-missing mesh=pp=4,dp=*,tp=8 nodes=4 devices=8 present=9 most=3"),
        (cluster(2), "dp=*", Limits(nodes_min=3), "too-few-nodes least=3 present=2"),
        (nodes_of(8, 8, 4), "dp=*,tp=8", Limits(nodes_min=3), "too-few-nodes least=3 present=2; unused "
                                                              "why=(too-small ranks=8) nodes=(names names=c count=1)"),
        (cluster(31), "pp=4,dp=*,tp=8", Limits(nodes_min=30, nodes_max=31),
         "too-few-active mesh=pp=4,dp=7,tp=8 ranks=224 nodes=28 least=30"),
    ],
)  # fmt: skip
def test_a_world_that_cannot_be_says_what_is_missing(nodes: list[Node], mesh: str, limits: Limits, spelt: str) -> None:
    with pytest.raises(NoWorldError) as caught:
        plan(nodes, parse(mesh), limits, None)
    answer = assess_feasibility(nodes, parse(mesh), limits)
    assert (answer.world_size, answer.is_full) == (0, False)
    assert answer.reason == caught.value.reason
    assert spell(answer.reason) == spelt


# Cost


UNSEARCHED = [
    ("dp=*,tp=2", [8], Limits()),
    ("dp=*,tp=2", [2, 8, 4], Limits(elastic_max=4)),
    ("dp=*,tp=8", [8] * 5, Limits()),
    ("pp=2,dp=*,tp=4", [8] * 6, Limits()),
    ("dp=4,ep=4,tp=2", [8] * 4, Limits()),
    ("pp=3,cp=2,tp=8", [8] * 6, Limits()),
]


def test_where_it_does_not_matter_who_holds_what_no_search_is_needed() -> None:
    cases = [
        (
            mesh,
            [Node(id=f"h{index}", slot_count=count, path=("leaf",)) for index, count in enumerate(slot_counts)],
            limits,
        )
        for mesh, slot_counts, limits in UNSEARCHED
    ]
    program = (
        "import sys; from launcher.model import mesh; from launcher.model.node import Node; "
        "from launcher.placement.limits import AllOrNothing, Costs, Limits, Plan; "
        "from launcher.placement.planner import plan; "
        f"answers = [plan(nodes, mesh.parse(text), limits, Costs(), None) for text, nodes, limits in {cases!r}]; "
        "assert 'numpy' not in sys.modules; print(*(f'{one.cost}={one.lower_bound}' for one in answers))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    # Two leaves make it a question for the search; if leaving them costs nothing, the answer is the same.
    for answer, (mesh, nodes, limits) in zip(ran.stdout.split(), cases, strict=True):
        apart = [Node(id=node.id, slot_count=node.slot_count, path=(node.id,)) for node in nodes]
        free = Costs(level_costs={"level 1": 0})
        unsought = mock.DEFAULT if len(nodes) == 1 else None
        with mock.patch.object(
            planner, "_choose_without_search", wraps=planner._choose_without_search, return_value=unsought
        ):
            other = plan_with_costs(apart, parse(mesh), Limits(elastic_max=limits.elastic_max), free, None)
        assert answer == f"{other.cost}={other.cost}"
        assert other.lower_bound <= other.cost


def test_the_seed_of_hashes_changes_nothing() -> None:
    program = (
        "from launcher.model import mesh; from launcher.model.node import Node; "
        "from launcher.placement.limits import *; from launcher.placement.planner import plan; "
        "slots = [8 - i % 5 // 4 * 4 for i in range(31)]; "
        "nodes = [Node(id=f'h{i}', slot_count=slots[i], path=(f's{i // 11}', f'l{i // 3}')) for i in range(31)]; "
        "limits = Limits(levels=('spine', 'leaf'), within={'tp': 'host', 'cp': 'spine'}); "
        "first = plan(nodes, mesh.parse('pp=2,dp=*,cp=2,tp=4'), limits, Costs(), None); "
        "print(first, plan(nodes[3:], mesh.parse('pp=2,dp=*,cp=2,tp=4'), limits, Costs(), first))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


# What holds always


@st.composite
def node_lists(draw: st.DrawFn, *, size_min: int = 1, is_equal: bool = False) -> list[Node]:
    names = draw(st.lists(st.integers(0, 30), min_size=size_min, max_size=12, unique=True))
    usual = draw(st.sampled_from([1, 2, 4, 6, 8]))
    slots = st.just(usual) if is_equal else st.one_of(st.just(usual), st.integers(1, 8))
    return [
        Node(id=f"h{name}", slot_count=draw(slots), path=(draw(domains), draw(domains)), order=draw(st.integers(0, 3)))
        for name in names
    ]


@settings(max_examples=25)
@given(nodes=node_lists(), mesh=meshes, nodes_max=st.one_of(st.none(), st.integers(1, 12)))
def test_every_plan_is_valid_and_as_large_as_can_be(nodes: list[Node], mesh: Mesh, nodes_max: int | None) -> None:
    limits = Limits(nodes_max=nodes_max)
    found = assess_feasibility(nodes, mesh, limits)
    if not found.world_size:
        with pytest.raises(NoWorldError, match=r"-too-small|-missing"):
            plan(nodes, mesh, limits, None)
        return
    answer = plan(nodes, mesh, limits, None)
    unit = choose_block_size(mesh, find_usual_slot_count(nodes))
    assert not list(faults(answer, nodes, mesh, limits, unit))
    assert answer.world_size == found.world_size
    assert answer.lower_bound <= answer.cost
    if mesh.elastic_axis is not None:
        rooms = sorted((node.slot_count // unit * unit for node in nodes), reverse=True)
        assert sum(rooms[:nodes_max]) - answer.world_size < mesh.replica_size


@settings(max_examples=25)
@given(nodes=node_lists(), mesh=meshes, nodes_max=st.one_of(st.none(), st.integers(1, 12)))
def test_one_more_usual_node_never_makes_a_world_smaller(nodes: list[Node], mesh: Mesh, nodes_max: int | None) -> None:
    limits = Limits(nodes_max=nodes_max)
    more = [*nodes, Node(id="new", slot_count=find_usual_slot_count(nodes), path=("a",))]
    assert assess_feasibility(more, mesh, limits).world_size >= assess_feasibility(nodes, mesh, limits).world_size
