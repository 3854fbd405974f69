"""What a cluster file wishes, as the texts that the flags of the command line take.

The file says it in keys and values, `"leave_cost": {"leaf": 2, "host": 1}`, the command line in words,
`--tolls leaf=2,host=1`. What a text means and whether it can be is decided in launcher.roster.demand for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.errors import UsageError
from launcher.preview.checks import kind, require_known, shown


def wishes(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """Name of a flag -> its text. Raises UsageError for a value of another shape than its key has."""
    found: dict[str, str] = {}
    for key, (flag, to_text) in _TO_TEXT.items():
        if values.get(key) is not None and (text := to_text(values[key], f"{name}: {key}")):
            found[flag] = text
    for flag, low, high in (("elastic", "elastic_min", "elastic_max"), ("nnodes", "nodes_min", "nodes_max")):
        if values.get(low) is not None or values.get(high) is not None:
            ends = [_word(values[key], f"{name}: {key}") if values.get(key) is not None else "" for key in (low, high)]
            found[flag] = f"{ends[0] or 1}:{ends[1]}"
    return found


def _word(value: Any, where: str) -> str:
    """A number or text as a flag would have it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UsageError(f"{where} is {kind(value)}, not a number")
    return str(value)


def _mesh(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    hint = '[["pp", 4], ["dp", "*"], ["tp", 8]]'
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} is {kind(value)}, not a list of axes", hint)
    for axis in value:
        if not isinstance(axis, list) or len(axis) != 2 or not isinstance(axis[0], str) or not axis[0].isidentifier():
            raise UsageError(f"{where}: {shown(axis)} is not a name and a size", hint)
    return ",".join(f"{axis[0]}={_word(axis[1], where)}" for axis in value)


def _pairs(value: Any, where: str) -> str:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {kind(value)}, not keys and values", '{"tp": "host"} or {"leaf": 2}')
    return ",".join(f"{key}={_word(each, f'{where}: {key}')}" for key, each in value.items())


def _whole(value: Any, where: str) -> str:
    hint = '{"level": "slice", "hosts": 4}'
    if not isinstance(value, dict) or "level" not in value:
        raise UsageError(f"{where} does not name a level", hint)
    require_known(value, ("level", "hosts"), where)
    hosts = f":{_word(value['hosts'], where)}" if value.get("hosts") is not None else ""
    return f"{_word(value['level'], where)}{hosts}"


def _comms(value: Any, where: str) -> str:
    hint = '[{"axes": ["tp"], "kind": "ring", "weight": 100}]'
    if not isinstance(value, list):
        raise UsageError(f"{where} is {kind(value)}, not a list", hint)
    parts = []
    for index, one in enumerate(value):
        here = f"{where}: number {index + 1}"
        if not isinstance(one, dict):
            raise UsageError(f"{here} is {kind(one)}, not keys and values", hint)
        require_known(one, ("axes", "kind", "weight"), here)
        axes = one.get("axes")
        if not isinstance(axes, list) or not axes or not all(isinstance(axis, str) for axis in axes):
            raise UsageError(f"{here} has the axes {shown(axes)}, not a list of names", hint)
        if "weight" not in one:
            raise UsageError(f"{here} has no weight", hint)
        pattern = f":{_word(one['kind'], here)}" if one.get("kind") is not None else ""
        parts.append(f"{'+'.join(axes)}={_word(one['weight'], here)}{pattern}")
    return ",".join(parts)


_TO_TEXT = {
    "mesh": ("mesh", _mesh),
    "comms": ("traffic", _comms),
    "leave_cost": ("tolls", _pairs),
    "within": ("within", _pairs),
    "whole": ("whole", _whole),
    "unit": ("unit", _word),
    "dp_min": ("dp-min", _word),
    "dp_max": ("dp-max", _word),
    "move_cost": ("move-cost", _word),
}
KEYS = (*_TO_TEXT, "elastic_min", "elastic_max", "nodes_min", "nodes_max")
"""The keys of a file that are wishes."""
