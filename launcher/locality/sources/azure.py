"""Azure's metadata server: location, zone, and for machines with InfiniBand their group and subgroup.

A subgroup is one interconnect block, such as the 18 machines of an NVLink rack; its group is as far as InfiniBand
reaches. Both came with a late version of the server's API; an older server refuses that version, and is queried
again in an old one, where a tag may contain the subgroup. Fault and update domains are what fails or is updated
together, the placement group what was requested; neither implies nearness.

Hyper-V also writes the name of a machine's host, to a file. The name is only shown: machines with accelerators have a
host for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from launcher.hardware.metadata_server import NoAnswer, Server, parse_object, strip_text
from launcher.locality.sources.cloud import CloudSource
from launcher.model.locality_path import is_text

_PATH = "/metadata/instance/compute?format=json&api-version="
_VERSIONS = ("2025-11-11", "2021-12-13")
_SIZE_MAX = 1 << 18  # the machine's user data, up to 64 KiB in base64, are part of the answer
_TAG = "Platform_Interconnect_Group"
_IDS = ("interconnectSubgroupId", "interconnectGroupId")

_POOL = "var/lib/hyperv/.kvp_pool_3"
_POOL_KEY, _POOL_VALUE, _POOL_MAX = 512, 2048, 1 << 20  # a record is a key and a value, filled up with zeros


class Source(CloudSource):
    """`root`: the directory above /var, too."""

    name = "azure"

    def ask(self, server: Server, values: dict[str, str]) -> str:
        values.update(_extract_values(_read_compute(server)))
        if any(values.get(key) for key in (*_IDS, f"tagsList: {_TAG}")):
            return ""
        return "no interconnect group: this machine has no InfiniBand, or is in none"

    def describe_host(self) -> str:
        host = read_physical_host(os.path.join(self._root, _POOL))
        return host and f"its physical host is {host}"


def _read_compute(server: Server) -> dict[str, Any]:
    for version in _VERSIONS:
        answer = server.ask(_PATH + version, {"Metadata": "true"}, size_max=_SIZE_MAX)
        if answer.status == 200:
            return parse_object(answer.text)
        if answer.status != 400:  # 400: an unknown version
            break
    raise NoAnswer(f"answers {answer.status}")


def _extract_values(compute: Mapping[str, Any]) -> dict[str, str]:
    location, zone = strip_text(compute.get("location")).lower(), strip_text(compute.get("zone"))
    values = {"location": location, "zone": f"{location}-{zone}" if location and zone else ""}
    values.update({key: strip_text(compute.get(key)) for key in _IDS})
    tags = compute.get("tagsList")
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, dict) and tag.get("name") == _TAG:
            values.setdefault(f"tagsList: {_TAG}", strip_text(tag.get("value")))
    return values


def read_physical_host(path: str) -> str:
    """Return the name of the machine under this one, as Hyper-V wrote it to a file of records; empty if it did not."""
    try:
        with open(path, "rb") as file:
            pool = file.read(_POOL_MAX)
    except OSError:
        return ""
    for start in range(0, len(pool), _POOL_KEY + _POOL_VALUE):
        key, value = pool[start:][:_POOL_KEY], pool[start + _POOL_KEY :][:_POOL_VALUE]
        if key.partition(b"\0")[0] == b"PhysicalHostName":
            name = value.partition(b"\0")[0].decode(errors="replace").strip()
            return name if is_text(name) else ""
    return ""
