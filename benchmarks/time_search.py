"""The shortest step anybody has found for forty trees of uneven leaves: what the choice by seconds is measured against.

Half of the trees have leaves, half pods of leaves, 8 to 48 hosts in all; mesh, traffic and devices are drawn too, by a
generator that is seeded with the number of the tree. Each is tried as somebody knows it who knows no rates, where all
links are equally fast, and with rates that are told: one or two slow leaves or pods, a slow host, devices that limit.

The search anneals the time: from the planner's answer, from simple fills and from random layouts, an exchange of hosts
or stretches at a time, whole hosts only. It has the planner's arithmetic of times, checked by judge.py, and nothing of
how the planner searches. What it finds is kept in a file; something is replaced by something faster only.

    python -m benchmarks.time_search --seconds 20 --only told
    python -m benchmarks.time_search --seconds 0    only compares the plans with the record
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks import judge, long_search
from benchmarks.families import Instance
from benchmarks.planner_tables import mean
from launcher.model import mesh as meshes
from launcher.model import traffic
from launcher.model.node import Node
from launcher.model.rates import parse_rates
from launcher.model.topology import build_tree
from launcher.placement.limits import Costs, Limits
from launcher.placement.planner import plan
from launcher.placement.problem.problem import make_problem
from launcher.placement.problem.step_time import StepTimer
from launcher.placement.units import compute_grid

TREES = 40
BEST = Path(__file__).parent / "records/time_best.json"
MBIT = 10**6
HOST = 100  # Mbit/s of a host's link
MESHES = (
    "pp=2,dp=*", "pp=3,dp=*", "pp=4,dp=*", "dp=*", "dp=*,tp=2", "pp=2,dp=*,tp=2", "dp=*,ep=4", "pp=2,dp=*,ep=2",
    "pp=2,dp=*,cp=2",
)  # fmt: skip
WEIGHTS = {"dp": (5, 10, 20), "pp": (2, 5, 15), "tp": (20, 60), "ep": (10, 20), "cp": (10, 30)}
SLOW = ("a leaf", "a pod", "two", "a host", "devices")
TRIES = 24  # exchanges that are tried from one layout
HOT, COLD = 0.04, 0.001  # logarithms of times

Layouts = NDArray[np.int32]


class Tree(NamedTuple):
    """An instance, and the rate of every link that a judge needs: level, or "level:domain"."""

    instance: Instance
    rates: dict[str, float]

    def judge(self, shape: Sequence[int], ranks: judge.Ranks) -> float:
        """Seconds of a step, counted rank by rank; each device sends its own weight, a line's half each way."""
        found = judge.parts(self.instance, shape, ranks)
        own = {
            one.name: one.weight * 1e6 / (2 if one.kind == "line" else 1) for one in self.instance.costs.traffic or ()
        }
        found = [
            part._replace(**{way: {**getattr(part, way), "device": own[part.communicator]} for way in ("out", "into")})
            for part in found
        ]
        return judge.seconds(found, self.rates)


def trees() -> Iterator[Tree]:
    """All, first without rates and then with those that are told."""
    for number in range(TREES):
        yield make_tree(number, is_told=False)
    for number in range(TREES):
        yield make_tree(number, is_told=True)


def make_tree(number: int, *, is_told: bool) -> Tree:
    rng = random.Random(f"tree {number}")
    levels = ("pod", "leaf") if number % 2 else ("leaf",)
    paths = _draw_paths(rng, levels)
    while not 8 <= len(paths) <= 48:
        paths = _draw_paths(rng, levels)
    devices = rng.choice((1, 1, 1, 2, 4))
    mesh = meshes.parse(rng.choice(MESHES))
    weights = ",".join(f"{axis.name}={rng.choice(WEIGHTS[axis.name])}MB" for axis in mesh.axes)
    orders = rng.sample(range(len(paths)), len(paths))
    nodes = tuple(
        Node(id=f"h{at}", slot_count=devices, path=path, order=orders[at], address=f"10.0.0.{orders[at] + 1}")
        for at, path in enumerate(paths)
    )
    rates: dict[str, float] = dict.fromkeys((*levels, "host"), HOST)
    name = f"alike/{number}"
    if is_told:
        name = f"told/{number}, slow: {SLOW[number // 2 % len(SLOW)]}"
        rates |= _draw_rates(rng, SLOW[number // 2 % len(SLOW)], nodes, levels)
    told = ",".join(f"{link}={rate}Mbit" for link, rate in rates.items()) if is_told else ""
    costs = Costs(traffic=traffic.parse(weights, mesh), rates=parse_rates(told) if told else None)
    instance = Instance(name, nodes, mesh, Limits(levels=levels), costs)
    return Tree(instance, {link: rate * MBIT for link, rate in rates.items()})


def _draw_paths(rng: random.Random, levels: Sequence[str]) -> list[tuple[str, ...]]:
    numbers = itertools.count()
    if len(levels) == 1:
        return [(f"l{leaf}",) for leaf in range(rng.randint(2, 7)) for _ in range(rng.randint(2, 12))]
    return [
        (f"p{pod}", leaf)
        for pod in range(rng.randint(2, 4))
        for leaf in [f"l{next(numbers)}" for _ in range(rng.randint(1, 4))]
        for _ in range(rng.randint(2, 8))
    ]


def _draw_rates(rng: random.Random, slow: str, nodes: Sequence[Node], levels: Sequence[str]) -> dict[str, float]:
    """Rates of levels, and of what is slow: a half or a quarter of the usual."""
    found: dict[str, float] = {}
    rate = HOST
    for level in reversed(levels):
        rate = found[level] = rate * rng.choice((1, 1, 2))
    depth = 0 if slow == "a pod" else len(levels) - 1
    domains = sorted({str(node.path[depth]) for node in nodes})
    if slow == "a host":
        found[f"host:{rng.choice(nodes).id}"] = HOST / rng.choice((2, 4))
    else:
        for domain in rng.sample(domains, 2 if slow == "two" else 1):
            found[f"{levels[depth]}:{domain}"] = found[levels[depth]] / rng.choice((2, 4))
    if slow == "devices":
        found["device"] = HOST / rng.choice((1, 2))
    return found


class Search:
    """Anneals one tree again and again; `best` are its ranks by host, `best_s` their time."""

    def __init__(self, one: Tree, shape: tuple[int, ...], seed: int) -> None:
        nodes, mesh, limits, costs = one.instance.question
        self.one, self.shape = one, shape
        self.place = build_tree(nodes, limits.levels)
        slots, world = nodes[0].slot_count, math.prod(shape)
        self.unit = next(
            unit
            for unit in range(slots, 0, -1)
            if slots % unit == 0 and world % unit == 0 and compute_grid(shape, unit)
        )
        self.room = slots // self.unit
        every = range(len(nodes))
        problem = make_problem(self.place, mesh, shape, self.unit, limits, costs, [self.room] * len(nodes), every)
        self.timer = StepTimer(problem, self.place, every, mesh, shape, costs)
        self.unit_count = world // self.unit
        self.used = -(-self.unit_count // self.room)
        self.leaf_of = np.array(self.place.domains[-1])
        self.rng = np.random.default_rng(seed)
        self.best_s, self.best = math.inf, np.arange(len(nodes))

    def lay(self, orders: NDArray[np.int64]) -> Layouts:
        """Unit -> host of the hosts in each of these orders, spares last."""
        return np.repeat(orders[:, : self.used], self.room, axis=1)[:, : self.unit_count].astype(np.int32)

    def read(self, ranks: judge.Ranks) -> NDArray[np.int64]:
        """The order of the hosts in a plan."""
        place = {node.id: at for at, node in enumerate(self.place.nodes)}
        held = sorted((min(run), place[name]) for name, run in ranks.items())
        order = [at for _, at in held]
        return np.array([*order, *sorted(set(place.values()).difference(order))])

    def ranks(self, order: NDArray[np.int64]) -> dict[str, range]:
        width, world = self.room * self.unit, math.prod(self.shape)
        names = [self.place.nodes[at].id for at in order[: self.used].tolist()]
        return {name: range(at * width, min((at + 1) * width, world)) for at, name in enumerate(names)}

    def fill(self) -> Iterator[NDArray[np.int64]]:
        """The hosts of leaf after leaf along every order of the mesh's axes, where hosts hold boxes."""
        grid = [size for size in compute_grid(self.shape, self.unit * self.room) or () if size > 1]
        if math.prod(grid) == self.used:
            for axes in itertools.permutations(range(len(grid))):
                line = np.arange(self.used).reshape(grid).transpose(axes).ravel()
                order = np.arange(len(self.leaf_of))
                order[line] = np.arange(self.used)
                yield order

    def propose(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """An order after one change: hosts, stretches or leaves change places, or a stretch is turned or shifted."""
        found, kind = order.copy(), self.rng.random()
        i, j = int(self.rng.integers(self.used)), int(self.rng.integers(len(order)))
        low, high = min(i, j), max(i, j)
        if kind < 0.65:
            found[i], found[j] = order[j], order[i]
        elif kind < 0.75:
            found[low : high + 1] = order[low : high + 1][::-1]
        elif kind < 0.85:
            found[low : high + 1] = np.roll(order[low : high + 1], int(self.rng.integers(1, 4)))
        elif kind < 0.93:
            length = min(int(self.rng.integers(1, 7)), high - low, len(order) - high)
            found[low : low + length], found[high : high + length] = (
                order[high : high + length],
                order[low : low + length],
            )
        elif self.leaf_of[order[i]] != self.leaf_of[order[j]]:
            one, other = (np.flatnonzero(self.leaf_of[order] == self.leaf_of[order[at]]) for at in (i, j))
            count = min(len(one), len(other))
            found[one[:count]], found[other[:count]] = order[other[:count]], order[one[:count]]
        return found

    def anneal(self, order: NDArray[np.int64], hot: float, steps: int) -> None:
        """One chain from this order; of TRIES changes at once the first that is accepted is made."""
        energy = None
        for step in range(steps):
            heat = hot * (COLD / hot) ** (step / steps)
            orders = np.stack([order, *(self.propose(order) for _ in range(TRIES))])
            times, crowds = self.timer.compute_all(self.lay(orders))
            energies = np.log(times) + 0.01 * np.log(crowds)
            fastest = int(times.argmin())
            if times[fastest] < self.best_s:
                self.best_s, self.best = float(times[fastest]), orders[fastest].copy()
            energy = energies[0]
            is_taken = self.rng.random(TRIES) < np.exp(np.minimum(0.0, (energy - energies[1:]) / heat))
            if is_taken.any():
                order = orders[1 + int(is_taken.argmax())]

    def run(self, plans: Sequence[judge.Ranks], seconds: float) -> None:
        """Anneal for so many seconds of CPU time."""
        end = time.process_time() + seconds
        pool = [*map(self.read, plans), *self.fill()]
        for turn in itertools.count():
            if time.process_time() >= end:
                return
            steps = 600 if turn < 2 * len(pool) else 3000
            if turn < len(pool):
                self.anneal(pool[turn], HOT / 4, steps)
            elif turn % 3 == 0:
                self.anneal(self.rng.permutation(len(self.leaf_of)), HOT, steps)
            elif turn % 3 == 1:
                self.anneal(pool[int(self.rng.integers(len(pool)))], HOT, steps)
            else:
                self.anneal(self.best, HOT / 3, steps)


def load(file: Path = BEST) -> dict[str, dict[str, Any]]:
    """Name of a tree -> what is known of it."""
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def fingerprint(one: Tree) -> str:
    return f"{long_search.fingerprint(one.instance)} {sorted(one.rates.items())}"


def improve(one: Tree, before: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Search for so many seconds and return the record: what was known, or what is faster."""
    nodes, mesh, limits, costs = one.instance.question
    answers = [plan(nodes, mesh, limits, each, None) for each in (costs, Costs(traffic=costs.traffic))]
    mark = fingerprint(one)
    before = before if before and before["fingerprint"] == mark else None
    spent = before["seconds"] if before else 0
    search = Search(one, answers[0].shape, int(spent * 10) + len(nodes))
    began = time.process_time()
    search.run([answer.ranks for answer in answers], seconds)
    offers = [one.judge(answer.shape, answer.ranks) for answer in answers]
    offers.append(one.judge(search.shape, search.ranks(search.best)))
    offers += [before["best_s"]] if before else []
    spent = round(spent + time.process_time() - began, 1)
    return {"fingerprint": mark, "shape": answers[0].shape, "best_s": min(offers), "seconds": spent}


def compare(every: Sequence[Tree], known: dict[str, dict[str, Any]]) -> str:
    """How much longer steps of the plans take than the shortest known: for each kind geometric mean and worst."""
    found: dict[str, list[tuple[float, str]]] = {}
    for one in every:
        answer = plan(*one.instance.question, None)
        ratio = one.judge(answer.shape, answer.ranks) / known[one.instance.name]["best_s"]
        found.setdefault(one.instance.name.partition("/")[0], []).append((ratio, one.instance.name))
    rows = ((kind, mean([ratio for ratio, _ in ratios]), *max(ratios)) for kind, ratios in found.items())
    return "\n".join(f"{kind}: mean {middle:.4f}, worst {worst:.3f} ({name})" for kind, middle, worst, name in rows)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--seconds", type=float, default=10, show_default=True, help="CPU time for each tree.")
@click.option("--only", default="", metavar="WORD", help="Trees with this in their name.")
@click.option("--file", type=click.Path(path_type=Path), default=BEST, help="The record.")
def main(seconds: float, only: str, file: Path) -> None:
    known = load(file)
    every = [tree for tree in trees() if only in tree.instance.name]
    for one in every if seconds else []:
        name = one.instance.name
        before = known.get(name)
        now = known[name] = improve(one, before, seconds)
        lines = ",\n".join(f"  {json.dumps(at)}: {json.dumps(entry)}" for at, entry in known.items())
        file.write_text(f"{{\n{lines}\n}}\n")
        better = f"{1 - now['best_s'] / before['best_s']:.3%} better" if before else "new"
        print(f"{name}: {now['best_s']:.4g} s ({better}, {now['seconds']} s in all)", flush=True)
    print(compare(every, known))


if __name__ == "__main__":
    main()
