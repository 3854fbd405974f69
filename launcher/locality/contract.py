"""Where this node stands in the network: the contract of a source of hints.

Nodes behind one leaf switch talk faster than nodes in two zones, and ranks that talk much should be near each other.
Nobody tells a node where it stands in one way: a user may say it, a cloud's metadata server, a label of Kubernetes, a
variable of Slurm. Each way is a source. It gives levels by name, `zone` or `leaf`, and for each the name of the domain
that this node is in; which domains are one is decided by comparing the names of all nodes, so a name need not mean
anything to people. `gather` asks the sources and merges what they say.

A source returns values and a reason, also when it knows nothing; it never prints, exits, or changes the environment.
Heavy imports stay inside `look`, and `is_likely` opens no connection and starts no process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rendezvous.values import NamedTuple


class Level(NamedTuple):
    """`domain`: the name of this node's domain at the level `name`. `origin`: the exact key that said so."""

    name: str
    domain: str
    origin: str


class Hints(NamedTuple):
    """What a source says, outermost level first, and how it knows; `reason` also says why there are no levels."""

    levels: tuple[Level, ...]
    reason: str


class Source(Protocol):
    name: str

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        """Whether there is any sign of what this source asks: from variables and files alone."""

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        """What it knows, within `limit_s` seconds; may be called in a thread of its own. It raises nothing."""
