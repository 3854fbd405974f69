"""The moves from one plan to the next, by coordinates of the mesh: the worker at pp=1, dp=3 finds its checkpoint
shard and its caches where it was, even if its rank has changed. Coordinates that are new do not move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.placement.limits import Plan


class Move(NamedTuple):
    """A number of ranks that go from one node to another."""

    source: str
    target: str
    rank_count: int


def list_moves(before: Plan, after: Plan, mesh: Mesh) -> list[Move]:
    """List all moves, those of most ranks first, then in the order of ranks."""
    ids: dict[str, int] = {}
    held_before = _find_holders(before, ids)
    holds = _find_holders(after, ids).reshape(after.shape)
    common = tuple(slice(min(old, new)) for old, new in zip(before.shape, after.shape, strict=True))
    old, new = held_before.reshape(before.shape)[common].ravel(), holds[common].ravel()
    is_moved = old != new
    pairs, first, counts = np.unique(
        np.stack((old[is_moved], new[is_moved])), axis=1, return_index=True, return_counts=True
    )
    names = list(ids)
    order = sorted(range(len(counts)), key=lambda index: (-int(counts[index]), int(first[index])))
    return [Move(names[pairs[0, index]], names[pairs[1, index]], int(counts[index])) for index in order]


def _find_holders(plan: Plan, ids: dict[str, int]) -> NDArray[np.int32]:
    holders = np.empty(plan.world_size, dtype=np.int32)
    for node, ranks in plan.ranks.items():
        holders[list(ranks)] = ids.setdefault(node, len(ids))
    return holders
