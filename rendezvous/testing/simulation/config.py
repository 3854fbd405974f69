"""What a simulated cluster is set up with, the same on every node."""

from __future__ import annotations

from msgspec import Struct

from rendezvous.settings import Settings
from rendezvous.testing.simulation.shape import Shape

PREFIX, RUN_ID = "meshrun", "simulated"


class ClusterConfig(Struct, kw_only=True):
    """Durations in seconds. Whoever builds the cluster may change all but `settings` and `shape` while it runs."""

    settings: Settings
    shape: Shape
    secret: bytes = b""
    """What records are signed with."""
    command: str = "simulated"
    """The command that agents are started with."""
    plan_s: tuple[float, float] | None = None
    """How long the planner takes, at least and at most; None: as long as a message."""
    stop_s: float | None = None
    """How long processes take to stop; None: a random time within the grace."""
    children_late_s: float = 0.0
    """How much longer the processes that killed workers have started stay alive."""
