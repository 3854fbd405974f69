"""The tree of domains: which nodes share a leaf switch, a pod, a zone, and what it costs to leave one.

A node's path names its domains from the outermost level to the innermost. Two nodes are in the same domain of a
level when their paths agree down to it. A level may be unknown: such a node shares that domain with no other,
unless a deeper level is known, which then distinguishes it. Every level has a cost, that of a hop that leaves
a domain; leaving the host has one too, and a hop pays the costs of all levels that it leaves.

Nothing here depends on the order of joining: nodes are ordered by path, and within a domain by name in natural
order, h9 before h10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from launcher.model.node import Node

HOST = "host"
"""The level below all others: a node itself."""

# At most 18 digits at a time: no counter is longer, and Python refuses to parse numbers of thousands of digits.
_NUMBER = re.compile(r"([0-9]{1,18})")

NaturalKey = tuple[str | int, ...]
PathKey = tuple[tuple[int, NaturalKey, str], ...]


def make_natural_key(text: str) -> NaturalKey:
    """Return a sort key in which runs of digits count as numbers: "10.0.0.9" before "10.0.0.10"."""
    return tuple(int(piece) if index % 2 else piece for index, piece in enumerate(_NUMBER.split(text)))


def sort_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Sort nodes by locality path, an unknown level after every known one, then natural name, then order of joining."""
    keys: dict[tuple[str | None, ...], PathKey] = {}  # a path is read once, not for each of its nodes

    def make_key(node: Node) -> tuple[PathKey, NaturalKey, int, str]:
        if node.path not in keys:
            keys[node.path] = _make_path_key(node.path)
        return keys[node.path], make_natural_key(node.id), node.order, node.id

    return sorted(nodes, key=make_key)


def _make_path_key(path: tuple[str | None, ...]) -> PathKey:
    unknown: tuple[int, NaturalKey, str] = (1, (), "")
    # A name behind its natural form keeps the nodes of "leaf1" and "leaf01" apart. The closing `unknown` puts a path
    # that ends early after one that goes on.
    return (*(unknown if domain is None else (0, make_natural_key(domain), domain) for domain in path), unknown)


class Tree(Struct, frozen=True):
    """The nodes in order, and their domains."""

    nodes: tuple[Node, ...]
    levels: tuple[str, ...]
    """Names, outermost first, without the host."""
    domains: tuple[tuple[int, ...], ...]
    """`domains[level][position]` is the number of the domain of the node at that position of `nodes`. Domains are
    numbered from 0 in the order of the nodes, and those of a level lie inside those of the level before.
    """
    names: tuple[tuple[str, ...], ...]
    """`names[level][domain]` is the domain's display name, such as "p0/l3"."""


def build_tree(nodes: Iterable[Node], levels: Sequence[str] = ()) -> Tree:
    """The tree that the nodes' paths describe. Levels without a name in `levels` are called "level 1" and so on."""
    ordered = tuple(sort_nodes(nodes))
    depth = max([len(levels), *(len(node.path) for node in ordered)])
    numbers: list[dict[object, int]] = [{} for _ in range(depth)]
    names: list[list[str]] = [[] for _ in range(depth)]
    domains: list[list[int]] = [[] for _ in range(depth)]
    for at, node in enumerate(ordered):
        if at and len(node.path) == depth and node.path == ordered[at - 1].path and None not in node.path[-1:]:
            for own in domains:  # neighbours in the innermost domain are so in all others
                own.append(own[-1])
            continue
        for level, key in enumerate(_list_domain_keys(node, depth)):
            known = numbers[level]
            number = known.setdefault(key, len(known))
            if number == len(names[level]):
                names[level].append("/".join(part for part in key if part is not None) or node.id)
            domains[level].append(number)
    called = tuple(levels[level] if level < len(levels) else f"level {level + 1}" for level in range(depth))
    return Tree(ordered, called, tuple(map(tuple, domains)), tuple(map(tuple, names)))


def _list_domain_keys(node: Node, depth: int) -> list[tuple[str | None, ...]]:
    """For every level what tells the node's domain apart: the path down to it, or as far as something is known."""
    path = (*node.path, *(None,) * (depth - len(node.path)))
    keys: list[tuple[str | None, ...]] = []
    for level in range(depth):
        end = next((below + 1 for below in range(level, depth) if path[below] is not None), None)
        # Where nothing is known from here on the node is alone, by a key that is longer than any path.
        keys.append(path[:end] if end is not None else (*path, node.id))
    return keys


def resolve_level_costs(levels: Sequence[str], given: Mapping[str, int | float]) -> tuple[int | float, ...]:
    """The cost of every level, outermost first, the host's last.

    What is not `given` has its usual cost: 1 to leave the host, 2 the innermost level, twice as much each one outwards.
    """
    usual = {level: 2 ** (len(levels) - index) for index, level in enumerate(levels)}
    return tuple(given.get(level, usual.get(level, 1)) for level in (*levels, HOST))
