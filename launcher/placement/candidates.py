"""The layouts that are worth comparing for a world, each with its exact cost and the ranks that it moves.

The search works on units and items. Here they are tied to nodes again: a slice that is used as a whole is one item to
the search, but the hops between its hosts cost something, too, and a rank has moved when its host is another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.mesh import Mesh
from launcher.placement import Costs, Limits
from launcher.placement.capacity import World
from launcher.placement.cost import cost
from launcher.placement.hops import traffic
from launcher.placement.mending import mended
from launcher.placement.prices import Prices
from launcher.placement.problem import Layout, Problem, fault, problem_of
from launcher.placement.search import search
from launcher.placement.search.bound import lower_bound
from launcher.placement.search.simplify import rounded
from launcher.placement.siblings import by_kind, settled
from launcher.placement.stability import NOBODY, stay, stay_apart, tile
from launcher.placement.units import grid
from launcher.topology import Tree, tolls_of
from launcher.traffic import usual

UNITS_MAX = 1 << 18
"""With more, nodes are filled in order: a search takes minutes and gigabytes. 16,384 nodes of 8 have half of it."""

GONE, NEW = -1, -2
"""In place of the node that held a rank's coordinates: it is not here any more; nobody, they did not exist."""


class Candidate(NamedTuple):
    """`layout`: unit -> item. `cost`: J, scaled. `moved`: ranks whose coordinates another node held before."""

    layout: Layout
    cost: int
    moved: int


class Candidates:
    """Of one world. `owners`: rank -> node that held its coordinates, None if they are new; or None for all."""

    def __init__(
        self, world: World, tree: Tree, mesh: Mesh, limits: Limits, costs: Costs, owners: list[str | None] | None
    ) -> None:
        self._world = world
        shape = mesh.shape(world.size)
        rooms = [item.room for item in world.items]
        members = [item.position for item in world.items]
        self.problem: Problem = problem_of(tree, mesh, shape, world.unit, limits, costs, rooms, members)
        if limits.whole:
            # Domains that are used as a whole are all of a size, so as many are active as the ranks fill.
            count = world.size // (world.unit * rooms[0])
            self.problem = replace(self.problem, active_min=count, active_max=count, is_contiguous=True)
        # Ranks that only go together: a unit, or all of a domain that is used as a whole, host by host.
        self._block = world.unit * rooms[0] if limits.whole else world.unit
        self._hosts = len(world.items[0].nodes)
        place = {node.id: position for position, node in enumerate(tree.nodes)}
        self._positions = np.array([[place[node.id] for node in item.nodes] for item in world.items], dtype=np.int32)
        self._owners = np.full(world.size, NEW, dtype=np.int32)
        if owners is not None:
            self._owners[:] = [NEW if owner is None else place.get(owner, GONE) for owner in owners]
        self._held = self._held_before(len(tree.nodes))
        self._is_whole = limits.whole is not None
        if self._is_whole:
            slots = self._block // self._hosts
            unit = next(unit for unit in range(slots, 0, -1) if slots % unit == 0 and grid(shape, unit))
            axes = [axis.name for axis in mesh.axes]
            self._talk = traffic(shape, axes, unit, costs.traffic or usual(mesh), tolls_of(tree.levels, costs.tolls))
            self._labels = [np.array(level, dtype=np.int32) for level in tree.domains]
            self._labels.append(np.arange(len(tree.nodes), dtype=np.int32))

    def bound(self) -> int:
        """What no layout of this world can go below, scaled."""
        found = lower_bound(self.problem)
        if not self._is_whole:
            return found
        if self._block == self._world.unit:
            # Slices are boxes of the mesh, so what they send inside costs the same wherever they stand.
            filling = self._filling()
            return found + self._cost(filling) - self.problem.cost(filling)
        # Else count the hosts one by one, as if they could be used apart.
        hosts = self._positions.ravel()
        return max(
            found,
            lower_bound(
                Problem(
                    traffic=self._talk,
                    capacity=np.full(len(hosts), self._block // self._hosts // self._talk.unit, dtype=np.int32),
                    labels=tuple(
                        np.unique(level[hosts], return_inverse=True)[1].astype(np.int32) for level in self._labels
                    ),
                )
            ),
        )

    def fresh(self) -> Candidate:
        """From scratch: all on one item if that is possible, else what the search finds."""
        problem = self.problem
        able = np.flatnonzero(problem.capacity >= problem.traffic.unit_count)
        if len(able) and problem.active_min <= 1:
            overlap = np.bincount(self._held[self._held != NOBODY], minlength=len(problem.capacity))
            return self._candidate(np.full(len(self._held), able[np.argmax(overlap[able])], dtype=np.int32))
        if problem.traffic.unit_count > UNITS_MAX:
            return self._candidate(self._filling())
        in_kind_order, items = by_kind(problem)
        layout = search(in_kind_order)
        return self._candidate(self._filling() if layout is None else items[layout])

    def settled(self, other: Candidate) -> Candidate:
        """The same with equal domains renamed, so that fewer ranks move."""
        return self._candidate(settled(self.problem, other.layout, self._held))

    def patches(self, factor: int, price: int) -> list[Candidate]:
        """Layouts in which those who are here stay, as far as there are such, whatever they cost.

        And with more moves, where these make J x factor + moved ranks x price less.
        """
        held, rooms = self._held.tolist(), self.problem.capacity.tolist()
        if all(item == NOBODY for item in held):
            return []
        easy = rounded(self.problem)  # arrays of 64 bits hold its prices
        found: list[Candidate] = []
        for way in (stay, tile) if self.problem.is_contiguous else (stay_apart,):
            runs = way(held, rooms, Prices(easy, self._held).pick)
            if runs is None:
                continue
            items = np.array([run.item for run in runs], dtype=np.int32)
            layout = np.repeat(items, [run.length for run in runs])
            blocks = layout.reshape(-1, self._block // self._world.unit)
            if fault(self.problem, layout) is None and (blocks == blocks[:, :1]).all():
                found.append(self._candidate(layout))
                move = price * self._world.unit
                if easy is not self.problem:  # the price of a move in the same proportion to J as before
                    move = move * easy.cost(layout) // max(1, self.problem.cost(layout))
                better = mended(easy, layout, self._held, factor, move)
                if (better != layout).any():
                    found.append(self._candidate(better))
        return found

    def _candidate(self, layout: Layout) -> Candidate:
        moved = np.count_nonzero((self._owners != NEW) & (self._owners != self._nodes(layout)))
        return Candidate(layout, self._cost(layout), int(moved))

    def _cost(self, layout: Layout) -> int:
        if not self._is_whole:
            return self.problem.cost(layout)
        nodes = self._nodes(layout)[:: self._talk.unit]
        return cost(self._talk, [level[nodes] for level in self._labels])

    def _nodes(self, layout: Layout) -> NDArray[np.int32]:
        """Node of every rank."""
        nodes = self._positions[layout[:: self._block // self._world.unit]]
        return np.repeat(nodes.ravel(), self._block // self._hosts)

    def _filling(self) -> Layout:
        """The layout with which the world was found possible."""
        items, lengths = zip(*self._world.filling, strict=True)
        # Units class by class, the outermost classes first: the order in which they were dealt out.
        order = np.arange(len(self._held))
        for rule in reversed(self.problem.rules):
            order = order[np.argsort(rule.class_of[order], kind="stable")]
        layout = np.empty(len(order), dtype=np.int32)
        layout[order] = np.repeat(np.array(items, dtype=np.int32), lengths)
        return layout

    def _held_before(self, node_count: int) -> Layout:
        """For every unit the item that held all of its block, in the same order, or NOBODY."""
        item_of = np.full(node_count, NOBODY, dtype=np.int32)
        item_of[self._positions] = np.arange(len(self._positions), dtype=np.int32)[:, None]
        owners = self._owners.reshape(-1, self._block)
        first = np.where(owners[:, 0] >= 0, item_of[owners[:, 0]], NOBODY)
        expected = np.repeat(self._positions, self._block // self._hosts, axis=1)[first]
        held = np.where((first != NOBODY) & (owners == expected).all(axis=1), first, NOBODY)
        return np.repeat(held, self._block // self._world.unit).astype(np.int32)
