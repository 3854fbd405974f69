"""Which node gets which ranks: the contract of the planner.

Two pure functions over frozen values. `feasibility` answers quickly how large a world the nodes present
could form; `plan` says who gets which ranks. Neither reads a clock, a file or a random number, and neither
depends on the order in which the nodes are given.

A valid plan uses every rank once, makes the largest world that fits, gives a node's ranks in device order
and consecutively, and leaves the other nodes as spares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from launcher.mesh import Mesh
from launcher.node import Node


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many nodes may be active. `nodes_max` None is unbounded."""

    nodes_min: int = 1
    nodes_max: int | None = None


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """The largest world the nodes could form; 0 ranks on 0 nodes if none.

    `is_full`: further nodes could not enlarge it.
    """

    world_size: int
    node_count: int
    is_full: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Slot <-> rank for a round.

    `ranks`: node id -> its ranks, one per used slot in slot order; `spares`: nodes left out, in the order in
    which they would be taken; `moved`: how many ranks' coordinates were on another node before.
    """

    shape: tuple[int, ...]
    ranks: Mapping[str, tuple[int, ...]]
    spares: tuple[str, ...]
    moved: int
    reasons: tuple[str, ...]

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self.ranks.values())


class Planner(Protocol):
    def feasibility(self, nodes: Sequence[Node], mesh: Mesh, limits: Limits) -> Feasibility: ...

    def plan(self, nodes: Sequence[Node], mesh: Mesh, limits: Limits, previous: Plan | None) -> Plan:
        """Raises UsageError, naming what is missing, when no valid world exists."""


# At the end, because the functions need the contract above.
from launcher.placement.capacity import feasibility  # noqa: E402
from launcher.placement.planner import plan  # noqa: E402

__all__ = ["Feasibility", "Limits", "Plan", "Planner", "feasibility", "plan"]
