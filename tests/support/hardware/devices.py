"""Made-up machines: trees of /proc, /sys and /dev in a temporary directory, and a stand-in for nvidia-ml-py.

What the files hold is what the kernel's and the vendors' documentation says that they hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UUIDS = ("GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2", "GPU-cc44-3")
CLUSTER = "5a1c0000-0000-0000-0000-0000000000ff"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class FabricInfo3(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t, as far as it is read."""

    _fields_ = (
        ("version", ctypes.c_uint), ("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint), ("healthMask", ctypes.c_uint32),
        ("healthSummary", ctypes.c_uint8),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(version=3)


class FabricInfo2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t: the same without the summary."""

    _fields_ = FabricInfo3._fields_[:-1]

    def __init__(self) -> None:
        super().__init__(version=2)


class FakeNvml:
    """The functions of nvidia-ml-py that we call.

    `lost`: ordinals that do not answer, `denied`: that may not be opened; `migs`: ordinal -> MIG ids, None for an empty
    place; `fabric`: ordinal -> (state, status, cluster, clique); `fabric_version`: of the struct that the driver fills,
    0 for a driver without.
    """

    class NVMLError(Exception):
        value = 999  # NVML_ERROR_UNKNOWN

    class NVMLError_NoPermission(NVMLError):
        value = 4

    c_nvmlGpuFabricInfo_v3_t = FabricInfo3
    c_nvmlGpuFabricInfo_v2_t = FabricInfo2

    def __init__(
        self,
        uuids: Sequence[str] = UUIDS,
        *,
        lost: Sequence[int] = (),
        denied: Sequence[int] = (),
        pci_domain: int = 0,
        migs: Mapping[int, Sequence[str | None]] | None = None,
        models: Sequence[str] = (),
        fabric: Mapping[int, tuple[int, int, str, int]] | None = None,
        fabric_version: int = 3,
        is_broken: bool = False,
    ) -> None:
        self.uuids = uuids
        self.lost = lost
        self.denied = denied
        self.pci_domain = pci_domain
        self.migs = migs or {}
        self.models = models
        self.fabric = fabric or {}
        self.fabric_version = fabric_version
        self.is_broken = is_broken
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.is_broken:
            raise self.NVMLError
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, ordinal: int) -> Any:
        if ordinal in self.lost:
            raise self.NVMLError
        if ordinal in self.denied:
            raise self.NVMLError_NoPermission
        return ordinal

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle if isinstance(handle, str) else self.uuids[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.uuids or self.uuids.index(uuid) in self.lost:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        """10 bytes of 100 for the first device, 20 for the second, ..."""

        class Memory:
            used, total = 10 * (self.uuids.index(handle) + 1), 100

        return Memory

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.models[handle] if self.models else "Fast One"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        class Pci:
            busId = f"{self.pci_domain:08X}:{handle + 1:02X}:00.0"

        return Pci

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.migs:
            raise self.NVMLError  # NOT_SUPPORTED on GPUs without MIG
        return [int(handle in self.migs)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, place: int) -> str:
        migs = self.migs[handle]
        mig = migs[place] if place < len(migs) else None
        if mig is None:
            raise self.NVMLError
        return mig

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, reference: Any) -> None:
        info = reference._obj
        if info.version != self.fabric_version or handle not in self.fabric:
            raise self.NVMLError
        info.state, info.status, cluster, info.cliqueId = self.fabric[handle]
        info.clusterUuid[:] = bytes.fromhex(cluster.replace("-", ""))


def add_nvidia(root: Path, address: str, uuid: str, minor: int, numa_node: int = -1) -> None:
    """A GPU in the files of NVIDIA's driver and on the PCI bus."""
    write(
        root / f"proc/driver/nvidia/gpus/{address}/information",
        f"Model: \t\t Fast One\nIRQ:   \t\t 35\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nBus Location: \t {address}\n"
        f"Device Minor: \t {minor}\n",
    )
    write(root / f"sys/bus/pci/devices/{address}/numa_node", f"{numa_node}\n")


def add_pci(root: Path, address: str, vendor: str, kind: str, numa_node: int = -1) -> Path:
    folder = root / f"sys/bus/pci/devices/{address}"
    write(folder / "vendor", f"{vendor}\n")
    write(folder / "class", f"{kind}\n")
    write(folder / "numa_node", f"{numa_node}\n")
    return folder


def add_kfd(root: Path, node: int, **properties: int) -> None:
    """A processor of AMD's compute driver: without `simd_count` a CPU; `bus` is where a GPU is."""
    fields = {"cpu_cores_count": 0, "simd_count": 0, "gfx_target_version": 90402, "drm_render_minor": 0, **properties}
    bus = fields.pop("bus", node)
    numa_node = fields.pop("numa_node", -1)
    fields.setdefault("location_id", bus << 8)
    lines = "".join(f"{name} {value}\n" for name, value in fields.items())
    write(root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties", lines)
    if fields["simd_count"]:
        add_pci(root, f"0000:{bus:02x}:00.0", "0x1002", "0x120000", numa_node)
        write(root / f"dev/dri/renderD{fields['drm_render_minor']}")
    write(root / "dev/kfd")


def add_intel(root: Path, address: str, minor: int, *, driver: str = "xe", tiles: int = 1, numa_node: int = -1) -> None:
    """A GPU of Intel's, as the driver shows its tiles."""
    folder = add_pci(root, address, "0x8086", "0x038000", numa_node)
    write(folder / "device", "0x0bd5\n")
    (folder / f"drm/renderD{minor}").mkdir(parents=True)
    (folder / f"drm/card{minor - 128}").mkdir()
    for tile in range(tiles):
        place = folder / f"tile{tile}" if driver == "xe" else folder / f"drm/card{minor - 128}/gt/gt{tile}"
        place.mkdir(parents=True)
    (root / f"sys/bus/pci/drivers/{driver}/{address}").mkdir(parents=True)
    write(root / f"dev/dri/renderD{minor}")
