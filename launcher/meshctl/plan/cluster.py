"""The cluster of a plan: its nodes, and the options in its file.

A file contains nodes and, optionally, everything that the command line can set: mesh, traffic, level costs, rules.
Those options are converted to the texts that the flags accept, so there is one set of rules for them, in
launcher.placement.adapter.options, and a flag overrides a text. This module only checks the structure of the file, and
the nodes. The page on the format is docs/reference/cluster-file.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.meshctl.plan.checks import describe_kind, format_value, is_count, is_name, require_known
from launcher.meshctl.plan.options import OPTION_KEYS as WISHES
from launcher.meshctl.plan.options import read_options
from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST
from launcher.placement.limits import Plan

NODES_MAX = 65_536  # four times the largest cluster that plans are measured on
DEVICES_MAX = 1024  # of one node: the largest on the market has 16, but CPUs count as well
DEVICES_MAX_ALL = 1 << 20  # a plan's arrays have an entry per rank

KEYS = ("levels", "nodes", "contiguous", "previous", *WISHES)
NODE_KEYS = ("id", "path", "devices", "addr", "index")
_AXES_MAX = 64
_SEPARATORS = ",=:/"  # separators of names in flags


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Nodes in the order in which they join, and options.

    `options`: name of a flag -> its text, e.g. "mesh" -> "pp=4,dp=*,tp=8". `previous`: the job's previous plan, of
    which only shape and ranks are known. `is_generated`: by a generator, which can generate further nodes as well.
    """

    name: str
    levels: tuple[str, ...]
    nodes: tuple[Node, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    is_contiguous: bool = True
    previous: Plan | None = None
    is_generated: bool = False


def parse_cluster(values: Any, name: str, levels: Sequence[str] | None = None) -> ClusterSpec:
    """Parse the cluster of a file; `levels` override those in it. Raises UsageError."""
    if not isinstance(values, dict):
        raise UsageError(f"{name} holds {describe_kind(values)}, not keys and values", _EXAMPLE)
    require_known(values, KEYS, name)
    if "nodes" not in values:
        raise UsageError(f"{name} has no key 'nodes'", _EXAMPLE)
    listed = values["nodes"]
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{name}: nodes is {describe_kind(listed)}, not a list with at least one node", _EXAMPLE)
    require_size(len(listed), name)
    called = levels if levels is not None else values.get("levels")
    names = parse_levels(called if called is not None else _number_levels(listed), name)
    nodes = tuple(_parse_node(one, index, names, name) for index, one in enumerate(listed))
    _require_unique_ids(nodes, name)
    require_devices(sum(node.slot_count for node in nodes), name)
    is_contiguous = values.get("contiguous", True)
    if not isinstance(is_contiguous, bool):
        raise UsageError(f"{name}: contiguous is {format_value(is_contiguous)}, neither true nor false")
    return ClusterSpec(
        name=name,
        levels=names,
        nodes=nodes,
        options=read_options(values, name),
        is_contiguous=is_contiguous,
        previous=parse_previous_plan(values["previous"], f"{name}: previous")
        if values.get("previous") is not None
        else None,
    )


_EXAMPLE = 'like {"levels": ["leaf"], "nodes": [{"id": "h0", "path": ["l0"], "devices": 8}]}'


def require_size(node_count: int, name: str) -> None:
    """Raise UsageError for more nodes than the planner accepts."""
    if node_count > NODES_MAX:
        raise UsageError(f"{name} has {node_count} nodes, more than the {NODES_MAX} that are planned for")


def require_devices(device_count: int, name: str) -> None:
    """Raise UsageError for more devices than the planner accepts."""
    if device_count > DEVICES_MAX_ALL:
        raise UsageError(f"{name} has {device_count} devices, more than the {DEVICES_MAX_ALL} that are planned for")


def parse_levels(levels: Any, name: str) -> tuple[str, ...]:
    """Parse the levels, outermost first. Raises UsageError for what is no list of different names."""
    if not isinstance(levels, (list, tuple)):
        raise UsageError(
            f"{name}: levels is {describe_kind(levels)}, not a list of names", '["pod", "leaf"], outermost first'
        )
    for level in levels:
        if not is_name(level) or any(letter in _SEPARATORS for letter in level):
            raise UsageError(
                f"{name}: level {format_value(level)} is no name", f"letters and digits, none of {_SEPARATORS}"
            )
        if level == HOST:
            raise UsageError(f"{name}: levels names {HOST!r}, which stands for the node itself", "leave it out")
    for level in levels:
        if list(levels).count(level) > 1:
            raise UsageError(f"{name}: levels names {format_value(level)} twice")
    return tuple(levels)


def _number_levels(nodes: Sequence[Any]) -> list[str]:
    """Return names for unnamed levels; the first node shows how many there are."""
    path = nodes[0].get("path") if isinstance(nodes[0], dict) else None
    return [f"level{index + 1}" for index in range(len(path) if isinstance(path, list) else 0)]


def _parse_node(values: Any, index: int, levels: tuple[str, ...], name: str) -> Node:
    where = f"{name}: node number {index + 1}"
    if not isinstance(values, dict):
        raise UsageError(f"{where} is {describe_kind(values)}, not keys and values", '{"id": "h0", "devices": 8}')
    if not is_name(values.get("id")):
        raise UsageError(
            f"{where} has the id {format_value(values.get('id'))}, which is no name", "text in quotes, e.g. 'h0'"
        )
    where = f"{name}: node {values['id']}"
    require_known(values, NODE_KEYS, where)
    if values.get("devices") is None:
        raise UsageError(f"{where} does not say how many devices it has", '{"id": "h0", "devices": 8}')
    devices = values["devices"]
    if not is_count(devices) or not 1 <= devices <= DEVICES_MAX:
        raise UsageError(f"{where}: devices is {format_value(devices)}, not a whole number from 1 to {DEVICES_MAX}")
    address = values.get("addr") or ""
    if address and not is_name(address):
        raise UsageError(f"{where} has the addr {format_value(address)}, which is no address")
    place = values.get("index")
    if place is not None and (not is_count(place) or not 0 <= place < NODES_MAX):
        raise UsageError(f"{where} has the index {format_value(place)}, not a whole number from 0")
    path = values.get("path")
    return Node(
        id=values["id"],
        slot_count=devices,
        path=_parse_path(path, levels, where) if path is not None else (None,) * len(levels),
        address=address,
        order=index,
        index=place,
    )


def _parse_path(path: Any, levels: tuple[str, ...], where: str) -> tuple[str | None, ...]:
    if not isinstance(path, list):
        raise UsageError(
            f"{where} has the path {format_value(path)}, not a list of names", "outermost first; null where unknown"
        )
    if len(path) != len(levels):
        has = "1 entry" if len(path) == 1 else f"{len(path)} entries"
        called = f"{len(levels)} ({', '.join(levels)})" if levels else "none"
        raise UsageError(f"{where} has a path of {has}, the levels are {called}", "write null where one is unknown")
    for entry in path:
        if entry is not None and not is_name(entry):
            raise UsageError(
                f"{where} has {format_value(entry)} in its path, neither a name nor null", "write names in quotes"
            )
    return tuple(path)


def _require_unique_ids(nodes: Sequence[Node], name: str) -> None:
    seen: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if node.id in seen:
            raise UsageError(f"{name}: the id {node.id} stands twice, at nodes {seen[node.id] + 1} and {index + 1}")
        seen[node.id] = index


def parse_previous_plan(values: Any, where: str) -> Plan:
    """Parse the plan in an answer of `meshctl plan --json`, or in a file's key `previous`. Raises UsageError."""
    if not isinstance(values, dict) or not {"dims", "plan"} <= set(values):
        raise UsageError(f"{where} has no keys 'dims' and 'plan'", '{"dims": [4, 8, 8], "plan": {"h0": [0, 1, 2]}}')
    dims, plan = values["dims"], values["plan"]
    if not isinstance(dims, list) or not 0 < len(dims) <= _AXES_MAX or not all(map(_is_size, dims)):
        raise UsageError(f"{where}: dims is {format_value(dims)}, not the sizes of the mesh's axes")
    if not isinstance(plan, dict) or not all(isinstance(ranks, list) for ranks in plan.values()):
        raise UsageError(f"{where}: plan gives no list of ranks for every node", '{"h0": [0, 1, 2]}')
    world_size = math.prod(dims)
    require_devices(world_size, where)
    holder: dict[int, str] = {}
    for node, ranks in plan.items():
        if not is_name(node):
            raise UsageError(f"{where}: plan has the node {format_value(node)}, which is no name")
        for rank in ranks:
            if not is_count(rank) or not 0 <= rank < world_size:
                raise UsageError(
                    f"{where}: node {node} has rank {format_value(rank)}, the world has ranks 0 to {world_size - 1}"
                )
            if rank in holder:
                raise UsageError(f"{where}: rank {rank} is on {holder[rank]} and on {node}")
            holder[rank] = node
    if len(holder) < world_size:
        missing = next(rank for rank in range(world_size) if rank not in holder)
        raise UsageError(f"{where}: rank {missing} of {world_size} is on no node")
    ranks_of = {node: tuple(ranks) for node, ranks in plan.items() if ranks}
    return Plan(shape=tuple(dims), ranks=ranks_of, spares=(), moved=0, reasons=())


def _is_size(value: object) -> bool:
    return is_count(value) and 0 < value <= DEVICES_MAX_ALL


def require_same_mesh(previous: Plan, mesh: Mesh, name: str) -> None:
    """Raise UsageError if the previous plan is not of this mesh with another size of its elastic axis."""
    sizes = [axis.size for axis in mesh.axes]
    if len(previous.shape) != len(sizes) or any(
        size not in (None, before) for size, before in zip(sizes, previous.shape, strict=True)
    ):
        shape = " x ".join(map(str, previous.shape))
        raise UsageError(
            f"{name}: the previous plan is of a mesh of {shape}, not of {mesh}", "leave it out to plan afresh"
        )
