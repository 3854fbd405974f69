"""Changes of a cluster: nodes that are lost, and nodes that join.

    h17           a node that is lost
    h40=p0/l3     a node that joins, in leaf l3 of pod p0
    h40           a node that joins in the place of one that is lost, the first for the first; if none is lost,
                  its locality is unknown

A node that joins has as many devices as most of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from launcher.config.options.command_line import suggest
from launcher.meshctl.plan.checks import is_name
from launcher.meshctl.plan.cluster import ClusterSpec, require_devices, require_size
from launcher.meshctl.plan.generate import make_address
from launcher.model.errors import UsageError
from launcher.model.node import Node


def apply_changes(cluster: ClusterSpec, lost: str, joined: str) -> ClusterSpec:
    """Return the cluster after these changes, each a list with commas. Raises UsageError."""
    gone = _find_lost(cluster, _parse_list(lost, "lose"))
    gone_ids = {node.id for node in gone}
    stays = tuple(node for node in cluster.nodes if node.id not in gone_ids)
    newcomers = _make_newcomers(cluster, gone, _parse_list(joined, "join"))
    require_size(len(stays) + len(newcomers), f"{cluster.name} with --join")
    require_devices(sum(node.slot_count for node in (*stays, *newcomers)), f"{cluster.name} with --join")
    return replace(cluster, nodes=(*stays, *newcomers))


def _parse_list(text: str, flag: str) -> list[str]:
    words = [word.strip() for word in text.split(",")] if text else []
    for word in words:
        if not word:
            raise UsageError(f"--{flag} {text!r} has an empty entry", f"write it like --{flag} h17,h23")
        if words.count(word) > 1:
            raise UsageError(f"--{flag} names {word} twice")
    return words


def _find_lost(cluster: ClusterSpec, ids: Sequence[str]) -> list[Node]:
    by_id = {node.id: node for node in cluster.nodes}
    for name in ids:
        if name not in by_id:
            question = suggest(name, {each: each for each in by_id}) if len(by_id) <= 1000 else ""
            raise UsageError(f"--lose: {cluster.name} has no node {name!r}", question or _describe_nodes(cluster))
    return [by_id[name] for name in ids]


def _describe_nodes(cluster: ClusterSpec) -> str:
    ids = [node.id for node in cluster.nodes[:4]]
    return f"its nodes are {', '.join(ids)}" + (", ..." if len(cluster.nodes) > 4 else "")


def _make_newcomers(cluster: ClusterSpec, lost: Sequence[Node], entries: Sequence[str]) -> list[Node]:
    present = {node.id for node in cluster.nodes}
    places = list(lost)
    arrivals = max(node.order for node in cluster.nodes) + 1
    counts = Counter(node.slot_count for node in cluster.nodes)
    slot_count = max(counts, key=lambda size: (counts[size], size))
    newcomers: list[Node] = []
    for index, word in enumerate(entries):
        name, equals, path = (piece.strip() for piece in word.partition("="))
        if not is_name(name) or name in present:
            why = "is there already" if name in present else "is no name"
            raise UsageError(f"--join: {name!r} {why}", "give the new node an id of its own")
        present.add(name)
        place = places.pop(0) if places and not equals else None
        newcomers.append(
            Node(
                id=name,
                slot_count=slot_count,
                path=_parse_path(path, cluster) if equals else place.path if place else (None,) * len(cluster.levels),
                address=make_address(len(cluster.nodes) + index) if cluster.is_generated else "",
                order=arrivals + index,
                index=place.index if place else None,
            )
        )
    return newcomers


def _parse_path(text: str, cluster: ClusterSpec) -> tuple[str | None, ...]:
    path = [entry.strip() or None for entry in text.split("/")]
    if len(path) != len(cluster.levels) or not all(entry is None or is_name(entry) for entry in path):
        hint = f"write it like {'/'.join(cluster.levels)}" if cluster.levels else "it has no levels, leave the path out"
        raise UsageError(f"--join: {text!r} is no path in {cluster.name}", hint)
    return tuple(path)
