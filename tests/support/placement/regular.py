"""Clusters of equal nodes on leaves of given sizes, as the search sees them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from launcher.model.mesh import parse
from launcher.model.traffic import make_default_traffic
from launcher.model.traffic import parse as parse_traffic
from launcher.placement.problem.hops import make_traffic
from launcher.placement.problem.problem import Problem


def regular(
    leaves: Sequence[int],
    mesh: str,
    load: str = "",
    unit: int = 8,
    level_costs: tuple[int, int, int] = (4, 2, 0),
    spine: int = 10**6,
    capacity: int = 1,
) -> Problem:
    """Nodes of one unit each on leaves of these sizes, `spine` leaves to a spine; the mesh has no elastic axis."""
    grid = parse(mesh)
    names = [axis.name for axis in grid.axes]
    leaf = np.repeat(np.arange(len(leaves), dtype=np.int32), leaves)
    return Problem(
        traffic=make_traffic(
            grid.resolve_shape(grid.replica_size),
            names,
            unit,
            parse_traffic(load, grid) if load else make_default_traffic(grid),
            level_costs,
        ),
        capacity=np.full(len(leaf), capacity, dtype=np.int32),
        labels=((leaf // spine).astype(np.int32), leaf, np.arange(len(leaf), dtype=np.int32)),
    )
