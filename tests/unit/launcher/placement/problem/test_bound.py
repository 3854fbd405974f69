"""The lower bound: what a count by hand gives, met where one layout suits every axis, and above no layout whatever."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model.mesh import parse
from launcher.model.traffic import make_default_traffic
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.hops import make_traffic
from launcher.placement.problem.problem import ClassRule, Layout, Problem, is_valid
from tests.support.placement.regular import regular


@pytest.mark.parametrize(
    ("problem", "least"),
    [
        # Rings of 4 in leaves of 2: each is in two leaves, with two hops between them.
        (regular([2, 2], "dp=4,tp=8", unit=8), 2 * 10 * 8 * 2),
        (regular([1, 1], "dp=4,tp=8", unit=8, capacity=2), 2 * 10 * 8 * 2),
        # A ring of 12 in leaves of 5, 4 and 3 is in three at least, a pipeline of 12 is cut twice.
        (regular([5, 4, 3], "dp=12", unit=1), 2 * 10 * 3),
        (regular([5, 4, 3], "pp=12", unit=1), 2 * 3 * 2),
        # Four rings of 3, of which each leaf holds one, and three of 4, of which the last leaf holds none.
        (regular([5, 4, 3], "dp=4,cp=3", "cp=1:ring", unit=1), 2 * (1 * 2 + 10 * 2)),
        # Both axes fit a leaf, each for itself; together they do not.
        (regular([4, 4], "dp=2,cp=4", "dp=1,cp=1", unit=1), 0),
        # Of a class of 5 at most 3 are in one leaf, and 2 in the other: 6 of 10 pairs, each 2 times a fourth of 4.
        (regular([3, 3], "ep=5", "ep=4:all", unit=1), 2 * 6 * 2),
        (regular([2], "tp=8"), 0),
    ],
)
def test_the_groups_that_must_cross_are_counted(problem: Problem, least: int) -> None:
    assert compute_lower_bound(problem) == least * problem.traffic.scale


MESHES = ("pp=3,dp=4", "dp=5,cp=2", "dp=3,ep=4", "pp=2,dp=3,cp=2", "ep=6,tp=2", "dp=12", "pp=2,cp=2,dp=3", "tp=2,pp=6")
LOADS = ("", "dp+cp=7", "pp+dp=3:ring", "dp+ep=5:all,dp=1")


def load_for(mesh: str, load: str) -> str:
    """The parts of `load` whose axes the mesh has."""
    axes = {axis.name for axis in parse(mesh).axes}
    return ",".join(part for part in load.split(",") if set(part.split("=")[0].split("+")) <= axes)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Problem, Layout]:
    """A valid layout on a random tree of three levels; with a rule, one unit per node and whole classes in a leaf."""
    mesh = draw(st.sampled_from(MESHES))
    grid = parse(mesh)
    load = load_for(mesh, draw(st.sampled_from(LOADS)))
    talk = make_traffic(
        grid.resolve_shape(grid.replica_size),
        [axis.name for axis in grid.axes],
        1,
        parse_traffic(load, grid) if load else make_default_traffic(grid),
        draw(st.tuples(*[st.integers(0, 5)] * 3)),
    )
    chance = random.Random(draw(st.integers(0, 2**32)))
    has_rule = draw(st.booleans())
    classes = talk.grid[-1] if has_rule else 1
    capacity: list[int] = []
    leaf: list[int] = []
    held: list[int] = []
    left = talk.block_count
    while left or chance.random() < 0.5:
        size = chance.randint(1, 5 + classes)
        rooms = [1 if has_rule else chance.randint(1, 3) for _ in range(size)]
        taken = min(left, sum(rooms), chance.randint(0, 12 + classes)) // classes * classes
        leaf += [max(leaf, default=-1) + 1] * size
        capacity += rooms
        for room in rooms:
            held.append(min(room, taken))
            taken -= held[-1]
            left -= held[-1]
    items = [item for item, count in enumerate(held) for _ in range(count)]
    if has_rule:
        layout = np.array(items, dtype=np.int32)
    else:
        order = chance.sample(range(len(held)), len(held))
        layout = np.array([item for item in order for _ in range(held[item])], dtype=np.int32)
    labels = np.array(leaf, dtype=np.int32)
    problem = Problem(
        traffic=talk,
        capacity=np.array(capacity, dtype=np.int32),
        labels=(labels // 2, labels, np.arange(len(leaf), dtype=np.int32)),
        rules=(ClassRule(1, np.arange(talk.block_count, dtype=np.int32) // classes),) if has_rule else (),
    )
    assert is_valid(problem, layout)
    return problem, layout


@settings(max_examples=100)
@given(layouts())
def test_no_valid_layout_costs_less(found: tuple[Problem, Layout]) -> None:
    problem, layout = found
    assert compute_lower_bound(problem) <= problem.compute_cost(layout)


def test_the_largest_weights_and_level_costs_do_not_overflow() -> None:
    small = regular([16] * 64, "pp=8,dp=128,tp=8", "pp=3,dp=10,tp=100", spine=8)
    large = regular(
        [16] * 64, "pp=8,dp=128,tp=8", "pp=3e8,dp=1e9,tp=0.000001", level_costs=(10**9, 5 * 10**8, 0), spine=8
    )
    ratio = compute_lower_bound(large) / large.traffic.scale / compute_lower_bound(small)
    assert ratio == pytest.approx(10**8 * 10**9 / 4, rel=0.01)
