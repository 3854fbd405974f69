"""Chooses the layout of a world: a new one, or the previous one with its holes filled.

The search finds layouts of little J. A step does not wait for a sum, though, but for the fullest link
(`problem/step_time.py`): of these layouts, of lines of nodes, and of what exchanges make of them, the one of least J
among those within 8 % of the shortest time is chosen: less than that, the prediction cannot tell of two plans. Where
links are assumed to be alike and nodes are many, more J must buy more time.

With a previous plan, moving is expensive: a rank on another node reads its shard from far away and compiles again. So
there are patches, which move nobody and only fill the holes. Where rates are told, of all candidates that take at most
a tenth longer than the fastest layout from scratch the one that moves fewest ranks is chosen. Where none is, nobody
moves to save time on links that are only assumed to be alike, and J decides: if a patch is nearly as cheap as possible,
it is chosen at once. Else it is compared with a layout from scratch and with the same with its equal domains renamed:
the least of J + price of a moved rank x moved ranks wins, and of equals the one that moves fewest.

The search works on units and items. Here they are mapped to nodes again: a slice that is used as a whole is one item
for the search, but the hops between its hosts cost something, too, and a rank has moved when its host is another one.

Comparisons of costs are between integers, multiplied out, so that every machine decides the same; times are floats of
which all machines have the same (`problem/step_time.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from launcher.model.topology import Tree
from launcher.placement.capacity import LargestWorld
from launcher.placement.limits import NO_ITEM, Costs, LayoutChoice, Limits, Run
from launcher.placement.problem import problem as problems
from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.hops import Graph, Ints, build_graph
from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.problem.step_time import HostMap, StepTimer
from launcher.placement.search.refine import lay_lines, refine
from launcher.placement.search.search import search
from launcher.placement.stability import fill_holes, tile
from launcher.placement.units import compute_grid

BLOCKS_MAX = 1 << 18
"""With more, nodes are filled in order: a search takes minutes and gigabytes. 16,384 nodes of 8 have half of it."""
PRICED_MAX = 512
"""Holes that are priced one by one; where more is lost or new, a layout from scratch is as good."""
HOLES_MAX = 16
"""Holes that are each compared with all units; where more is lost, a layout from scratch is compared anyway."""
EXCHANGED_MAX = 1 << 19
"""Units times partners of an exchange that the prices of holes count: 2,048 units in groups of 256."""

SAME_TIME = 0.08
"""Of 19 in 20 pairs of similar orders, the ratio of their times is predicted to that (benchmarks/records/truth.jsonl).

Within it J decides, which also counts traffic on links that are not full."""
MOVING_GAIN_MIN = 0.1
"""More than `SAME_TIME`, so that the plan of the same nodes moves nobody."""
TRUSTED_MAX = 48
"""Nodes up to which assumed rates count like told ones. An uplink of a larger cluster is faster than that of a host,
so seconds exaggerate. Without a limit the 105 plans of benchmarks/families.py would have J 4 % higher; with none
trusted, plans of 80 small trees without rates would take 3 % longer than the best known, and up to 42 %."""
MOVED_MAX = TRUSTED_MAX // 2
"""Nodes up to which ranks move for a time that rests on assumed rates, too. Not `TRUSTED_MAX`: there one node more or
less changes what the fresh layout is, with which a plan is compared."""

GONE, NEW = -1, -2
"""In place of the node that held a rank's coordinates: it has left; none, the coordinates are new."""


def choose_layout(world: LargestWorld, tree: Tree, costs: Costs, owners: list[str | None] | None) -> LayoutChoice:
    """Choose a layout. `owners`: rank -> node that held its coordinates, None if new; None without a previous plan."""
    candidates = LayoutCandidates(world, tree, costs, owners)
    scale = candidates.problem.traffic.scale
    bound = candidates.compute_bound()
    if owners is None:
        found, _ = candidates.make_fresh()
    elif candidates.timer.are_told and not (candidates.timer.assumed and len(tree.nodes) > MOVED_MAX):
        found = _choose_fastest(candidates)
    else:
        found = _choose_cheapest(candidates, bound)
    starts = np.flatnonzero(np.diff(found.layout, prepend=-1))
    lengths = np.diff(starts, append=len(found.layout))
    runs = list(zip(found.layout[starts].tolist(), lengths.tolist(), strict=True))
    step_time = candidates.timer.explain(found.layout)
    return LayoutChoice(runs, Fraction(found.cost, scale), Fraction(bound, scale), step_time)


class LayoutCandidate(NamedTuple):
    """A layout and what it costs."""

    layout: Layout
    """Unit to item."""
    cost: int
    """J, scaled."""
    moved: int
    """Ranks whose coordinates another node held before."""
    seconds: float
    """Of a step's communication; in proportion, where no rates are told."""


def _choose_fastest(candidates: LayoutCandidates) -> LayoutCandidate:
    """Choose by time: of all that take at most a tenth longer than the fastest layout from scratch, the one that moves
    fewest ranks.
    """
    fresh, fastest_s = candidates.make_fresh()
    patches = candidates.list_patches()
    faster = candidates.hasten([each.layout for each in patches]) if patches else []
    found = [*patches, *faster, candidates.relabel(fresh), fresh]
    # Not of the fastest of these: that depends on the previous plan, and the plan of the same nodes would not stay.
    near = [each for each in found if each.seconds <= (1 + MOVING_GAIN_MIN) * fastest_s]
    least = min(each.moved for each in near)
    still = [each for each in near if each.moved == least]
    return _list_alike(still, min(each.seconds for each in still))[0]


def _choose_cheapest(candidates: LayoutCandidates, bound: int) -> LayoutCandidate:
    """Choose by J and moves."""

    def compute_worth(each: LayoutCandidate, cost: int) -> tuple[int, int]:
        """Return J + price of a move x moved ranks, in integers; `cost`: the J that sets the price."""
        return each.cost * candidates.moves_per_cost + each.moved * cost, each.moved

    def choose_patch(patches: list[LayoutCandidate], cost: int) -> LayoutCandidate | None:
        best = min(patches, key=lambda each: compute_worth(each, cost), default=None)
        # docs/internals/decisions/0009-stability-before-cost.md
        return best if best and best.cost * 20 <= cost * 21 else None

    patches = candidates.list_patches()
    patch = choose_patch(patches, bound)
    if patch:
        return patch
    fresh, _ = candidates.make_fresh()
    patch = choose_patch(patches, fresh.cost)
    # A patch that costs a twentieth more than the new layout is not worth it, even if the new one moves all.
    return patch or min([candidates.relabel(fresh), fresh], key=lambda each: compute_worth(each, fresh.cost))


def _list_alike(found: Iterable[LayoutCandidate], fastest_s: float) -> list[LayoutCandidate]:
    """Return those of which nobody knows whether they take longer than so many seconds, the cheapest first."""
    alike = [each for each in found if each.seconds <= (1 + SAME_TIME) * fastest_s]
    return sorted(alike, key=lambda each: (each.cost, each.seconds))


def _is_worth_its_cost(each: LayoutCandidate, least: LayoutCandidate) -> bool:
    """Whether a layout is faster than that of least J by four percent for each percent of J that it costs more."""
    more = each.cost / max(1, least.cost)
    return more * more * more * more * each.seconds <= least.seconds  # products: machines round powers differently


class LayoutCandidates:
    """Those of one world. `owners`: rank -> node that held its coordinates, None if they are new; or None for all."""

    def __init__(self, world: LargestWorld, tree: Tree, costs: Costs, owners: list[str | None] | None) -> None:
        self._world = world
        supply, mesh, limits = world.supply, world.supply.mesh, world.supply.limits
        self._block_size = supply.block_size
        self.moves_per_cost = 20 * world.size
        """Moved ranks that are worth as much as J: moving all is worth a twentieth."""
        shape = mesh.resolve_shape(world.size)
        rooms = [item.room for item in supply.items]
        members = [item.position for item in supply.items]
        self.problem = problems.make_problem(tree, mesh, shape, self._block_size, limits, costs, rooms, members)
        place = {node.id: position for position, node in enumerate(tree.nodes)}
        self._positions = np.array([[place[node.id] for node in item.nodes] for item in supply.items], dtype=np.int32)
        # Ranks that only go together: a unit, or all of a domain that is used as a whole, host by host.
        self._group_size = self._block_size
        self._by_host = self.problem
        if limits.all_or_nothing:
            self._group_size *= rooms[0]
            # These domains all have one size, so the ranks determine how many are active.
            count = world.size // self._group_size
            self.problem = replace(self.problem, active_min=count, active_max=count)
            # J counts the hosts one by one, as if they could be used separately.
            slots = self._group_size // self._positions.shape[1]
            unit = next(unit for unit in range(slots, 0, -1) if slots % unit == 0 and compute_grid(shape, unit))
            hosts = self._positions.ravel().tolist()
            rooms = [slots // unit] * len(hosts)
            self._by_host = problems.make_problem(tree, mesh, shape, unit, Limits(), costs, rooms, hosts)
        self._owners = np.full(world.size, NEW, dtype=np.int32)
        if owners is not None:
            self._owners[:] = [NEW if owner is None else place.get(owner, GONE) for owner in owners]
        self._held_items = self._find_held_items(len(tree.nodes))
        hosts = self._positions.shape[1]
        group_count = world.size // self._group_size
        repeats = self._by_host.traffic.block_count // (group_count * hosts)
        self._spread = HostMap(hosts, self._group_size // self._block_size, repeats)
        self.timer = StepTimer(self._by_host, tree, self._positions.ravel().tolist(), mesh, shape, costs, self._spread)
        self._is_guarded = bool(self.timer.assumed) and len(tree.nodes) > TRUSTED_MAX

    def compute_bound(self) -> int:
        """Return a lower bound of the cost of any layout of this world, scaled."""
        found = compute_lower_bound(self.problem)
        if self._by_host is self.problem:
            return found
        if self._group_size == self._block_size:
            # Slices are boxes of the mesh, so their inner traffic costs the same in every layout.
            filling = self._make_filling()
            return found + self._compute_cost(filling) - self.problem.compute_cost(filling)
        return max(found, compute_lower_bound(self._by_host))

    def make_fresh(self) -> tuple[LayoutCandidate, float]:
        """Make a layout from scratch: all on one item if that is possible, else the best that the search leads to.

        And the time of the fastest one that was found.
        """
        problem = self.problem
        able = np.flatnonzero(problem.capacity >= problem.traffic.block_count)
        if len(able) and problem.active_min <= 1:
            overlap = np.bincount(self._held_items[self._held_items != NO_ITEM], minlength=len(problem.capacity))
            best = able[np.argsort(-overlap[able], kind="stable")]
            layouts = (np.full(len(self._held_items), item, dtype=np.int32) for item in best.tolist())
            # An item may be a slice, with slow hosts.
            fresh = self._make_candidate(min(layouts, key=self.timer.compute) if self.timer.are_told else next(layouts))
        elif problem.traffic.block_count > BLOCKS_MAX:
            fresh = self._make_candidate(self._make_filling())
        else:
            in_kind_order, items = problems.sort_by_kind(problem)
            return self._find_fastest([items[layout] for layout in search(in_kind_order)] or [self._make_filling()])
        return fresh, fresh.seconds

    def _find_fastest(self, layouts: Sequence[Layout]) -> tuple[LayoutCandidate, float]:
        """Return the cheapest of the fast layouts that can be made of the cheap ones, and the time of the fastest.

        `layouts`: the cheapest first.
        """
        least = self._make_candidate(layouts[0])
        near = [layout for layout in layouts if 10 * self._compute_cost(layout) <= 11 * least.cost]
        known = [least, *self.hasten([*near, *lay_lines(self.problem, self.timer)])]
        if self._is_guarded:
            known = [each for each in known if _is_worth_its_cost(each, least)]
        fastest_s = min(each.seconds for each in known)
        return _list_alike(known, fastest_s)[0], fastest_s

    def hasten(self, layouts: Sequence[Layout]) -> list[LayoutCandidate]:
        """Return the fastest of these layouts, and what exchanges make of them."""
        return [self._make_candidate(layout, seconds) for seconds, layout in refine(self.problem, self.timer, layouts)]

    def relabel(self, other: LayoutCandidate) -> LayoutCandidate:
        """Return the same with equal domains renamed, so that fewer ranks move."""
        return self._make_candidate(problems.relabel_domains(self.problem, other.layout, self._held_items))

    def list_patches(self) -> list[LayoutCandidate]:
        """Return layouts in which the ranks of present nodes stay, as far as there are any, whatever they cost.

        And with more moves, where these reduce J by more than they are worth.
        """
        held, rooms = self._held_items.tolist(), self.problem.capacity.tolist()
        if all(item == NO_ITEM for item in held):
            return []
        easy = problems.round_weights(self.problem)  # arrays of 64 bits hold its prices
        graph = build_graph(easy.traffic, pairs_max=EXCHANGED_MAX // easy.traffic.block_count)
        found: list[LayoutCandidate] = []
        for way in (fill_holes, tile):
            runs = way(held, rooms, _Prices(easy, graph, self._held_items).pick)
            if runs is None:
                continue
            layout = _lay_runs(runs)
            blocks = layout.reshape(-1, self._group_size // self._block_size)
            if problems.is_valid(self.problem, layout) and (blocks == blocks[:, :1]).all():
                found.append(self._make_candidate(layout))
                move = found[-1].cost * self._block_size
                if easy is not self.problem:  # the price of a move in the same proportion to J as before
                    move = move * easy.compute_cost(layout) // max(1, self.problem.compute_cost(layout))
                better = _repair(easy, graph, layout, self._held_items, self.moves_per_cost, move)
                if (better != layout).any():
                    found.append(self._make_candidate(better))
        return found

    def _make_candidate(self, layout: Layout, seconds: float | None = None) -> LayoutCandidate:
        hosts = self._spread.find_hosts(layout[None])[0]
        nodes = np.repeat(self._positions.ravel()[hosts], len(self._owners) // len(hosts))
        moved = np.count_nonzero((self._owners != NEW) & (self._owners != nodes))
        seconds = self.timer.compute(layout) if seconds is None else seconds
        return LayoutCandidate(layout.astype(np.int32), self._compute_cost(layout), int(moved), seconds)

    def _compute_cost(self, layout: Layout) -> int:
        return self._by_host.compute_cost(self._spread.expand(layout[None])[0])

    def _make_filling(self) -> Layout:
        """Return the layout that proved the world possible."""
        # Units class by class, the outermost classes first: the order in which they were assigned.
        order = np.arange(len(self._held_items))
        for rule in reversed(self.problem.rules):
            order = order[np.argsort(rule.class_of[order], kind="stable")]
        layout = np.empty(len(order), dtype=np.int32)
        layout[order] = _lay_runs(self._world.filling)
        return layout

    def _find_held_items(self, node_count: int) -> Layout:
        """Return for every unit the item that held all of its block, in the same order, or NO_ITEM."""
        item_of = np.full(node_count, NO_ITEM, dtype=np.int32)
        item_of[self._positions] = np.arange(len(self._positions), dtype=np.int32)[:, None]
        owners = self._owners.reshape(-1, self._group_size)
        first = np.where(owners[:, 0] >= 0, item_of[owners[:, 0]], NO_ITEM)
        expected = np.repeat(self._positions, self._group_size // self._positions.shape[1], axis=1)[first]
        held = np.where((first != NO_ITEM) & (owners == expected).all(axis=1), first, NO_ITEM)
        return np.repeat(held, self._group_size // self._block_size).astype(np.int32)


def _lay_runs(runs: Iterable[Run]) -> Layout:
    items, lengths = zip(*runs, strict=True)
    return np.repeat(np.array(items, dtype=np.int32), lengths)


# The items for holes


class _Prices:
    """Picks the cheapest item for each hole, and records the picks. `held`: unit -> item, NO_ITEM for the holes.

    When a node is lost and all others stay, its ranks need a new item. That item pays, for all their traffic with ranks
    that have a place, the costs of the levels on the way. Near is usually cheap, but near to which ranks depends on the
    traffic: a stage's tensor-parallel half matters more than its pipeline neighbour.
    """

    def __init__(self, problem: Problem, graph: Graph, held: Layout) -> None:
        self._problem = problem
        self._layout = held.copy()
        self._left = PRICED_MAX
        is_hole = (held == NO_ITEM) & (np.cumsum(held == NO_ITEM) <= PRICED_MAX)
        hops = np.concatenate(((graph.low, graph.high, graph.weight), (graph.high, graph.low, graph.weight)), axis=1)
        self._hops = hops[:, is_hole[hops[0]]]  # from a hole's unit to its partner, with the traffic
        self._free = np.zeros(0, dtype=np.int64)
        self._is_uniform = not problem.rules and int(problem.capacity.min()) == int(problem.capacity.max())

    def pick(self, free: Collection[int], start: int, missing: int) -> int:
        """The item for units from `start` on: one that can hold them all, then the cheapest, then the smallest."""
        if not self._left:  # any will do where all are alike; else a layout from scratch does as well
            return next(iter(free)) if self._is_uniform else NO_ITEM
        self._left -= 1
        if len(self._free) != len(free):
            self._free = np.fromiter(free, dtype=np.int64, count=len(free))
        items = self._free[self._find_allowed(start, self._free)] if self._problem.rules else self._free
        if not len(items):
            return NO_ITEM
        rooms = self._problem.capacity[items].astype(np.int64)
        price = self._compute_prices(items, start, start + missing)
        fits = rooms >= missing
        best = int(np.lexsort((np.where(fits, rooms, 0), price, np.where(fits, 0, -rooms), ~fits))[0])
        taker = int(items[best])
        self._layout[start : start + min(missing, int(rooms[best]))] = taker
        self._free = self._free[self._free != taker]  # as the caller will do
        return taker

    def _compute_prices(self, items: Ints, start: int, end: int) -> Ints:
        """Return for each item what the units from `start` to `end` pay for their traffic with others on items."""
        unit, partner, weight = self._hops
        counts = (start <= unit) & (unit < end) & ((partner < start) | (end <= partner))
        counts &= self._layout[partner] != NO_ITEM
        held, weight = self._layout[partner[counts]], weight[counts]
        price = np.zeros(len(items), dtype=np.int64)
        for level_cost, labels in zip(self._problem.traffic.level_costs, self._problem.labels, strict=True):
            if level_cost:
                inside = np.bincount(labels[held], weight, len(labels)).astype(np.int64)
                price += level_cost * (weight.sum() - inside[labels[items]])
        return price

    def _find_allowed(self, start: int, items: Ints) -> NDArray[np.bool_]:
        """Return items in the domains of the rest of the hole's classes."""
        allowed = np.ones(len(items), dtype=np.bool_)
        for rule in self._problem.rules:
            mates = self._layout[rule.class_of == rule.class_of[start]]
            mates = mates[mates != NO_ITEM]
            if len(mates):
                labels = self._problem.labels[rule.level]
                allowed &= labels[items] == labels[mates[0]]
        return allowed


# One more move where that is cheaper


def _repair(problem: Problem, graph: Graph, layout: Layout, held: Layout, factor: int, price: int) -> Layout:
    """Return `layout` after one exchange per hole, where it pays. `held`: unit -> item that held it, NO_ITEM for holes.

    A node is lost in the middle of a leaf, and the only spare is elsewhere: now two hops of each ring through the lost
    place leave the leaf. If instead a node at the edge of the leaf takes the gap, and the spare takes the edge, it is
    one hop. That moves one node's ranks more. So for each unit that was placed newly, exchanges with all other units
    are compared, and the best is made if it pays: change of J x factor + price x units moved in addition < 0. One
    exchange only: a lost node should not move the ranks of a third.
    """
    holes = np.flatnonzero(held == NO_ITEM)
    if len(holes) > HOLES_MAX or problem.rules or int(problem.capacity.max()) > 1:
        return layout
    layout = layout.copy()
    for hole in holes.tolist():
        change = compute_exchange_costs(problem, graph, layout, hole)
        is_still = (held == layout) & (held != NO_ITEM)
        # The best of the units that would move for it and of those that have moved anyway, compared in Python's
        # integers: factor and price may be so large that an array's would overflow.
        best_worth, best = 0, hole
        for extra, may in ((0, ~is_still), (price, is_still)):
            if may.any():
                other = int(np.argmin(np.where(may, change, change.max())))
                worth = int(change[other]) * factor + extra
                if may[other] and worth < best_worth:
                    best_worth, best = worth, other
        layout[[hole, best]] = layout[[best, hole]]
    return layout


def compute_exchange_costs(problem: Problem, graph: Graph, layout: Layout, block: int) -> Ints:
    """For every other unit the change of J if it and `block` exchange their items, of which each holds one unit."""
    low, high, weight = graph.low, graph.high, graph.weight
    is_mine = (low == block) | (high == block)
    partners, weights = (low + high)[is_mine] - block, weight[is_mine]
    change = np.zeros(len(layout), dtype=np.int64)
    for level_cost, labels in zip(problem.traffic.level_costs, problem.labels, strict=True):
        if not level_cost:
            continue
        place = labels[layout]
        is_away = (place != place[block]).astype(np.int64)
        is_apart = place[low] != place[high]
        coming = np.bincount(low, weight * (is_away[high] - is_apart), len(layout))
        coming += np.bincount(high, weight * (is_away[low] - is_apart), len(layout))
        going = weights @ (1 - is_away[partners]) - np.bincount(place[partners], weights, int(place.max()) + 1)[place]
        # The distance of two partners does not change, which both sides of the exchange counted as none.
        going[partners] += 2 * weights * is_away[partners]
        change += level_cost * (coming + going).astype(np.int64)
    change[block] = 0
    return change
