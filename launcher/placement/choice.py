"""Chooses the layout of a world: a new one, or the previous one with its holes filled.

Without a previous plan, the search decides. With one, moving is expensive: a rank on another node reads its shard from
far away and compiles again. So the first candidate moves none and only fills the holes. If that is nearly as cheap as
possible, it is chosen at once. Else it is compared with a layout from scratch and with the same with its equal domains
renamed: the least of J + price of a moved rank x moved ranks wins, and of equals the one that moves fewest.

All comparisons are between integers, multiplied out, so that every machine decides the same.
"""

from __future__ import annotations

import numpy as np

from launcher.model.mesh import Mesh
from launcher.model.topology import Tree
from launcher.model.traffic import scale_to_integers
from launcher.placement import shortage
from launcher.placement.candidates import LayoutCandidate, LayoutCandidates
from launcher.placement.capacity import LargestWorld
from launcher.placement.limits import Costs, Limits
from launcher.placement.plain import LayoutChoice
from launcher.placement.stability import BlockRun


def choose_layout(
    world: LargestWorld, tree: Tree, mesh: Mesh, limits: Limits, costs: Costs, owners: list[str | None] | None
) -> LayoutChoice:
    """Choose a layout. `owners`: rank -> node that held its coordinates, None if new; None without a previous plan."""
    candidates = LayoutCandidates(world, tree, mesh, limits, costs, owners)
    scale = candidates.problem.traffic.scale
    bound = candidates.compute_bound()
    found, notes = _choose_best(candidates, bound, world.size, scale, costs, owners is not None)
    starts = [0, *(np.flatnonzero(np.diff(found.layout)) + 1).tolist()]
    ends = [*starts[1:], len(found.layout)]
    items = found.layout[starts].tolist()
    runs = [BlockRun(item, start, end - start) for item, start, end in zip(items, starts, ends, strict=True)]
    return LayoutChoice(runs, found.cost, bound, scale, notes)


def _choose_best(
    candidates: LayoutCandidates, bound: int, size: int, scale: int, costs: Costs, has_precedent: bool
) -> tuple[LayoutCandidate, tuple[str, ...]]:
    is_usual_price = costs.move_cost is None

    def compute_worth(each: LayoutCandidate, cost: int) -> tuple[int, int]:
        """Return J + price of a move x moved ranks, in integers: moving all ranks is usually worth a twentieth of J."""
        return each.cost * factor + each.moved * (cost if is_usual_price else price), each.moved

    def choose_patch(patches: list[LayoutCandidate], cost: int) -> LayoutCandidate | None:
        best = min(patches, key=lambda each: compute_worth(each, cost), default=None)
        # docs/internals/decisions/0009-stability-before-cost.md
        return best if best and best.cost * 20 <= cost * (21 if is_usual_price else 20) else None

    price, factor = 0, 20 * size
    if costs.move_cost is not None:
        (price,), factor = scale_to_integers([costs.move_cost])
        price *= scale
    patches = candidates.list_patches(factor, bound if is_usual_price else price) if has_precedent else []
    patch = choose_patch(patches, bound)
    if patch:
        return patch, ()
    fresh = candidates.make_fresh()
    if not has_precedent:
        return fresh, ()
    patch = choose_patch(patches, fresh.cost) if is_usual_price else None
    if patch:
        return patch, ()
    best = min([*patches, candidates.relabel(fresh), fresh], key=lambda each: compute_worth(each, fresh.cost))
    fewer = [each for each in patches if each.moved < best.moved]
    if not fewer:
        return best, ()
    kept = min(fewer, key=lambda each: each.cost)
    dearer = shortage.format_amount(kept.cost, scale)
    return best, (f"if only {kept.moved:,} ranks moved, the traffic's cost would be {dearer}",)
