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

LEVELS = (
    "region", "zone", "tier-9", "tier-8", "tier-7", "tier-6", "tier-5", "tier-4", "tier-3",
    "core", "spine", "leaf", "nvl", "slice", "machine",
)  # fmt: skip
"""The levels that sources may name, outermost first.

leaf: the switch or rack next to the node; spine: what joins leaves; core: what joins spines; tier-3 to tier-9: further
outwards in deeper trees, counted from the leaf, which is 0. nvl: an NVLink domain; slice: the TPU hosts that one
interconnect joins; machine: what nodes share that are containers or virtual machines of one host.
"""

HOST = "host"
"""launcher.topology's name for a node itself, the level below all others."""

LEVELS_MAX = 16  # of one node: no network is so deep
TEXT_MAX = 255  # characters of a name, of a level or a domain


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


def is_text(text: object) -> bool:
    """Whether it can be the name of a level or a domain: something to read, on one line, and not too long."""
    return isinstance(text, str) and 0 < len(text) <= TEXT_MAX and text.isprintable() and not text.isspace()


def is_level_name(name: object) -> bool:
    """Whether it can be the name of a level, which "host" cannot: that is a node itself."""
    return is_text(name) and name != HOST
