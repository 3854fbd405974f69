"""Small reads of the kernel's files, for detectors: what cannot be read counts as absent."""

from __future__ import annotations

import os

from msgspec import Struct


class FileTree(Struct, frozen=True):
    """/proc, /dev, /sys and the like. Paths are absolute."""

    root: str = "/"
    """The directory above them, another one in tests."""

    def resolve(self, path: str) -> str:
        """Return the path under the root."""
        return os.path.join(self.root, path.lstrip("/"))

    def exists(self, path: str) -> bool:
        return os.path.exists(self.resolve(path))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self.resolve(path))

    def may_open(self, path: str) -> bool:
        """Whether this process may read and write it. access(2) asks the device cgroup too, and wakes no device."""
        return os.access(self.resolve(path), os.R_OK | os.W_OK)

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it cannot be read."""
        try:
            return sorted(os.listdir(self.resolve(folder)))
        except OSError:
            return []

    def list_numbers(self, prefix: str) -> list[int]:
        """Return the N of the files PREFIXN, ascending; `prefix`: a path such as /dev/nvidia."""
        folder, _, start = prefix.rpartition("/")
        names = (name.removeprefix(start) for name in self.list_names(folder) if name.startswith(start))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def list_openable(self, prefix: str) -> list[int]:
        """Return the N of the files PREFIXN that this process may open, ascending."""
        return [number for number in self.list_numbers(prefix) if self.may_open(f"{prefix}{number}")]

    def read_text(self, path: str) -> str:
        """Return the file's text without surrounding white space; "" if it cannot be read."""
        try:
            with open(self.resolve(path), errors="replace") as opened:
                return opened.read().strip()
        except OSError:
            return ""

    def read_number(self, path: str) -> int | None:
        """Return the whole number in a file, which may be written as 0x..; None if there is none."""
        try:
            return int(self.read_text(path), 0)
        except ValueError:
            return None

    def read_numa_node(self, device: str) -> int | None:
        """Return the NUMA node of a device, a folder of /sys; None for -1: the firmware does not name it."""
        node = self.read_number(f"{device}/numa_node")
        return node if node is not None and node >= 0 else None

    def is_display(self, device: str, vendor: str) -> bool:
        """Whether a PCI device is a VGA or 3D controller of this vendor; its audio and bridge functions have others."""
        return self.read_text(f"{device}/vendor") == vendor and self.read_text(f"{device}/class").startswith("0x03")


def get_pci_folder(address: str) -> str:
    """Return the folder of a PCI device; one that does not exist for the address ""."""
    return f"/sys/bus/pci/devices/{address.lower() or '-'}"
