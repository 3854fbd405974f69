"""Accelerators of a node: the contract of a detector, and the variables that make devices visible to a worker.

A detector returns values and a reason, also when it finds nothing; it never prints, exits, imports a
framework, or changes the environment. Heavy imports stay inside `detect`.

Every kind of device has a variable that tells its runtime which devices a process may use. `Device.visible` is the
entry that selects one device there. The facts about each built-in kind are in docs/reference/devices.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.console import escape
from launcher.model.errors import UnfitError, UsageError
from launcher.model.node import Device


class Inventory(Struct, frozen=True):
    """The devices this process may use, in the order a worker would count them, and the reason."""

    devices: tuple[Device, ...]
    reason: str
    mistake: str = ""
    """An evident error in a variable that the user has set, such as the same GPU twice; `devices` may be fewer because
    of it.
    """
    unresponsive_count: int = 0
    """Further devices that are broken and do not answer; devices granted to other users do not count."""
    hint: str = ""
    """How to correct the mistake; "" if that is not known."""

    @property
    def single_line(self) -> Inventory:
        """Return the same on one line: variables and plug-ins may have line breaks in their texts."""
        reason, mistake, hint = map(escape, (self.reason, self.mistake, self.hint))
        return replace(self, reason=reason, mistake=mistake, hint=hint)


class Detector(Protocol):
    kind: str

    def detect(self, environ: Mapping[str, str]) -> Inventory: ...


class CpuDetector:
    """CPUs in place of accelerators: the affinity set, which a container or batch system grants, as torchrun counts."""

    kind = "cpu"

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        cpus = sorted(os.sched_getaffinity(0))
        devices = tuple(
            Device(kind=self.kind, index=index, id=f"cpu{cpu}", visible=str(cpu)) for index, cpu in enumerate(cpus)
        )
        return Inventory(devices, f"{len(cpus)} in this process's affinity set")


class DeviceKind(Struct, frozen=True):
    """A built-in kind. Without any of its driver paths and variables the kind is not searched for."""

    noun: str
    """The usual word for one device."""
    variable: str
    """Makes devices visible."""
    driver_paths: tuple[str, ...]
    """Files, one of which its driver leaves."""
    variables: tuple[str, ...] = ()
    """One of these is set where the kind is present."""


KINDS: Mapping[str, DeviceKind] = {
    "nvidia": DeviceKind("GPU", "CUDA_VISIBLE_DEVICES", ("/proc/driver/nvidia", "/dev/nvidiactl")),
    "amd": DeviceKind("GPU", "HIP_VISIBLE_DEVICES", ("/dev/kfd", "/sys/class/kfd")),
    "intel": DeviceKind("GPU", "ZE_AFFINITY_MASK", ("/sys/bus/pci/drivers/xe", "/sys/bus/pci/drivers/i915")),
    "tpu": DeviceKind(
        "TPU chip", "TPU_VISIBLE_CHIPS", ("/dev/accel0", "/dev/vfio"), ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID")
    ),
}
"""In the order of the search. CPUs are not among them: they are the fallback."""

MISTAKE_HINT = "list devices that are present, all by number or all by id, or unset the variable to use all of them"


def find_visible_variable(kind: str) -> str | None:
    """Return the variable that selects devices of this kind; None where there is none, or none is known.

    A kind of a plug-in, of --visible-env or of torch has its variable at the device itself (`Device.variable`).
    """
    return KINDS[kind].variable if kind in KINDS else None


def format_visible_variable(devices: Sequence[Device]) -> tuple[str, str] | None:
    """Return the variable, and its value, with which a worker sees these devices and no others.

    `devices` are of one kind. None without devices, or for a kind without a variable, such as CPUs.
    """
    if not devices:
        return None
    variable = devices[0].variable or find_visible_variable(devices[0].kind)
    return (variable, ",".join(device.visible for device in devices)) if variable else None


def make_inventory(
    devices: Iterable[Device], *clauses: str, mistake: str = "", unresponsive_count: int = 0
) -> Inventory:
    """Return an inventory whose reason is the clauses that are not empty, and the mistake."""
    return Inventory(tuple(devices), ", ".join(filter(None, (*clauses, mistake))), mistake, unresponsive_count)


def describe_left(count: int, variable: str, environ: Mapping[str, str]) -> str:
    """Return how many devices a variable left; "" where it is not set."""
    return f"{count} left by {variable}={environ[variable]}" if variable in environ else ""


def make_unresponsive_error(inventory: Inventory) -> UnfitError:
    """Return the error for devices that are to be counted while some do not answer: their number is unknown."""
    count, found = inventory.unresponsive_count, len(inventory.devices)
    verb = "does" if count == 1 else "do"
    # A variable that names one of them has hidden the entries behind it: then the total is unknown.
    these = f"{count} device{'s' * (count > 1)}" if inventory.mistake else f"{count} of {count + found} devices"
    return UnfitError(
        f"{these} {verb} not answer ({inventory.reason})",
        f"check dmesg, or use --nproc-per-node={found} to go without" if found else "check dmesg",
        kind=("silent devices", count),
    )


def refuse_mistake(inventory: Inventory) -> None:
    """Raise UsageError for a list of devices that cannot be meant, also where it leaves some.

    A training on fewer GPUs than were named, or on the CPU, ends with 0 like any other. Devices that do not answer may
    be those that the list misses, so they come first.
    """
    if inventory.mistake and not inventory.unresponsive_count:
        raise UsageError(inventory.mistake, inventory.hint or MISTAKE_HINT)
