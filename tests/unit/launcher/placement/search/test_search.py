"""The search and its parts: orders of the mesh, domains on a line, swaps, and what holds for every problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model import traffic
from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.topology import build_tree
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.hops import build_graph, list_neighbours, make_matrix
from launcher.placement.problem.problem import Layout, Problem, coarsen, is_valid, make_problem, restrict, round_weights
from launcher.placement.search.improve import improve
from launcher.placement.search.line import (
    Digit,
    RoomKind,
    WalkOrder,
    compute_loads,
    divide_runs,
    list_orders,
    partition_by_beam,
    partition_greedily,
    walk,
)
from launcher.placement.search.runs import _fill_rows, reorder
from launcher.placement.search.search import search
from tests.support.placement.regular import regular

small = settings(max_examples=15, derandomize=True)


def problem(
    leaves: list[tuple[str, list[int]]], mesh: str, size: int = 1, limits: Limits | None = None, weights: str = ""
) -> Problem:
    """`leaves`: "pod/leaf" and the units of its nodes. A unit is four ranks; `size` of the elastic axis."""
    nodes = [
        Node(id=f"h{index}-{number}", slot_count=4 * units, path=tuple(leaf.split("/")))
        for index, (leaf, rooms) in enumerate(leaves)
        for number, units in enumerate(rooms)
    ]
    grid = parse(mesh)
    limits = limits or Limits()
    costs = Costs(traffic=traffic.parse(weights, grid) if weights else None)
    place = build_tree(nodes, ("pod", "leaf"))
    rooms = [node.slot_count // 4 for node in place.nodes]
    shape, every = grid.resolve_shape(size * grid.replica_size), range(len(rooms))
    return make_problem(place, grid, shape, 4, limits, costs, rooms, every)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    leaves = [
        (f"p{draw(st.integers(0, 2))}/l{index}", draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=4)))
        for index in range(draw(st.integers(2, 5)))
    ]
    mesh = draw(st.sampled_from(["pp=2,dp=*,tp=4", "dp=*,cp=2,tp=4", "dp=*,ep=3,tp=4", "dp=*,tp=4"]))
    room = sum(sum(rooms) for _, rooms in leaves)
    most = room * 4 // parse(mesh).replica_size
    if not most:
        leaves[0][1].extend([1] * 6)
        most = 1
    return problem(leaves, mesh, draw(st.integers(1, most)), Limits())


def searched(given: Problem) -> Layout:
    found = search(given)[0]
    assert is_valid(given, found)
    return found


def sorted_by_path(given: Problem) -> Layout:
    return np.repeat(np.arange(len(given.capacity)), given.capacity)[: given.traffic.block_count].astype(np.int32)


@small
@given(problems(), st.randoms(use_true_random=False))
def test_improving_never_costs_more_and_stays_valid(given: Problem, chance: object) -> None:
    order = list(range(len(given.capacity)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    items = np.array(order)
    start = np.repeat(items, given.capacity[items])[: given.traffic.block_count].astype(np.int32)
    found = improve(given, start)
    assert is_valid(given, found)
    assert given.compute_cost(found) <= given.compute_cost(start)


HOST = (4, 2, 1)


@pytest.mark.parametrize(
    ("given", "sorted_cost", "optimum"),
    [
        # Sorting takes 7 + 8 + 8 + 5 nodes; 7 of each leaf is right.
        (regular((7, 8, 8, 8), "pp=4,dp=7,tp=8"), 1_552, 1_008),
        (regular((7, 8, 8, 8), "pp=4,dp=7,tp=8", level_costs=HOST), 1_552 + 2_744, 3_752),
        # The short first leaf would misalign all that follow.
        (regular((7, 8, 8, 8, 8), "pp=4,dp=8,tp=8"), 2_432, 1_152),
        # The pipeline talks most: the order of ranks cannot be turned round, so the nodes must be.
        (regular((8, 8, 8, 8), "pp=4,dp=8,tp=8", "dp=1,pp=10"), 3_840, 256),
        # Rows of 16 against tiles of 4 by 4.
        (regular((16,) * 16, "pp=16,dp=16,tp=8", "dp=5,pp=5"), 19_200, 8_960),
        (regular((16,) * 256, "pp=8,dp=512,tp=8", spine=16), 562_176, 196_608),
    ],
    ids=["31 nodes", "31 nodes, host", "39 nodes", "32 nodes", "256 nodes", "4096 nodes"],
)
def test_known_clusters_are_laid_out_at_their_optimum(given: Problem, sorted_cost: int, optimum: int) -> None:
    """Where the order of paths and the best layout can be counted by hand."""
    found, scale = searched(given), given.traffic.scale
    assert given.compute_cost(sorted_by_path(given)) == sorted_cost * scale
    assert compute_lower_bound(given) <= given.compute_cost(found) == optimum * scale


@pytest.mark.parametrize(("nodes_min", "nodes_max"), [(1, 3), (6, None), (4, 4)])
def test_as_many_nodes_are_active_as_allowed(nodes_min: int, nodes_max: int | None) -> None:
    limits = Limits(nodes_min=nodes_min, nodes_max=nodes_max)
    given = problem([("p0/l0", [3, 1, 1]), ("p0/l1", [3, 1, 1]), ("p1/l2", [3])], "pp=2,dp=4,tp=4", limits=limits)
    found = searched(given)
    assert nodes_min <= len(set(found.tolist())) <= (nodes_max or 7)


def test_a_world_that_does_not_fit_has_no_layout_and_equal_nodes_are_not_reordered() -> None:
    given = problem([("p0/l0", [1, 1])], "pp=2,dp=1,tp=4")
    assert search(replace(given, capacity=given.capacity[:1], labels=tuple(one[:1] for one in given.labels))) == []
    given = problem([("p0/l0", [2, 2]), ("p0/l1", [2, 2])], "pp=2,dp=*,tp=4", 4)
    layout = sorted_by_path(given)
    assert reorder(given, layout) is layout


def test_large_numbers_are_rounded_and_nodes_of_eight_units_laid_out_as_one() -> None:
    leaves = [("p0/l0", [1] * 3), ("p0/l1", [1] * 4), ("p1/l2", [1] * 4)]
    plain = problem(leaves, "pp=2,dp=4,tp=4", weights="pp=3,dp=10,tp=100")
    huge = problem(leaves, "pp=2,dp=4,tp=4", weights="pp=300000000,dp=1000000000,tp=1")
    assert round_weights(plain) is plain
    assert max(part.weight for part in round_weights(huge).traffic.parts) < 2**32
    assert plain.compute_cost(searched(plain)) == plain.compute_cost(searched(huge))
    given = problem([("p0/l0", [8] * 3), ("p1/l1", [8] * 3)], "dp=*,tp=4", 40)
    larger, size = coarsen(given)
    assert (size, larger.traffic.grid, larger.capacity.tolist()) == (8, (5, 1), [1] * 6)
    found = searched(given)
    assert np.array_equal(found, np.repeat(found[::8], 8))


def test_coarse_costs_are_the_costs_and_restricted_items_obey_the_limits() -> None:
    given = problem([("p0/l0", [2] * 4), ("p1/l1", [2] * 4)], "pp=2,dp=2,ep=4,tp=4")
    larger, size = coarsen(given)
    layout = np.array([3, 0, 5, 1, 7, 2, 6, 4], dtype=np.int32)
    assert size == 2
    assert larger.compute_cost(layout) == given.compute_cost(np.repeat(layout, 2))
    given = problem([("p0/l0", [3, 3, 1, 1])], "dp=*,tp=4", 4, Limits(nodes_min=3))
    less = restrict(given)
    assert less is not None
    assert np.sort(less.capacity)[-2:].sum() < 4 <= less.capacity.sum()


def test_orders_are_rows_strips_and_snakes_through_neighbours() -> None:
    given = problem([("p0/l0", [1] * 16)], "pp=4,dp=4,tp=4", weights="pp=10,dp=10")
    grid = given.traffic.grid
    coordinates = np.array(np.unravel_index(np.arange(16), grid))
    orders, region = list_orders(grid, compute_loads(given.traffic), 4, 1000), np.zeros(16, dtype=np.int64)
    found = [walk(coordinates, grid, order, region).tolist() for order in orders]
    assert list(range(16)) in found
    assert [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12] in found
    assert [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15] in found
    assert all(sorted(line) == list(range(16)) for line in found)
    grid = (3, 4, 5)
    coordinates = np.array(np.unravel_index(np.arange(60), grid))
    order = WalkOrder((Digit(0, 1, 0), Digit(1, 1, 0), Digit(2, 1, 0)), True)
    line = walk(coordinates, grid, order, np.zeros(60, dtype=np.int64))
    steps = np.abs(np.diff(coordinates[:, line], axis=1)).sum(axis=0)
    assert set(steps.tolist()) == {1}


@pytest.mark.parametrize("way", [partition_greedily, partition_by_beam])
def test_domains_take_less_than_they_could_where_a_cut_is_cheaper(way: type[partition_greedily]) -> None:
    # Four rows of 7 units: a cut at the end of a row costs 1, elsewhere 5.
    cut = [0, *(1 if position % 7 == 0 else 5 for position in range(1, 28)), 0]
    chosen = way([RoomKind(8, 3), RoomKind(7, 1)], cut, 1)
    assert [take for _, take in chosen] == [7, 7, 7, 7]


def test_runs_are_shared_among_items_that_fit_and_bricks_fill_rows_of_one_height() -> None:
    taken = divide_runs([2, 1, 2, 1], [(0, 1), (1, 2), (3, 3)], [0, *[1] * 5, 0])
    assert taken is not None
    assert sorted((start, amount) for _, start, amount in taken) == [(0, 1), (1, 2), (3, 2), (5, 1)]
    assert divide_runs([2, 2], [(0, 1), (1, 1), (2, 1)], [0, 1, 1, 0]) is None
    assert _fill_rows([2, 1, 1, 2, 2, 1, 1, 2], 2, 6, 2) == [0, 0, 3, 3, 7, 7, 1, 2, 4, 4, 5, 6]
    assert _fill_rows([2, 2], 2, 3, 2) is None


def test_the_graph_counts_every_pair_once_and_runs_are_reordered_until_no_exchange_helps() -> None:
    talk = problem([("p0/l0", [1] * 6)], "pp=3,dp=2,tp=4").traffic
    found = build_graph(talk)
    ends, weights = list_neighbours(found)
    square = make_matrix(found)
    assert np.array_equal(square, square.T)
    assert square.sum() == weights.sum()
    for unit in range(6):
        for end, weight in zip(ends[unit].tolist(), weights[unit].tolist(), strict=True):
            assert weight == square[unit, end]
            assert weight or end == unit  # rows of those who talk to fewer are filled up with themselves
    given = problem([("p0/l0", [1, 2, 1]), ("p0/l1", [2, 2]), ("p1/l2", [1, 2, 1])], "pp=2,dp=*,tp=4", 6)
    layout = reorder(given, sorted_by_path(given))
    assert is_valid(given, layout)
    assert given.compute_cost(layout) < given.compute_cost(sorted_by_path(given))
    assert reorder(given, layout) is layout
