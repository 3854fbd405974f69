"""Searches the cheapest layout, in a time that grows with the number of nodes only.

Finding the best layout for irregular domains is a hard problem (it contains 3-PARTITION), so candidates are made and
compared by their exact cost:

1. the units filled in the order of paths, as sorting would: no result ever costs more;
2. the outermost domains laid out along many orders of the mesh, the promising ones with everything inside them (`fit`);
   where nodes hold runs of several units, also rows of runs, and runs in the order of a line (`runs`);
3. the best of those improved by swaps (`improve`), and in small clusters of unequal nodes by exchanges that shift the
   items between (`runs`);
4. in small clusters, many layouts improved in parallel by a search that also goes uphill (`explore`).

A layout whose cost equals the lower bound ends the search. All limits are counts, and all numbers integers, so every
machine finds the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from launcher.placement.problem.bound import compute_lower_bound
from launcher.placement.problem.hops import build_graph
from launcher.placement.problem.problem import Layout, Problem, coarsen, is_valid, list_costs, restrict, round_weights
from launcher.placement.search.explore import explore
from launcher.placement.search.fit import DomainTree, SearchContext, fill_in_path_order, fit, list_outlines
from launcher.placement.search.improve import improve
from launcher.placement.search.line import compute_loads, list_orders
from launcher.placement.search.runs import lay_rows, reorder


class Effort(NamedTuple):
    """The effort for a problem."""

    capacity_max: int
    """The most places for units that a problem of this effort has."""
    careful: int
    """Outlines of the outermost domains that are laid out with more effort."""
    fits: int
    """Outlines that are filled."""
    careful_fits: int
    """Of the filled outlines, those that are filled again with more effort."""
    tries: int
    """Orders that each region then tries."""
    improved: int
    """Candidates that swaps improve."""
    sequences: int
    """How often runs get the lengths of the items found for them."""
    beam_width: int = 0
    """Of `explore`."""
    steps: int = 0
    """Of `explore`."""


EFFORTS = (
    Effort(24, 2, 3, 1, 1, 2, 1, beam_width=24, steps=120),
    Effort(64, 4, 8, 3, 2, 3, 3, beam_width=6, steps=60),
    Effort(256, 8, 8, 2, 2, 6, 3),
    Effort(1024, 4, 4, 2, 2, 3, 3),
    Effort(8192, 2, 3, 1, 2, 1, 1),
    Effort(1 << 60, 1, 2, 1, 1, 0, 1),
)

ORDER_BUDGET = 4_000_000
"""Orders tried times units and hops between them: it keeps meshes of many axes within a second."""


class _BestLayouts(Struct, eq=False):
    """The valid layouts of a problem found so far, by cost."""

    problem: Problem
    target: int
    """The lower bound of the cost."""
    found: dict[bytes, tuple[int, int, Layout]] = field(default_factory=dict)
    """By the layout's bytes: its cost, how many were found before, and the layout."""
    is_met: bool = False
    """Whether the cost of any has equalled the lower bound."""

    def add(self, layout: Layout | None) -> bool:
        """Add a layout; whether the cost of any has equalled the lower bound."""
        if layout is not None and is_valid(self.problem, layout) and layout.tobytes() not in self.found:
            cost = self.problem.compute_cost(layout)
            self.found[layout.tobytes()] = cost, len(self.found), layout
            self.is_met |= cost <= self.target
        return self.is_met

    def list_layouts(self, variant: Problem) -> list[Layout]:
        """Return the layouts, the cheapest first, that are also valid for a variant of the problem."""
        layouts = [layout for _, _, layout in sorted(self.found.values(), key=lambda each: each[:2])]
        return [layout for layout in layouts if is_valid(variant, layout)]


# docs/internals/decisions/0008-search-bounded-by-counts.md
def search(problem: Problem) -> list[Layout]:
    """Return the layouts found, the cheapest first; none if none was found under the rules."""
    if int(problem.capacity.sum()) < problem.traffic.block_count:
        return []
    easy = round_weights(problem)
    best = _BestLayouts(easy, compute_lower_bound(easy))
    limited = restrict(easy)
    for variant in (easy, limited) if limited else (easy,):
        _search(variant, best)
        if best.is_met:
            break
    layouts = best.list_layouts(easy)
    # Rounding may have hidden the best one.
    return layouts if easy is problem else sorted(layouts, key=problem.compute_cost)


def _search(problem: Problem, best: _BestLayouts) -> None:
    larger, size = coarsen(problem)
    places = int(np.minimum(problem.capacity, problem.traffic.block_count).sum())
    # Blocks of `size` units for the candidates, units for what improves them.
    effort, small = (next(each for each in EFFORTS if count <= each.capacity_max) for count in (places // size, places))
    if any(best.add(np.repeat(layout, size)) for layout in _generate_candidates(larger, effort)):
        return
    if size > 1 and places <= EFFORTS[1].capacity_max and any(map(best.add, _generate_candidates(problem, effort))):
        return
    is_mixed = int(problem.capacity.max()) > 1 and not problem.rules

    def polish(layout: Layout) -> Layout:
        better = improve(problem, layout)
        return improve(problem, reorder(problem, better)) if is_mixed else better

    if any(best.add(polish(layout)) for layout in best.list_layouts(problem)[: effort.improved]):
        return
    if small.beam_width:
        starts = best.list_layouts(problem)[: small.beam_width // 2]
        best.add(explore(problem, starts, small.beam_width, small.steps, best.target))


def _generate_candidates(problem: Problem, effort: Effort) -> Iterator[Layout]:
    tree = DomainTree(problem)
    if tree.root.room < problem.traffic.block_count:
        return
    context = SearchContext(problem, tree, build_graph(problem.traffic))
    yield fill_in_path_order(context)
    if tree.is_in_runs and not problem.rules:
        yield from lay_rows(tree.items, tree.capacity.tolist(), problem.traffic.grid)
        yield from _generate_sequences(problem, effort)
    yield from _generate_fits(problem, context, effort)


def _generate_sequences(problem: Problem, effort: Effort) -> Iterator[Layout]:
    """Yield sequences of items of different sizes along the ranks, in a good order.

    Any order is valid, since each begins where the one before ends. First all runs are assumed to be equally long; then
    as long as the items found for them.
    """
    count, capacity = problem.traffic.block_count, problem.capacity
    alike = replace(problem, capacity=np.minimum(capacity, 1))
    tree = DomainTree(alike)
    item_count = min(len(tree.items), -(-count * len(tree.items) // int(capacity.sum())))
    starts = np.arange(item_count) * count // item_count
    for _ in range(effort.sequences):
        run_of = np.repeat(np.arange(len(starts)), np.diff([*starts.tolist(), count]))
        context = SearchContext(alike, tree, build_graph(problem.traffic, run_of), starts)
        found: list[Layout] = []
        for order in _generate_fits(alike, context, effort):
            items = np.concatenate((order, np.setdiff1d(tree.items, order)))
            found.append(np.repeat(items, capacity[items])[:count].astype(np.int32))
            yield found[-1]
        if not found:
            return
        starts = np.flatnonzero(np.diff(min(found, key=problem.compute_cost), prepend=-1))


def _generate_fits(problem: Problem, context: SearchContext, effort: Effort) -> Iterator[Layout]:
    """Yield the layouts of `fit` for the cheapest outlines, and with more effort for the best of those."""
    tree = context.tree
    if not tree.root.children:
        return
    loads = compute_loads(problem.traffic)
    most = ORDER_BUDGET // (len(context.base_rank) + len(context.graph.low))
    choices = [list_orders(problem.traffic.grid, loads, room, max(2, most)) for room in tree.list_usual_rooms()]
    outlines = list_outlines(context, choices[tree.root.depth], effort.careful)
    seen: list[tuple[int, int]] = []
    for index, outline in enumerate(outlines[: effort.fits]):
        layout = fit(context, outline, choices, 0)
        if layout is not None:
            seen.append((int(list_costs(problem, context.graph, layout[None])[0]), index))
            yield layout
    for _, index in sorted(seen)[: effort.careful_fits]:
        layout = fit(context, outlines[index], choices, effort.tries)
        if layout is not None:
            yield layout
