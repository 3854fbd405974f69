"""Which worlds are valid: units, whole slices, axes kept within a domain, and bounds. And what is said when none is."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model.errors import give_hint
from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.placement import choice
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import AllOrNothing, Costs, Limits, NoWorldError, Plan
from launcher.placement.planner import plan
from launcher.placement.units import compute_grid, list_elastic_sizes
from tests.support.placement.members import spell
from tests.support.placement.plans import faults

LEVELS = ("pod", "leaf")


def limits(**others: object) -> Limits:
    return Limits(levels=LEVELS, **others)  # type: ignore[arg-type]


def leaves(*sizes: int, slot_count: int = 8, pod: int = 2) -> list[Node]:
    """Leaves of so many nodes, `pod` leaves in each pod."""
    return [
        Node(id=f"l{leaf}n{index}", slot_count=slot_count, path=(f"p{leaf // pod}", f"l{leaf}"))
        for leaf, size in enumerate(sizes)
        for index in range(size)
    ]


def slices(*sizes: int, slot_count: int = 4) -> list[Node]:
    """Slices of so many hosts, whose worker ids run against their names."""
    return [
        Node(id=f"s{number}h{index}", slot_count=slot_count, path=("p", f"s{number}"), index=size - 1 - index)
        for number, size in enumerate(sizes)
        for index in range(size)
    ]


def world(nodes: list[Node], mesh: str, rules: Limits) -> Plan | str:
    """The plan, of which everything is checked that can be; or why there is none."""
    found = assess_feasibility(nodes, parse(mesh), rules)
    assert found == assess_feasibility(nodes[::-1], parse(mesh), rules)
    if not found.world_size:
        assert not found.is_full
        with pytest.raises(NoWorldError) as caught:
            plan(nodes, parse(mesh), rules, Costs(), None)
        assert found.reason == caught.value.reason
        return spell(found.reason)
    answer = plan(nodes, parse(mesh), rules, Costs(), None)
    assert found.world_size == answer.world_size
    assert not list(faults(answer, nodes, parse(mesh), rules, rules.block_size or 1))
    assert 0 <= answer.lower_bound <= answer.cost
    return answer


def formed(nodes: list[Node], mesh: str, rules: Limits) -> Plan:
    answer = world(nodes, mesh, rules)
    assert isinstance(answer, Plan), answer
    return answer


# The elastic axis


@pytest.mark.parametrize(
    ("least", "most", "size"), [(1, None, 7), (1, 5, 5), (7, 7, 7), (1, 7, 7), (8, None, None), (8, 9, None)]
)
def test_the_elastic_axis_keeps_to_its_bounds(least: int, most: int | None, size: int | None) -> None:
    answer = world(leaves(8, 8, 8, 7), "pp=4,dp=*,tp=8", limits(elastic_min=least, elastic_max=most))
    refusal = "nodes-missing mesh=pp=4,dp>=8,tp=8 nodes=32 devices=8 present=31 most=0"
    assert (answer.shape if isinstance(answer, Plan) else answer) == (refusal if size is None else (4, size, 8))


def test_a_world_is_full_where_its_axis_ends_and_a_unit_that_is_asked_for_stays_on_one_node() -> None:
    mesh = parse("pp=4,dp=*,tp=8")
    nodes = leaves(8, 8)
    is_full = [assess_feasibility(nodes[:count], mesh, limits(elastic_max=3)).is_full for count in (8, 11, 12, 16)]
    assert is_full == [False, False, True, True]
    answer = formed(leaves(4, 4), "pp=2,dp=*,tp=2", limits(block_size=8))  # four steps of dp on a node
    assert answer.shape == (2, 16, 2)
    halved = formed(leaves(3, slot_count=12), "dp=*,tp=8", limits(block_size=4))  # the usual unit of 12 slots is 4, too
    assert halved.world_size == 32


# Units


@pytest.mark.parametrize(
    ("mesh", "unit", "low", "high"),
    [
        ("pp=4,dp=*,tp=8", 8, 1, 40),
        ("pp=4,dp=*,tp=8", 32, 1, 40),
        ("pp=6,dp=*,tp=2", 24, 3, 60),
        ("dp=*,tp=3", 6, 1, 9),
    ],
)
@pytest.mark.parametrize("block", [1, 16, 48])
def test_sizes_of_an_axis_are_where_units_are_boxes(mesh: str, unit: int, low: int, high: int, block: int) -> None:
    replica = parse(mesh).replica_size
    expected = [
        size
        for size in range(low, high + 1)
        if compute_grid(parse(mesh).resolve_shape(size * replica), unit) and size * replica % block == 0
    ]
    assert list(list_elastic_sizes(parse(mesh), unit, block, low, high)) == expected
    assert expected or block > 1


@pytest.mark.parametrize(
    ("mesh", "unit", "spelt", "hint"),
    [
        ("pp=4,dp=*,tp=8", 6,
         "unit-uneven unit=6 mesh=pp=4,dp=*,tp=8 fitting=1,2,4,8", "use --unit 1, 2, 4 or 8"),
        ("dp=*,tp=8", 16, "unit-too-large unit=16 most=8 fitting=1,2,4,8", "use --unit 1, 2, 4 or 8"),
        ("dp=*,tp=3", 0, "unit-uneven unit=0 mesh=dp=*,tp=3 fitting=1,3,6", "use --unit 1, 3 or 6"),
    ],
)  # fmt: skip
def test_a_senseless_unit_is_refused_with_those_that_fit(mesh: str, unit: int, spelt: str, hint: str) -> None:
    with pytest.raises(NoWorldError) as caught:
        plan(leaves(2), parse(mesh), limits(block_size=unit), Costs(), None)
    reason = caught.value.reason
    assert (spell(reason), give_hint(reason)) == (spelt, hint)
    assert assess_feasibility(leaves(2), parse(mesh), limits(block_size=unit)).reason == reason


# Whole domains

SLICE = AllOrNothing(level="leaf", hosts=4)
WHOLE = limits(all_or_nothing=SLICE)


def test_only_complete_slices_are_used_and_their_cost_has_the_hops_inside() -> None:
    nodes = slices(4, 3, 4, 4)
    answer = formed(nodes, "dp=*,tp=4", WHOLE)
    assert answer.world_size == 48
    first = next(iter(answer.ranks))[:2]
    assert [answer.ranks[f"{first}h{index}"] for index in (3, 2, 1, 0)] == [
        tuple(range(start, start + 4)) for start in (0, 4, 8, 12)
    ]
    why = "slice-incomplete level=leaf domain=p/s1 present=3 hosts=4 missing=1 indices=3 names="
    assert spell(answer.reasons[1]) == f"unused why=({why}) nodes=(names names=s1h0,s1h1,s1h2 count=3)"
    assert answer.spares == ("s1h0", "s1h1", "s1h2")
    nodes = slices(4, 4)
    answer = formed(nodes, "dp=*,tp=4", WHOLE)
    plain = formed([Node(id=n.id, slot_count=4, path=n.path) for n in nodes], "dp=*,tp=4", limits())
    # A ring of 8 nodes, 4 ranks each, weight 10: 8 host hops of cost 1, two of which leave a slice of cost 2.
    assert answer.cost == plain.cost == answer.lower_bound == (8 * 1 + 2 * 2) * 4 * 10
    alone = formed(slices(4), "dp=*,tp=4", WHOLE)
    assert alone.cost == alone.lower_bound == 4 * 4 * 10  # a ring of 4 hosts


def test_slices_that_are_no_boxes_are_used_whole_and_those_of_another_kind_left_out() -> None:
    answer = formed(slices(4, 4, 4, 4), "pp=2,dp=*,tp=2", limits(all_or_nothing=SLICE, elastic_max=12))
    assert answer.shape == (2, 12, 2)  # 48 ranks: a stage is one slice and a half
    other = [Node(id=f"x{index}", slot_count=8, path=("p", "x")) for index in range(4)]
    answer = formed([*slices(4, 4, 4), *other], "dp=*", WHOLE)
    assert answer.world_size == 48
    spelt = "unused why=(slice-odd level=leaf domain=p/x devices=8 usual=4) nodes=(names names=x0,x1,x2,x3 count=4)"
    assert spelt in map(spell, answer.reasons)


# Axes within a domain


@pytest.mark.parametrize(
    ("nodes", "mesh", "within", "size"),
    [
        # 7 + 8 + 8 + 5 nodes hold 1 + 2 + 2 + 1 pipelines of four nodes.
        (leaves(7, 8, 8, 5), "pp=4,dp=*,tp=8", {"pp": "leaf"}, 6),
        (leaves(7, 8, 8, 5), "pp=4,dp=*,tp=8", {"pp": "pod"}, 6),
        (leaves(7, 8, 8, 6), "pp=4,dp=*,tp=8", {"pp": "pod"}, 6),
        (leaves(7, 9, 8, 5), "pp=4,dp=*,tp=8", {"pp": "pod"}, 7),
        # A group of dp on each of four leaves: the shortest one decides.
        (leaves(7, 8, 8, 5), "pp=4,dp=*,tp=8", {"dp": "leaf"}, 5),
        (leaves(4, 8, 8, 5), "pp=4,dp=*,tp=8", {"dp": "leaf"}, 4),
        # Rules nest: two nodes of tp inside a leaf, three such of cp inside a pod; odd nodes are left over.
        (leaves(5, 3, 7, 7), "dp=*,cp=3,tp=16", {"tp": "leaf", "cp": "pod"}, 3),
        # Two units on a node tie two pipelines together.
        (leaves(5, 5), "pp=4,dp=*,tp=4", {"pp": "leaf"}, 4),
        (leaves(6, 2, slot_count=4), "dp=*,ep=4,tp=2", {"tp": "host", "ep": "leaf"}, 4),
        (leaves(4, 4), "dp=*,tp=16", {"tp": "pod"}, 4),
    ],
)
def test_groups_stay_inside_domains_and_the_world_is_as_large_as_allowed(
    nodes: list[Node], mesh: str, within: dict[str, str], size: int
) -> None:
    answer = formed(nodes, mesh, limits(within=within))
    assert answer.world_size == size * parse(mesh).replica_size
    with mock.patch.object(choice, "search", return_value=[]):
        formed(nodes, mesh, limits(within=within))


def test_what_a_rule_holds_back_and_a_node_too_small_are_said() -> None:
    answer = formed(leaves(7, 8, 8, 5), "pp=4,dp=*,tp=8", limits(within={"pp": "leaf"}))
    assert spell(answer.reasons[0]).startswith(
        "world ranks=192 nodes=24 present=28 why=(largest size=dp=6 rules=--within pp=leaf) is_most=False; spares "
    )
    # The stages of a replica lie far apart, so nodes of two units are counted as one: the smaller one has no place.
    nodes = [*leaves(4), Node(id="small", slot_count=4, path=("p0", "l0"))]
    answer = formed(nodes, "pp=2,dp=*,tp=4", limits(within={"pp": "leaf"}))
    assert answer.spares == ("small",)
    assert "unused why=(too-small ranks=8) nodes=(names names=small count=1)" in map(spell, answer.reasons)


ODD_LEAF = leaves(8, 8, 7, 1)


@pytest.mark.parametrize(
    ("nodes", "mesh", "rules", "spelt"),
    [
        (slices(4, 3), "pp=2,dp=*,tp=16", WHOLE,
         "slices-missing mesh=pp=2,dp=*,tp=16 slices=2 level=leaf hosts=4 present=1 most=0; unused why="
         "(slice-incomplete level=leaf domain=p/s1 present=3 hosts=4 missing=1 indices=3 names=) "
         "nodes=(names names=s1h0,s1h1,s1h2 count=3)"),
        ([*slices(4)[:3], Node(id="odd", slot_count=8, path=("p", "s0"))], "dp=*", WHOLE,
         "no-slice mesh=dp=* level=leaf hosts=4; unused why=(slice-mixed level=leaf domain=p/s0 devices=8,4,4,4) "
         "nodes=(names names=odd,s0h0,s0h1,s0h2 count=4)"),
        ([*slices(3), Node(id="again", slot_count=4, path=("p", "s0"), index=2)], "dp=*", WHOLE,
         "no-slice mesh=dp=* level=leaf hosts=4; unused why=(slice-numbers level=leaf domain=p/s0 indices=0,1,2,2 "
         "last=3) nodes=(names names=again,s0h0,s0h1,s0h2 count=4)"),
        ([*slices(5), Node(id="lost", slot_count=4)], "dp=*", WHOLE,
         "no-slice mesh=dp=* level=leaf hosts=4; unused why=(slice-oversized level=leaf domain=p/s0 present=5 "
         "hosts=4) nodes=(names names=s0h0,s0h1,s0h2,s0h3,s0h4 count=5); unused why=(no-level node=lost level=leaf) "
         "nodes=(names names=lost count=1)"),
        (slices(4, 4), "dp=*,tp=3", WHOLE,
         "uneven mesh=dp=*,tp=3 ranks=16 level=leaf axis=dp low=1 high=10 larger=16"),
        (slices(4, 4), "dp=*", limits(all_or_nothing=SLICE, nodes_max=3),
         "slices-missing mesh=dp=* slices=1 level=leaf hosts=4 present=2 most=3"),
        (slices(4, 3), "dp=*", limits(all_or_nothing=SLICE, nodes_min=5),
         "too-few-nodes least=5 present=4; unused why=(slice-incomplete level=leaf domain=p/s1 present=3 hosts=4 "
         "missing=1 indices=3 names=) nodes=(names names=s1h0,s1h1,s1h2 count=3)"),
        ([Node(id=f"h{at}", slot_count=4, path=("p", "a"), index=at, host_pattern="t-{}.n") for at in (1, 3)], "dp=*",
         Limits(levels=("pod", "slice"), all_or_nothing=AllOrNothing(level="slice", hosts=4)),
         "no-slice mesh=dp=* level=slice hosts=4; unused why=(slice-incomplete level=slice domain=p/a present=2 "
         "hosts=4 missing=2 indices=0, 2 names=t-0.n,t-2.n) nodes=(names names=h1,h3 count=2)"),
        ([Node(id="h0", slot_count=4, path=("p", "a"), index=0, host_pattern="t{}")], "dp=*",
         Limits(levels=("pod", "slice"), all_or_nothing=AllOrNothing(level="slice", hosts=64)),
         "no-slice mesh=dp=* level=slice hosts=64; unused why=(slice-incomplete level=slice domain=p/a present=1 "
         "hosts=64 missing=63 indices=1-63 names=t1,t2,t3,t4) nodes=(names names=h0 count=1)"),
        (slices(4), "dp=*", limits(all_or_nothing=SLICE, block_size=3),
         "unit-leaves-idle unit=3 devices=4"),
        (slices(4), "dp=*", limits(all_or_nothing=AllOrNothing(level="slice", hosts=4)),
         "unknown-level option=--whole slice level=slice known=pod,leaf"),
        (ODD_LEAF, "dp=*,tp=16", limits(within={"tp": "host"}),
         "domain-too-small ranks=16 axes=tp level=host mesh=dp=1,tp=16 room=8 rules=tp=host"),
        (ODD_LEAF, "pp=9,dp=*,tp=8", limits(within={"pp": "leaf"}),
         "domain-too-small ranks=72 axes=pp level=leaf mesh=pp=9,dp=1,tp=8 room=64 rules=pp=leaf"),
        (ODD_LEAF, "pp=2,dp=*,cp=5,tp=8", limits(within={"cp": "leaf"}, elastic_min=2),
         "too-few-domains mesh=pp=2,dp=2,cp=5,tp=8 times=4 ranks=40 axes=cp level=leaf room=3"),
        (ODD_LEAF, "dp=*,tp=8", limits(within={"tp": "rack"}),
         "unknown-level option=--within tp=rack level=rack known=pod,leaf,host"),
        (ODD_LEAF, "dp=*,tp=8", limits(within={"tp": "leaf"}, all_or_nothing=AllOrNothing(level="pod", hosts=16)),
         "inside-whole option=--within tp=leaf level=leaf whole=pod"),
        (leaves(3), "pp=2,dp=*,tp=2", limits(block_size=8, elastic_min=3, elastic_max=3),
         "uneven mesh=pp=2,dp=*,tp=2 ranks=8 level= axis=dp low=3 high=3 larger=0"),
    ],
)  # fmt: skip
def test_what_a_world_lacks_is_named(nodes: list[Node], mesh: str, rules: Limits, spelt: str) -> None:
    assert world(nodes, mesh, rules) == spelt


@pytest.mark.parametrize(
    ("nodes", "mesh", "rules", "hint"),
    [
        (leaves(2), "dp=*,tp=16", limits(within={"tp": "host"}), "make tp smaller, or leave out"),
        (leaves(1, 1), "dp=*,tp=16", limits(within={"tp": "leaf"}), "add nodes to one leaf, make tp smaller, or"),
        (leaves(2), "dp=4,tp=8", limits(), "add nodes, or ask for fewer nodes or a smaller mesh"),
        (leaves(4), "dp=4,tp=8", limits(nodes_max=2), "raise --nnodes to 4 or more, or ask for a smaller mesh"),
        (leaves(4), "dp=4,tp=8", limits(nodes_min=5), "add nodes, or lower --nnodes"),
        (leaves(4), "dp=2,tp=8", limits(nodes_min=3), "lower --nnodes, or ask for a larger mesh"),
        (leaves(2), "pp=2,dp=*,tp=2", limits(block_size=8, elastic_min=3, elastic_max=3), "choose other mesh sizes"),
        (slices(2, 2), "dp=*,tp=3", limits(all_or_nothing=AllOrNothing(level="leaf", hosts=2)),
         "add nodes, up to dp=8; or choose other mesh sizes"),
    ],
)  # fmt: skip
def test_more_nodes_are_suggested_only_where_they_help(nodes: list[Node], mesh: str, rules: Limits, hint: str) -> None:
    with pytest.raises(NoWorldError) as caught:
        plan(nodes, parse(mesh), rules, Costs(), None)
    assert give_hint(caught.value.reason).startswith(hint)


def test_more_units_than_a_search_can_take_are_laid_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "BLOCKS_MAX", 7)
    with mock.patch.object(choice, "search", side_effect=AssertionError):
        found = formed(leaves(3, 3, 3), "dp=*,tp=8", limits())
    assert list(found.ranks) == ["l0n0", "l0n1", "l0n2", "l1n0", "l1n1", "l1n2", "l2n0", "l2n1", "l2n2"]


# What holds always

meshes = st.sampled_from(
    ["dp=*", "dp=*,tp=2", "pp=2,dp=*,tp=2", "tp=2,dp=*", "pp=2,dp=*", "dp=*,cp=2,tp=3", "pp=2,tp=4",
     "pp=2,dp=*,ep=4,tp=2", "dp=4,tp=4", "pp=3,dp=*,tp=4"]
).map(parse)  # fmt: skip


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Node], Mesh, Limits]:
    mesh = draw(meshes)
    usual = draw(st.sampled_from([1, 2, 4, 6, 8]))
    whole = draw(st.none() | st.builds(AllOrNothing, level=st.sampled_from(LEVELS), hosts=st.integers(1, 3)))
    if whole is None:
        slots = st.just(usual) if draw(st.booleans()) else st.integers(1, 8)
        names = st.sampled_from(["a", "b", "c", None])
        nodes = [
            Node(id=f"h{number}", slot_count=draw(slots), path=(draw(names), draw(names)))
            for number in draw(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True))
        ]
    else:
        hosts = st.just(whole.hosts) | st.integers(1, 4)
        nodes = [
            Node(id=f"h{number}-{host}", slot_count=usual, path=(f"p{number // 2}", f"l{number}"), index=host)
            for number in range(draw(st.integers(1, 6)))
            for host in range(draw(hosts))
        ]
    within = draw(
        st.dictionaries(st.sampled_from([axis.name for axis in mesh.axes]), st.sampled_from([*LEVELS, "host"]))
    )
    return (
        nodes,
        mesh,
        limits(
            within=within,
            all_or_nothing=whole,
            nodes_min=draw(st.sampled_from([1, 1, 1, 2])),
            nodes_max=draw(st.sampled_from([None, None, None, 3, 6])),
            elastic_min=draw(st.sampled_from([1, 1, 1, 2])),
            elastic_max=draw(st.sampled_from([None, None, None, 3])),
            block_size=draw(st.sampled_from([None, None, None, 1, 2])),
        ),
    )


@settings(max_examples=15)
@given(questions())
def test_feasibility_and_plan_agree_and_plans_keep_every_rule(question: tuple[list[Node], Mesh, Limits]) -> None:
    nodes, mesh, rules = question
    world(nodes, str(mesh), rules)


@settings(max_examples=30)
@given(questions())
def test_the_layout_that_proves_a_world_possible_is_valid(question: tuple[list[Node], Mesh, Limits]) -> None:
    nodes, mesh, rules = question
    with mock.patch.object(choice, "search", return_value=[]):
        world(nodes, str(mesh), rules)


@settings(max_examples=60)
@given(questions(), st.sampled_from([2, 3, 16]), st.booleans())
def test_where_no_number_of_nodes_helps_more_of_them_do_not(
    question: tuple[list[Node], Mesh, Limits], times: int, is_beside: bool
) -> None:
    nodes, mesh, rules = question
    try:
        plan(nodes, mesh, rules, Costs(), None)
    except NoWorldError as error:
        if not give_hint(error.reason).startswith("no number of "):
            return
    else:
        return
    more = [
        replace(
            node,
            id=f"{node.id}-{copy}",
            path=node.path if is_beside else tuple(name and f"{name}-{copy}" for name in node.path),
        )
        for copy in range(times)
        for node in nodes
    ]
    assert not assess_feasibility(more, mesh, replace(rules, nodes_max=None)).world_size
