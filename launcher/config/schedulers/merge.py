"""What of a controller's story is used beside what people have given.

A number of nodes, a place to meet and a rank belong together, so an option that was given takes others with it. Who
says --standalone, one node or an address of this machine alone wants no company, whatever the environment says. Who
says another number of nodes means other nodes, and still meets them where the controller says. Who names a place, or a
way to meet, has told everything about that; the number and the rank are of use there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import DetectedValue, Value
from rendezvous.stores.addresses import split_address

NO_MASTER_ADDRESS = "nothing says where node 0 is"


class MergedDetection(NamedTuple):
    """`values`: what is used, option -> value. `unused`: option -> why it is not."""

    values: Mapping[str, DetectedValue]
    unused: Mapping[str, str]


def merge_detected(found: Mapping[str, DetectedValue], given: Mapping[str, Value]) -> MergedDetection:
    """`found`: a detection's values; `given`: the options as they are without them."""
    if why := _explain_alone(given) or _explain_unknown_count(found, given):
        return MergedDetection({}, dict.fromkeys(found, why))
    unused = {name: f"{given[name]} is given" for name in found if not given[name].is_default}
    values = {name: value for name, value in found.items() if name not in unused}
    is_static, why = _choose_rendezvous(values, given)
    if why:
        place = values.pop("rdzv-endpoint", None)
        values.pop("rdzv-backend", None)
        unused |= {name: why for name in ("rdzv-backend", "rdzv-endpoint") if name in found and name not in unused}
        if is_static and place is not None and not _has_master(given):
            values["master-addr"] = DetectedValue(split_address(place.text)[0], place.origin)
    if "node-rank" in values and (why := _explain_missing_rank(values, given, is_static)):
        del values["node-rank"]
        unused["node-rank"] = why
    count = values.get("nnodes")
    if count is not None and not is_static and not given["mesh"].is_default:
        # The grid says what is valid: all that are there at the start, and fewer when some are lost.
        values["nnodes"] = DetectedValue(f"1:{count.text}", count.origin)
        if given["target-nodes"].is_default:
            values["target-nodes"] = count
    return MergedDetection(values, unused)


def _explain_alone(given: Mapping[str, Value]) -> str:
    """The option that says that this node is to meet nobody, as a reason; "" if none does."""
    nodes, endpoint, master = given["nnodes"], given["rdzv-endpoint"], given["master-addr"]
    if given["standalone"].text == "1":
        return f"{given['standalone']} is one node"
    if not nodes.is_default:
        return f"{nodes} is one node" if set(nodes.text.replace(" ", "").split(":")) == {"1"} else ""
    for value in (endpoint, master):
        if not value.is_default and _is_local(value.text):
            return f"{value} is a place of this machine alone"
    return ""


def _explain_unknown_count(found: Mapping[str, DetectedValue], given: Mapping[str, Value]) -> str:
    if "nnodes" in found or not given["nnodes"].is_default:
        return ""
    return "nothing says how many nodes there are"


def _choose_rendezvous(values: Mapping[str, DetectedValue], given: Mapping[str, Value]) -> tuple[bool, str]:
    """Whether the nodes meet in torchrun's static way; and why not at the place in `values`, "" if they do."""
    backend, endpoint = given["rdzv-backend"], given["rdzv-endpoint"]
    masters = [str(value) for value in (given["master-addr"], given["master-port"]) if not value.is_default]
    is_static = backend.text == "static"
    if not endpoint.is_default:
        return is_static and "://" not in endpoint.text, f"{endpoint} is given"
    if not backend.is_default:
        return is_static, "" if backend.text == "c10d" else f"{backend} is given"
    if masters:
        return True, f"{masters[0]} is given"
    return "rdzv-endpoint" not in values, ""


def _has_master(given: Mapping[str, Value]) -> bool:
    return not (given["master-addr"].is_default and given["rdzv-endpoint"].is_default)


def _explain_missing_rank(values: Mapping[str, DetectedValue], given: Mapping[str, Value], is_static: bool) -> str:
    if not is_static:
        return "" if "rdzv-endpoint" in values else "the nodes find their order in the store"
    return "" if "master-addr" in values or _has_master(given) else NO_MASTER_ADDRESS


def _is_local(text: str) -> bool:
    """Whether addresses are this machine's alone: loopback, or a port that nobody else can know."""
    return all(map(_is_local_address, text.rpartition("://")[2].split(",")))


def _is_local_address(text: str) -> bool:
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # no port behind it
        host, port = text.strip(), ""
    host = host.strip("[]")
    return port == "0" or host in ("localhost", "::1") or host.startswith("127.")
