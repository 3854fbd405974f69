"""The options in a cluster file, as the texts that the flags of the command line accept.

The file has keys and values, `"leave_cost": {"leaf": 2, "host": 1}`, the command line text,
`--level-costs leaf=2,host=1`. launcher.placement.adapter.options parses the text of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.meshctl.plan.checks import describe_kind, format_value, require_known
from launcher.model.errors import UsageError


def read_options(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return name of a flag -> its text. Raises UsageError for a value of another type than its key requires."""
    found: dict[str, str] = {}
    for key, (flag, to_text) in _FORMATTERS.items():
        if values.get(key) is not None and (text := to_text(values[key], f"{name}: {key}")):
            found[flag] = text
    for flag, low, high in (("elastic", "elastic_min", "elastic_max"), ("nnodes", "nodes_min", "nodes_max")):
        if values.get(low) is not None or values.get(high) is not None:
            ends = [
                _format_scalar(values[key], f"{name}: {key}") if values.get(key) is not None else ""
                for key in (low, high)
            ]
            found[flag] = f"{ends[0] or 1}:{ends[1]}"
    return found


def _format_scalar(value: Any, where: str) -> str:
    """Format a number or text for a flag."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UsageError(f"{where} is {describe_kind(value)}, not a number")
    return str(value)


def _format_mesh(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    hint = '[["pp", 4], ["dp", "*"], ["tp", 8]]'
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} is {describe_kind(value)}, not a list of axes", hint)
    for axis in value:
        if not isinstance(axis, list) or len(axis) != 2 or not isinstance(axis[0], str) or not axis[0].isidentifier():
            raise UsageError(f"{where}: {format_value(axis)} is not a name and a size", hint)
    return ",".join(f"{axis[0]}={_format_scalar(axis[1], where)}" for axis in value)


def _format_pairs(value: Any, where: str) -> str:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {describe_kind(value)}, not keys and values", '{"tp": "host"} or {"leaf": 2}')
    return ",".join(f"{key}={_format_scalar(each, f'{where}: {key}')}" for key, each in value.items())


def _format_whole(value: Any, where: str) -> str:
    hint = '{"level": "slice", "hosts": 4}'
    if not isinstance(value, dict) or "level" not in value:
        raise UsageError(f"{where} does not name a level", hint)
    require_known(value, ("level", "hosts"), where)
    hosts = f":{_format_scalar(value['hosts'], where)}" if value.get("hosts") is not None else ""
    return f"{_format_scalar(value['level'], where)}{hosts}"


def _format_communicators(value: Any, where: str) -> str:
    hint = '[{"axes": ["tp"], "kind": "ring", "weight": 100}]'
    if not isinstance(value, list):
        raise UsageError(f"{where} is {describe_kind(value)}, not a list", hint)
    parts = []
    for index, one in enumerate(value):
        here = f"{where}: number {index + 1}"
        if not isinstance(one, dict):
            raise UsageError(f"{here} is {describe_kind(one)}, not keys and values", hint)
        require_known(one, ("axes", "kind", "weight"), here)
        axes = one.get("axes")
        if not isinstance(axes, list) or not axes or not all(isinstance(axis, str) for axis in axes):
            raise UsageError(f"{here} has the axes {format_value(axes)}, not a list of names", hint)
        if "weight" not in one:
            raise UsageError(f"{here} has no weight", hint)
        pattern = f":{_format_scalar(one['kind'], here)}" if one.get("kind") is not None else ""
        parts.append(f"{'+'.join(axes)}={_format_scalar(one['weight'], here)}{pattern}")
    return ",".join(parts)


_FORMATTERS = {
    "mesh": ("mesh", _format_mesh),
    "comms": ("traffic", _format_communicators),
    "leave_cost": ("level-costs", _format_pairs),
    "within": ("within", _format_pairs),
    "whole": ("whole", _format_whole),
    "unit": ("unit", _format_scalar),
    "dp_min": ("dp-min", _format_scalar),
    "dp_max": ("dp-max", _format_scalar),
    "move_cost": ("move-cost", _format_scalar),
}
OPTION_KEYS = (*_FORMATTERS, "elastic_min", "elastic_max", "nodes_min", "nodes_max")
"""The keys of a file that are options."""
