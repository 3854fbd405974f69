"""NVML, the driver's own library, through nvidia-ml-py: the GPUs it lists, and what it says of each.

NVML answers in PCI order and ignores CUDA_VISIBLE_DEVICES. A GPU that fell off the bus stays in its list until the
next boot and does not answer; it is counted and left out. One that may not be opened is in the list, too
(nvmlDeviceGetCount_v2): it was granted to another user, and CUDA does not number it. MIG instances are read where MIG
is on; a GPU that has MIG on and no instance, as after a boot, does not exist for CUDA.

The NVLink domain comes from the fabric information, which only GPUs have whose NVLink reaches beyond one machine. It
counts when registration has completed (state 3) with success and the cluster's UUID is not zero, as XLA reads it and
as GPU Feature Discovery labels it. Newer drivers fill a struct of version 3, older ones of version 2.

A failing driver may never answer, and a call into it cannot be interrupted. So a thread of its own makes the query;
after the limit the node is reported unfit, and the thread is left waiting.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NamedTuple

from launcher.hardware.accelerators.cuda_visible import NvidiaGpu
from launcher.hardware.linux import sysfs

_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION
LIMIT_S = 30.0  # a healthy driver answers within seconds, also where it has to wake its GPUs first
_STRUCTS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")


class NvidiaInventory(NamedTuple):
    """`source`: what was queried. `unresponsive_count`: further GPUs that the driver lists and that do not answer;
    `empty_mig_count`: further GPUs that have MIG on and no instance.
    """

    gpus: tuple[NvidiaGpu, ...]
    source: str
    unresponsive_count: int = 0
    empty_mig_count: int = 0


class DriverTimeoutError(Exception):
    """NVML has not answered within the limit."""


_query_thread: threading.Thread | None = None  # while the driver hangs, no other query starts


def query_gpus(root: str, module: Any = None) -> NvidiaInventory | None:
    """Return what NVML lists; None if its Python module or the driver's library is missing or refuses.

    `module` replaces nvidia-ml-py's, for tests; `root`: the directory above /sys. Raises DriverTimeoutError after
    LIMIT_S.
    """
    global _query_thread
    if module is None:
        try:
            module = __import__("pynvml")  # by name: the distribution nvidia-ml-py is optional and untyped
        except ImportError:
            return None
    answers: list[NvidiaInventory | Exception | None] = []

    def query() -> None:
        try:
            answers.append(_query_driver(module, root))
        except Exception as error:
            answers.append(error)

    if _query_thread is None or not _query_thread.is_alive():
        _query_thread = threading.Thread(target=query, daemon=True, name="NVML")
        _query_thread.start()
    _query_thread.join(LIMIT_S)
    if not answers:
        raise DriverTimeoutError
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _query_driver(module: Any, root: str) -> NvidiaInventory | None:
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    try:
        return _list_gpus(module, root)
    except module.NVMLError:
        return None
    finally:
        with contextlib.suppress(module.NVMLError):
            module.nvmlShutdown()


def _list_gpus(module: Any, root: str) -> NvidiaInventory:
    """List the GPUs that may be opened, numbered among themselves."""
    gpus: list[NvidiaGpu] = []
    unresponsive = empty = 0
    for place in range(module.nvmlDeviceGetCount()):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(place)
            uuid = _decode(module.nvmlDeviceGetUUID(handle))
        except module.NVMLError as error:
            unresponsive += getattr(error, "value", None) != _NO_PERMISSION
            continue
        migs = _list_mig_ids(module, handle)
        if migs == ():
            empty += 1
        else:
            gpus.append(_read_gpu(module, handle, len(gpus) + unresponsive + empty, uuid, migs or (), root))
    return NvidiaInventory(tuple(gpus), "NVML", unresponsive, empty)


def _read_gpu(module: Any, handle: Any, ordinal: int, uuid: str, mig_ids: tuple[str, ...], root: str) -> NvidiaGpu:
    return NvidiaGpu(
        ordinal=ordinal,
        uuid=uuid,
        mig_ids=mig_ids,
        numa_node=_read_numa_node(module, handle, root),
        domain=_read_domain(module, handle),
        model=_read_model(module, handle),
    )


def _list_mig_ids(module: Any, handle: Any) -> tuple[str, ...] | None:
    """Return the ids of a GPU's MIG instances; None where it is not divided."""
    try:
        if not module.nvmlDeviceGetMigMode(handle)[0]:
            return None
        places = range(module.nvmlDeviceGetMaxMigDeviceCount(handle))
    except module.NVMLError:
        return None
    return tuple(mig for mig in (_read_mig_id(module, handle, place) for place in places) if mig)


def _read_mig_id(module: Any, handle: Any, index: int) -> str | None:
    try:
        return _decode(module.nvmlDeviceGetUUID(module.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    except module.NVMLError:
        return None  # an index may be empty


def _read_numa_node(module: Any, handle: Any, root: str) -> int | None:
    """Return the NUMA node of the GPU's address on the PCI bus.

    nvmlDeviceGetNumaNodeId is another thing: the node that the GPU's own memory is, on machines where it is one.
    """
    try:
        domain, _, place = _decode(module.nvmlDeviceGetPciInfo(handle).busId).partition(":")
    except module.NVMLError:
        return None
    # NVML writes the domain with eight digits, the kernel with four or more.
    return sysfs.read_numa_node(root, f"{domain.lstrip('0').zfill(4)}:{place}")


def _read_model(module: Any, handle: Any) -> str:
    try:
        return _decode(module.nvmlDeviceGetName(handle))
    except module.NVMLError:
        return ""


def _read_domain(module: Any, handle: Any) -> str:
    """Return the NVLink domain and the GPU's partition of it, "<clusterUuid>.<cliqueId>"; "" if it is in none."""
    from ctypes import byref  # which nvidia-ml-py has loaded anyway

    for struct in (getattr(module, name, None) for name in _STRUCTS):
        if struct is None or not hasattr(module, "nvmlDeviceGetGpuFabricInfoV"):
            continue  # an older nvidia-ml-py
        info = struct()
        try:
            module.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        except module.NVMLError:
            continue  # an older driver, or a GPU that has no fabric
        cluster = bytes(info.clusterUuid).hex()
        if info.state != _COMPLETED or info.status != 0 or not cluster.strip("0"):
            return ""
        parts = (cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])
        return f"{'-'.join(parts)}.{info.cliqueId}"
    return ""


def _decode(value: str | bytes) -> str:
    """Return the text; older releases of nvidia-ml-py return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
