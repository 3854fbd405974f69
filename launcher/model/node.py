"""A node for the planner: its devices, their slots (hardware/accelerators/slots.py), and its locality."""

from __future__ import annotations

from msgspec import Struct


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator, or one share of the CPU when a node has none."""

    kind: str
    index: int
    """From 0 in the order in which this process may use its devices."""
    id: str
    """The hardware's own name ("GPU-5a1c...", "cpu0"), stable over reboots where the hardware has one."""
    visible: str
    """The entry that selects the device in `variable`."""
    variable: str = ""
    """Empty for the usual one of the kind, such as CUDA_VISIBLE_DEVICES."""
    numa_node: int | None = None
    """The node to which it is attached, None if unknown."""
    domain: str = ""
    """Its accelerator fabric, as "<clusterUuid>.<cliqueId>" of NVLink; empty if unknown."""
    model: str = ""
    """The vendor's name, for messages."""


class Slot(Struct, frozen=True, kw_only=True):
    """The place of one worker on its node: `index` from 0, and the devices that are its own."""

    index: int
    devices: tuple[Device, ...]


class Node(Struct, frozen=True, kw_only=True):
    """A machine or container with one agent, for the planner."""

    id: str
    slot_count: int
    path: tuple[str | None, ...] = ()
    """Its domains from the outermost level to the innermost, such as ("zone-a", "spine-1", "leaf-3"); None where a
    level is unknown.
    """
    address: str = ""
    order: int = 0
    """The store's create revision of its member key: a stable tie-break, independent of clocks and names."""
    index: int | None = None
    """Its place inside a domain that is used as a whole (the worker id of a TPU host), which its ranks follow."""
    host_pattern: str = ""
    """The host names of that domain, {} for the index, or ""."""
    rank: int | None = None
    """Its number among all nodes, if the user has set it."""

    def __post_init__(self) -> None:
        if self.slot_count < 1:
            raise ValueError(f"node {self.id} has {self.slot_count} slots, at least 1 is needed")


def format_workers(count: int) -> str:
    """Format a number of workers."""
    return "1 worker" if count == 1 else f"{count} workers"
