"""The best cost anybody has found for each instance of the families: what the planner is measured against.

Nobody knows the optimum of an irregular cluster of a thousand nodes. So a search that has all the time it wants and
shares no line with the planner's tries many beginnings, the planner's own answer among them, and anneals each; what it
finds is kept in a file, and the next run starts from there in the sense that only something better replaces it.

    python -m benchmarks.long_search --seconds 30 --only zones
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks import judge
from benchmarks.anneal import Board, anneal_places, anneal_runs
from benchmarks.families import Instance, families
from launcher.model import topology
from launcher.model.node import Node
from launcher.placement.planner import plan

BEGINNINGS = 6  # simple ones that are annealed
BEST = Path(__file__).parent / "records/placement_best.json"


class Piece(NamedTuple):
    """Nodes that get one run of ranks, and how many blocks they hold."""

    nodes: tuple[Node, ...]
    capacity: int


class Puzzle(NamedTuple):
    """An instance as the kernels want it. `is_even`: every piece holds one block or none."""

    instance: Instance
    shape: tuple[int, ...]
    block: int
    pieces: tuple[Piece, ...]
    is_even: bool
    board: Board

    @property
    def block_count(self) -> int:
        return math.prod(self.shape) // self.block

    def ranks(self, layout: Sequence[int]) -> dict[str, list[int]]:
        """Block -> piece, written out as node -> ranks."""
        unit = judge.unit_of(self.instance)
        held: dict[str, list[int]] = {}
        for index, item in enumerate(layout):
            start = index * self.block
            for node in self.pieces[item].nodes:
                end = min(start + node.slot_count // unit * unit, (index + 1) * self.block)
                held.setdefault(node.id, []).extend(range(start, end))
                start = end
        return held


def puzzle(instance: Instance, shape: tuple[int, ...]) -> Puzzle:
    """Cut the nodes into pieces and the ranks into blocks, as large as they are moved together anyway."""
    unit = judge.unit_of(instance)
    ordered = topology.sort_nodes(instance.nodes)
    pieces = [Piece((node,), node.slot_count // unit) for node in ordered if node.slot_count >= unit]
    block, is_even = unit, True
    if instance.limits.all_or_nothing is not None:
        slices = judge.find_slices(instance, ordered)
        pieces = [Piece(tuple(hosts), 1) for hosts in slices]
        block = unit * sum(node.slot_count // unit for node in slices[0])
    else:
        capacity = pieces[0].capacity
        is_even = all(piece.capacity == capacity for piece in pieces) and math.prod(shape) % (unit * capacity) == 0
        if is_even:
            block = unit * capacity
            pieces = [Piece(piece.nodes, 1) for piece in pieces]
    return Puzzle(instance, shape, block, tuple(pieces), is_even, _board(instance, shape, block, pieces))


def _board(instance: Instance, shape: tuple[int, ...], block: int, pieces: Sequence[Piece]) -> Board:
    column_of, labels = judge.domains(instance)
    columns = [column_of[piece.nodes[0].id] for piece in pieces]
    domain = np.stack([np.unique(level[columns], return_inverse=True)[1] for level in labels], axis=1)
    talk = judge.edges(instance, shape)
    level_costs = judge.level_costs(instance)
    scale = math.lcm(*(level_cost.denominator for level_cost in level_costs))
    prices = [int(level_cost * scale) for level_cost in level_costs]
    far = [[sum(prices[level:]) for level in range(len(prices))] + [0]]
    block_count = math.prod(shape) // block
    fine = 3 * far[0][0] * (1 + int(talk.weight[talk.low // block != talk.high // block].sum()) // block_count)
    parts = [(talk.low // block, talk.high // block, talk.weight, np.zeros_like(talk.low))]
    for axis, name in instance.limits.within.items():
        rows = judge.groups(instance, shape, (axis,)) // block
        one = np.ones(rows[:, 1:].size, dtype=np.int64)
        parts.append((rows[:, :-1].ravel(), rows[:, 1:].ravel(), one, len(far) * one))
        level = [*instance.limits.levels, topology.HOST].index(name)
        far.append([fine * (part <= level) for part in range(len(prices))] + [0])
    low, high, weight, kind = (np.concatenate(each) for each in zip(*parts, strict=True))
    # Pairs that talk in several ways are one edge.
    keys = (np.minimum(low, high) * block_count + np.maximum(low, high)) * len(far) + kind
    unique, inverse = np.unique(keys[low != high], return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, weight[low != high])
    pair, kind = np.divmod(unique, len(far))
    ends = np.concatenate(np.divmod(pair, block_count))
    order = np.argsort(ends, kind="stable")
    counts = [np.bincount(labels, minlength=len(pieces) + 1) for labels in domain.T]
    strides, extents = _grid(shape, block)
    return Board(
        start=np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=block_count)))),
        to=np.roll(ends, len(pair))[order],
        weight=np.tile(total, 2)[order],
        kind=np.tile(kind, 2)[order],
        domain=np.ascontiguousarray(domain),
        far=np.array(far, dtype=np.int64),
        members=np.ascontiguousarray(np.argsort(domain, axis=0, kind="stable").T),
        first=np.array([[0, *np.cumsum(count)] for count in counts]),
        stride=strides,
        extent=extents,
        capacity=np.array([piece.capacity for piece in pieces], dtype=np.int64),
    )


def _grid(shape: Sequence[int], block: int) -> tuple[Any, Any]:
    """Stride and size, in blocks, of every axis that blocks do not cut."""
    strides, extents = [], []
    stride = 1
    for size in reversed(shape):
        if stride % block == 0 and size > 1:
            strides.append(stride // block)
            extents.append(size)
        elif (stride * size) % block == 0 and stride * size > block:
            strides.append(1)
            extents.append(stride * size // block)
        stride *= size
    return np.array(strides or [1], dtype=np.int64), np.array(extents or [1], dtype=np.int64)


def beginnings(one: Puzzle) -> Iterator[Any]:
    """Orders of the blocks along which the pieces may be laid: lines along every permutation of axes, and tiles."""
    extents, strides = one.board.extent.tolist(), one.board.stride.tolist()
    blocks = np.arange(one.block_count)
    if math.prod(extents) != one.block_count:
        yield blocks
        return
    places = [blocks // stride % extent for extent, stride in zip(extents, strides, strict=True)]
    axes = range(len(extents))
    for order in itertools.permutations(axes):
        yield np.lexsort([places[axis] for axis in order])
    for level in range(one.board.domain.shape[1] - 1):
        room = int(np.median(np.bincount(one.board.domain[:, level])))
        for widths in itertools.product(*(range(1, min(extent, 33) + 1) for extent in extents)):
            if 0.7 * room <= math.prod(widths) <= 1.1 * room:
                tiles = [place // width for place, width in zip(places, widths, strict=True)]
                yield np.lexsort([*places, *tiles])
                yield np.lexsort([*places, *reversed(tiles)])


def from_plan(one: Puzzle, ranks: Mapping[str, Sequence[int]]) -> list[int] | None:
    """Block -> piece of a layout; None if it cuts blocks in a way that the puzzle does not know."""
    pieces_of: dict[str, list[int]] = {}
    for index, piece in enumerate(one.pieces):
        for node in piece.nodes:
            pieces_of.setdefault(node.id, []).append(index)
    layout = [-1] * one.block_count
    for name, held in ranks.items():
        free = list(pieces_of.get(name, []))
        for rank in held[:: one.block] if len(held) >= one.block else held[:1]:
            if not free:
                return None
            layout[rank // one.block] = free.pop(0) if len(free) > 1 else free[0]
    if -1 in layout:
        return None
    is_same = judge.cost(one.instance, one.shape, one.ranks(layout)) == judge.cost(one.instance, one.shape, ranks)
    return layout if is_same else None


class Search:
    """Anneals one puzzle again and again; `best` is the cheapest layout so far, block -> piece."""

    def __init__(self, one: Puzzle, seed: int) -> None:
        self.one = one
        self.chance = np.random.default_rng(seed)
        self.best: list[int] | None = None
        self.best_cost: Fraction | None = None

    def offer(self, layout: list[int]) -> Fraction:
        """Take the layout if it is valid and cheaper than all before; its cost."""
        ranks = self.one.ranks(layout)
        found = judge.cost(self.one.instance, self.one.shape, ranks)
        if self.best_cost is None or found < self.best_cost:
            plan = judge.as_plan(self.one.instance, self.one.shape, ranks)
            if judge.find_fault(self.one.instance, plan) is None:
                self.best, self.best_cost = list(layout), found
        return found

    def anneal(self, layout: Sequence[int], heat: float, move_count: int) -> Fraction:
        """One chain from this layout; what it found is offered, and its cost returned."""
        board = self.one.board
        is_traffic, far = board.kind == 0, board.far[0]
        outer = far[-3] if len(far) > 2 else far[0]
        # What a block's traffic typically costs beyond the innermost domain, and the smallest step of the cost.
        typical = max(float(board.weight[is_traffic].sum()) / self.one.block_count * float(outer or far[0]) / 2, 1.0)
        steps = np.diff(far[::-1])
        least = float(board.weight[is_traffic].min(initial=1)) * float(steps[steps > 0].min(initial=far[0]))
        hot = typical * heat
        cold = min(max(least * 0.08, hot * 1e-3), hot)
        seed = int(self.chance.integers(2**31))
        used = list(dict.fromkeys(layout))
        spares = sorted(set(range(len(self.one.pieces))).difference(used))
        if self.one.is_even:
            place = np.array([*layout, *spares], dtype=np.int64)
            anneal_places(board, place, len(layout), hot, cold, move_count, seed)
            return self.offer(place[: len(layout)].tolist())
        order = [*used, *spares]
        runs = np.array([order, np.bincount(layout, minlength=len(order))[order]], dtype=np.int64)
        _, active = anneal_runs(board, runs, len(used), hot, cold, move_count, seed)
        return self.offer(np.repeat(runs[0, :active], runs[1, :active]).tolist())

    def simple(self) -> list[list[int]]:
        """Fills of the pieces along every order of the axes, cheapest first; only one if runs would be torn."""
        if not self.one.is_even:
            items = [item for item, piece in enumerate(self.one.pieces) for _ in range(piece.capacity)]
            return [items[: self.one.block_count]]
        found = []
        for blocks in itertools.islice(beginnings(self.one), max(50, 400_000 // self.one.block_count)):
            layout = np.empty(len(blocks), dtype=np.int64)
            layout[blocks] = np.arange(len(blocks))
            found.append(layout.tolist())
        return sorted(found, key=self.price)[:BEGINNINGS]

    def price(self, layout: Sequence[int]) -> int:
        """The cost of a layout up to what no layout changes, in the board's integers."""
        board = self.one.board
        items = np.array(layout)
        ends = np.repeat(np.arange(self.one.block_count), np.diff(board.start))
        labels = board.domain[items]
        parted = labels[ends] != labels[board.to]
        level = np.where(parted.any(axis=1), parted.argmax(axis=1), board.domain.shape[1])
        return int((board.weight * board.far[board.kind, level]).sum())

    def run(self, start: list[int] | None, seconds: float, bound: float) -> None:
        """Anneal for so many seconds of CPU time, from this beginning, simple ones, and the best so far.

        Ends early when the best costs no more than `bound`.
        """
        end = time.process_time() + seconds
        pool = [*([start] if start else []), *self.simple()]
        for each in pool:
            self.offer(each)
        moves = max(20_000, min(2_000_000, 40 * self.one.block_count))
        for turn in itertools.count():
            began = time.process_time()
            if began >= end or (self.best_cost is not None and self.best_cost <= bound):
                return
            if turn < len(pool):
                self.anneal(pool[turn], 0.3, moves)
            elif turn % 3 == 0 or self.best is None:
                heat = float(np.exp(self.chance.uniform(-2.5, 0.7)))
                self.anneal(pool[int(self.chance.integers(len(pool)))], heat, moves)
            else:
                self.anneal(self.best, float(np.exp(self.chance.uniform(-5.0, -0.5))), moves)
            if time.process_time() - began < seconds / 12:
                moves = int(moves * 1.3)


def fingerprint(instance: Instance) -> str:
    """Tells a changed instance apart from the one that a record is about."""
    limits, costs = instance.limits, instance.costs
    nodes = [(node.id, node.slot_count, node.path, node.index) for node in topology.sort_nodes(instance.nodes)]
    whole = None if limits.all_or_nothing is None else (limits.all_or_nothing.level, limits.all_or_nothing.hosts)
    valid = (limits.levels, limits.block_size, sorted(limits.within.items()), whole)
    talks = None if costs.traffic is None else [(one.axes, one.kind, one.weight) for one in costs.traffic]
    told = repr((nodes, str(instance.mesh), valid, talks, sorted(costs.level_costs.items())))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def load(file: Path = BEST) -> dict[str, dict[str, Any]]:
    """Instance name -> what is known of it."""
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def improve(instance: Instance, before: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Search for so many seconds and return the record: what was known, or what is better."""
    answer = plan(*instance.question, None)
    if (fault := judge.find_fault(instance, answer)) is not None:
        raise RuntimeError(f"{instance.name}: the planner's answer is invalid: {fault}")
    planned = judge.cost(instance, answer.shape, answer.ranks)
    mark = fingerprint(instance)
    before = before if before and before["fingerprint"] == mark else None
    if before and tuple(before["shape"]) != answer.shape:
        raise RuntimeError(f"{instance.name}: a world of {answer.shape}, and one of {before['shape']} is known")
    spent = before["seconds"] if before else 0
    one = puzzle(instance, answer.shape)
    search = Search(one, int(mark, 16) % 2**32 + int(spent))
    began = time.process_time()
    # A small instance has been through all of its neighbours soon.
    seconds *= min(1.0, 0.1 + len(instance.nodes) / 300)
    if planned > answer.lower_bound:
        search.run(from_plan(one, answer.ranks), seconds, answer.lower_bound)
    offers = [(planned, 1, "planner")]
    offers += [(search.best_cost, 2, "search")] if search.best_cost is not None else []
    offers += [(Fraction(before["cost"]), 0, before["by"])] if before else []
    cost, _, by = min(offers)
    seconds = round(spent + time.process_time() - began, 1)
    shown = int(cost) if cost.denominator == 1 else str(cost)
    return {"fingerprint": mark, "shape": answer.shape, "cost": shown, "by": by, "seconds": seconds}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--seconds", type=float, default=10, show_default=True, help="CPU time for each instance.")
@click.option("--only", default="", metavar="WORD", help="Instances with this in their name.")
@click.option("--size-max", type=int, metavar="N", help="Instances of at most so many nodes.")
@click.option("--file", type=click.Path(path_type=Path), default=BEST, help="The record.")
def main(seconds: float, only: str, size_max: int | None, file: Path) -> None:
    known = load(file)
    chosen = [instance for instance in families(size_max) if only in instance.name]
    # Those that were searched least come first, so a run that is cut short has done the most for the table.
    for instance in sorted(chosen, key=lambda instance: known.get(instance.name, {"seconds": 0})["seconds"]):
        before = known.get(instance.name)
        try:
            now = known[instance.name] = improve(instance, before, seconds)
        except Exception as error:  # a planner that fails here fails in the table, too
            print(f"{instance.name}: skipped: {type(error).__name__}: {error}", flush=True)
            continue
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
        file.write_text(f"{{\n{lines}\n}}\n")
        better = f"{float(1 - Fraction(now['cost']) / Fraction(before['cost'])):.3%} better" if before else "new"
        print(f"{instance.name}: {now['cost']} by {now['by']} ({better}, {now['seconds']} s in all)", flush=True)


if __name__ == "__main__":
    main()
