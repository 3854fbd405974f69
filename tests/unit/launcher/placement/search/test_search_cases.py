"""Clusters whose best layout is known: a row is a tree of leaves, a mesh, the cost of sorting by path and the least.

Leaving the host costs nothing, a leaf 2, a spine 4; eight devices a node, which is one unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from launcher.model import traffic
from launcher.model.mesh import parse
from launcher.model.node import Node
from launcher.model.topology import build_tree
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.problem import Layout, Problem, find_fault, make_problem
from launcher.placement.search.search import search

LEAVE = {"spine": 4, "leaf": 2, "host": 0}


def problem(leaves: Sequence[int], mesh: str, weights: str, leaves_of_a_spine: int, host_cost: int = 0) -> Problem:
    """One unit a node; an elastic axis takes the largest size there are nodes for."""
    nodes = [
        Node(id=f"h{leaf}-{node}", slot_count=8, path=(f"s{leaf // leaves_of_a_spine}", f"l{leaf}"))
        for leaf, size in enumerate(leaves)
        for node in range(size)
    ]
    grid = parse(mesh)
    count = len(nodes) * 8 // grid.replica_size if grid.elastic_axis else 1
    costs = Costs(traffic=traffic.parse(weights, grid), level_costs={**LEAVE, "host": host_cost})
    limits = Limits(levels=("spine", "leaf"))
    shape = grid.resolve_shape(count * grid.replica_size)
    return make_problem(build_tree(nodes, limits.levels), grid, shape, 8, limits, costs, [1] * len(nodes))


def price(problem: Problem, layout: Layout) -> float:
    return problem.compute_cost(layout) / problem.traffic.scale


USUAL, EVEN = "tp=100,dp=10,pp=3", "tp=100,dp=5,pp=5"


@pytest.mark.parametrize(
    ("leaves", "mesh", "weights", "leaves_of_a_spine", "sorted_by_path", "optimum"),
    [
        # Sorting takes 7 + 8 + 8 + 5 nodes; 7 of each leaf is right.
        ((7, 8, 8, 8), "pp=4,dp=*,tp=8", USUAL, 4, 1_552, 1_008),
        # The short first leaf would misalign all that follow.
        ((7, 8, 8, 8, 8), "pp=4,dp=8,tp=8", USUAL, 5, 2_432, 1_152),
        # The pipeline talks most: the order of ranks cannot be turned round, so the nodes must be.
        ((8, 8, 8, 8), "pp=4,dp=*,tp=8", "tp=100,dp=1,pp=10", 4, 3_840, 256),
        # Rows of 16 against tiles of 4 by 4.
        ((16,) * 16, "pp=16,dp=16,tp=8", EVEN, 16, 19_200, 8_960),
        ((16,) * 256, "pp=8,dp=512,tp=8", USUAL, 16, 562_176, 196_608),
    ],
    ids=["31 nodes", "39 nodes", "32 nodes", "256 nodes", "4096 nodes"],
)
def test_known_clusters_are_laid_out_at_their_optimum(
    leaves: Sequence[int], mesh: str, weights: str, leaves_of_a_spine: int, sorted_by_path: int, optimum: int
) -> None:
    given = problem(leaves, mesh, weights, leaves_of_a_spine)
    assert price(given, np.arange(given.traffic.block_count, dtype=np.int32)) == sorted_by_path
    found = search(given)
    assert found is not None
    assert find_fault(given, found) is None
    assert price(given, found) == optimum


def test_with_a_cost_for_the_host_28_of_31_nodes_cost_3752() -> None:
    given = problem((7, 8, 8, 8), "pp=4,dp=*,tp=8", USUAL, 4, host_cost=1)
    found = search(given)
    assert found is not None
    assert price(given, found) == 3_752
    assert np.bincount(given.labels[1][found]).tolist() == [7, 7, 7, 7]
