"""The examination as text for people: 80 columns, no colours, the warnings and the verdict last.

Whoever runs this reads the end first, since that is what is left on the screen. A name that is longer than its column
takes a line for itself, so that nothing behind it moves.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.doctor.findings import WORDS
from launcher.doctor.sizes import bytes_words, number

WIDTH = 80
_NAME = 26  # where values begin: the longest name of an option fits
_ORIGIN = 46  # where the origins of values begin


def text(found: Mapping[str, Any]) -> str:
    """The whole of it; with an `environment` of a worker that alone, for it is long."""
    lines = [*_head(found)]
    if found["environment"] is not None:
        lines += _environment(found["environment"])
    else:
        for heading, part in _parts(found):
            lines += ["", heading, *part]
    lines += _findings(found["findings"])
    lines += ["", f"verdict: {found['verdict']['sentence']}"]
    return "\n".join(line.rstrip() for line in lines)


def row(name: str, value: str, origin: str = "") -> Iterator[str]:
    """A name, its value, and where that comes from; each in its column."""
    start, others = f"  {name}", " " * _NAME
    if any(len(word) > WIDTH - _NAME for word in value.split()):
        others = " " * 4  # it has the line for itself
    if len(start) >= _NAME or len(others) < _NAME:
        yield start
        start = ""
    fits = _NAME + len(value) < _ORIGIN and _ORIGIN + len(origin) <= WIDTH
    if origin and fits:
        yield f"{start:<{_NAME}}{value:<{_ORIGIN - _NAME}}{origin}"
        return
    yield from _wrapped(value, f"{start:<{len(others)}}", others)
    if origin:
        yield from _wrapped(origin, " " * min(_ORIGIN, max(_NAME + 2, WIDTH - len(origin))))


def _wrapped(text: str, first: str, others: str | None = None) -> list[str]:
    """The text in lines of at most 80 columns; a word that is longer is not torn, so that it can be copied."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if others is None else others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def _head(found: Mapping[str, Any]) -> Iterator[str]:
    python, workers = found["python"], found["workers"]
    yield f"meshrun {found['meshrun']}, Python {python['version']}"
    yield from row("agent's Python", python["agent"])
    yield from row("workers' Python", python["workers"])
    start = "a run would start" if workers["count"] else "a run would not start"
    yield from _wrapped(f"{start}: {workers['reason']}", "")


def _parts(found: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    yield "options at their defaults", _defaults(found["options"])
    yield "options given", _options(found["options"])
    yield "secrets (their values are not shown)", _secrets(found["secrets"])
    yield "job controller", _controller(found["controller"])
    yield "devices", _devices(found["devices"])
    if found["tpu_slice"] is not None:
        yield "TPU slice", _pairs(found["tpu_slice"])
    yield "frameworks", _frameworks(found)
    yield "where this node stands", _locality(found["locality"])
    yield "this machine", _machine(found["machine"])
    yield "network", _network(found["network"])
    yield "store", _store(found["store"])


def _defaults(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value["origin"] == "default":
            yield from row(name, value["value"] or "-")


def _options(options: Mapping[str, Any]) -> Iterator[str]:
    given = {name: value for name, value in options.items() if value["origin"] != "default"}
    for name, value in given.items():
        yield from row(name, value["value"] or "-", value["origin"])
    if not given:
        yield "  none"


def _secrets(secrets: Mapping[str, str]) -> Iterator[str]:
    for name, variable in secrets.items():
        yield from row(name, f"given by {variable}")
    if not secrets:
        yield "  none"


def _controller(controller: Mapping[str, Any] | None) -> Iterator[str]:
    if controller is None:
        yield "  none is recognised"
        return
    yield from _wrapped(f"{controller['name']}, by {', '.join(controller['known_by'])}", "  ")
    yield from _wrapped(controller["reason"], "  ")
    for name, said in controller["says"].items():
        yield from row(name, said["value"], said["origin"] if said["unused"] else f"{said['origin']}, used")
        if said["unused"]:
            yield from _wrapped(f"not used: {said['unused']}", " " * (_NAME + 2))


def _devices(devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for kind in devices:
        yield from row(kind["kind"], f"{kind['count']}: {kind['reason']}")
        if kind["kind"] == "cpu":
            continue
        for device in kind["devices"]:
            more = [device["model"], device["domain"] and f"fabric {device['domain']}"]
            if device["numa_node"] is not None:
                more.append(f"NUMA node {device['numa_node']}")
            yield from _wrapped(
                ", ".join((f"{device['index']}: {device['id']}", *filter(None, more))), " " * _NAME, " " * (_NAME + 3)
            )
        if kind["visible_by"] and kind["count"]:
            yield from _wrapped(f"a worker's own are chosen by {kind['visible_by']}", " " * _NAME)


def _frameworks(found: Mapping[str, Any]) -> Iterator[str]:
    for name, framework in found["frameworks"].items():
        is_found = {True: "found", False: "not found", None: "nobody can see whether it is there"}[framework["found"]]
        yield from row(name, framework["version"] or is_found)
    choice = found["framework"]
    yield from row("variables are for", ", ".join(choice["names"]))
    yield from _wrapped(choice["reason"], " " * _NAME)


def _locality(locality: Mapping[str, Any]) -> Iterator[str]:
    for level in locality["levels"]:
        yield from row(level["name"], level["domain"], level["origin"])
    if not locality["levels"]:
        yield from _wrapped(locality["reason"], "  ")
    for looked in locality["looked"]:
        yield from row(f"asked: {looked['source']}", looked["reason"])
    if locality["no_sign_of"]:
        yield from row("no sign here of", ", ".join(locality["no_sign_of"]))
    for remark in locality["remarks"]:
        yield from _wrapped(remark, "  note: ", "        ")


def _machine(machine: Mapping[str, Any]) -> Iterator[str]:
    quota, limit = machine["cpu_quota"], machine["memory_limit"]
    cpus = f"{machine['cpus']} in this process's affinity set"
    if quota:
        cpus += f", a quota of {number(quota['most'])} ({quota['origin']})"
    yield from row("CPUs", cpus)
    for node in machine["numa_nodes"]:
        yield from row(f"NUMA node {node['node']}", f"CPUs {node['cpus'] or 'none'}")
    if machine["memory"] is not None:
        memory = bytes_words(machine["memory"])
        if limit:
            memory += f"; {bytes_words(limit['most'])} allowed, {bytes_words(limit['used'])} used ({limit['origin']})"
        yield from row("memory", memory)
    for name in ("shared_memory", "logs"):
        if (space := machine[name]) is not None:
            free = space["amiss"] or f"{bytes_words(space['free'])} of {bytes_words(space['size'])} are free"
            yield from row(
                "logs would lie in" if name == "logs" else space["path"], space["path"] if name == "logs" else free
            )
            if name == "logs":
                yield from row("", free)
    limits = machine["limits"]
    yield from row("open files", _limit(limits["open_files"]))
    yield from row("locked memory", _limit(limits["locked_memory"], is_bytes=True))
    if limits["processes"]:
        bound = limits["processes"]
        yield from row("processes", f"{number(bound['used'])} of {number(bound['most'])} ({bound['origin']})")


def _limit(limit: Mapping[str, int | None], *, is_bytes: bool = False) -> str:
    soft, hard = (
        "no limit" if value is None else bytes_words(value) if is_bytes else number(value)
        for value in (limit["soft"], limit["hard"])
    )
    return soft if soft == hard else f"{soft}, may be raised to {hard}"


def _network(network: Mapping[str, Any]) -> Iterator[str]:
    for interface in network["interfaces"]:
        if not interface["is_up"] and not interface["addresses"]:
            continue
        words = [*interface["addresses"]] or ["no address"]
        if not interface["is_up"]:
            words.append("down")
        if interface["mtu"]:
            words.append(f"MTU {interface['mtu']}")
        if interface["speed_mbit"]:
            words.append(f"{number(interface['speed_mbit'] / 1000)} Gbit/s")
        yield from row(interface["name"], ", ".join(words))
    for device in network["rdma_devices"]:
        yield from row(device, "InfiniBand, RoCE or the like")
    yield from row("this node's address", f"{network['address'] or 'none'}: {network['reason']}")


def _store(store: Mapping[str, Any] | None) -> Iterator[str]:
    if store is None:
        yield "  none is needed: this run meets no other node"
        return
    what = "etcd" if store["kind"] == "etcd" else "served by an agent"
    yield from row(what, ", ".join(store["endpoints"]) + (", by TLS" if store["tls"] else ""))
    if store["served_by"]:
        yield from row("who serves it", store["served_by"])
    took = f" ({number(store['seconds'] * 1000)} ms)" if store["state"] == "answers" else ""
    yield from row(store["state"], store["sentence"] + took)


def _environment(shown: Mapping[str, Any]) -> Iterator[str]:
    many = "1 node" if shown["nodes"] == 1 else f"{shown['nodes']} nodes like this one"
    yield ""
    yield from _wrapped(
        f"environment of rank {shown['rank']} of {shown['world_size']} on {many}: local rank {shown['local_rank']} "
        f"of node {shown['node']}. Beside what is listed a worker inherits what this process has.",
        "",
    )
    yield from ("", "added")
    for name, value in shown["added"].items():
        yield _one_line(f"  {name}={value}")
    if shown["changed"]:
        yield from ("", "changed")
    for name, change in shown["changed"].items():
        yield _one_line(f"  {name}={change['to']}")
        yield f"    here it is {change['from']!r}"
    if shown["unset"]:
        yield from ("", "not inherited")
        yield from _wrapped(", ".join(shown["unset"]), "  ")


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield from row(name.replace("_", " "), "-" if shown in (None, "") else str(shown))


def _findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The worst last, where it is read first."""
    for finding in reversed(findings):
        yield ""
        yield from _wrapped(finding["seen"], f"{WORDS[finding['level']]}: ", "  ")
        for label, key in (("why", "harm"), ("do", "remedy")):
            if finding[key]:
                yield from _wrapped(finding[key], f"  {label}: ", "    ")
