"""The best cost anybody has found for each instance of the families: what the planner is measured against.

Nobody knows the optimum of an irregular cluster of a thousand nodes. So a search that has all the time it wants and
shares no line with the planner's tries many beginnings, the planner's own answer among them, and anneals each; what it
finds is kept in a file, and the next run starts from there in the sense that only something better replaces it.

    python -m benchmarks.long_search --seconds 30 --only zones
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import judge
from benchmarks.anneal import Board, anneal_places, anneal_runs
from benchmarks.families import Instance, families
from launcher.model import topology
from launcher.model.node import Node
from launcher.placement.planner import plan

BEGINNINGS = 6  # simple ones that are annealed
BEST = Path(__file__).parent / "records" / "placement_best.json"


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
        depth = instance.limits.levels.index(instance.limits.all_or_nothing.level) + 1
        slices: dict[object, list[Node]] = {}
        for node in ordered:
            slices.setdefault(node.path[:depth], []).append(node)
        complete = [hosts for hosts in slices.values() if len(hosts) == instance.limits.all_or_nothing.hosts]
        pieces = [Piece(tuple(sorted(hosts, key=lambda node: node.index or 0)), 1) for hosts in complete]
        block = unit * sum(node.slot_count // unit for node in complete[0])
    elif not instance.limits.is_contiguous:
        pieces = [Piece(piece.nodes, 1) for piece in pieces for _ in range(piece.capacity)]
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
    broken = [[0] * (len(prices) + 1)]
    block_count = math.prod(shape) // block
    lows, highs = [talk.low // block], [talk.high // block]
    weights, kinds = [talk.weight], [np.zeros(len(talk.low), dtype=np.int64)]
    for axis, name in instance.limits.within.items():
        rows = judge.groups(instance, shape, (axis,)) // block
        lows.append(rows[:, :-1].ravel())
        highs.append(rows[:, 1:].ravel())
        weights.append(np.ones(lows[-1].size, dtype=np.int64))
        kinds.append(np.full(lows[-1].size, len(far)))
        level = [*instance.limits.levels, topology.HOST].index(name)
        far.append([0] * (len(prices) + 1))
        broken.append([int(part <= level) for part in range(len(prices))] + [0])
    low, high, weight, kind = (np.concatenate(parts) for parts in (lows, highs, weights, kinds))
    outside = low != high
    low, high, weight, kind = low[outside], high[outside], weight[outside], kind[outside]
    # Pairs that talk in several ways are one edge.
    keys = (np.minimum(low, high) * block_count + np.maximum(low, high)) * len(far) + kind
    unique, inverse = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, inverse, weight)
    total[unique % len(far) > 0] = 1
    one, other = np.divmod(unique // len(far), block_count)
    ends, others = np.concatenate((one, other)), np.concatenate((other, one))
    order = np.argsort(ends, kind="stable")
    members = np.argsort(domain, axis=0, kind="stable").T
    first = np.zeros((domain.shape[1], len(pieces) + 2), dtype=np.int64)
    for level in range(domain.shape[1]):
        counts = np.bincount(domain[:, level], minlength=len(pieces) + 1)
        first[level, 1:] = np.cumsum(counts)
    strides, extents = _grid(shape, block)
    return Board(
        start=np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=block_count)))),
        to=others[order].astype(np.int32),
        weight=np.tile(total, 2)[order],
        kind=np.tile(unique % len(far), 2)[order].astype(np.int32),
        domain=np.ascontiguousarray(domain, dtype=np.int32),
        far=np.array(far, dtype=np.int64),
        broken=np.array(broken, dtype=np.int64),
        members=np.ascontiguousarray(members),
        first=first,
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
    if -1 in layout or judge.cost(one.instance, one.shape, one.ranks(layout)) != judge.cost(
        one.instance, one.shape, ranks
    ):
        return None
    return layout


class Search:
    """Anneals one puzzle again and again; `best` is the cheapest layout so far, block -> piece."""

    def __init__(self, one: Puzzle, seed: int) -> None:
        self.one = one
        self.chance = np.random.default_rng(seed)
        self.best: list[int] | None = None
        self.best_cost: Fraction | None = None

    def offer(self, layout: list[int] | None) -> Fraction | None:
        """Take the layout if it is valid and cheaper than all before; its cost."""
        if layout is None:
            return None
        ranks = self.one.ranks(layout)
        found = judge.cost(self.one.instance, self.one.shape, ranks)
        is_cheaper = self.best_cost is None or found < self.best_cost
        if is_cheaper and judge.find_fault(self.one.instance, judge.as_plan(self.one.shape, ranks)) is None:
            self.best, self.best_cost = list(layout), found
        return found

    def anneal(self, layout: Sequence[int], heat: float, move_count: int) -> Fraction | None:
        """One chain from this layout; what it found is offered, and its cost returned."""
        typical, least = self._prices()
        hot, cold = typical * heat, max(least * 0.08, typical * heat * 1e-3)
        seed = int(self.chance.integers(2**31))
        used = list(dict.fromkeys(layout))
        spares = [item for item in range(len(self.one.pieces)) if item not in set(used)]
        if self.one.is_even:
            place = np.array([*layout, *spares], dtype=np.int64)
            anneal_places(self.one.board, place, len(layout), hot, min(cold, hot), move_count, seed, int(3 * typical))
            return self.offer(place[: len(layout)].tolist())
        order = np.array([*used, *spares], dtype=np.int64)
        length = np.zeros(len(order), dtype=np.int64)
        length[: len(used)] = np.bincount(layout, minlength=len(self.one.pieces))[used]
        _, active = anneal_runs(self.one.board, order, length, len(used), hot, min(cold, hot), move_count, seed)
        return self.offer(np.repeat(order[:active], length[:active]).tolist())

    def _prices(self) -> tuple[float, float]:
        """What a block's traffic typically costs beyond the innermost domain, and the smallest step of the cost."""
        board = self.one.board
        traffic = board.kind == 0
        per_block = float(board.weight[traffic].sum()) / self.one.block_count
        steps = np.diff(board.far[0][::-1])
        least = float(board.weight[traffic].min(initial=1)) * float(
            min([step for step in steps if step > 0], default=1)
        )
        outer = board.far[0][-3] if len(board.far[0]) > 2 else board.far[0][0]
        return max(per_block * float(outer or board.far[0][0]) / 2, 1.0), least

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

    def run(self, starts: Sequence[list[int] | None], seconds: float, bound: float) -> None:
        """Anneal for so many seconds of CPU time, from these beginnings, simple ones, and the best so far.

        Ends early when the best costs no more than `bound`.
        """
        end = time.process_time() + seconds
        simple = self.simple()
        given = [start for start in starts if start is not None]
        for start in (*given, *simple):
            self.offer(start)
        pool = [*given, *simple]
        moves = max(20_000, min(2_000_000, 40 * self.one.block_count))
        turn = 0
        while time.process_time() < end and not (self.best_cost is not None and self.best_cost <= bound):
            began = time.process_time()
            if turn < len(pool):
                self.anneal(pool[turn], 0.3, moves)
            elif turn % 3 == 0:
                self.anneal(
                    pool[int(self.chance.integers(len(pool)))], float(np.exp(self.chance.uniform(-2.5, 0.7))), moves
                )
            elif self.best is not None:
                self.anneal(self.best, float(np.exp(self.chance.uniform(-5.0, -0.5))), moves)
            turn += 1
            taken = time.process_time() - began
            if taken < seconds / 12:
                moves = int(moves * 1.3)


def fingerprint(instance: Instance) -> str:
    """Tells a changed instance apart from the one that a record is about."""
    limits, costs = instance.limits, instance.costs
    nodes = [(node.id, node.slot_count, node.path, node.index) for node in topology.sort_nodes(instance.nodes)]
    whole = None if limits.all_or_nothing is None else (limits.all_or_nothing.level, limits.all_or_nothing.hosts)
    valid = (limits.levels, limits.block_size, sorted(limits.within.items()), whole, limits.is_contiguous)
    talks = None if costs.traffic is None else [(one.axes, one.kind, one.weight) for one in costs.traffic]
    told = repr((nodes, str(instance.mesh), valid, talks, sorted(costs.level_costs.items())))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def number(cost: Fraction) -> int | float | str:
    return int(cost) if cost.denominator == 1 else str(cost)


def load(file: Path = BEST) -> dict[str, dict[str, Any]]:
    """Instance name -> what is known of it."""
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def save(known: Mapping[str, Mapping[str, Any]], file: Path = BEST) -> None:
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
    file.write_text(f"{{\n{lines}\n}}\n")


def improve(
    instance: Instance, before: Mapping[str, Any] | None, seconds: float, layouts: Path | None
) -> dict[str, Any]:
    """Search for so many seconds and return the record: what was known, or what is better."""
    answer = plan(*instance.question, None)
    if (fault := judge.find_fault(instance, answer)) is not None:
        raise RuntimeError(f"{instance.name}: the planner's answer is invalid: {fault}")
    planned = judge.cost(instance, answer.shape, answer.ranks)
    mark = fingerprint(instance)
    if before is not None and before["fingerprint"] != mark:
        before = None
    if before is not None and tuple(before["shape"]) != answer.shape:
        raise RuntimeError(f"{instance.name}: a world of {answer.shape}, and one of {before['shape']} is known")
    spent = before["seconds"] if before else 0
    one = puzzle(instance, answer.shape)
    search = Search(one, int(mark, 16) % 2**32 + int(spent))
    kept = layouts / f"{instance.name.replace('/', '-')}-{mark}.json" if layouts else None
    last = json.loads(kept.read_text()) if kept and kept.exists() else None
    if last is not None and len(last) != one.block_count:
        last = None
    began = time.process_time()
    # A small instance has been through all of its neighbours soon.
    seconds *= min(1.0, 0.1 + len(instance.nodes) / 300)
    if planned > answer.lower_bound:
        search.run([from_plan(one, answer.ranks), last], seconds, answer.lower_bound)
    if kept and search.best is not None:
        kept.write_text(json.dumps(search.best))
    offers = [(planned, 1, "planner")]
    if search.best_cost is not None:
        offers.append((search.best_cost, 2, "search"))
    if before:
        offers.append((Fraction(before["cost"]), 0, before["by"]))
    cost, _, by = min(offers)
    seconds = round(spent + time.process_time() - began, 1)
    return {"fingerprint": mark, "shape": answer.shape, "cost": number(cost), "by": by, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="CPU time for each instance (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="instances with this in their name")
    parser.add_argument("--size-max", type=int, metavar="N", help="instances of at most so many nodes")
    parser.add_argument("--layouts", type=Path, metavar="DIR", help="keep the best layouts here, and go on from them")
    parser.add_argument("--file", type=Path, default=BEST, help="the record (default: %(default)s)")
    options = parser.parse_args()
    known = load(options.file)
    chosen = [instance for instance in families(options.size_max) if options.only in instance.name]
    # Those that were searched least come first, so a run that is cut short has done the most for the table.
    for instance in sorted(chosen, key=lambda instance: known.get(instance.name, {"seconds": 0})["seconds"]):
        before = known.get(instance.name)
        try:
            known[instance.name] = improve(instance, before, options.seconds, options.layouts)
        except Exception as error:  # a planner that fails here fails in the table, too
            print(f"{instance.name}: skipped: {type(error).__name__}: {error}", flush=True)
            continue
        save(known, options.file)
        now = known[instance.name]
        better = f"{float(1 - Fraction(now['cost']) / Fraction(before['cost'])):.3%} better" if before else "new"
        print(f"{instance.name}: {now['cost']} by {now['by']} ({better}, {now['seconds']} s in all)", flush=True)


if __name__ == "__main__":
    main()
