"""Renders the examination as text: 80 columns, no colours, the warnings and the verdict last.

Users read the end first, since that remains on the screen. A name that is longer than its column has a line for
itself, so that nothing after it moves.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.meshctl.doctor.findings import LEVEL_LABELS
from launcher.model.text import format_bytes, format_number

WIDTH = 80
_VALUE_COLUMN = 26  # where values begin: the longest name of an option fits
_ORIGIN_COLUMN = 46  # where the origins of values begin


def render_text(found: Mapping[str, Any]) -> str:
    """Render all of it; with an `environment` of a worker only that, since it is long."""
    lines = [*_format_head(found)]
    if found["environment"] is not None:
        lines += _format_environment(found["environment"])
    else:
        for heading, part in _format_parts(found):
            lines += ["", heading, *part]
    lines += _format_findings(found["findings"])
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
        yield f"{start:<{_VALUE_COLUMN}}{value:<{_ORIGIN_COLUMN - _VALUE_COLUMN}}{origin}"
        return
    yield from _wrap(value, f"{start:<{len(others)}}", others)
    if origin:
        yield from _wrap(origin, " " * min(_ORIGIN_COLUMN, max(_VALUE_COLUMN + 2, WIDTH - len(origin))))


def _wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    """Wrap the text to at most 80 columns; a longer word is not split, so that it can be copied."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def _format_head(found: Mapping[str, Any]) -> Iterator[str]:
    python, workers = found["python"], found["workers"]
    yield f"meshrun {found['meshrun']}, Python {python['version']}"
    yield from format_row("agent's Python", python["agent"])
    yield from format_row("workers' Python", python["workers"])
    start = "a run would start" if workers["count"] else "a run would not start"
    yield from _wrap(f"{start}: {workers['reason']}", "")


def _format_parts(found: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    yield "options at their defaults", _format_defaults(found["options"])
    yield "options given", _format_options(found["options"])
    yield "secrets (their values are not shown)", _format_secrets(found["secrets"])
    yield "job controller", _format_scheduler(found["controller"])
    yield "devices", _format_devices(found["devices"])
    if found["tpu_slice"] is not None:
        yield "TPU slice", _format_pairs(found["tpu_slice"])
    yield "frameworks", _format_frameworks(found)
    yield "where this node stands", _format_locality(found["locality"])
    yield "this machine", _format_machine(found["machine"])
    yield "network", _format_network(found["network"])
    yield "store", _format_store(found["store"])


def _format_defaults(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value["origin"] == "default":
            yield from format_row(name, value["value"] or "-")


def _format_options(options: Mapping[str, Any]) -> Iterator[str]:
    given = {name: value for name, value in options.items() if value["origin"] != "default"}
    for name, value in given.items():
        yield from format_row(name, value["value"] or "-", value["origin"])
    if not given:
        yield "  none"


def _format_secrets(secrets: Mapping[str, str]) -> Iterator[str]:
    for name, variable in secrets.items():
        yield from format_row(name, f"given by {variable}")
    if not secrets:
        yield "  none"


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
    for kind in devices:
        yield from format_row(kind["kind"], f"{kind['count']}: {kind['reason']}")
        if kind["kind"] == "cpu":
            continue
        for device in kind["devices"]:
            more = [device["model"], device["domain"] and f"fabric {device['domain']}"]
            if device["numa_node"] is not None:
                more.append(f"NUMA node {device['numa_node']}")
            yield from _wrap(
                ", ".join((f"{device['index']}: {device['id']}", *filter(None, more))),
                " " * _VALUE_COLUMN,
                " " * (_VALUE_COLUMN + 3),
            )
        if kind["visible_by"] and kind["count"]:
            yield from _wrap(f"a worker's own are chosen by {kind['visible_by']}", " " * _VALUE_COLUMN)


def _format_frameworks(found: Mapping[str, Any]) -> Iterator[str]:
    for name, framework in found["frameworks"].items():
        is_found = {True: "found", False: "not found", None: "nobody can see whether it is there"}[framework["found"]]
        yield from format_row(name, framework["version"] or is_found)
    choice = found["framework"]
    yield from format_row("variables are for", ", ".join(choice["names"]))
    yield from _wrap(choice["reason"], " " * _VALUE_COLUMN)


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
    quota, limit = machine["cpu_quota"], machine["memory_limit"]
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
    for name in ("shared_memory", "logs"):
        if (space := machine[name]) is not None:
            free = space["amiss"] or f"{format_bytes(space['free'])} of {format_bytes(space['size'])} are free"
            yield from format_row(
                "logs would lie in" if name == "logs" else space["path"], space["path"] if name == "logs" else free
            )
            if name == "logs":
                yield from format_row("", free)
    limits = machine["limits"]
    yield from format_row("open files", _format_limit(limits["open_files"]))
    yield from format_row("locked memory", _format_limit(limits["locked_memory"], is_bytes=True))
    if limits["processes"]:
        bound = limits["processes"]
        yield from format_row(
            "processes", f"{format_number(bound['used'])} of {format_number(bound['most'])} ({bound['origin']})"
        )


def _format_limit(limit: Mapping[str, int | None], *, is_bytes: bool = False) -> str:
    soft, hard = (
        "no limit" if value is None else format_bytes(value) if is_bytes else format_number(value)
        for value in (limit["soft"], limit["hard"])
    )
    return soft if soft == hard else f"{soft}, may be raised to {hard}"


def _format_network(network: Mapping[str, Any]) -> Iterator[str]:
    for interface in network["interfaces"]:
        if not interface["is_up"] and not interface["addresses"]:
            continue
        words = [*interface["addresses"]] or ["no address"]
        if not interface["is_up"]:
            words.append("down")
        if interface["mtu"]:
            words.append(f"MTU {interface['mtu']}")
        if interface["speed_mbit"]:
            words.append(f"{format_number(interface['speed_mbit'] / 1000)} Gbit/s")
        yield from format_row(interface["name"], ", ".join(words))
    for device in network["rdma_devices"]:
        yield from format_row(device, "InfiniBand, RoCE or the like")
    yield from format_row("this node's address", f"{network['address'] or 'none'}: {network['reason']}")


def _format_store(store: Mapping[str, Any] | None) -> Iterator[str]:
    if store is None:
        yield "  none is needed: this run meets no other node"
        return
    what = "etcd" if store["kind"] == "etcd" else "served by an agent"
    yield from format_row(what, ", ".join(store["endpoints"]) + (", by TLS" if store["tls"] else ""))
    if store["served_by"]:
        yield from format_row("who serves it", store["served_by"])
    took = f" ({format_number(store['seconds'] * 1000)} ms)" if store["state"] == "answers" else ""
    yield from format_row(store["state"], store["sentence"] + took)


def _format_environment(changes: Mapping[str, Any]) -> Iterator[str]:
    many = "1 node" if changes["nodes"] == 1 else f"{changes['nodes']} nodes like this one"
    yield ""
    yield from _wrap(
        f"environment of rank {changes['rank']} of {changes['world_size']} on {many}: local rank "
        f"{changes['local_rank']} "
        f"of node {changes['node']}. Beside what is listed a worker inherits what this process has.",
        "",
    )
    yield from ("", "added")
    for name, value in changes["added"].items():
        yield _escape_newlines(f"  {name}={value}")
    if changes["changed"]:
        yield from ("", "changed")
    for name, change in changes["changed"].items():
        yield _escape_newlines(f"  {name}={change['to']}")
        yield f"    here it is {change['from']!r}"
    if changes["unset"]:
        yield from ("", "not inherited")
        yield from _wrap(", ".join(changes["unset"]), "  ")


def _escape_newlines(text: str) -> str:
    return text.replace("\n", "\\n")


def _format_pairs(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield from format_row(name.replace("_", " "), "-" if shown in (None, "") else str(shown))


def _format_findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The worst last, where users read first."""
    for finding in reversed(findings):
        yield ""
        yield from _wrap(finding["seen"], f"{LEVEL_LABELS[finding['level']]}: ", "  ")
        for label, key in (("why", "harm"), ("do", "remedy")):
            if finding[key]:
                yield from _wrap(finding[key], f"  {label}: ", "    ")
