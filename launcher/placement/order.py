"""The order in which nodes are laid along the ranks: neighbours in the network become neighbours in rank.

Nodes are sorted by locality path, an unknown level after every known one, and within a domain by name the
way people number things: h9 before h10. Nothing here depends on who joined first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from launcher.node import Node

_NUMBER = re.compile(r"([0-9]+)")

Natural = tuple[str | int, ...]


def natural(text: str) -> Natural:
    """A sort key in which runs of digits count as numbers: "10.0.0.9" before "10.0.0.10"."""
    return tuple(int(piece) if index % 2 else piece for index, piece in enumerate(_NUMBER.split(text)))


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """The nodes by locality path, then natural name, then order of arrival in the store."""
    return sorted(nodes, key=_key)


def _key(node: Node) -> tuple[tuple[tuple[int, Natural], ...], Natural, int, str]:
    unknown: tuple[int, Natural] = (1, ())
    levels = tuple(unknown if domain is None else (0, natural(domain)) for domain in node.path)
    # The closing `unknown` puts a path that ends early after one that goes on.
    return ((*levels, unknown), natural(node.id), node.order, node.id)


def nearness(one: Node, other: Node) -> int:
    """At how many levels the two lie in the same domain. An unknown domain is nobody else's."""
    shared = 0
    depth = min(len(one.path), len(other.path))
    for level in range(depth):
        if one.path[level] is not None and one.path[: level + 1] == other.path[: level + 1]:
            shared += 1
    return shared
