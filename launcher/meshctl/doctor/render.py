"""Renders the examination as text, 80 columns, no colours: in brief, or all of it.

In brief the verdict is the first line, the warnings follow, the worst first, and then the few facts that differ from
machine to machine. All of it is long, and users read the end first, since that remains on the screen: there the
warnings and the verdict are the last lines. A name that is longer than its column has a line for
itself, so that nothing after it moves.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.meshctl.doctor.checks import LEVEL_LABELS
from launcher.meshctl.table import pad
from launcher.model.text import WIDTH, format_bytes, format_number

_VALUE_COLUMN = 26  # where values begin: the longest name of an option fits
_ORIGIN_COLUMN = 46  # where the origins of values begin


def render_brief(found: Mapping[str, Any]) -> str:
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
    lines += ["", "--all shows every option with its origin, this machine, its network, and more"]
    return "\n".join(line.rstrip() for line in lines)


def render_text(found: Mapping[str, Any]) -> str:
    """Render all of it."""
    lines = [*_format_head(found)]
    for heading, part in _format_parts(found):
        lines += ["", heading, *part]
    for finding in reversed(found["findings"]):  # the worst last, where users read first
        lines += ["", *_format_finding(finding)]
    lines += ["", f"verdict: {found['verdict']['sentence']}"]
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
    yield from _wrap(value, pad(start, len(others)), others)
    if origin:
        yield from _wrap(origin, " " * min(_ORIGIN_COLUMN, max(_VALUE_COLUMN + 2, WIDTH - len(origin))))


def _wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    """Wrap the text to at most 80 columns; a longer word is not split, so that it can be copied."""
    rest = first if rest is None else rest
    wrapper = textwrap.TextWrapper(
        WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [first]


def _format_head(found: Mapping[str, Any]) -> Iterator[str]:
    python, workers = found["python"], found["workers"]
    yield f"meshrun {found['meshrun']}, Python {python['version']}"
    yield from format_row("agent's Python", python["agent"])
    yield from format_row("workers' Python", python["workers"])
    start = "a run would start" if workers["count"] else "a run would not start"
    yield from _wrap(f"{start}: {workers['reason']}", "")


def _format_parts(found: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    options, secrets = found["options"], found["secrets"]
    given = {name for name, value in options.items() if value["origin"] != "default"}
    rows = {name: (name, value["value"] or "-", value["origin"]) for name, value in options.items()}
    yield "options at their defaults", _format_rows(rows[name][:2] for name in rows if name not in given)
    yield "options given", [*_format_rows(rows[name] for name in rows if name in given)] or ["  none"]
    secret_rows = ((name, f"set by {variable}") for name, variable in secrets.items())
    yield "secrets (their values are not shown)", [*_format_rows(secret_rows)] or ["  none"]
    yield "job controller", _format_scheduler(found["controller"])
    yield "devices", _format_devices(found["devices"])
    if found["tpu_slice"] is not None:
        yield "TPU slice", _format_slice(found["tpu_slice"])
    yield "frameworks", _format_frameworks(found)
    yield "network location", _format_locality(found["locality"])
    yield "this machine", _format_machine(found["machine"])
    yield "network", _format_network(found["network"])
    yield "store", _format_store(found["store"])


def _format_rows(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield from format_row(*row)


def _format_scheduler(controller: Mapping[str, Any] | None) -> Iterator[str]:
    if controller is None:
        yield "  none is recognised"
        return
    yield from _wrap(f"{controller['name']}, by {', '.join(controller['known_by'])}", "  ")
    yield from _wrap(controller["reason"], "  ")
    for name, said in controller["says"].items():
        yield from format_row(name, said["value"], said["origin"] if said["unused"] else f"{said['origin']}, used")
        if said["unused"]:
            yield from _wrap(f"not used: {said['unused']}", " " * (_VALUE_COLUMN + 2))


def _format_devices(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    margin = " " * _VALUE_COLUMN
    for kind in devices:
        yield from format_row(kind["kind"], f"{kind['count']}: {kind['reason']}")
        if kind["kind"] == "cpu":
            continue
        for device in kind["devices"]:
            fabric, node = device["domain"] and f"fabric {device['domain']}", device["numa_node"]
            more = (device["model"], fabric, "" if node is None else f"NUMA node {node}")
            text = ", ".join((f"{device['index']}: {device['id']}", *filter(None, more)))
            yield from _wrap(text, margin, f"{margin}   ")
        if kind["visible_by"] and kind["count"]:
            yield from _wrap(f"each worker's are selected by {kind['visible_by']}", margin)


def _format_slice(found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield from format_row(name.replace("_", " "), "-" if shown in (None, "") else str(shown))


def _format_frameworks(found: Mapping[str, Any]) -> Iterator[str]:
    for name, framework in found["frameworks"].items():
        is_found = {True: "found", False: "not found", None: "cannot be determined"}[framework["found"]]
        yield from format_row(name, framework["version"] or is_found)
    yield from format_row("variables are for", ", ".join(found["framework"]["names"]))
    yield from _wrap(found["framework"]["reason"], " " * _VALUE_COLUMN)


def _format_locality(locality: Mapping[str, Any]) -> Iterator[str]:
    for level in locality["levels"]:
        yield from format_row(level["name"], level["domain"], level["origin"])
    if not locality["levels"]:
        yield from _wrap(locality["reason"], "  ")
    for looked in locality["looked"]:
        yield from format_row(f"asked: {looked['source']}", looked["reason"])
    if locality["no_sign_of"]:
        yield from format_row("no sign here of", ", ".join(locality["no_sign_of"]))
    for remark in locality["remarks"]:
        yield from _wrap(remark, "  note: ", "        ")


def _format_machine(machine: Mapping[str, Any]) -> Iterator[str]:
    quota, limit, limits = machine["cpu_quota"], machine["memory_limit"], machine["limits"]
    cpus = f"{machine['cpus']} in this process's affinity set"
    if quota:
        cpus += f", a quota of {format_number(quota['most'])} ({quota['origin']})"
    yield from format_row("CPUs", cpus)
    for node in machine["numa_nodes"]:
        yield from format_row(f"NUMA node {node['node']}", f"CPUs {node['cpus'] or 'none'}")
    if machine["memory"] is not None:
        memory = format_bytes(machine["memory"])
        if limit:
            memory += f"; {format_bytes(limit['most'])} allowed, {format_bytes(limit['used'])} used ({limit['origin']})"
        yield from format_row("memory", memory)
    if machine["shared_memory"] is not None:
        yield from format_row(machine["shared_memory"]["path"], _format_space(machine["shared_memory"]))
    if machine["logs"] is not None:
        yield from format_row("log directory", machine["logs"]["path"])
        yield from format_row("", _format_space(machine["logs"]))
    for name, format_value in (("open_files", format_number), ("locked_memory", format_bytes)):
        soft, hard = ("no limit" if value is None else format_value(value) for value in limits[name].values())
        yield from format_row(name.replace("_", " "), soft if soft == hard else f"{soft}, may be raised to {hard}")
    if count := limits["processes"]:
        taken = f"{format_number(count['used'])} of {format_number(count['most'])}"
        yield from format_row("processes", f"{taken} ({count['origin']})")


def _format_space(space: Mapping[str, Any]) -> str:
    amiss: str = space["amiss"]
    return amiss or f"{format_bytes(space['free'])} of {format_bytes(space['size'])} are free"


def _format_network(network: Mapping[str, Any]) -> Iterator[str]:
    for interface in network["interfaces"]:
        if not interface["is_up"] and not interface["addresses"]:
            continue
        words = [*interface["addresses"]] or ["no address"]
        words += [] if interface["is_up"] else ["down"]
        words += [f"MTU {interface['mtu']}"] if interface["mtu"] else []
        words += [f"{format_number(interface['speed_mbit'] / 1000)} Gbit/s"] if interface["speed_mbit"] else []
        yield from format_row(interface["name"], ", ".join(words))
    for device in network["rdma_devices"]:
        yield from format_row(device, "InfiniBand or RoCE")
    yield from format_row("this node's address", f"{network['address'] or 'none'}: {network['reason']}")


def _format_store(store: Mapping[str, Any] | None) -> Iterator[str]:
    if store is None:
        yield "  none is needed: this run has one node"
        return
    what = "etcd" if store["kind"] == "etcd" else "served by an agent"
    yield from format_row(what, ", ".join(store["endpoints"]) + (", by TLS" if store["tls"] else ""))
    if store["served_by"]:
        yield from format_row("served by", store["served_by"])
    took = f" ({format_number(store['seconds'] * 1000)} ms)" if store["state"] == "answers" else ""
    yield from format_row(store["state"], store["sentence"] + took)


def _format_finding(finding: Mapping[str, Any]) -> Iterator[str]:
    yield from _wrap(finding["seen"], f"{LEVEL_LABELS[finding['level']]}: ", "  ")
    for label, key in (("why", "harm"), ("do", "remedy")):
        if finding[key]:
            yield from _wrap(finding[key], f"  {label}: ", "    ")
