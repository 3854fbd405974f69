"""Small reads of the kernel's files, for detectors: what cannot be read counts as absent.

`root` is the directory above /proc, /dev and /sys: "/" except in tests.
"""

from __future__ import annotations

import os


def resolve_path(root: str, absolute: str) -> str:
    """Return the path under this root of a file that is usually at `absolute`."""
    return os.path.join(root, absolute.lstrip("/"))


def list_names(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_text(file: str) -> str:
    """Return the file's text without surrounding white space; "" if it cannot be read."""
    try:
        with open(file, errors="replace") as opened:
            return opened.read().strip()
    except OSError:
        return ""


def read_number(file: str) -> int | None:
    """Return the whole number in a file, which may be written as 0x..; None if there is none."""
    try:
        return int(read_text(file), 0)
    except ValueError:
        return None


def read_numa_node(root: str, address: str) -> int | None:
    """Return the NUMA node of a PCI device; None where the kernel says -1, because the firmware does not name it."""
    node = read_number(resolve_path(root, f"/sys/bus/pci/devices/{address.lower()}/numa_node"))
    return node if node is not None and node >= 0 else None


def may_open(file: str) -> bool:
    """Whether this process may read and write it. access(2) asks the device cgroup too, and wakes no device."""
    return os.access(file, os.R_OK | os.W_OK)


def list_numbers(folder: str, prefix: str) -> list[int]:
    """Return the N of the names prefixN in a folder, ascending."""
    names = (name.removeprefix(prefix) for name in list_names(folder) if name.startswith(prefix))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
