"""A run as JSON, with one schema for programs and for the page.

The fields are those of `RunView`. A reason is its sentence, with its kind beside it, and a time is a text in RFC 3339,
null if unknown. Fields are added without notice; `schema` is raised when one gets another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from launcher.locality.merge import order_known_levels
from launcher.model.console import format_time
from launcher.model.errors import describe
from launcher.views.run_view import NodeView, RankView, RunView
from launcher.views.sentences import format_headline
from rendezvous.reasons import Reason

_TIME_MAX = 1e11
"""Seconds since 1970: a later one was not written by an agent."""
_OF_AGENTS = ("run", "last")
"""Fields of a node that the run has, too."""
_PLAIN = (str, int, bool)
_REASONS = ("reason", "stop_reason", "ended", "why", "failure_class")


def encode_run(run: RunView, *, has_rows: bool = False) -> dict[str, Any]:
    """Return the run as values for JSON. `has_rows`: each rank as a row of its fields, which is shorter."""
    levels = order_known_levels(node.locality for node in run.nodes)
    return {"schema": run.schema, "now": format_headline(run), "levels": levels, **encode(run, has_rows=has_rows)}


def encode(value: Any, name: str = "", *, has_rows: bool = False) -> Any:
    """Return a record, or a field of this name, as values for JSON."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Reason):
        return describe(value)
    if isinstance(value, Struct):
        fields = {}
        left_out = _OF_AGENTS if isinstance(value, NodeView) else ()
        for name in value.__struct_fields__:
            if name in left_out:
                continue
            one = getattr(value, name)
            fields[name] = encode(one, name, has_rows=has_rows)
            if name in _REASONS and not isinstance(one, str):
                fields[name] = describe(one)
                fields[f"{name}_kind"] = "" if one is None else one.kind
        return fields
    if name == "locality":
        return dict(value)
    if isinstance(value, (tuple, list)):
        if has_rows and value and isinstance(value[0], RankView):
            return value
        return [encode(one, has_rows=has_rows) for one in value]
    if isinstance(value, Mapping):
        return {key: encode(one, key) for key, one in value.items()}
    if (name == "at" or name.endswith("_at")) and isinstance(value, (int, float)):
        return format_time(value) if 0 < value < _TIME_MAX else None
    return value
