"""The identifiers of InfiniBand adapters and the firmware: shown by `meshctl doctor`, and not used for placement.

They look like positions in the network, but are not. A node GUID names the adapter in this machine and not the switch
behind it (Linux, Documentation/ABI/stable/sysfs-class-infiniband): those of two neighbours have nothing in common. A
subnet's manager (sm_lid) and the prefix of its GIDs are the same for a whole fabric, and by default for every fabric. A
chassis' serial number would identify blades of one enclosure; only root may read it, and many vendors leave "Default
string" there. So no level is derived from them; a user who knows the fabric may compare two nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.locality.contract import Hints

_VALUE_MAX = 256
_ADAPTERS_MAX = 16
_FIRMWARE = ("sys_vendor", "product_name", "chassis_asset_tag", "chassis_serial")


class InfinibandSource:
    """`root`: the directory above /sys, for tests."""

    name = "infiniband"

    def __init__(self, root: str = "/") -> None:
        self._folder = os.path.join(root, "sys/class/infiniband")

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return os.path.isdir(self._folder)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        names = _list_entries(self._folder)
        if not names:
            return Hints((), "no adapter is here")
        told = [self._describe_adapter(name) for name in names[:_ADAPTERS_MAX]]
        more = [f"and {len(names) - _ADAPTERS_MAX} more"] if names[_ADAPTERS_MAX:] else []
        return Hints((), "; ".join(("GUIDs name adapters, not switches", *told, *more)))

    def _describe_adapter(self, name: str) -> str:
        folder = os.path.join(self._folder, name)
        words = [name, _read_value(folder, "node_guid")]
        for port in _list_entries(os.path.join(folder, "ports"))[:_ADAPTERS_MAX]:
            at = os.path.join(folder, "ports", port)
            state = _read_value(at, "state").partition(":")[2].strip().lower()
            words.append(f"port {port} {_read_value(at, 'link_layer')} {state}".rstrip())
        return " ".join(filter(None, words))


class FirmwareSource:
    """`root`: the directory above /sys, for tests."""

    name = "firmware"

    def __init__(self, root: str = "/") -> None:
        self._folder = os.path.join(root, "sys/class/dmi/id")

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return os.path.isdir(self._folder)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        values = {name: _read_value(self._folder, name) for name in _FIRMWARE}
        told = ", ".join(f"{name} {value}" for name, value in values.items() if value)
        return Hints((), f"{told}; that names no place in the network" if told else "it says nothing that may be read")


def _list_entries(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.isprintable())
    except OSError:
        return []


def _read_value(folder: str, name: str) -> str:
    """Return the file's one line, "" where it may not be read or contains something else."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            text = file.read(_VALUE_MAX).decode(errors="replace").strip()
    except OSError:
        return ""
    return text if text.isprintable() else ""
