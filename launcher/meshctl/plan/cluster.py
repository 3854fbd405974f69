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

_FORMS_HINT = "meshctl plan -h shows what can be written in the place of a file"
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
    move_cost: _Scalar | None = None
    elastic_min: _Scalar | None = None
    elastic_max: _Scalar | None = None
    nodes_min: _Scalar | None = None
    nodes_max: _Scalar | None = None


class _PreviousPlan(msgspec.Struct):
    dims: Annotated[list[Annotated[int, Meta(ge=1, le=DEVICES_MAX_ALL)]], Meta(min_length=1, max_length=_AXES_MAX)]
    plan: dict[str, list[Any]]


_NODE_EXAMPLE = '{"id": "h0", "devices": 8}'
_EXAMPLE = 'like {"levels": ["leaf"], "nodes": [{"id": "h0", "path": ["l0"], "devices": 8}]}'
_COMMS_EXAMPLE = '[{"axes": ["tp"], "kind": "ring", "weight": 100}]'
_NUMBERS = ("unit", "dp_min", "dp_max", "move_cost", "elastic_min", "elastic_max", "nodes_min", "nodes_max")
_NOT_A_NUMBER = ("{where} is {kind}, not a number", "")
_FAULTS = {
    "": ("{name} holds {kind}, not keys and values", _EXAMPLE),
    ".nodes!": ("{name} has no key 'nodes'", _EXAMPLE),
    ".nodes": ("{where} is {kind}, not a list with at least one node", _EXAMPLE),
    ".nodes[]": ("{where} is {kind}, not keys and values", _NODE_EXAMPLE),
    ".nodes[].id": ("{where} has the id {value}, which is no name", "text in quotes, e.g. 'h0'"),
    ".nodes[].devices!": ("{where} does not say how many devices it has", _NODE_EXAMPLE),
    ".nodes[].devices": (f"{{where}}: devices is {{value}}, not a whole number from 1 to {DEVICES_MAX}", ""),
    ".nodes[].addr": ("{where} has the addr {value}, which is no address", ""),
    ".nodes[].index": ("{where} has the index {value}, not a whole number from 0", ""),
    ".nodes[].path": ("{where} has the path {value}, not a list of names", "outermost first; null where unknown"),
    ".nodes[].path[]": ("{where} has {value} in its path, neither a name nor null", "write names in quotes"),
    ".levels": ("{where} is {kind}, not a list of names", '["pod", "leaf"], outermost first'),
    ".levels[]": ("{name}: level {value} is no name", f"letters and digits, none of {_SEPARATORS}"),
    ".mesh": ("{where} is {kind}, not a list of axes", '[["pp", 4], ["dp", "*"], ["tp", 8]]'),
    ".mesh[]": ("{where}: {value} is not a name and a size", '[["pp", 4], ["dp", "*"], ["tp", 8]]'),
    ".comms": ("{where} is {kind}, not a list", _COMMS_EXAMPLE),
    ".comms[]": ("{where} is {kind}, not keys and values", _COMMS_EXAMPLE),
    ".comms[].axes": ("{where} has the axes {value}, not a list of names", _COMMS_EXAMPLE),
    ".comms[].weight!": ("{where} has no weight", _COMMS_EXAMPLE),
    ".comms[].weight": _NOT_A_NUMBER,
    ".comms[].kind": _NOT_A_NUMBER,
    ".leave_cost": ("{where} is {kind}, not keys and values", '{"leaf": 2, "host": 1}'),
    ".leave_cost[...]": _NOT_A_NUMBER,
    ".rates": ("{where} is {kind}, not keys and values", '{"leaf": "400Gbit", "leaf:l3": "100Gbit"}'),
    ".rates[...]": ("{where} is {kind}, not a rate with a unit", '"400Gbit"'),
    ".within": ("{where} is {kind}, not keys and values", '{"tp": "host"}'),
    ".within[...]": _NOT_A_NUMBER,
    ".whole": ("{name}: whole is not a level with a number of hosts", '{"level": "slice", "hosts": 4}'),
    **dict.fromkeys((".whole.hosts", *(f".{key}" for key in _NUMBERS)), _NOT_A_NUMBER),
}
"""Place in the file -> sentence and hint for a wrong value; with "!" for a missing one. The nearest place counts."""
_KEYS = {"": _ClusterFile, ".nodes[]": _NodeEntry, ".comms[]": _TrafficEntry, ".whole": _WholeEntry}


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
            raise UsageError(f"{name}: the id {node.id} stands twice, at nodes {seen[node.id] + 1} and {index + 1}")
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
            raise UsageError(f"{name}: levels names {HOST!r}, which stands for the node itself", "leave it out")
        if level in levels[:index]:
            raise UsageError(f"{name}: levels names {format_value(level)} twice")
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
        sentence = f"{name}: node {one.id} has a path of {has}, the levels are {called}"
        raise UsageError(sentence, "write null where one is unknown")
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
        "whole": f"{whole.level}:{whole.hosts}" if whole else "",
        "elastic": _format_bounds(file.elastic_min, file.elastic_max) or _format_bounds(file.dp_min, file.dp_max),
        "nnodes": _format_bounds(file.nodes_min, file.nodes_max),
    }
    for key in ("unit", "move_cost"):
        value = getattr(file, key)
        texts[key.replace("_", "-")] = "" if value is None else str(value)
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
    except msgspec.ValidationError as error:
        if "`$.dims" in str(error):
            dims = format_value(values["dims"])
            raise UsageError(f"{name}: dims is {dims}, not the sizes of the mesh's axes") from None
        if "`$.plan" in str(error):
            raise UsageError(f"{name}: plan gives no list of ranks for every node", '{"h0": [0, 1, 2]}') from None
        hint = '{"dims": [4, 8, 8], "plan": {"h0": [0, 1, 2]}}'
        raise UsageError(f"{name} has no keys 'dims' and 'plan'", hint) from None
    world_size = math.prod(entry.dims)
    require_size(0, world_size, name)
    holder: dict[int, str] = {}
    for node, ranks in entry.plan.items():
        if not is_text(node):
            raise UsageError(f"{name}: plan has the node {format_value(node)}, which is no name")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < world_size:
                has = f"node {node} has rank {format_value(rank)}"
                raise UsageError(f"{name}: {has}, the world has ranks 0 to {world_size - 1}")
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
    sizes = [axis.size for axis in mesh.axes]
    shape = previous.shape
    if len(shape) != len(sizes) or any(size not in (None, old) for size, old in zip(sizes, shape, strict=True)):
        was = " x ".join(map(str, shape))
        raise UsageError(
            f"{name}: the previous plan is of a mesh of {was}, not of {mesh}", "leave it out to plan afresh"
        )


def require_size(node_count: int, device_count: int, name: str) -> None:
    """Raise UsageError for more nodes or devices than the planner accepts."""
    for count, most, what in ((node_count, NODES_MAX, "nodes"), (device_count, DEVICES_MAX_ALL, "devices")):
        if count > most:
            raise UsageError(f"{name} has {count} {what}, more than the {most} that are planned for")


def _convert(values: Any, name: str) -> _ClusterFile:
    try:
        return msgspec.convert(values, _ClusterFile)
    except msgspec.ValidationError as error:
        what, _, place = str(error).removesuffix("`").partition(" - at `$")
        key = what.partition(" field ")[2].strip("`")
        if what.startswith("Object contains unknown"):
            raise _make_fault(name, values, place, unknown=key) from None
        raise _make_fault(name, values, f"{place}.{key}!" if what.startswith("Object missing") else place) from None


def _make_fault(name: str, values: Any, place: str, unknown: str = "") -> UsageError:
    """Return the error for the value at `place`, e.g. ".nodes[3].path[0]", or for an unknown key in it."""
    steps, found = re.findall(r"[^].![]+|\.\.\.", place), [values]
    for index, step in enumerate(steps):
        inner: Any = found[-1]
        if step == "...":  # msgspec does not say which key
            steps[index] = step = next(key for key, one in inner.items() if type(one) not in (int, float, str))
        found.append(inner[int(step)] if isinstance(inner, list) else inner.get(step))
    where = ": ".join((name, *(step for step in steps if not step.isdigit())))
    if noun := {"nodes": "node", "comms": "comms:"}.get(steps[0]) if len(steps) > 1 else None:
        id = found[2].get("id") if noun == "node" and isinstance(found[2], dict) else None
        where = f"{name}: {noun} {id if is_text(id) else f'number {int(steps[1]) + 1}'}"
    pattern = re.sub(r"\d+(?=\])", "", place)
    if unknown:
        known = {key: repr(key) for key in _KEYS[pattern].__struct_fields__}
        question = suggest(unknown[:60], known) or f"the keys are {', '.join(known)}"
        return UsageError(f"{where}: unknown key {format_value(unknown)}", question)
    while pattern not in _FAULTS:
        if not pattern.endswith("!"):
            found.pop()
        pattern = re.sub(r"(!|\.\w+|\[[^]]*\])$", "", pattern)
    sentence, hint = _FAULTS[pattern]
    value = found[-1]
    sentence = sentence.format(name=name, where=where, value=format_value(value), kind=_describe_kind(value))
    return UsageError(sentence, hint or None)


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


def _describe_kind(value: object) -> str:
    """Describe the kind of a value, for a sentence: "nodes is a list"."""
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "nothing" if value is None else "keys and values" if isinstance(value, dict) else format_value(value)


def read_file(name: str) -> Any:
    """Read the value in a file; "-" is stdin. Raises UsageError.

    The extension determines the format; without one, a text that begins with a brace or bracket is JSON.
    """
    if not name:
        raise UsageError("the name of a file is empty", "is a variable of the shell empty?")
    called = "stdin" if name == "-" else name
    data = _read_bytes(name)
    if len(data) > JSON_BYTES_MAX:
        raise UsageError(f"{called} is larger than {JSON_BYTES_MAX >> 20} MiB, which is as much as is read")
    text = _decode_text(data, called)
    if not text.strip():
        raise UsageError(f"{called} is empty", 'the least is {"nodes": [{"id": "h0", "devices": 8}]}')
    ending = os.path.splitext(name)[1].lower()
    if ending == ".json" or (ending not in (".yaml", ".yml") and text.lstrip()[0] in "{["):
        return _parse_json(text, called)
    if len(data) > YAML_BYTES_MAX:
        limit, hint = f"{YAML_BYTES_MAX >> 20} MiB of YAML", f"JSON may be up to {JSON_BYTES_MAX >> 20} MiB"
        raise UsageError(f"{called} is larger than {limit}, which is as much as is read", hint)
    return _parse_yaml(text, called)


def _read_bytes(name: str) -> bytes:
    """Return all of a file, or so much that it is too much."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            return file.read(JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"file {name} does not exist", _FORMS_HINT) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{'stdin' if name == '-' else f'file {name!r}'} cannot be read: {why}") from None


def _decode_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        at = f"line {line}, column {column}"
        raise UsageError(f"{name} is no text: {at}: byte 0x{data[error.start]:02x} is no UTF-8") from None


def _parse_json(text: str, name: str) -> Any:
    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UsageError(f"{name}: the key {twice!r} stands twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        raise UsageError(f"{name} is no JSON: line {error.lineno}, column {error.colno}: {what}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError:  # Python parses no number of more than 4,300 digits
        raise UsageError(f"{name} holds a number with thousands of digits") from None


def _parse_yaml(text: str, name: str) -> Any:
    try:
        import yaml
    except ImportError:
        hint = "pip install pyyaml, or write it as JSON"
        raise UsageError(f"{name} is read as YAML, for which PyYAML is missing", hint) from None
    loader, depth = _make_loader(yaml), 0
    try:
        for event in yaml.parse(text, loader):  # libyaml's composer overflows the C stack of a deep document
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise UsageError(f"{name} is nested too deeply")
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UsageError(f"{name} is no YAML that can be used: {place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        at = getattr(error, "position", 0) or 0
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        why = str(getattr(error, "reason", error))
        raise UsageError(f"{name} is no YAML: line {line}, column {column}: {why}") from None
    except (MemoryError, RecursionError):
        raise UsageError(f"{name} is nested too deeply") from None


def _make_loader(yaml: Any) -> Any:
    """Return PyYAML's safe loader, which here refuses what it would take in silence: a key that is there twice."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=True)  # which refuses an alias inside what it names
            except (ValueError, LookupError, TypeError, AttributeError):  # a date with a month 99; "!!bool x"
                raise _fail(node, "this value cannot be read") from None

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for key, value in node.value:
                if key.tag != "tag:yaml.org,2002:str":
                    raise _fail(key, "a key must be text, and << is not supported")
                if key.value in found:
                    raise _fail(key, f"the key {key.value!r} stands twice in one mapping")
                found[key.value] = self.construct_object(value)
            return found

    def _fail(node: Any, what: str) -> Exception:
        error: Exception = yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        return error

    return Loader
