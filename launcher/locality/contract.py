"""The contract of a source of locality, a node's position in the network.

Nodes behind one leaf switch communicate faster than nodes in two zones, and ranks with much traffic should be near each
other. There is no single way to learn a node's locality: a user may set it, or a cloud's metadata server, a Kubernetes
label or a Slurm variable may have it. Each way is a source. It returns levels by name, `zone` or `leaf`, and for each
the name of this node's domain; domains are compared by name across all nodes, so a name need not be readable.

A source returns values and a reason, also when it knows nothing; it never prints, exits, or changes the environment.
Heavy imports stay inside `look`, and `is_likely` opens no connection and starts no process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Level(NamedTuple):
    """This node's domain at one level."""

    name: str
    domain: str
    """The name of the domain."""
    origin: str
    """The exact key of the value."""


class Hints(NamedTuple):
    """What a source knows about this node's place."""

    levels: tuple[Level, ...]
    """Outermost first."""
    reason: str
    """Their origin, or why there are none."""


class Source(Protocol):
    name: str

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        """Whether there is any sign of this source's data: from variables and files alone."""

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        """Return what it finds, within `limit_s` seconds; may be called in a thread of its own. It raises nothing."""
