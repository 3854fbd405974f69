"""Renders the examination as text, 80 columns, no colours; all of it is in the JSON.

The verdict is the first line, the warnings follow, the worst first, and then the few facts that differ from machine to
machine. A name that is longer than its column has a line for itself, so that nothing after it moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.meshctl.doctor.checks import LEVEL_LABELS
from launcher.meshctl.table import pad
from launcher.model.text import WIDTH, format_number, wrap

_VALUE_COLUMN = 26  # where values begin: the longest name of an option fits
_ORIGIN_COLUMN = 46  # where the origins of values begin


def render_text(found: Mapping[str, Any]) -> str:
    """Render the verdict, the findings, and what was given or found here."""
    findings, store = found["findings"], found["store"]
    lines = [f"verdict: {found['verdict']['sentence']}"]
    for finding in findings:
        lines += ["", *_format_finding(finding)]
    lines += ["", *_format_head(found)]
    options = found["options"].items()
    given = [(name, value["value"] or "-", value["origin"]) for name, value in options if value["origin"] != "default"]
    secrets = [(name, f"set by {variable}") for name, variable in found["secrets"].items()]
    devices = [kind for kind in found["devices"] if kind["count"] and kind["kind"] != "cpu"]
    parts: dict[str, Iterable[str]] = {
        "options given": _format_rows(given),
        "secrets (their values are not shown)": _format_rows(secrets),
        "job controller": _format_scheduler(found["controller"]) if found["controller"] else (),
        "devices": _format_rows((kind["kind"], f"{kind['count']}: {kind['reason']}") for kind in devices),
        "store": _format_store(store) if store and not any(one["check"] == "store" for one in findings) else (),
    }
    for heading, rows in parts.items():
        if shown := [*rows]:
            lines += ["", heading, *shown]
    lines += ["", "--json shows every option with its origin, this machine, its network, and more"]
    return "\n".join(line.rstrip() for line in lines)


def format_row(name: str, value: str, origin: str = "") -> Iterator[str]:
    """Format a name, its value, and its origin; each in its column."""
    start, others = f"  {name}", " " * _VALUE_COLUMN
    if any(len(word) > WIDTH - _VALUE_COLUMN for word in value.split()):
        others = " " * 4  # it has the line for itself
    if len(start) >= _VALUE_COLUMN or len(others) < _VALUE_COLUMN:
        yield start
        start = ""
    fits = _VALUE_COLUMN + len(value) < _ORIGIN_COLUMN and _ORIGIN_COLUMN + len(origin) <= WIDTH
    if origin and fits:
        yield pad(start, _VALUE_COLUMN) + pad(value, _ORIGIN_COLUMN - _VALUE_COLUMN) + origin
        return
    yield from wrap(value, pad(start, len(others)), others)
    if origin:
        yield from wrap(origin, " " * min(_ORIGIN_COLUMN, max(_VALUE_COLUMN + 2, WIDTH - len(origin))))


def _format_head(found: Mapping[str, Any]) -> Iterator[str]:
    python, workers = found["python"], found["workers"]
    yield f"meshrun {found['meshrun']}, Python {python['version']}"
    yield from format_row("agent's Python", python["agent"])
    yield from format_row("workers' Python", python["workers"])
    yield from format_row("stacks in a hang", found["hangs"]["stacks"])
    yield from format_row("collectives in a hang", found["hangs"]["collectives"])
    start = "a run would start" if workers["count"] else "a run would not start"
    yield from wrap(f"{start}: {workers['reason']}")


def _format_rows(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield from format_row(*row)


def _format_scheduler(controller: Mapping[str, Any]) -> Iterator[str]:
    yield from wrap(f"{controller['name']}, by {', '.join(controller['known_by'])}", "  ")
    yield from wrap(controller["reason"], "  ")
    for name, said in controller["says"].items():
        yield from format_row(name, said["value"], said["origin"] if said["unused"] else f"{said['origin']}, used")
        if said["unused"]:
            yield from wrap(f"not used: {said['unused']}", " " * (_VALUE_COLUMN + 2))


def _format_store(store: Mapping[str, Any]) -> Iterator[str]:
    what = "etcd" if store["kind"] == "etcd" else "served by an agent"
    yield from format_row(what, ", ".join(store["endpoints"]) + (", by TLS" if store["tls"] else ""))
    if store["served_by"]:
        yield from format_row("served by", store["served_by"])
    took = f" ({format_number(store['seconds'] * 1000)} ms)" if store["state"] == "answers" else ""
    yield from format_row(store["state"], store["sentence"] + took)


def _format_finding(finding: Mapping[str, Any]) -> Iterator[str]:
    yield from wrap(finding["seen"], f"{LEVEL_LABELS[finding['level']]}: ", "  ")
    for label, key in (("why", "harm"), ("do", "remedy")):
        if finding[key]:
            yield from wrap(finding[key], f"  {label}: ", "    ")
