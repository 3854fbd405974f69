"""The time of a step: compared with a model that adds up every transfer between two ranks on every link."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model import traffic
from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.rates import parse_rates, resolve_rates
from launcher.model.topology import Tree, build_tree
from launcher.model.traffic import Communicator
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.problem import make_problem
from launcher.placement.problem.step_time import HostMap, StepTimer

MESHES = ("dp=6", "pp=2,dp=3", "pp=3,dp=2,tp=2", "dp=3,ep=4", "dp=2,cp=3", "pp=2,ep=3,tp=2")
RATES = (
    "host=40Mbit,leaf=40Mbit",
    "host=40Mbit,leaf=80Mbit,leaf:p0/l0=10Mbit,pod=30Mbit",
    "host=200Mbit,leaf/host=20Mbit,pod=50Mbit",
    "host=30Mbit,host:h1=7Mbit,device=100Mbit",
)


def add_up(holders: list[int], mesh: Mesh, tree: Tree, costs: Costs) -> float:
    """The time of a step, transfer by transfer. `holders`: rank -> position of its node.

    Of the difference to a step in which each link only waits for itself, and to its longest communicator alone, a fifth
    is gained by parts that overlap.
    """
    assert costs.rates
    rates = resolve_rates(costs.rates, tree, {})
    levels = (*tree.domains, range(len(tree.nodes)))
    shape = [axis.size or 0 for axis in mesh.axes]
    every = list(itertools.product(*map(range, shape)))
    rank_of = {place: rank for rank, place in enumerate(every)}
    total, devices_s, longest = Fraction(0), Fraction(0), Fraction(0)
    busy: Counter[tuple[object, ...]] = Counter()
    for one in costs.traffic or ():
        along = [index for index, axis in enumerate(mesh.axes) if axis.name in one.axes]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place in every:
            rest = tuple(size for index, size in enumerate(place) if index not in along)
            groups.setdefault(rest, []).append(rank_of[place])
        before = total
        for phase in _list_phases(one, list(groups.values())):
            loads: Counter[tuple[object, ...]] = Counter()
            for source, target, amount in phase:
                loads["device", source] += amount
                for level, domains in enumerate(levels):
                    here, there = domains[holders[source]], domains[holders[target]]
                    if here != there:
                        loads["out", level, here] += amount
                        loads["in", level, there] += amount
                        loads["out by host", level, holders[source]] += amount
                        loads["in by host", level, holders[target]] += amount
            times, own_times = [Fraction(0)], [Fraction(0)]
            for (kind, *where), amount in loads.items():
                rate = rates.device
                if kind in ("out", "in"):
                    own = rates.levels[where[0]].domains
                    rate = own[where[1]] if own else None
                elif kind in ("out by host", "in by host"):
                    rate = rates.levels[where[0]].per_host
                if rate:
                    time = amount * 8_000_000 / rate
                    if kind == "device":
                        own_times.append(time)
                    else:
                        times.append(time)
                        busy[(kind, *where)] += time
            total += max(times + own_times)
            devices_s += max(own_times)
        longest = max(longest, total - before)
    return float(total - (total - max(devices_s, longest, *busy.values())) / 5)


def _list_phases(one: Communicator, groups: list[list[int]]) -> list[list[tuple[int, int, Fraction]]]:
    """The transfers that happen at once: source, target, megabytes."""
    weight = Fraction(str(one.weight))
    groups = [ranks for ranks in groups if len(ranks) > 1]
    if one.kind == "ring":
        return [[(ranks[at - 1], rank, weight) for ranks in groups for at, rank in enumerate(ranks)]]
    if one.kind == "line":
        forward = [(low, high, weight / 2) for ranks in groups for low, high in itertools.pairwise(ranks)]
        return [forward, [(high, low, half) for low, high, half in forward]]
    pairs = (pair for ranks in groups for pair in itertools.permutations(ranks, 2))
    size = len(groups[0]) if groups else 2
    return [[(source, target, weight / (size - 1)) for source, target in pairs]]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[int], Mesh, Tree, Costs, int]:
    """Holders of the ranks, and how many consecutive ranks are a unit."""
    mesh = parse(draw(st.sampled_from(MESHES)))
    weights = ",".join(f"{axis.name}={draw(st.sampled_from(('1MB', '300kB', '2.5MB')))}" for axis in mesh.axes)
    costs = Costs(traffic=traffic.parse(weights, mesh), rates=parse_rates(draw(st.sampled_from(RATES))))
    unit = draw(st.sampled_from([1, mesh.axes[-1].size or 1]))
    count = mesh.replica_size // unit
    paths = [(f"p{leaf % 2}", f"l{leaf}") for leaf in draw(st.lists(st.integers(0, 3), min_size=4, max_size=8))]
    tree = build_tree([Node(id=f"h{at}", slot_count=12, path=path) for at, path in enumerate(paths)], ("pod", "leaf"))
    units = draw(st.lists(st.integers(0, len(paths) - 1), min_size=count, max_size=count))
    return [holder for holder in units for _ in range(unit)], mesh, tree, costs, unit


@settings(max_examples=150, derandomize=True)
@given(worlds())
def test_the_time_is_that_of_all_transfers_added_up_by_link(world: tuple[list[int], Mesh, Tree, Costs, int]) -> None:
    holders, mesh, tree, costs, unit = world
    timer = _make_timer(mesh, tree, costs, unit)
    layout = np.array(holders[::unit], dtype=np.int32)
    expected = add_up(holders, mesh, tree, costs)
    assert math.isclose(timer.compute(layout), expected, rel_tol=1e-9, abs_tol=1e-12)
    explained = timer.explain(layout)
    assert explained is not None
    assert explained.seconds == timer.compute(layout)
    assert all(math.isclose(part.seconds, part.amount * 8e6 / part.rate) for part in explained.parts if part.rate)


def _make_timer(mesh: Mesh, tree: Tree, costs: Costs, unit: int = 1) -> StepTimer:
    every = range(len(tree.nodes))
    shape = mesh.resolve_shape(mesh.replica_size)
    limits = Limits(levels=tree.levels)
    problem = make_problem(tree, mesh, shape, unit, limits, costs, [12 // unit] * len(every), every)
    return StepTimer(problem, tree, every, mesh, shape, costs)


LEAVES = tuple(f"l{leaf}" for leaf in (0, 0, 0, 1, 1, 1))


@pytest.mark.parametrize(
    ("rates", "mesh", "weights", "link", "seconds"),
    [
        # Two rings of three, each on one leaf: a host sends 1 MB. Swapped, each leaf's uplink carries both.
        ("host=8Mbit,leaf=8Mbit", "pp=2,dp=3", "dp=1MB,pp=0", "host h0's uplink", 1.0),
        ("host=8Mbit,leaf=4Mbit", "dp=3,pp=2", "dp=1MB,pp=0", "leaf l0's uplink", 4.0),
        # Three pairs over the uplink, half forward and half back.
        ("host=8Mbit,leaf=4Mbit", "pp=2,dp=3", "dp=0,pp=1MB", "leaf l0's uplink", 6.0),
        # Leaves are NVLink domains: hosts leave them by links of their own.
        ("host=80Mbit,leaf/host=8Mbit", "pp=2,dp=3", "dp=0,pp=1MB", "host h0's link out of its leaf", 1.0),
        ("device=8Mbit,host=1Gbit,leaf=1Gbit", "pp=2,dp=3", "dp=0,pp=1MB", "each device's own link", 1.0),
    ],
)
def test_a_part_names_the_link_it_waits_for(rates: str, mesh: str, weights: str, link: str, seconds: float) -> None:
    grid = parse(mesh)
    tree = build_tree([Node(id=f"h{at}", slot_count=1, path=(leaf,)) for at, leaf in enumerate(LEAVES)], ("leaf",))
    timer = _make_timer(grid, tree, Costs(traffic=traffic.parse(weights, grid), rates=parse_rates(rates)))
    found = timer.explain(np.arange(6, dtype=np.int32))
    assert found is not None
    (part,) = found.parts
    assert (part.link, part.seconds, found.is_absolute) == (link, seconds, True)


def test_a_link_has_the_rate_of_its_domain_and_an_axis_of_one_rank_needs_none() -> None:
    grid, rates = parse("pp=2,dp=3"), parse_rates("leaf:l0=8Mbit,leaf:l1=4Mbit")
    tree = build_tree([Node(id=f"h{at}", slot_count=1, path=(leaf,)) for at, leaf in enumerate(LEAVES)], ("leaf",))
    timer = _make_timer(grid, tree, Costs(traffic=traffic.parse("dp=0,pp=1MB", grid), rates=rates))
    found = timer.explain(np.arange(6, dtype=np.int32))
    assert found is not None
    (part,) = found.parts
    assert (part.link, part.rate, part.amount) == ("leaf l1's uplink", 4_000_000, 3.0)
    mesh = parse("dp=*,tp=6")
    tree = build_tree([Node(id=f"h{at}", slot_count=1, path=(leaf,)) for at, leaf in enumerate(LEAVES)], ("leaf",))
    weights = traffic.parse("dp=9MB,tp=1MB", mesh)
    found = _make_timer(mesh, tree, Costs(traffic=weights, rates=parse_rates("device=8Mbit,leaf=1Gbit"))).explain(
        np.arange(6)
    )
    assert found is not None
    assert [(part.communicator.name, part.seconds) for part in found.parts] == [("tp", 1.0)]
    # Of no level is anything told: all links are alike, and only proportions count.
    found = _make_timer(mesh, tree, Costs(traffic=weights, rates=parse_rates("rack=1Gbit"))).explain(np.arange(6))
    assert found is not None
    (part,) = found.parts
    assert (part.link, part.rate, found.is_absolute, found.assumed) == (
        "leaf l0's uplink", 0, False, ("leaf", "host"),
    )  # fmt: skip
    lone = build_tree([Node(id="h0", slot_count=6, path=("l0",))], ("leaf",))
    assert _make_timer(mesh, lone, Costs(traffic=weights)).explain(np.zeros(6, dtype=np.int32)) is None


def test_items_of_several_hosts_are_spread_and_crowded_ones_behind_the_fullest_link() -> None:
    spread = HostMap(hosts=2, group_size=4, repeats=3)
    layouts = np.array([[5] * 4 + [1] * 4], dtype=np.int32)
    assert spread.find_hosts(layouts).tolist() == [[10, 11, 2, 3]]
    assert spread.expand(layouts).tolist() == [[10] * 3 + [11] * 3 + [2] * 3 + [3] * 3]
    mesh = parse("dp=3,pp=2")
    tree = build_tree([Node(id=f"h{at}", slot_count=1, path=(leaf,)) for at, leaf in enumerate(LEAVES)], ("leaf",))
    costs = Costs(
        traffic=traffic.parse("dp=1MB,pp=0", mesh), rates=parse_rates("host=8Mbit,leaf:l0=8Mbit,leaf:l1=4Mbit")
    )
    assert _make_timer(mesh, tree, costs).find_crowded(np.arange(6, dtype=np.int32)).tolist() == [3, 4, 5]
