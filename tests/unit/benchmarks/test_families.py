"""The families and their umpire: instances are the same everywhere, costs and faults are what one counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks import judge, long_search
from benchmarks.anneal import exchange_delta
from benchmarks.families import FAMILIES, Case, Instance, cases, families
from launcher.placement.limits import AllOrNothing, Plan

SMALL = list(families(size_max=70))


def whole_world(instance: Instance) -> tuple[int, ...]:
    """The shape of a world on all slots."""
    size = instance.mesh.replica_size
    slots = sum(node.slot_count for node in instance.nodes)
    return instance.mesh.resolve_shape(slots // size * size if instance.mesh.elastic_axis else size)


def by_path(instance: Instance) -> Plan:
    shape = whole_world(instance)
    return judge.as_plan(shape, judge.lay_out(instance, shape, judge.BASELINES["path"](instance.nodes)))


def find(name: str) -> Instance:
    return next(instance for instance in SMALL if instance.name == name)


def test_every_family_has_instances_and_no_two_have_one_name() -> None:
    names = [instance.name for instance in SMALL]
    assert {name.partition("/")[0] for name in names} == {family.__name__ for family in FAMILIES}
    assert len(FAMILIES) == 10
    assert len(set(names)) == len(names)


def test_an_instance_is_the_same_on_every_machine() -> None:
    assert list(families(size_max=70)) == SMALL
    assert [long_search.fingerprint(find(name)) for name in ("dgx/31", "uneven/48")] == [
        "15ff73976ab14003",
        "29bccf0da9aebda5",
    ], "the records of best known costs are about other instances"


def test_nodes_come_in_the_order_of_arrival_which_is_not_that_of_paths() -> None:
    for instance in SMALL:
        assert [node.order for node in instance.nodes] == list(range(len(instance.nodes)))
        assert list(instance.nodes) != judge.BASELINES["path"](instance.nodes), instance.name


@pytest.mark.parametrize("case", cases()[:4], ids=lambda case: case.instance.name)
def test_the_order_of_paths_costs_what_one_counts_by_hand(case: Case) -> None:
    plan = by_path(case.instance)
    assert judge.find_fault(case.instance, plan) is None
    assert judge.cost(case.instance, plan.shape, plan.ranks) == case.path_cost


def test_the_umpire_sees_every_kind_of_fault() -> None:
    instance = cases()[0].instance
    good = by_path(instance)
    one, other = list(good.ranks)[:2]

    def fault(changed: dict[str, tuple[int, ...]], of: Instance = instance) -> str | None:
        return judge.find_fault(of, replace(good, ranks={**good.ranks, **changed}))

    assert fault({}) is None
    assert fault({one: good.ranks[other]}) == "not every rank is there once"
    torn = good.ranks[one][:4] + good.ranks[other][4:], good.ranks[other][:4] + good.ranks[one][4:]
    assert "is torn" in (fault({one: torn[0], other: torn[1]}) or "")
    assert f"{one} has more ranks" in (fault({one: good.ranks[one] + good.ranks[other], other: ()}) or "")
    limits = replace(instance.limits, within={"dp": "leaf"})
    assert fault({}, instance._replace(limits=limits)) == "a group of dp lies in several domains of leaf"
    limits = replace(instance.limits, all_or_nothing=AllOrNothing(level="leaf", hosts=8))
    assert "is used in part" in (fault({}, instance._replace(limits=limits)) or "")


@pytest.mark.parametrize("name", ["irregular/64", "experts/64", "tp16/40", "unknown/40"])
def test_an_exchange_changes_the_cost_by_what_the_search_reckons(name: str) -> None:
    instance = find(name)
    one = long_search.puzzle(instance, whole_world(instance))
    place = np.arange(len(one.pieces))
    chance = np.random.default_rng(7)
    active = one.block_count
    scale = judge.edges(instance, one.shape).scale
    before = judge.cost(instance, one.shape, one.ranks(place[:active].tolist()))
    for p, q in zip(chance.integers(active, size=12), chance.integers(len(place), size=12), strict=True):
        delta, _ = exchange_delta(one.board, place, active, p, q)
        place[[p, q]] = place[[q, p]]
        after = judge.cost(instance, one.shape, one.ranks(place[:active].tolist()))
        assert (after - before) * scale == (delta if p != q else 0)
        before = after


def test_a_search_keeps_the_best_that_it_was_offered() -> None:
    case = cases()[2]
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
