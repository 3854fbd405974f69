"""Merges a scheduler's values with the options that the user has set.

A number of nodes, an endpoint and a rank belong together, so an option that is set disables others. With --standalone,
one node or an address of this machine alone, the environment's other nodes do not count. With another number of nodes
the user means other nodes, which still meet at the scheduler's endpoint. With an endpoint or a backend, the scheduler's
endpoint is unused; its number and rank still apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import DetectedValue, Value
from rendezvous.stores.addresses import split_address

NO_MASTER_ADDRESS = "nothing says where node 0 is"


class MergedDetection(NamedTuple):
    """`values`: used, option -> value. `unused`: option -> why it is not used."""

    values: Mapping[str, DetectedValue]
    unused: Mapping[str, str]


def merge_detected(found: Mapping[str, DetectedValue], options: Mapping[str, Value]) -> MergedDetection:
    """`found`: a detection's values; `options`: the user's, without them."""
    if why := _explain_alone(options) or _explain_unknown_count(found, options):
        return MergedDetection({}, dict.fromkeys(found, why))
    unused = {name: f"{options[name]} is given" for name in found if not options[name].is_default}
    values = {name: value for name, value in found.items() if name not in unused}
    is_static, why = _choose_rendezvous(values, options)
    if why:
        place = values.pop("rdzv-endpoint", None)
        values.pop("rdzv-backend", None)
        unused |= {name: why for name in ("rdzv-backend", "rdzv-endpoint") if name in found and name not in unused}
        if is_static and place is not None and not _has_master(options):
            values["master-addr"] = DetectedValue(split_address(place.text)[0], place.origin)
    if "node-rank" in values and (why := _explain_missing_rank(values, options, is_static)):
        del values["node-rank"]
        unused["node-rank"] = why
    count = values.get("nnodes")
    if count is not None and not is_static and not options["mesh"].is_default:
        # The mesh decides what is valid: all present nodes at the start, and fewer when some are lost.
        values["nnodes"] = DetectedValue(f"1:{count.text}", count.origin)
        if options["target-nodes"].is_default:
            values["target-nodes"] = count
    return MergedDetection(values, unused)


def _explain_alone(options: Mapping[str, Value]) -> str:
    """Return the option that excludes other nodes, as a reason; "" if none does."""
    nodes, endpoint, master = options["nnodes"], options["rdzv-endpoint"], options["master-addr"]
    if options["standalone"].text == "1":
        return f"{options['standalone']} is one node"
    if not nodes.is_default:
        return f"{nodes} is one node" if set(nodes.text.replace(" ", "").split(":")) == {"1"} else ""
    for value in (endpoint, master):
        if not value.is_default and _is_local(value.text):
            return f"{value} is a place of this machine alone"
    return ""


def _explain_unknown_count(found: Mapping[str, DetectedValue], options: Mapping[str, Value]) -> str:
    if "nnodes" in found or not options["nnodes"].is_default:
        return ""
    return "nothing says how many nodes there are"


def _choose_rendezvous(values: Mapping[str, DetectedValue], options: Mapping[str, Value]) -> tuple[bool, str]:
    """Whether the nodes use torchrun's static rendezvous; and why not at the endpoint in `values`, "" if they do."""
    backend, endpoint = options["rdzv-backend"], options["rdzv-endpoint"]
    masters = [str(value) for value in (options["master-addr"], options["master-port"]) if not value.is_default]
    is_static = backend.text == "static"
    if not endpoint.is_default:
        return is_static and "://" not in endpoint.text, f"{endpoint} is given"
    if not backend.is_default:
        return is_static, "" if backend.text == "c10d" else f"{backend} is given"
    if masters:
        return True, f"{masters[0]} is given"
    return "rdzv-endpoint" not in values, ""


def _has_master(options: Mapping[str, Value]) -> bool:
    return not (options["master-addr"].is_default and options["rdzv-endpoint"].is_default)


def _explain_missing_rank(values: Mapping[str, DetectedValue], options: Mapping[str, Value], is_static: bool) -> str:
    if not is_static:
        return "" if "rdzv-endpoint" in values else "the nodes find their order in the store"
    return "" if "master-addr" in values or _has_master(options) else NO_MASTER_ADDRESS


def _is_local(text: str) -> bool:
    """Whether addresses are only this machine's: loopback, or a port that no other node can know."""
    return all(map(_is_local_address, text.rpartition("://")[2].split(",")))


def _is_local_address(text: str) -> bool:
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # no port after it
        host, port = text.strip(), ""
    host = host.strip("[]")
    return port == "0" or host in ("localhost", "::1") or host.startswith("127.")
