"""Small checks of values in a user's file, and their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from reprlib import Repr
from typing import Any, TypeGuard

from launcher.config.options.command_line import suggest
from launcher.model.errors import UsageError

_short_repr = Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = 60
_short_repr.maxlist = 8


def is_name(value: object) -> TypeGuard[str]:
    """Whether it is text that a sentence and a table can contain."""
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable() and value.strip() == value


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_known(values: Mapping[Any, Any], keys: Iterable[str], where: str) -> None:
    """Raise UsageError for a key that is not in `keys`."""
    names = {key: repr(key) for key in keys}
    for key in values:
        if key not in names:
            question = suggest(str(key)[:60], names) or f"the keys are {', '.join(names)}"
            raise UsageError(f"{where}: unknown key {format_value(key)}", question)


def describe_kind(value: object) -> str:
    """Describe the kind of a value, for a sentence: "nodes is a list"."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return format_value(value)


def format_value(value: object) -> str:
    """Format the value for a sentence: shortened where a file is not what the user meant."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]  # as the file has them, not as Python does
    try:
        return _short_repr.repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number with thousands of digits"
