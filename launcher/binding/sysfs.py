"""What the kernel says of this machine's CPUs and where its devices are, read only when workers are to be bound.

Linux shows both under /sys: the CPUs of each NUMA node, which of them are threads of one core, share a cache or sit on
one socket, and the node of every PCI device. A kernel without NUMA, as in some sandboxes, counts as one node. A list
is read once for all CPUs that are in it, because a large machine has hundreds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from launcher.binding import Topology
from launcher.node import Slot


def read(allowed: frozenset[int], root: str = "/") -> Topology:
    """The topology of this machine. `allowed`: what this process may use; `root`: where /sys hangs, for tests."""
    folder = os.path.join(root, "sys/devices/system")
    nodes = {
        int(name[4:]): cpus
        for name in _listed(f"{folder}/node")
        if name.startswith("node") and name[4:].isdecimal() and (cpus := _cpus(f"{folder}/node/{name}/cpulist"))
    }
    if not nodes:
        nodes = {0: allowed}
    every = sorted(frozenset[int]().union(*nodes.values()))
    sockets = {cpu: _number(f"{folder}/cpu/cpu{cpu}/topology/physical_package_id") for cpu in every}
    return Topology(
        nodes=nodes,
        socket={cpu: socket for cpu, socket in sockets.items() if socket is not None},
        core=_lowest(every, lambda cpu: _cpus(f"{folder}/cpu/cpu{cpu}/topology/thread_siblings_list")),
        cache=_lowest(every, lambda cpu: _sharers(f"{folder}/cpu/cpu{cpu}/cache")),
    )


def homes(slots: Sequence[Slot], root: str = "/", nvml: Any = None) -> list[frozenset[int]]:
    """The NUMA nodes of each slot's devices; empty where the kernel does not say.

    `nvml` stands in for nvidia-ml-py's module, for tests.
    """
    addresses = _gpu_addresses(root)
    found = []
    for slot in slots:
        nodes = set()
        for device in slot.devices:
            if device.kind != "nvidia":
                continue
            address = device.id[4:] if device.id.startswith("pci-") else addresses.get(device.id)
            address = address or _asked(device.id, nvml)
            node = _number(os.path.join(root, f"sys/bus/pci/devices/{address}/numa_node"))
            if node is not None and node >= 0:  # -1: the firmware does not say
                nodes.add(node)
        found.append(frozenset(nodes))
    return found


def _gpu_addresses(root: str) -> dict[str, str]:
    """UUID -> PCI address, as the driver's files have it."""
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    found = {}
    for address in _listed(folder):
        for line in _text(f"{folder}/{address}/information").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID":
                found[value.strip()] = address.lower()
    return found


def _asked(uuid: str, nvml: Any) -> str | None:
    """The PCI address of a GPU, or of the one that a MIG instance is on, by NVML; None if it does not say."""
    try:
        nvml = nvml or __import__("pynvml")  # by name: the distribution nvidia-ml-py is optional and untyped
        nvml.nvmlInit()
    except Exception:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if uuid.startswith("MIG-"):
            handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        address = nvml.nvmlDeviceGetPciInfo(handle).busId
        text: str = address.decode() if isinstance(address, bytes) else address
        return text.lower()[-12:]  # NVML writes the domain with eight digits, the kernel with four
    except nvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _lowest(cpus: Iterable[int], sharers: Callable[[int], frozenset[int]]) -> dict[int, int]:
    """CPU -> the lowest of those it shares something with; a CPU without an answer is left out."""
    found: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in found and (group := sharers(cpu)):
            found.update(dict.fromkeys(group, min(group)))
    return found


def _sharers(folder: str) -> frozenset[int]:
    """Who shares a CPU's last-level cache for data."""
    levels = {}
    for name in _listed(folder):
        if name.startswith("index") and _text(f"{folder}/{name}/type").strip() in ("Data", "Unified"):
            level = _number(f"{folder}/{name}/level")
            if level is not None:
                levels[level] = name
    return _cpus(f"{folder}/{levels[max(levels)]}/shared_cpu_list") if levels else frozenset()


def _cpus(path: str) -> frozenset[int]:
    """A list as the kernel writes it, 0-3,8; empty if there is none."""
    found: set[int] = set()
    for part in _text(path).split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _number(path: str) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
