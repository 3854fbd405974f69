"""The cluster of a plan: its nodes, and the options in its file, JSON or YAML from disk or from stdin.

A file contains nodes and, optionally, everything that the command line can set: mesh, traffic, level costs, rules.
Those options are converted to the texts that the flags accept, so there is one set of rules for them, in
launcher.placement.adapter.options, and a flag overrides a text. msgspec checks the structure of the file; what it
finds becomes a sentence with the place in the file. The page on the format is docs/reference/cluster-file.md.

A user or a script writes such a file, so a text that cannot be parsed is reported with line and column. The size is
limited: parsed values need up to thirty times the memory of their text, and a file that was named by mistake may have
any size. A duplicate key is refused, where both formats would silently keep the last of the two.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from reprlib import Repr
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from launcher.model import odd_text
from launcher.model.errors import UsageError, suggest
from launcher.model.locality_path import is_text
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import HOST
from launcher.placement.limits import Plan

NODES_MAX = 65_536  # four times the largest cluster that plans are measured on
DEVICES_MAX = 1024  # of one node: the largest on the market has 16, but CPUs count as well
DEVICES_MAX_ALL = 1 << 20  # a plan's arrays have an entry per rank
# 65,536 nodes, four times the largest cluster that plans are measured on, at 256 bytes each with a previous plan.
JSON_BYTES_MAX = 16 << 20
# YAML takes sixty times as long to read, two to five seconds per MiB; this is 16,384 nodes at 64 bytes.
YAML_BYTES_MAX = 1 << 20
DEPTH_MAX = 100
"""Levels of a YAML file; a cluster file has seven at most."""

_AXES_MAX = 64
_SEPARATORS = ",=:/"  # separators of names in flags

_Scalar: TypeAlias = int | float | str
_Axis: TypeAlias = tuple[Annotated[str, Meta(pattern=r"^[^\W\d]\w*\Z")], _Scalar]


class ClusterSpec(Struct, frozen=True, kw_only=True):
    """Nodes in the order in which they join, and options."""

    name: str
    levels: tuple[str, ...]
    nodes: tuple[Node, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    """Name of a flag to its text, such as "mesh" to "pp=4,dp=*,tp=8"."""
    previous: Plan | None = None
    """The job's previous plan, of which only shape and ranks are known."""
    is_generated: bool = False
    """By a generator, which can generate further nodes as well."""


class _NodeEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    path: list[str | None] | None = None
    devices: Annotated[int, Meta(ge=1, le=DEVICES_MAX)]
    addr: str | None = None
    index: Annotated[int, Meta(ge=0, lt=NODES_MAX)] | None = None


class _TrafficEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    axes: Annotated[list[str], Meta(min_length=1)]
    kind: _Scalar | None = None
    weight: _Scalar


class _WholeEntry(msgspec.Struct, forbid_unknown_fields=True):
    level: _Scalar
    hosts: _Scalar


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All keys of a cluster file; null means that a key is absent."""

    levels: list[str] | None = None
    nodes: Annotated[list[_NodeEntry], Meta(min_length=1)]
    previous: Any = None
    mesh: str | Annotated[list[_Axis], Meta(min_length=1)] | None = None
    comms: list[_TrafficEntry] | None = None
    leave_cost: dict[str, _Scalar] | None = None
    rates: dict[str, _Scalar] | None = None
    within: dict[str, _Scalar] | None = None
    whole: _WholeEntry | None = None
    unit: _Scalar | None = None
    dp_min: _Scalar | None = None
    dp_max: _Scalar | None = None
    elastic_min: _Scalar | None = None
    elastic_max: _Scalar | None = None
    nodes_min: _Scalar | None = None
    nodes_max: _Scalar | None = None


class _PreviousPlan(msgspec.Struct):
    dims: Annotated[list[Annotated[int, Meta(ge=1, le=DEVICES_MAX_ALL)]], Meta(min_length=1, max_length=_AXES_MAX)]
    plan: dict[str, list[Any]]


_EXAMPLE = '{"levels": ["leaf"], "nodes": [{"id": "h0", "path": ["l0"], "devices": 8}]}'
_HINTS = {
    "": f"write keys and values: {_EXAMPLE}",
    ".nodes": 'list at least one node: [{"id": "h0", "devices": 8}]',
    ".nodes.id": "write a name of printable characters, in quotes",
    ".nodes.devices": f"write a whole number from 1 to {DEVICES_MAX}",
    ".nodes.index": "write a whole number, counted from 0",
    ".nodes.path": 'list the domains, outermost first, null where one is unknown: ["p0", null]',
    ".levels": f'list names without any of {_SEPARATORS}, outermost first: ["pod", "leaf"]',
    ".mesh": 'list names and sizes of axes: [["pp", 4], ["dp", "*"], ["tp", 8]]',
    ".comms": 'list axes and their traffic: [{"axes": ["tp"], "kind": "ring", "weight": 100}]',
    ".leave_cost": 'write a number for each level: {"leaf": 2, "host": 1}',
    ".rates": 'write a rate with its unit for each level: {"leaf": "400Gbit", "leaf:l3": "100Gbit"}',
    ".within": 'write a level for each axis: {"tp": "host"}',
    ".whole": 'write a level and its hosts: {"level": "slice", "hosts": 4}',
}
"""Place in the file, without the numbers of entries -> how to write it. The nearest place counts."""
_KEYS = {"": _ClusterFile, ".nodes": _NodeEntry, ".comms": _TrafficEntry, ".whole": _WholeEntry}


def parse_cluster(values: Any, name: str, levels: Sequence[str] | None = None) -> ClusterSpec:
    """Parse the cluster of a file; `levels` override those in it. Raises UsageError."""
    file = _convert(values, name)
    require_size(len(file.nodes), sum(node.devices for node in file.nodes), name)
    # Unnamed levels are numbered; the first node shows how many there are.
    numbered = [f"level{index + 1}" for index in range(len(file.nodes[0].path or ()))]
    names = parse_levels(next(each for each in (levels, file.levels, numbered) if each is not None), name)
    nodes = tuple(_make_node(one, index, names, name, values) for index, one in enumerate(file.nodes))
    seen: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if seen.setdefault(node.id, index) != index:
            raise UsageError(f"{name}: nodes[{seen[node.id]}] and nodes[{index}] have the same id {node.id}")
    return ClusterSpec(
        name=name,
        levels=names,
        nodes=nodes,
        options=_format_options(file),
        previous=None if file.previous is None else parse_previous_plan(file.previous, f"{name}: previous"),
    )


def parse_levels(levels: Sequence[str], name: str) -> tuple[str, ...]:
    """Check the names of levels, outermost first. Raises UsageError."""
    for index, level in enumerate(levels):
        if not is_text(level) or any(letter in _SEPARATORS for letter in level):
            raise _make_fault(name, {"levels": levels}, f".levels[{index}]")
        if level == HOST:
            raise UsageError(f"{name}: levels cannot contain {HOST!r}, the node itself", "remove it")
        if level in levels[:index]:
            raise UsageError(f"{name}: levels contains {format_value(level)} twice")
    return tuple(levels)


def _make_node(one: _NodeEntry, index: int, levels: Sequence[str], name: str, values: Any) -> Node:
    """`values`: of the whole file, for an error."""
    path = [None] * len(levels) if one.path is None else one.path
    places = {"id": one.id, "addr": one.addr or None, **{f"path[{depth}]": each for depth, each in enumerate(path)}}
    for place, text in places.items():
        if text is not None and not is_text(text):
            raise _make_fault(name, values, f".nodes[{index}].{place}")
    if len(path) != len(levels):
        has = "1 entry" if len(path) == 1 else f"{len(path)} entries"
        called = f"{len(levels)} ({', '.join(levels)})" if levels else "none"
        sentence = f"{name}: the path of node {one.id} has {has}, the levels are {called}"
        raise UsageError(sentence, "write null where a domain is unknown")
    return Node(
        id=one.id, slot_count=one.devices, path=tuple(path), address=one.addr or "", order=index, index=one.index
    )


def _format_options(file: _ClusterFile) -> dict[str, str]:
    """Return name of a flag -> its text, of the options in the file."""
    mesh, whole = file.mesh, file.whole
    texts = {
        "mesh": mesh if isinstance(mesh, str) else _join_pairs(mesh or ()),
        "traffic": _join_pairs(
            ("+".join(one.axes), f"{one.weight}" if one.kind is None else f"{one.weight}:{one.kind}")
            for one in file.comms or ()
        ),
        "level-costs": _join_pairs((file.leave_cost or {}).items()),
        "rates": _join_pairs((name.replace(",", ",,"), rate) for name, rate in (file.rates or {}).items()),
        "within": _join_pairs((file.within or {}).items()),
        "unit": "" if file.unit is None else str(file.unit),
        "whole": f"{whole.level}:{whole.hosts}" if whole else "",
        "elastic": _format_bounds(file.elastic_min, file.elastic_max) or _format_bounds(file.dp_min, file.dp_max),
        "nnodes": _format_bounds(file.nodes_min, file.nodes_max),
    }
    return {flag: text for flag, text in texts.items() if text}


def _join_pairs(pairs: Iterable[tuple[str, _Scalar]]) -> str:
    return ",".join(f"{key}={value}" for key, value in pairs)


def _format_bounds(low: _Scalar | None, high: _Scalar | None) -> str:
    if low is None and high is None:
        return ""
    return f"{1 if low is None else low}:{'' if high is None else high}"


def parse_previous_plan(values: Any, name: str) -> Plan:
    """Parse the plan in an answer of `meshctl plan --json`, or in a file's key `previous`. Raises UsageError."""
    try:
        entry = msgspec.convert(values, _PreviousPlan)
    except msgspec.ValidationError:
        hint = 'use an answer of meshctl plan --json: {"dims": [4, 8, 8], "plan": {"h0": [0, 1, 2]}}'
        raise UsageError(f"{name} is not a plan with 'dims' and 'plan'", hint) from None
    world_size = math.prod(entry.dims)
    require_size(0, world_size, name)
    holder: dict[int, str] = {}
    for node, ranks in entry.plan.items():
        if not is_text(node):
            raise UsageError(f"{name}: {format_value(node)} is not the name of a node")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < world_size:
                has = f"node {node} has rank {format_value(rank)}"
                raise UsageError(f"{name}: {has}, but ranks go from 0 to {world_size - 1}")
            if rank in holder:
                raise UsageError(f"{name}: rank {rank} is on {holder[rank]} and on {node}")
            holder[rank] = node
    if len(holder) < world_size:
        missing = next(rank for rank in range(world_size) if rank not in holder)
        raise UsageError(f"{name}: rank {missing} of {world_size} is on no node")
    ranks_of = {node: tuple(ranks) for node, ranks in entry.plan.items() if ranks}
    return Plan(shape=tuple(entry.dims), ranks=ranks_of, spares=(), moved=0, reasons=())


def require_same_mesh(previous: Plan, mesh: Mesh, name: str) -> None:
    """Raise UsageError if the previous plan is not of this mesh with another size of its elastic axis."""
    if not mesh.has_shape(previous.shape):
        was = " x ".join(map(str, previous.shape))
        raise UsageError(
            f"{name}: the previous plan is of a mesh of {was}, not of {mesh}", "omit it to make a new plan"
        )


def require_size(node_count: int, device_count: int, name: str) -> None:
    """Raise UsageError for more nodes or devices than the planner accepts."""
    for count, most, what in ((node_count, NODES_MAX, "nodes"), (device_count, DEVICES_MAX_ALL, "devices")):
        if count > most:
            raise UsageError(f"{name} has {count} {what}; the limit is {most}")


def _convert(values: Any, name: str) -> _ClusterFile:
    try:
        return msgspec.convert(values, _ClusterFile)
    except msgspec.ValidationError as error:
        what, _, place = str(error).removesuffix("`").partition(" - at `$")
        key = what.partition(" field ")[2].strip("`")
        where = f"{name}: {place[1:]}" if place else name
        if what.startswith("Object missing"):
            raise UsageError(f"{where} has no key {key!r}", _find_hint(f"{place}.{key}")) from None
        if what.startswith("Object contains unknown"):
            known = {one: repr(one) for one in _KEYS[_strip_indexes(place)].__struct_fields__}
            hint = suggest(key[:60], known) or f"use one of the keys {', '.join(known)}"
            raise UsageError(f"{where}: unknown key {format_value(key)}", hint) from None
        raise _make_fault(name, values, place) from None


def _make_fault(name: str, values: Any, place: str) -> UsageError:
    """Return the error for the value at `place`, e.g. ".nodes[3].path[0]"."""
    place = place.removesuffix("[...]")  # any value of a mapping: msgspec does not say which
    value = values
    for step in re.findall(r"[^].[]+", place):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
    where = f"{name}: {place[1:]}" if place else name
    return UsageError(f"{where} cannot be {format_value(value)}", _find_hint(place))


def _find_hint(place: str) -> str:
    place = _strip_indexes(place)
    parent = place.rpartition(".")[0]
    return _HINTS.get(place) or (_HINTS[parent] if parent else "write a number")


def _strip_indexes(place: str) -> str:
    return re.sub(r"\[[^]]*\]", "", place)


_short_repr = Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 60
_short_repr.maxlist = 8


def format_value(value: object) -> str:
    """Format the value for a sentence: shortened where a file is not what the user meant."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]  # as the file has them, not as Python does
    try:
        return _short_repr.repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number with thousands of digits"


def read_file(name: str) -> Any:
    """Read the value in a file; "-" is stdin. Raises UsageError.

    The extension determines the format; without one, a text that begins with a brace or bracket is JSON.
    """
    if not name:
        raise UsageError("the name of a file is empty", "check that a shell variable is set")
    called = "stdin" if name == "-" else name
    data = _read_bytes(name)
    if len(data) > JSON_BYTES_MAX:
        raise UsageError(f"{called} is larger than the limit of {JSON_BYTES_MAX >> 20} MiB")
    text = _decode_text(data, called)
    if not text.strip():
        raise UsageError(f"{called} is empty", _HINTS[""])
    ending = os.path.splitext(name)[1].lower()
    if ending == ".json" or (ending not in (".yaml", ".yml") and text.lstrip()[0] in "{["):
        return _parse_json(text, called)
    if len(data) > YAML_BYTES_MAX:
        limit, hint = YAML_BYTES_MAX >> 20, f"use JSON, up to {JSON_BYTES_MAX >> 20} MiB"
        raise UsageError(f"{called} is larger than the limit of {limit} MiB for YAML", hint)
    return _parse_yaml(text, called)


def _read_bytes(name: str) -> bytes:
    """Return all of a file, or so much that it is too much."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            return file.read(JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        hint = odd_text.explain(name) or "use meshctl plan -h to list what CLUSTER can be"
        raise UsageError(f"file {name} does not exist", hint) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{'stdin' if name == '-' else f'file {name!r}'} cannot be read: {why}") from None


def _decode_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        at = f"line {line}, column {column}"
        raise UsageError(f"{name} is not UTF-8: {at}: byte 0x{data[error.start]:02x}") from None


def _parse_json(text: str, name: str) -> Any:
    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UsageError(f"{name}: duplicate key {twice!r}")
        return found

    try:
        return json.loads(text, object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        raise UsageError(f"{name} is not valid JSON: line {error.lineno}, column {error.colno}: {what}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError:  # Python parses no number of more than 4,300 digits
        raise UsageError(f"{name} has a number with thousands of digits") from None


def _parse_yaml(text: str, name: str) -> Any:
    try:
        import yaml
    except ImportError:
        hint = "install it: pip install pyyaml, or write the file as JSON"
        raise UsageError(f"{name}: YAML needs PyYAML", hint) from None
    loader, depth = _make_loader(yaml), 0
    try:
        for event in yaml.parse(text, loader):  # libyaml's composer overflows the C stack of a deep document
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise UsageError(f"{name} is nested too deeply")
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # a date with a month 99; "!!bool x"
        raise UsageError(f"{name} has a value that cannot be read as YAML: {error}") from None
    except (MemoryError, RecursionError):
        raise UsageError(f"{name} is nested too deeply") from None


def _make_loader(yaml: Any) -> Any:
    """Return PyYAML's safe loader, which here refuses what it would take in silence: a duplicate key."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for key, value in node.value:
                is_text = key.tag == "tag:yaml.org,2002:str"
                if not is_text or key.value in found:
                    what = f"duplicate key {key.value!r}" if is_text else "a key must be text, and << is not supported"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                found[key.value] = self.construct_object(value, deep=True)  # refuses an alias inside what it names
            return found

    return Loader
