"""What the fields of a record may hold: types, ranges and words.

Another version, another program or somebody with bad intent may have written what is read, so nothing is believed
before it was checked. The types are named as in the records' annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

ROWS_MAX = 4096


def _is_number(value: object) -> bool:
    """A time in seconds that can be calculated with: JSON can bring infinity, no number, and 400 digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2.0**53


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _rows_of(*checks: Callable[[object], bool]) -> Callable[[object], bool]:
    """The check of a short table whose columns pass `checks`."""

    def is_row(row: object) -> bool:
        return isinstance(row, list) and len(row) == len(checks) and all(map(_holds, checks, row))

    return lambda value: isinstance(value, list) and len(value) <= ROWS_MAX and all(map(is_row, value))


def _holds(check: Callable[[object], bool], value: object) -> bool:
    return check(value)


# Annotations are strings here (from __future__ import annotations), so they can name the check of a field.
_TYPES: Mapping[str, Callable[[object], bool]] = {
    "str": _is_text,
    "int": _is_int,
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(map(_is_int, value)),
    "tuple[float, ...]": lambda value: isinstance(value, list) and all(_is_number(item) for item in value),
    "tuple[tuple[str, float], ...]": _rows_of(_is_text, _is_number),
    "tuple[tuple[str, int, float], ...]": _rows_of(_is_text, _is_int, _is_number),
}


_COUNT = range(2**53)
RANGES: Mapping[str, range] = {
    "round": _COUNT,
    "world_size": _COUNT,
    "node_count": _COUNT,
    "restart_count": _COUNT,
    "short_rounds": _COUNT,
    "provisional_round": _COUNT,
    "port_taken_rounds": _COUNT,
    "failed_revision": _COUNT,
    "saved_count": _COUNT,
    "rank": range(-1, 2**53),
    "worker_port": range(2**16),
    "exit_code": range(-255, 256),
    "leaving_exit_code": range(-255, 256),
}
WORDS: Mapping[str, tuple[str, ...]] = {
    "Stop.mode": ("kill", "grace"),
    "Status.outcome": ("", "succeeded", "failed"),
    "Verdict.kind": ("success", "failure", "stopped"),
}


def has_type(annotation: str, value: object) -> bool:
    """Whether a value from JSON is of the type that a field is annotated with."""
    return _TYPES[annotation](value)


def is_possible(kind: str, name: str, value: object) -> bool:
    """Whether a value of the right type can be what this field of this kind of record holds."""
    allowed = RANGES.get(name) or WORDS.get(f"{kind}.{name}")
    return allowed is None or value in allowed
