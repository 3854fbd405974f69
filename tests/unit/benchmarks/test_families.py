"""The families and their umpire: instances are the same everywhere, costs and faults are what one counts by hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks import judge, long_search
from benchmarks.anneal import change
from benchmarks.families import FAMILIES, Instance, families, regular
from launcher.placement.limits import AllOrNothing, Plan

SMALL = list(families(size_max=70))


class Case(NamedTuple):
    """An instance whose cost is known, in the order of paths and at its best."""

    instance: Instance
    path_cost: int
    optimum: int


USUAL = "tp=100,dp=10,pp=3"
CASES = (
    Case(regular("case/31", (7, 8, 8, 8), "pp=4,dp=*,tp=8", USUAL), 1_552, 1_008),
    Case(regular("case/39", (7, 8, 8, 8, 8), "pp=4,dp=8,tp=8", USUAL), 2_432, 1_152),
    Case(regular("case/32", (8, 8, 8, 8), "pp=4,dp=*,tp=8", "tp=100,dp=1,pp=10"), 3_840, 256),
    Case(regular("case/256", (16,) * 16, "pp=16,dp=16,tp=8", "tp=100,dp=5,pp=5"), 19_200, 8_960),
)


def whole_world(instance: Instance) -> tuple[int, ...]:
    """The shape of a world on all slots."""
    size = instance.mesh.replica_size
    slots = sum(node.slot_count for node in instance.nodes)
    return instance.mesh.resolve_shape(slots // size * size if instance.mesh.elastic_axis else size)


def by_path(instance: Instance) -> Plan:
    shape = whole_world(instance)
    return judge.as_plan(instance, shape, judge.lay_out(instance, shape, judge.BASELINES["path"](instance.nodes)))


def find(name: str) -> Instance:
    return next(instance for instance in SMALL if instance.name == name)


def test_every_family_has_instances_of_different_names_that_are_the_same_on_every_machine() -> None:
    names = [instance.name for instance in SMALL]
    assert {name.partition("/")[0] for name in names} == {family.__name__ for family in FAMILIES}
    assert len(FAMILIES) == 10
    assert len(set(names)) == len(names)
    assert list(families(size_max=70)) == SMALL
    assert [long_search.fingerprint(find(name)) for name in ("dgx/31", "uneven/48")] == [
        "640dbd08c0855d35",
        "1809eff1db552d14",
    ], "the records of best known costs are about other instances"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.instance.name)
def test_the_order_of_paths_costs_what_one_counts_by_hand(case: Case) -> None:
    plan = by_path(case.instance)
    assert judge.find_fault(case.instance, plan) is None
    assert judge.cost(case.instance, plan.shape, plan.ranks) == case.path_cost


def test_the_umpire_sees_every_kind_of_fault() -> None:
    instance = CASES[0].instance
    good = by_path(instance)
    one, other = list(good.ranks)[:2]

    def fault(changed: dict[str, tuple[int, ...]], of: Instance = instance) -> str | None:
        return judge.find_fault(of, replace(good, ranks={**good.ranks, **changed}))

    assert fault({}) is None
    assert fault({one: good.ranks[other]}) == "not every rank is held once"
    torn = good.ranks[one][:4] + good.ranks[other][4:], good.ranks[other][:4] + good.ranks[one][4:]
    assert fault({one: torn[0], other: torn[1]}) == f"{one} holds several runs"
    assert f"{one} holds 16 ranks" in (fault({one: good.ranks[one] + good.ranks[other], other: ()}) or "")
    limits = replace(instance.limits, within={"dp": "leaf"})
    assert fault({}, instance._replace(limits=limits)) == "a group of dp leaves its leaf"
    limits = replace(instance.limits, all_or_nothing=AllOrNothing(level="leaf", hosts=8))
    assert "is used in part" in (fault({}, instance._replace(limits=limits)) or "")


@pytest.mark.parametrize("name", ["irregular/64", "experts/64", "tp16/40", "unknown/40"])
def test_an_exchange_changes_the_cost_by_what_the_search_reckons(name: str) -> None:
    instance = find(name)
    one = long_search.puzzle(instance, whole_world(instance))
    is_traffic = np.arange(len(one.board.far)) == 0  # a rule that is broken on the way costs more, in the search alone
    board = one.board._replace(far=one.board.far * is_traffic[:, None])
    place = np.arange(len(one.pieces))
    chance = np.random.default_rng(7)
    active = one.block_count
    scale = judge.edges(instance, one.shape).scale
    before = judge.cost(instance, one.shape, one.ranks(place[:active].tolist()))
    for p, q in zip(chance.integers(active, size=12), chance.integers(len(place), size=12), strict=True):
        changed = place.copy()
        changed[[p, q]] = place[[q, p]]
        delta = change(board, place, changed, np.unique([p, q]))
        place = changed
        after = judge.cost(instance, one.shape, one.ranks(place[:active].tolist()))
        assert (after - before) * scale == delta
        before = after


def test_a_search_keeps_the_best_that_it_was_offered() -> None:
    case = CASES[2]
    one = long_search.puzzle(case.instance, whole_world(case.instance))
    search = long_search.Search(one, seed=1)
    start = list(range(one.block_count))
    assert search.offer(start) == case.path_cost
    search.anneal(start, heat=0.3, move_count=3_000)
    assert search.best_cost is not None
    assert case.optimum <= search.best_cost < case.path_cost
    search.offer(start)
    assert search.best_cost < case.path_cost
    ranks = one.ranks(search.best or []).values()
    assert sorted(rank for held in ranks for rank in held) == list(range(math.prod(one.shape)))
