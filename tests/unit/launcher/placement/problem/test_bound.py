"""The lower bound: met where the best layout is known, and above no layout whatever."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from launcher.model.mesh import parse
from launcher.model.traffic import make_default_traffic
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.problem import bound
from launcher.placement.problem.bound import (
    compute_least_between,
    compute_least_of_runs,
    compute_lower_bound,
    make_grid,
)
from launcher.placement.problem.hops import make_traffic
from launcher.placement.problem.problem import ClassRule, Layout, Problem, find_fault
from tests.support.placement.regular import regular


@pytest.mark.parametrize(
    ("problem", "best"),
    [
        (regular([4] * 4, "dp=4,ep=4", unit=1), 320),
        (regular([4] * 2, "pp=2,cp=2,dp=2", unit=1), 6 * 4),
        (regular([2, 2], "dp=4,tp=8", unit=8), 10 * 8 * 2 * 2),
        (regular([1, 1], "dp=4,tp=8", unit=8, capacity=2), 10 * 8 * 2 * 2),
    ],
)
def test_where_the_best_layout_is_known_the_bound_is_its_cost(problem: Problem, best: int) -> None:
    assert compute_lower_bound(problem) == best * problem.traffic.scale


MESHES = ("pp=3,dp=4", "dp=5,cp=2", "dp=3,ep=4", "pp=2,dp=3,cp=2", "ep=6,tp=2", "dp=12", "pp=2,cp=2,dp=3", "tp=2,pp=6")
LOADS = ("", "dp+cp=7", "pp+dp=3:ring", "dp+ep=5:all,dp=1")


def load_for(mesh: str, load: str) -> str:
    """The parts of `load` whose axes the mesh has."""
    axes = {axis.name for axis in parse(mesh).axes}
    return ",".join(part for part in load.split(",") if set(part.split("=")[0].split("+")) <= axes)


@pytest.mark.parametrize(("mesh", "load"), list(itertools.product(MESHES, LOADS)))
def test_no_set_of_units_pays_less_than_shadows_say(mesh: str, load: str) -> None:
    problem = regular([12], mesh, load_for(mesh, load), unit=1)
    grid = make_grid(problem)
    unit_count = grid.block_count
    sets = (np.arange(1 << unit_count)[:, None] >> np.arange(unit_count)) & 1
    paid = np.zeros(len(sets), dtype=np.int64)
    for hops, talk in zip(problem.traffic.hops, grid.groups, strict=False):
        inside = (sets[:, hops.low] & sets[:, hops.high]).sum(axis=1)
        # Two halves per hop; of a pipeline one for each end of a run, whether it is a cut or the end of the line.
        paid += 2 * talk.weight * (sets.sum(axis=1) - inside)
    for exchange in problem.traffic.exchanges:
        for members in range(unit_count // exchange.size):
            count = sets[:, exchange.class_of == members].sum(axis=1)
            paid += exchange.weight * count * (exchange.size - count)
    sizes = np.arange(1, unit_count + 1)
    least = np.array([paid[sets.sum(axis=1) == size].min() for size in sizes])
    found = compute_least_between(grid, sizes, sizes, frozenset())
    assert (found <= least).all()
    assert (found == least).sum() >= 4 or load
    between = compute_least_between(grid, sizes[:-2], sizes[2:], frozenset())
    assert (between <= np.minimum(np.minimum(found[:-2], found[1:-1]), found[2:])).all()
    is_run = np.array([bin(number + (number & -number)).count("1") == 1 for number in range(1, 1 << unit_count)])
    runs = [paid[1:][is_run & (sets[1:].sum(axis=1) == size)].min() for size in sizes]
    assert compute_least_of_runs(problem, grid, unit_count)[1:].tolist() == runs


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
    assert find_fault(problem, layout) is None
    return problem, layout


@settings(max_examples=20)
@given(layouts(), st.booleans())
def test_no_valid_layout_costs_less(found: tuple[Problem, Layout], is_priced: bool) -> None:
    problem, layout = found
    with pytest.MonkeyPatch.context() as patch:
        if is_priced:
            patch.setattr(bound, "FREE_MAX", -1)
        assert compute_lower_bound(problem) <= problem.compute_cost(layout)


def test_levels_are_bound_together_by_the_spares_they_share() -> None:
    # One leaf of a pod would rather take 8, the other pod's too; only one of the three spares' places can be anywhere.
    problem = regular([4, 3, 4, 4], "pp=2,dp=6", unit=1, spine=2)
    free = compute_lower_bound(problem)
    assert free > compute_lower_bound(
        regular([4, 3, 4, 4], "pp=2,dp=6", unit=1, spine=2, level_costs=(4, 0, 0))
    ) + compute_lower_bound(regular([4, 3, 4, 4], "pp=2,dp=6", unit=1, spine=2, level_costs=(0, 2, 0)))


def test_the_order_of_items_and_of_domains_does_not_matter() -> None:
    problem = regular([4, 3, 2, 5], "pp=2,dp=6", unit=1, spine=2)
    problem.capacity[:4] = 3
    order = np.random.RandomState(0).permutation(len(problem.capacity))
    numbers = np.array([2, 0, 3, 1], dtype=np.int32)
    spines, leaves, hosts = problem.labels
    other = Problem(
        traffic=problem.traffic,
        capacity=problem.capacity[order],
        labels=((1 - spines)[order], numbers[leaves][order], hosts[order]),
    )
    assert compute_lower_bound(other) == compute_lower_bound(problem)


def test_a_rule_leaves_places_free_that_hold_no_whole_class() -> None:
    problem = regular([3, 3, 3], "dp=3,cp=2", "cp=1", unit=1, level_costs=(0, 2, 0))
    ruled = replace(problem, rules=(ClassRule(1, np.arange(6, dtype=np.int32) // 2),))
    # Every leaf has one class, so all three hops of both rings leave.
    assert compute_lower_bound(problem) < compute_lower_bound(ruled) == 10 * 6 * 2


def test_prices_come_close_where_many_places_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = regular([12] * 28, "pp=8,dp=24", unit=1, spine=4)
    exact = compute_lower_bound(problem)
    monkeypatch.setattr(bound, "FREE_MAX", -1)
    assert 0.9 * exact <= compute_lower_bound(problem) <= exact


def test_the_largest_weights_and_level_costs_do_not_overflow() -> None:
    small = regular([16] * 64, "pp=8,dp=128,tp=8", "pp=3,dp=10,tp=100", spine=8)
    large = regular(
        [16] * 64, "pp=8,dp=128,tp=8", "pp=3e8,dp=1e9,tp=0.000001", level_costs=(10**9, 5 * 10**8, 0), spine=8
    )
    ratio = compute_lower_bound(large) / large.traffic.scale / compute_lower_bound(small)
    assert ratio == pytest.approx(10**8 * 10**9 / 4, rel=0.01)


def test_a_mesh_of_one_unit_costs_nothing() -> None:
    assert compute_lower_bound(regular([2], "tp=8")) == 0


def test_many_axes_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = regular([8] * 8, "a=2,b=2,c=2,d=2,e=2,f=2", unit=1)
    # Three axes inside each leaf; the hops of the three others, 32 rings of two hops each, lead out.
    best = 10 * 3 * 64 * 2
    assert 0.9 * best < compute_lower_bound(problem) <= best
    monkeypatch.setattr(bound, "POWER_BITS", 21)
    assert best / 4 < compute_lower_bound(problem) < best
