"""AMD GPUs: which ones a worker started here would see through ROCm, in its order.

The kernel's compute driver lists processors under /sys/class/kfd; those with SIMD units are GPUs, in the order in which
ROCm numbers them. Those that a container was not granted cannot be read, and ROCm does not number them either. Then two
variables apply, one after the other: ROCR_VISIBLE_DEVICES, and HIP_VISIBLE_DEVICES to what that leaves, or else
CUDA_VISIBLE_DEVICES; docs/reference/devices.md has the source of each rule. Workers get HIP_VISIBLE_DEVICES, which both
readers of the second step read first.

Graphics inside a CPU is a GPU to the driver, too. It counts only if AMD's devices were requested by name: otherwise a
workstation with a GPU for training would have two kinds. It is recognised by its target (LLVM, "User Guide for AMDGPU
Backend", processors of type APU); MI300A, an accelerator that is such a processor, is not excluded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from launcher.hardware.accelerators.contract import KINDS, Inventory, describe_left, make_inventory
from launcher.hardware.accelerators.visible_list import HIDING_WORDS, examine
from launcher.hardware.linux.sysfs import FileTree, get_pci_folder
from launcher.model.node import Device

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_INTEGRATED = frozenset(
    {70000, 80001, 90002, 90009, 90012, 100103, 100303, 100305, 100306, 100307, 110003, 110500, 110501, 110502, 110503}
)
_PLAIN_NUMBER = re.compile("0|[1-9][0-9]{0,8}")


class AmdGpu(Struct, frozen=True):
    """A GPU as its driver shows it."""

    ordinal: int
    """Among all readable GPUs, as ROCm counts."""
    uuid: str
    """As ROCm's tools show it, "" without one."""
    address: str
    numa_node: int | None
    domain: str
    model: str
    is_integrated: bool
    may_open: bool


class Detector:
    """`root`: the directory above /sys and /dev, for tests. `with_integrated`: whether graphics inside a CPU counts."""

    kind = "amd"

    def __init__(self, *, root: str = "/", with_integrated: bool = False) -> None:
        self._files = FileTree(root)
        self._with_integrated = with_integrated

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        if not any(self._files.exists(sign) for sign in KINDS[self.kind].driver_paths):
            return Inventory((), "no AMD compute driver")
        gpus = self._list_gpus()
        if not gpus:
            return Inventory((), "no GPU among the processors of AMD's compute driver")
        if not self._files.may_open("/dev/kfd"):
            return Inventory((), f"{len(gpus)} found by AMD's compute driver, but /dev/kfd cannot be opened here")
        name = HIP if environ.get(HIP) else CUDA if environ.get(CUDA) else HIP if HIP in environ else CUDA
        if mistaken := examine(environ, (ROCR, name)):
            return mistaken
        left, first_mistake = _apply_rocr(environ.get(ROCR), gpus)
        chosen, second_mistake = _apply_hip(name, environ.get(name), left)
        usable = [(gpu, entry) for gpu, entry in chosen if self._with_integrated or not gpu.is_integrated]
        open_ = [(gpu, entry) for gpu, entry in usable if gpu.may_open]
        return make_inventory(
            _make_devices(open_),
            f"{len(gpus)} found by AMD's compute driver",
            describe_left(len(left), ROCR, environ),
            describe_left(len(chosen), name, environ),
            f"{len(chosen) - len(usable)} inside a CPU left out" if len(usable) < len(chosen) else "",
            f"{len(usable) - len(open_)} may not be opened here" if len(open_) < len(usable) else "",
            mistake=first_mistake or second_mistake,
        )

    def _list_gpus(self) -> list[AmdGpu]:
        gpus: list[AmdGpu] = []
        for node in self._files.list_numbers(f"{_NODES}/"):
            text = self._files.read_text(f"{_NODES}/{node}/properties")
            fields = dict(line.split(None, 1) for line in text.splitlines() if " " in line)
            values = {name: int(value) for name, value in fields.items() if value.isdecimal()}
            if values.get("simd_count"):
                gpus.append(self._make_gpu(len(gpus), values))
        return gpus

    def _make_gpu(self, ordinal: int, values: Mapping[str, int]) -> AmdGpu:
        place = values.get("location_id", 0)  # bus, device and function; a part of a GPU has a function of its own
        address = f"{values.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.0"
        target, unique, hive = (values.get(name, 0) for name in ("gfx_target_version", "unique_id", "hive_id"))
        product = self._files.read_text(f"{get_pci_folder(address)}/product_name")
        return AmdGpu(
            ordinal=ordinal,
            uuid=f"GPU-{unique:016x}" if unique else "",
            address=address,
            numa_node=self._files.read_numa_node(get_pci_folder(address)),
            domain=f"{hive:016x}" if hive else "",
            model=product or f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}",
            is_integrated=target in _INTEGRATED,
            may_open=self._files.may_open(f"/dev/dri/renderD{values.get('drm_render_minor', 0)}"),
        )


def _make_devices(chosen: Sequence[tuple[AmdGpu, str]]) -> Iterator[Device]:
    """Yield the devices; parts of one GPU share its id, and a number distinguishes them."""
    parts: Counter[str] = Counter()
    for index, (gpu, entry) in enumerate(chosen):
        identifier = gpu.uuid or f"pci-{gpu.address}"
        part = parts[identifier]
        parts[identifier] += 1
        yield Device(
            kind=Detector.kind, index=index, id=f"{identifier}/{part}" if part else identifier,
            visible=entry, numa_node=gpu.numa_node, domain=gpu.domain, model=gpu.model,
        )  # fmt: skip


def _apply_rocr(value: str | None, gpus: Sequence[AmdGpu]) -> tuple[list[AmdGpu], str]:
    """Return the GPUs that the lower variable leaves, and what is wrong with it. An empty but set one leaves none."""
    if value is None:
        return list(gpus), ""
    left: list[AmdGpu] = []
    for entry in _split(value):
        gpu = _find_by_token(entry.strip().upper(), gpus)
        if gpu is None:
            return left, _describe_unknown(ROCR, value, entry.strip())
        if gpu in left:
            return left, f"{ROCR}={value} names GPU {gpu.ordinal} twice, and the entries after it are hidden"
        left.append(gpu)
    return left, ""


def _find_by_token(token: str, gpus: Sequence[AmdGpu]) -> AmdGpu | None:
    if token.startswith("G"):
        found = [gpu for gpu in gpus if len(token) >= 5 and gpu.uuid.upper().startswith(token)]
        return found[0] if len(found) == 1 else None
    digits = token.lstrip("+-")
    base = 16 if digits.startswith("0X") else 8 if digits.startswith("0") else 10
    try:
        index = int(token, base)
    except ValueError:  # "09" is no number in C
        return None
    return gpus[index] if 0 <= index < len(gpus) else None


def _apply_hip(name: str, value: str | None, gpus: Sequence[AmdGpu]) -> tuple[list[tuple[AmdGpu, str]], str]:
    """Return the GPUs that the upper variable leaves, each with the entry that selects it, and what is wrong."""
    if value is None:
        return [(gpu, str(index)) for index, gpu in enumerate(gpus)], ""
    chosen: dict[int, str] = {}
    for entry in _split(value):
        places = (place for place, gpu in enumerate(gpus) if entry.startswith("GPU-") and entry in gpu.uuid)
        index = next(places, int(entry) if _PLAIN_NUMBER.fullmatch(entry) else len(gpus))
        if index >= len(gpus):
            return [(gpus[place], token) for place, token in chosen.items()], _describe_unknown(name, value, entry)
        if index in chosen:
            return [], f"{name}={value} names {entry} twice, and torch then sees no GPU"
        chosen[index] = entry
    return [(gpus[place], token) for place, token in chosen.items()], ""


def _split(value: str) -> list[str]:
    """Return the entries; none of a value that hides all on purpose, nor behind the last comma."""
    return [] if value.strip() in HIDING_WORDS else value.rstrip(", ").split(",")


def _describe_unknown(name: str, value: str, entry: str) -> str:
    """Describe an entry that names no GPU; "" for -1, which ends the list on purpose. The form is right."""
    return "" if entry == "-1" else f"{name}={value}: no GPU {entry} exists, and the entries after it are hidden, too"
