"""J of layouts that can be counted by hand, and of random ones counted from the definition."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.model.mesh import Mesh, parse
from launcher.model.traffic import Communicator, make_default_traffic
from launcher.placement.problem.hops import make_traffic
from launcher.placement.units import compute_grid


def by_definition(mesh: Mesh, shape: tuple[int, ...], communicators: list[Communicator], cost_of_hop) -> Fraction:  # type: ignore[no-untyped-def]
    """Sum over communicators of weight x sum over their hops, rank by rank."""
    names = [axis.name for axis in mesh.axes]
    total = Fraction(0)
    for one in communicators:
        along = [names.index(axis) for axis in one.axes]
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(math.prod(shape)):
            place = mesh.find_coordinates(rank, shape)
            groups.setdefault(tuple(c for index, c in enumerate(place) if index not in along), []).append(rank)
        weight = Fraction(str(one.weight))
        for members in groups.values():
            if one.kind == "all":
                for here, there in itertools.permutations(members, 2):
                    total += weight / (len(members) - 1) * cost_of_hop(here, there)
                continue
            hops = list(itertools.pairwise(members))
            if one.kind == "ring" and len(members) > 1:
                hops.append((members[-1], members[0]))
            total += weight * sum(cost_of_hop(here, there) for here, there in hops)
    return total


MESHES = st.sampled_from(
    [("pp=2,dp=3,tp=4", 4), ("pp=2,dp=3,tp=4", 2), ("dp=6", 1), ("dp=4,ep=4,tp=2", 4), ("dp=4,ep=4,tp=2", 8),
     ("pp=3,dp=2,cp=2,tp=2", 2), ("ep=6,tp=2", 2), ("dp=2,ep=3", 1), ("tp=8", 4), ("pp=2,tp=16", 8)]
)  # fmt: skip


@settings(max_examples=60)
@given(MESHES, st.data())
def test_the_cost_follows_the_definition_for_every_mesh_and_layout(case: tuple[str, int], data: st.DataObject) -> None:
    mesh, unit = parse(case[0]), case[1]
    shape = mesh.resolve_shape(mesh.replica_size)
    communicators = list(make_default_traffic(mesh))
    if len(shape) > 1 and data.draw(st.booleans()):
        communicators.append(Communicator(axes=(mesh.axes[0].name, mesh.axes[-1].name), kind="ring", weight=2.5))
    unit_count = math.prod(shape) // unit
    hosts = data.draw(st.lists(st.integers(0, 5), min_size=unit_count, max_size=unit_count))
    leaves = [host // 2 for host in hosts]
    level_costs = (2, 0.5)
    talk = make_traffic(shape, [axis.name for axis in mesh.axes], unit, communicators, level_costs)
    labels = [np.array(leaves, dtype=np.int32), np.array(hosts, dtype=np.int32)]

    def cost_of_hop(here: int, there: int) -> Fraction:
        levels = zip(level_costs, (leaves, hosts), strict=True)
        return sum(
            (Fraction(str(cost)) for cost, level in levels if level[here // unit] != level[there // unit]), Fraction(0)
        )

    assert Fraction(talk.compute_cost(labels), talk.scale) == by_definition(mesh, shape, communicators, cost_of_hop)


@pytest.mark.parametrize(
    ("shape", "unit", "sides"),
    [
        ((4, 7, 8), 8, (1, 1, 8)),
        ((4, 7, 8), 4, (1, 1, 4)),
        ((4, 6, 8), 16, (1, 2, 8)),
        ((4, 7, 8), 6, None),
        ((4, 7, 8), 16, None),
        ((4, 7, 8), 56, (1, 7, 8)),
        ((2, 3), 12, None),
        ((5,), 1, (1,)),
    ],
)
def test_a_unit_is_a_box_of_whole_inner_axes_and_a_part_of_the_next(
    shape: tuple[int, ...], unit: int, sides: tuple[int, ...] | None
) -> None:
    counts = sides and tuple(size // side for size, side in zip(shape, sides, strict=True))
    assert compute_grid(shape, unit) == counts


def test_the_papers_example_costs_1008_on_even_leaves() -> None:
    mesh = parse("pp=4,dp=*,tp=8")
    shape = mesh.resolve_shape(224)
    talk = make_traffic(shape, ["pp", "dp", "tp"], 8, make_default_traffic(mesh), (4, 2, 0))
    units = np.arange(28, dtype=np.int32)
    assert talk.compute_cost([units * 0, units // 7, units]) / talk.scale == 1008
    uneven = np.repeat(np.arange(4, dtype=np.int32), [7, 8, 8, 5])
    assert talk.compute_cost([units * 0, uneven, units]) / talk.scale == 1552
    assert [part.count_leaving(units * 0) for part in talk.parts] == [0, 0]
