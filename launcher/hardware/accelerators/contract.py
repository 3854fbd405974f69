"""What accelerators this node has: the contract of a detector, and what makes devices visible to a worker.

A detector returns values and a reason, also when it finds nothing; it never prints, exits, imports a
framework, or changes the environment. Heavy imports stay inside `detect`.

Every kind of device has a variable with which its runtime is told which devices a process may use. `Device.visible` is
what selects one device there. The kinds that are built in are in `KINDS`; what is known of each, and from where, is in
`rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.model.errors import UnfitError
from launcher.model.node import Device
from rendezvous.values import NamedTuple, Protocol


class Inventory(NamedTuple):
    """The devices this process may use, in the order a worker would count them, and how we know.

    `mistake`: what a variable of the user's says that cannot be meant, such as the same GPU twice; `devices` may be
    fewer because of it. `silent`: how many more devices there are that are broken, and do not answer; those that were
    granted to somebody else are not among them.
    """

    devices: tuple[Device, ...]
    reason: str
    mistake: str = ""
    unresponsive_count: int = 0

    @property
    def single_line(self) -> Inventory:
        """The same for a sentence: values of variables may hold line breaks, and so may what a plug-in says."""
        return self._replace(reason=self.reason.replace("\n", "\\n"), mistake=self.mistake.replace("\n", "\\n"))


class Detector(Protocol):
    kind: str

    def detect(self, environ: Mapping[str, str]) -> Inventory: ...


class DeviceKind(NamedTuple):
    """What is built in about one kind. `noun`: one of them, as people call it. `variable`: makes devices visible.

    `driver_paths`: files, one of which its driver leaves; `variables`, one of which is set where it is; without
    any of these nobody looks further.
    """

    noun: str
    variable: str
    driver_paths: tuple[str, ...]
    variables: tuple[str, ...] = ()


KINDS: Mapping[str, DeviceKind] = {
    "nvidia": DeviceKind("NVIDIA GPU", "CUDA_VISIBLE_DEVICES", ("/proc/driver/nvidia", "/dev/nvidiactl")),
    "amd": DeviceKind("AMD GPU", "HIP_VISIBLE_DEVICES", ("/dev/kfd", "/sys/class/kfd")),
    "intel": DeviceKind("Intel GPU", "ZE_AFFINITY_MASK", ("/sys/bus/pci/drivers/xe", "/sys/bus/pci/drivers/i915")),
    "tpu": DeviceKind(
        "TPU chip", "TPU_VISIBLE_CHIPS", ("/dev/accel0", "/dev/vfio"), ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID")
    ),
}
"""In the order in which they are looked for. CPUs are not among them: they are what is left."""

# Types of device that torch counts under names of its own.
_TORCH_VISIBLE_VARIABLES = {
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
}


def find_visible_variable(kind: str, environ: Mapping[str, str]) -> str | None:
    """The variable that chooses among devices of this kind; None where there is none, or nobody has named it.

    A kind of a plug-in or of --visible-env has its variable at the device itself (`Device.variable`).
    """
    return KINDS[kind].variable if kind in KINDS else _TORCH_VISIBLE_VARIABLES.get(kind)


def format_visible_variable(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable, and its value, with which a worker sees these devices and no others.

    `devices` are of one kind. `environ`: what the worker inherits. None where nothing can be said: no devices, or a
    kind without a variable, such as CPUs.
    """
    if not devices:
        return None
    variable = devices[0].variable or find_visible_variable(devices[0].kind, environ)
    return (variable, ",".join(device.visible for device in devices)) if variable else None


def make_unresponsive_error(inventory: Inventory) -> UnfitError:
    """What to say where the devices are to be counted and some of them do not answer: their number is not known."""
    silent, found = inventory.unresponsive_count, len(inventory.devices)
    verb = "does" if silent == 1 else "do"
    # A variable that wants one of them has hidden others behind it: then nobody can say of how many.
    these = f"{silent} device{'s' * (silent > 1)}" if inventory.mistake else f"{silent} of {silent + found} devices"
    return UnfitError(
        f"{these} {verb} not answer ({inventory.reason})",
        f"see dmesg; --nproc-per-node={found} goes without" if found else "see dmesg",
    )
