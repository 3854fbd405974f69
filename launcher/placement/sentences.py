"""Numbers, names and the reason of a world, as the sentences of the planner have them.

They are for users who do not know the planner. Why there is no world is told in `shortage`, which most jobs never need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.placement.limits import Limits

NAMES_MAX = 8  # more would make a log line too long
ADD_NODES = "add nodes, or ask for fewer nodes or a smaller mesh"


def format_nodes(nodes: Iterable[Node]) -> str:
    """Format the nodes' ids, the first few by name and the rest by number."""
    return join_names([node.id for node in nodes])


def join_names(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMES_MAX]) + (f" and {len(ids) - NAMES_MAX:,} more" if len(ids) > NAMES_MAX else "")


def format_node_count(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def pluralize(level: str) -> str:
    """Return the plural of a level."""
    return f"{level[:-1]}ves" if level.endswith("leaf") else f"{level}s"


def format_mesh(mesh: Mesh, elastic_size: int) -> str:
    """Format the mesh with the elastic axis' size in place of the star."""
    return str(mesh).replace("*", str(elastic_size))


def format_amount(scaled: int, scale: int) -> str:
    """Format `scaled` / `scale` for reading: 1,008; 2.5; 1,397,981.3."""
    whole, rest = divmod(scaled, scale)
    if not rest:
        return f"{whole:,}"
    if whole >= 100:
        tenths = scaled * 10 // scale
        return f"{tenths // 10:,}.{tenths % 10}"
    return f"{scaled / scale:.4g}"


def format_seconds(seconds: float) -> str:
    """ "0.68 s", "12.3 ms", "4 µs", "1,240 s" """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if 0 < seconds * factor < 100:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def describe_world(size: int, node_count: int, present_count: int, reason: str, limits: Limits) -> str:
    """Return the whole sentence about a world. `reason`: from `explain_size`."""
    ranks = "1 rank" if size == 1 else f"{size:,} ranks"
    most = f" on at most {format_node_count(node_count)}" if limits.nodes_max == node_count < present_count else ""
    return f"world of {ranks} on {node_count:,} of {format_node_count(present_count)}: {reason}{most}"


def explain_size(mesh: Mesh, elastic_size: int, is_most_allowed: bool, is_held_back: bool, limits: Limits) -> str:
    """Explain the size of the world. `is_held_back`: there are devices for more, but a rule forbids it."""
    if mesh.elastic_axis is None:
        return f"mesh {mesh} has a fixed size"
    name = f"{mesh.elastic_axis.name}={elastic_size}"
    if is_most_allowed:
        return f"{name} is the most that is allowed"
    rules = [f"{axis} within a {level}" for axis, level in limits.within.items()] if is_held_back else []
    rules += [f"whole {pluralize(limits.all_or_nothing.level)}"] if is_held_back and limits.all_or_nothing else []
    return f"{name} is the largest whole number of replicas{' with ' if rules else ''}{' and '.join(rules)}"
