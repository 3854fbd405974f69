"""Which networks, meshes and orders the truth bench tries: small clusters of every shape in which plans differ.

A case is a tree of hosts with rates, and a mesh with bytes per step. Rates are those of payload, as a measurement with
TCP tells them; the shapers of the emulated links get as much more as headers take (WIRE). Addresses and the order in
which nodes joined are shuffled, by a generator that is seeded with the name of the case: the same on every machine.

Every case is planned as somebody asks who knows no rates. In eight more one uplink has half the rate of the others, and
all rates are told. Each is tried in the planner's order, in the one that it makes with the other knowledge, in the
orders of today (join, address as text, path), in random ones, and, where a host has one rank, in the fastest that
annealing finds by the model.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks import judge
from benchmarks.families import Instance
from benchmarks.time_search import HOT, Search, Tree
from benchmarks.truth_steps import Exchange
from benchmarks.truth_tables import ADDRESS, ANNEALED, BLIND, JOIN, PATH, PLAN, RANDOM, TOLD
from launcher.model import mesh as meshes
from launcher.model import traffic
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.placement.explain import compute_step_time
from launcher.placement.limits import Costs, Limits
from launcher.placement.planner import plan

WIRE = 1514 / 1448  # a full Ethernet frame over the payload of TCP in it
MBIT = 1_000_000
RANDOM_ORDERS = 3
ANNEALING_STEPS = 400
TODAY = {JOIN: "join order", ADDRESS: "address as text", PATH: "path"}  # by the judge's names

Layout = tuple[str, ...]
"""The host of every rank."""


class Case(NamedTuple):
    """A question to the planner, and what emulates it. `rates`: payload, in Mbit/s, by link ("leaf", "leaf:l1").

    `instance` has these rates, by which seconds are predicted; whether the planner is told them says `is_told`.
    """

    instance: Instance
    rates: Mapping[str, int]
    framework: str
    is_told: bool = False

    def plan(self, *, is_told: bool) -> Layout:
        """The planner's order with these rates, or without any."""
        nodes, mesh, limits, costs = self.instance.question
        return _lay_flat(plan(nodes, mesh, limits, costs if is_told else Costs(traffic=costs.traffic), None).ranks)

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size or 0 for axis in self.instance.mesh.axes)

    @property
    def fast_level(self) -> str | None:
        """The level whose domains have links of their own beside the NICs."""
        return next((link.partition("/")[0] for link in self.rates if link.endswith("/host")), None)

    @property
    def hosts(self) -> dict[str, tuple[str, ...]]:
        """Paths by name, in the order of addresses."""
        nodes = sorted(self.instance.nodes, key=lambda node: int(node.address.rpartition(".")[2]))
        return {node.id: tuple(map(str, node.path)) for node in nodes}

    @property
    def wire_rates(self) -> dict[str, int]:
        """Bits per second of the shapers."""
        return {link: round(rate * MBIT * WIRE) for link, rate in self.rates.items()}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        found = self.instance.costs.traffic or ()
        return tuple(Exchange(one.axes[0], one.kind, one.weight * 1e6) for one in found if one.weight)

    def arrange(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        """Ranks by host."""
        return {host: tuple(at for at, each in enumerate(layout) if each == host) for host in dict.fromkeys(layout)}

    def predict(self, layout: Layout) -> float:
        """Seconds of communication in a step, by the planner."""
        nodes, mesh, limits, costs = self.instance.question
        ranks, tree = self.arrange(layout), build_tree(nodes, limits.levels)
        step_time = compute_step_time(ranks, self.shape, tree, mesh, costs)
        assert step_time is not None
        return step_time.seconds

    def count_parts(self, layout: Layout) -> list[judge.Part]:
        """What every link carries in a step."""
        return judge.parts(self.instance, self.shape, self.arrange(layout), self.fast_level)


Sizes = int | Sequence["Sizes"]
"""Hosts in a domain, or what its parts have: ((3, 3), (4, 2)) are two pods of two leaves each."""


def make_case(
    name: str,
    sizes: Sequence[Sizes],
    mesh: str,
    weights: str,
    rates: str,
    framework: str = "torch",
    *,
    inner: str = "leaf",
    devices: int = 1,
) -> Case:
    """`rates`: "host=40,leaf=40", in Mbit/s. `inner`: the innermost level, within pods or, where it is not, leaves."""
    levels = [inner] if isinstance(sizes[0], int) else ["pod" if inner == "leaf" else "leaf", inner]
    rng = random.Random(name)
    paths = list(_walk(sizes, levels, (), {level: itertools.count() for level in levels}))
    addresses, orders = (rng.sample(range(len(paths)), len(paths)) for _ in range(2))
    nodes = tuple(
        Node(id=f"h{at}", slot_count=devices, path=path, address=f"10.77.0.{addresses[at] + 1}", order=orders[at])
        for at, path in enumerate(paths)
    )
    found = {link: int(rate) for link, _, rate in (each.partition("=") for each in rates.split(","))}
    shape = meshes.parse(mesh)
    costs = Costs(
        traffic=traffic.parse(weights, shape),
        rates=parse_rates(",".join(f"{link}={rate}Mbit" for link, rate in found.items())),
    )
    return Case(Instance(name, nodes, shape, Limits(levels=tuple(levels)), costs), found, framework)


def _walk(
    sizes: Sizes, levels: Sequence[str], above: tuple[str, ...], numbers: Mapping[str, Iterator[int]]
) -> Iterator[tuple[str, ...]]:
    """The paths of all hosts; domains of a level are numbered throughout."""
    if isinstance(sizes, int):
        yield from [above] * sizes
        return
    level, *below = levels
    for part in sizes:
        yield from _walk(part, below, (*above, f"{level[0]}{next(numbers[level])}"), numbers)


def list_orders(case: Case, random_orders: int = RANDOM_ORDERS) -> dict[str, Layout]:
    """Name of an order -> its layout."""
    instance = case.instance
    found = {PLAN: case.plan(is_told=case.is_told)}
    found[BLIND if case.is_told else TOLD] = case.plan(is_told=not case.is_told)
    if annealed := _anneal(case, [*found.values()]):
        found[ANNEALED] = annealed
    for name, baseline in TODAY.items():
        order = judge.BASELINES[baseline](instance.nodes)
        found[name] = _lay_flat(judge.lay_out(instance, case.shape, order))
    for number in range(1, random_orders + 1):
        order = random.Random(f"{case.name} {number}").sample(instance.nodes, len(instance.nodes))
        found[RANDOM.format(n=number)] = _lay_flat(judge.lay_out(instance, case.shape, order))
    return found


def _anneal(case: Case, starts: Sequence[Layout]) -> Layout | None:
    """The fastest order that a few chains find from these; None where hosts have several ranks or links."""
    if case.fast_level or case.instance.nodes[0].slot_count > 1:
        return None
    search = Search(Tree(case.instance, {link: float(rate) for link, rate in case.rates.items()}), case.shape, 1)
    for start in map(case.arrange, starts):
        search.anneal(search.read(start), HOT, ANNEALING_STEPS)
    return _lay_flat(search.ranks(search.best))


def _slow_down(case: Case, leaf: str) -> Case:
    """The same with this uplink at half the rate of the others, and rates told."""
    rates = {**case.rates, f"leaf:{leaf}": case.rates["leaf"] // 2}
    told = parse_rates(",".join(f"{link}={rate}Mbit" for link, rate in rates.items()))
    name = f"{case.name}, {leaf} slow"
    costs = Costs(traffic=case.instance.costs.traffic, rates=told)
    return case._replace(instance=case.instance._replace(name=name, costs=costs), rates=rates, is_told=True)


def _lay_flat(ranks: judge.Ranks) -> Layout:
    host_of = {rank: host for host, held in ranks.items() for rank in held}
    return tuple(host_of[rank] for rank in range(len(host_of)))


UNTOLD = (
    # The cost J alone chooses orders for these that are slower than others.
    make_case("uneven, 5+5+2", (5, 5, 2), "pp=2,dp=6", "dp=800kB,pp=240kB", "host=40,leaf=40"),
    make_case("even, 4+4+4", (4, 4, 4), "pp=2,dp=6", "dp=800kB,pp=240kB", "host=40,leaf=40"),
    make_case("one ring, 4+4+4", (4, 4, 4), "dp=12", "dp=1.2MB", "host=40,leaf=40"),
    make_case("ring, slow leaves, 6+5+3", (6, 5, 3), "dp=14", "dp=700kB", "host=60,leaf=30"),
    make_case("stages, 4+4+4+4", (4, 4, 4, 4), "pp=4,dp=4", "dp=600kB,pp=360kB", "host=40,leaf=40"),
    make_case("heavy stages, 6+6", (6, 6), "pp=2,dp=6", "dp=160kB,pp=1.6MB", "host=40,leaf=60"),
    make_case("heavy stages, 3+4+5", (3, 4, 5), "pp=3,dp=4", "dp=200kB,pp=1.4MB", "host=40,leaf=60"),
    make_case("uneven, 7+4+3", (7, 4, 3), "pp=2,dp=7", "dp=600kB,pp=240kB", "host=40,leaf=40"),
    make_case("a slow uplink, 4+4+4", (4, 4, 4), "pp=2,dp=6", "dp=500kB,pp=200kB", "host=40,leaf=60,leaf:l1=20"),
    make_case("slow and spare, 5+5+4", (5, 5, 4), "pp=3,dp=4", "dp=400kB,pp=160kB", "host=40,leaf=40,leaf:l0=15"),
    make_case("spares, 6+4+4", (6, 4, 4), "pp=4,dp=3", "dp=700kB,pp=420kB", "host=40,leaf=40"),
    make_case("pods, 3+3 3+3", ((3, 3), (3, 3)), "dp=4,tp=3", "tp=800kB,dp=200kB", "host=40,leaf=60,pod=30"),
    make_case("pods, 4+4 4+4", ((4, 4), (4, 4)), "dp=16", "dp=600kB", "host=40,leaf=40,pod=20"),
    make_case("pods, 4+2 3+3", ((4, 2), (3, 3)), "pp=3,dp=4", "dp=500kB,pp=300kB", "host=40,leaf=40,pod=30"),
    make_case("tensors, 5+4+3", (5, 4, 3), "pp=2,dp=3,tp=2", "tp=800kB,dp=240kB,pp=120kB", "host=80,leaf=40"),
    make_case("tensors, 7+5", (7, 5), "dp=3,tp=4", "tp=1MB,dp=300kB", "host=80,leaf=40"),
    make_case("experts, 4+5+3", (4, 5, 3), "dp=3,ep=4", "ep=800kB,dp=500kB", "host=80,leaf=40"),
    make_case("experts, 5+3", (5, 3), "dp=2,ep=4", "ep=1.2MB,dp=300kB", "host=80,leaf=40"),
    make_case("two ranks a host, 3+3+2", (3, 3, 2), "pp=2,dp=8", "dp=800kB,pp=240kB", "host=40,leaf=40", devices=2),
    make_case(
        "NVLink, (3+3) (3+3)", ((3, 3), (3, 3)), "pp=2,dp=3,tp=2", "tp=1.2MB,dp=400kB,pp=200kB",
        "host=200,nvl/host=40,leaf=60", inner="nvl",
    ),
    # The same collectives by another framework.
    make_case("JAX, 5+5+2", (5, 5, 2), "pp=2,dp=6", "dp=800kB,pp=240kB", "host=40,leaf=40", "jax"),
    make_case("JAX, 3+3+2", (3, 3, 2), "pp=2,dp=2,tp=2", "tp=1MB,dp=500kB,pp=250kB", "host=40,leaf=40", "jax"),
)  # fmt: skip
SLOW = ("uneven, 5+5+2", "even, 4+4+4", "one ring, 4+4+4", "stages, 4+4+4+4", "heavy stages, 3+4+5", "uneven, 7+4+3",
        "pods, 4+2 3+3", "tensors, 5+4+3")  # fmt: skip
CASES = (*UNTOLD, *(_slow_down(case, "l1") for case in UNTOLD if case.name in SLOW))
QUICK = (UNTOLD[0].name, UNTOLD[1].name, CASES[-1].name)
