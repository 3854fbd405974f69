"""The candidate layouts of a world, each with its exact cost and the ranks that it moves.

The search works on units and items. Here they are mapped to nodes again: a slice that is used as a whole is one item
for the search, but the hops between its hosts cost something, too, and a rank has moved when its host is another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.topology import Tree, resolve_level_costs
from launcher.model.traffic import make_default_traffic
from launcher.placement.capacity import LargestWorld
from launcher.placement.limits import Costs, Limits
from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.cost import compute_cost
from launcher.placement.problem.hops import make_traffic
from launcher.placement.problem.prices import Prices
from launcher.placement.problem.problem import Layout, Problem, find_fault, make_problem
from launcher.placement.problem.simplify import round_weights
from launcher.placement.search.repair import repair
from launcher.placement.search.search import search
from launcher.placement.search.symmetry import relabel_domains, sort_by_kind
from launcher.placement.stability import NO_ITEM, fill_holes, fill_holes_apart, tile
from launcher.placement.units import compute_grid

BLOCKS_MAX = 1 << 18
"""With more, nodes are filled in order: a search takes minutes and gigabytes. 16,384 nodes of 8 have half of it."""

GONE, NEW = -1, -2
"""In place of the node that held a rank's coordinates: it has left; none, the coordinates are new."""


class LayoutCandidate(NamedTuple):
    """`layout`: unit -> item. `cost`: J, scaled. `moved`: ranks whose coordinates another node held before."""

    layout: Layout
    cost: int
    moved: int


class LayoutCandidates:
    """Those of one world. `owners`: rank -> node that held its coordinates, None if they are new; or None for all."""

    def __init__(
        self, world: LargestWorld, tree: Tree, mesh: Mesh, limits: Limits, costs: Costs, owners: list[str | None] | None
    ) -> None:
        self._world = world
        shape = mesh.resolve_shape(world.size)
        rooms = [item.room for item in world.items]
        members = [item.position for item in world.items]
        self.problem: Problem = make_problem(tree, mesh, shape, world.block_size, limits, costs, rooms, members)
        if limits.all_or_nothing:
            # Domains that are used as a whole all have one size, so the ranks determine how many are active.
            count = world.size // (world.block_size * rooms[0])
            self.problem = replace(self.problem, active_min=count, active_max=count, is_contiguous=True)
        # Ranks that only go together: a unit, or all of a domain that is used as a whole, host by host.
        self._group_size = world.block_size * rooms[0] if limits.all_or_nothing else world.block_size
        self._hosts = len(world.items[0].nodes)
        place = {node.id: position for position, node in enumerate(tree.nodes)}
        self._positions = np.array([[place[node.id] for node in item.nodes] for item in world.items], dtype=np.int32)
        self._owners = np.full(world.size, NEW, dtype=np.int32)
        if owners is not None:
            self._owners[:] = [NEW if owner is None else place.get(owner, GONE) for owner in owners]
        self._held_items = self._find_held_items(len(tree.nodes))
        self._is_all_or_nothing = limits.all_or_nothing is not None
        if self._is_all_or_nothing:
            slots = self._group_size // self._hosts
            unit = next(unit for unit in range(slots, 0, -1) if slots % unit == 0 and compute_grid(shape, unit))
            axes = [axis.name for axis in mesh.axes]
            self._traffic = make_traffic(
                shape,
                axes,
                unit,
                costs.traffic or make_default_traffic(mesh),
                resolve_level_costs(tree.levels, costs.level_costs),
            )
            self._labels = [np.array(level, dtype=np.int32) for level in tree.domains]
            self._labels.append(np.arange(len(tree.nodes), dtype=np.int32))

    def compute_bound(self) -> int:
        """Return a lower bound of the cost of any layout of this world, scaled."""
        found = compute_lower_bound(self.problem)
        if not self._is_all_or_nothing:
            return found
        if self._group_size == self._world.block_size:
            # Slices are boxes of the mesh, so their inner traffic costs the same in every layout.
            filling = self._make_filling()
            return found + self._compute_cost(filling) - self.problem.compute_cost(filling)
        # Else count the hosts one by one, as if they could be used separately.
        hosts = self._positions.ravel()
        return max(
            found,
            compute_lower_bound(
                Problem(
                    traffic=self._traffic,
                    capacity=np.full(
                        len(hosts), self._group_size // self._hosts // self._traffic.block_size, dtype=np.int32
                    ),
                    labels=tuple(
                        np.unique(level[hosts], return_inverse=True)[1].astype(np.int32) for level in self._labels
                    ),
                )
            ),
        )

    def make_fresh(self) -> LayoutCandidate:
        """Make a layout from scratch: all on one item if that is possible, else the search's result."""
        problem = self.problem
        able = np.flatnonzero(problem.capacity >= problem.traffic.block_count)
        if len(able) and problem.active_min <= 1:
            overlap = np.bincount(self._held_items[self._held_items != NO_ITEM], minlength=len(problem.capacity))
            return self._make_candidate(np.full(len(self._held_items), able[np.argmax(overlap[able])], dtype=np.int32))
        if problem.traffic.block_count > BLOCKS_MAX:
            return self._make_candidate(self._make_filling())
        in_kind_order, items = sort_by_kind(problem)
        layout = search(in_kind_order)
        return self._make_candidate(self._make_filling() if layout is None else items[layout])

    def relabel(self, other: LayoutCandidate) -> LayoutCandidate:
        """Return the same with equal domains renamed, so that fewer ranks move."""
        return self._make_candidate(relabel_domains(self.problem, other.layout, self._held_items))

    def list_patches(self, factor: int, price: int) -> list[LayoutCandidate]:
        """Return layouts in which the ranks of present nodes stay, as far as there are any, whatever they cost.

        And with more moves, where these make J x factor + moved ranks x price less.
        """
        held, rooms = self._held_items.tolist(), self.problem.capacity.tolist()
        if all(item == NO_ITEM for item in held):
            return []
        easy = round_weights(self.problem)  # arrays of 64 bits hold its prices
        found: list[LayoutCandidate] = []
        for way in (fill_holes, tile) if self.problem.is_contiguous else (fill_holes_apart,):
            runs = way(held, rooms, Prices(easy, self._held_items).pick)
            if runs is None:
                continue
            items = np.array([run.item for run in runs], dtype=np.int32)
            layout = np.repeat(items, [run.length for run in runs])
            blocks = layout.reshape(-1, self._group_size // self._world.block_size)
            if find_fault(self.problem, layout) is None and (blocks == blocks[:, :1]).all():
                found.append(self._make_candidate(layout))
                move = price * self._world.block_size
                if easy is not self.problem:  # the price of a move in the same proportion to J as before
                    move = move * easy.compute_cost(layout) // max(1, self.problem.compute_cost(layout))
                better = repair(easy, layout, self._held_items, factor, move)
                if (better != layout).any():
                    found.append(self._make_candidate(better))
        return found

    def _make_candidate(self, layout: Layout) -> LayoutCandidate:
        moved = np.count_nonzero((self._owners != NEW) & (self._owners != self._map_nodes(layout)))
        return LayoutCandidate(layout, self._compute_cost(layout), int(moved))

    def _compute_cost(self, layout: Layout) -> int:
        if not self._is_all_or_nothing:
            return self.problem.compute_cost(layout)
        nodes = self._map_nodes(layout)[:: self._traffic.block_size]
        return compute_cost(self._traffic, [level[nodes] for level in self._labels])

    def _map_nodes(self, layout: Layout) -> NDArray[np.int32]:
        """Return the node of every rank."""
        nodes = self._positions[layout[:: self._group_size // self._world.block_size]]
        return np.repeat(nodes.ravel(), self._group_size // self._hosts)

    def _make_filling(self) -> Layout:
        """Return the layout that proved the world possible."""
        items, lengths = zip(*self._world.filling, strict=True)
        # Units class by class, the outermost classes first: the order in which they were assigned.
        order = np.arange(len(self._held_items))
        for rule in reversed(self.problem.rules):
            order = order[np.argsort(rule.class_of[order], kind="stable")]
        layout = np.empty(len(order), dtype=np.int32)
        layout[order] = np.repeat(np.array(items, dtype=np.int32), lengths)
        return layout

    def _find_held_items(self, node_count: int) -> Layout:
        """Return for every unit the item that held all of its block, in the same order, or NOBODY."""
        item_of = np.full(node_count, NO_ITEM, dtype=np.int32)
        item_of[self._positions] = np.arange(len(self._positions), dtype=np.int32)[:, None]
        owners = self._owners.reshape(-1, self._group_size)
        first = np.where(owners[:, 0] >= 0, item_of[owners[:, 0]], NO_ITEM)
        expected = np.repeat(self._positions, self._group_size // self._hosts, axis=1)[first]
        held = np.where((first != NO_ITEM) & (owners == expected).all(axis=1), first, NO_ITEM)
        return np.repeat(held, self._group_size // self._world.block_size).astype(np.int32)
