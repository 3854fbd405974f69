"""Every rule by which devices are found, named, chosen and shown, with its source: the content of the reference page.

The detectors hold the same facts as code; names that both use are defined there once.
`evidence` says how certain a rule is: "tried" on such a machine, "read" in the source that implements it, or
"documented" by its vendor. Nothing that is only read or documented was tried on the hardware in question.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from launcher.hardware.accelerators.amd import CUDA, HIP, ROCR
from launcher.hardware.accelerators.ascend import Detector as Ascend
from launcher.hardware.accelerators.contract import KINDS
from launcher.hardware.accelerators.cuda_visible import VARIABLE
from launcher.hardware.accelerators.habana import Detector as Habana
from launcher.hardware.accelerators.intel import HIERARCHY, MASK
from launcher.hardware.accelerators.neuron import LOGICAL
from launcher.hardware.accelerators.neuron import Detector as Neuron
from launcher.hardware.tpu.chips import VISIBLE, VISIBLE_PATHS
from launcher.hardware.tpu.slice_types import MODELS, TpuModel

Evidence = Literal["tried", "read", "documented"]


class Rule(NamedTuple):
    """`subject`: the question about the kind; `answer`: in Markdown; `source`: where it is from."""

    kind: str
    subject: str
    answer: str
    source: str
    evidence: Evidence


def _make_detection_rule(kind: str, source: str, evidence: Evidence = "documented") -> Rule:
    """Return the rule of what a machine must have before a kind is searched for."""
    known = KINDS[kind]
    files = ", ".join(f"`{file}`" for file in known.driver_paths)
    words = ", ".join(f"`{word}`" for word in known.variables)
    return Rule(kind, "sign", f"one of {files}" + (f", or a variable: {words}" if words else ""), source, evidence)


_CUDA_GUIDE = "CUDA programming guide, environment variables"
_MIG_GUIDE = "NVIDIA Multi-Instance GPU User Guide, CUDA Device Enumeration"
_TORCH = "torch 2.13, torch/cuda/__init__.py"
_NVML = "NVML API reference; nvidia-ml-py 13.615"
_NVIDIA_FILES = "NVIDIA driver README, /proc/driver/nvidia"
_ROCR = "ROCR-Runtime, core/runtime/amd_filter_device.cpp"
_CLR = "ROCm clr, rocclr/device/rocm/rocdevice.cpp"
_KFD = "Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c"
_ZE = "Level Zero specification, core programming guide, Affinity Mask"
_SYSFS = "Linux, Documentation/ABI/testing/sysfs-bus-pci"
_TPU = "JAX, jax/_src/hardware_utils.py; torch_xla, _internal/tpu.py; ray, accelerators/tpu.py"
_TPU_TYPES = (
    "docs.cloud.google.com/tpu/docs, TPU versions; ray, accelerators/tpu.py; xpk, core/system_characteristics.py"
)
_GAUDI = "docs.habana.ai, Multiple Workloads on a Single Docker; Linux, drivers/accel/habanalabs"
_NEURON = "AWS Neuron documentation, Neuron Runtime configuration"
_CANN = "CANN, Environment variables; ray, accelerators/npu.py"


def _make_tpu_type_rule(model: TpuModel) -> Rule:
    """Return the rule of what a type of this model means."""
    each = f"{model.cores_per_chip} to a chip" if model.is_by_core else "of one TensorCore"
    sizes = " or ".join(filter(None, (", ".join(map(str, model.host_chips[:-1])), str(model.host_chips[-1]))))
    says = f"`{model.names[0]}-N`: N {model.counted_unit}, {each}; a host has {sizes} chips"
    says += ", in slices of several hosts 4" if len(model.host_chips) > 1 else ""
    says += f"; {'a grid' if model.sides else 'a box'} of chips; {', '.join(model.pci_ids)} on the PCI bus"
    says += f"; GKE: `{model.gke_label}`" if model.gke_label else ""
    return Rule("tpu", "type", says, _TPU_TYPES, "documented")


RULES: tuple[Rule, ...] = (
    _make_detection_rule("nvidia", _NVIDIA_FILES),
    Rule("nvidia", "found by", "NVML through nvidia-ml-py, in PCI order", _NVML, "read"),
    Rule("nvidia", "found by", "else `/proc/driver/nvidia/gpus/*/information`, as far as `/dev/nvidiaN` may be opened",
         _NVIDIA_FILES, "documented"),
    Rule("nvidia", "found by", "else the PCI bus: vendor 0x10de, class 0x03; at most as many as `/dev/nvidiaN` may be "
         "opened", _SYSFS, "documented"),
    Rule("nvidia", "lost", "a GPU that NVML lists and that does not answer is left out; where the GPUs say how many "
         "workers there are, the node does not join", _NVML, "read"),
    Rule("nvidia", "chosen by", f"`{VARIABLE}`: numbers, ids or unique beginnings of one, or MIG ids, in the order of "
         "the devices; the first invalid entry hides itself and all that follow; empty or -1 hides all", _CUDA_GUIDE,
         "documented"),
    Rule("nvidia", "chosen by", "a GPU that is named twice leaves none; kinds of entries do not mix; `1gpu` is 1",
         _TORCH, "read"),
    Rule("nvidia", "left out", "a GPU that NVML lists and that may not be opened: CUDA does not number it either",
         _NVML, "documented"),
    Rule("nvidia", "MIG", "CUDA shows a process one instance, and no whole GPU beside it, so several count as one; "
         "with `--device-binding visible` each is a device. A GPU with MIG on and no instance is none", _MIG_GUIDE,
         "documented"),
    Rule("nvidia", "NUMA node", "of the GPU's PCI address, `/sys/bus/pci/devices/*/numa_node`; -1 is unknown", _SYSFS,
         "documented"),
    Rule("nvidia", "domain", "NVLink: `<clusterUuid>.<cliqueId>` of the fabric information (struct version 3, else 2), "
         "where its state is 3, its status success and the UUID not zero",
         "nvidia-ml-py 13.615; k8s-device-plugin, internal/lm/imex.go; XLA", "read"),
    Rule("nvidia", "shown by", f"`{KINDS['nvidia'].variable}`: the entry that was given, else the number; the id where "
         "GPUs are unresponsive or of several models, as CUDA orders by speed", _CUDA_GUIDE, "documented"),
    _make_detection_rule("amd", _KFD, "read"),
    Rule("amd", "found by", "`/sys/class/kfd/kfd/topology/nodes/*/properties` with `simd_count` above 0, as far as "
         "they can be read; `/dev/kfd` and `/dev/dri/renderDN` must be open to us", f"{_KFD}; JAX, hardware_utils.py",
         "read"),
    Rule("amd", "left out", "graphics inside a CPU, by its `gfx_target_version`, unless asked for by `--devices amd`",
         "LLVM, User Guide for AMDGPU Backend, processors", "documented"),
    Rule("amd", "chosen by", f"first `{ROCR}`: numbers or ids or unique beginnings of one; an invalid or repeated "
         "entry ends the list; empty leaves none", _ROCR, "read"),
    Rule("amd", "chosen by", f"then `{HIP}`, or `{CUDA}` if that is empty or unset: numbers among what is left, or "
         "ids; an invalid entry ends the list", _CLR, "read"),
    Rule("amd", "chosen by", "a GPU that is named twice leaves none, and so does an empty list", _TORCH, "read"),
    Rule("amd", "NUMA node", "of the GPU's PCI address", _SYSFS, "documented"),
    Rule("amd", "domain", "XGMI: `hive_id` of the properties, where it is not 0", _KFD, "read"),
    Rule("amd", "shown by", f"`{KINDS['amd'].variable}`, counted within what `{ROCR}` leaves", _CLR, "read"),
    _make_detection_rule("intel", _SYSFS),
    Rule("intel", "found by", "the PCI bus: driver xe or i915, vendor 0x8086, class 0x03, and a `/dev/dri/renderDN` "
         "that may be opened", _SYSFS, "documented"),
    Rule("intel", "left out", "graphics inside a CPU, which is at 0000:00:02, unless asked for by `--devices intel`",
         "datasheets of Intel processors, Processor Graphics", "documented"),
    Rule("intel", "chosen by", f"`{MASK}`: numbers of tiles; with `{HIERARCHY}=COMPOSITE` of GPUs, or `GPU.TILE`. An "
         "entry that names nothing is ignored; the order is the driver's", f"{_ZE}; compute-runtime, "
         "execution_environment.cpp", "read"),
    Rule("intel", "NUMA node", "of the GPU's PCI address", _SYSFS, "documented"),
    Rule("intel", "shown by", f"`{KINDS['intel'].variable}`", _ZE, "documented"),
    _make_detection_rule("tpu", _TPU, "read"),
    Rule("tpu", "found by", "`/dev/accelN` (not the folder `/dev/accel`), else `/dev/vfio/N` with devices of vendor "
         "0x1ae0 in its IOMMU group that are no network card or disk; as far as we may open them, which is not tried: "
         "a chip that is in use answers \"busy\"", _TPU, "read"),
    Rule("tpu", "named by", "`TPU_ACCELERATOR_TYPE`; else the metadata server, which is asked only where there are "
         "chips, and not with `TPU_SKIP_MDS_QUERY`", _TPU, "read"),
    Rule("tpu", "chosen by", "the first of " + ", ".join(f"`{name}`" for name in (*VISIBLE, VISIBLE_PATHS))
         + "; a chip that is not there, or is named twice, ends the start", _TPU, "read"),
    *map(_make_tpu_type_rule, MODELS),
    Rule("tpu", "NUMA node", "of the chip's PCI address", _SYSFS, "documented"),
    Rule("tpu", "shown by", f"`{KINDS['tpu'].variable}`", _TPU, "read"),
    Rule("cpu", "found by", "the CPUs that this process may run on", "sched_getaffinity(2)", "tried"),
    Rule("cpu", "shown by", "nothing: `--numa-binding` keeps workers to CPUs", "meshrun", "tried"),
    Rule("xpu, npu, hpu, ...", "found by", "torch, in a process of the workers' Python, for `--nproc-per-node xpu` and "
         "the like", "torch 2.13, torch/distributed/run.py", "read"),
    Rule("ascend", "found by", "`/dev/davinciN` that may be opened", _CANN, "read"),
    Rule("ascend", "chosen by", f"`{Ascend.variable}`: ascending numbers; what follows an odd entry is not read", _CANN,
         "documented"),
    Rule("ascend", "shown by", f"`{Ascend.variable}`", _CANN, "documented"),
    Rule("habana", "found by", "`/dev/accel/accel_controlDN` with an `accelN` that may be opened", _GAUDI, "read"),
    Rule("habana", "chosen by", f"`{Habana.variable}`: module ids, as `/sys/class/accel/accelN/device/module_id` has "
         "them; on a board of 8 all from 0 to 7", _GAUDI, "documented"),
    Rule("habana", "shown by", f"`{Habana.variable}`", _GAUDI, "documented"),
    Rule("neuron", "found by", "`/dev/neuronN`; a device is a core, of which "
         "`/sys/devices/virtual/neuron_device/neuronN` has the number",
         "AWS Neuron documentation, Neuron Sysfs User Guide", "documented"),
    Rule("neuron", "found by", f"`{LOGICAL}` says how many physical cores are one; Trainium2 and Trainium3 take 2 "
         "where it is not set", "AWS Neuron documentation, Logical NeuronCore configuration", "documented"),
    Rule("neuron", "chosen by", f"`{Neuron.variable}`: numbers and ranges of cores over all chips", _NEURON,
         "documented"),
    Rule("neuron", "shown by", f"`{Neuron.variable}`", _NEURON, "documented"),
    Rule("NAME:COUNT", "shown by", "the variable of `--visible-env`; where it is set already, its entries are those of "
         "this node", "meshrun", "tried"),
)  # fmt: skip
"""In the order of the reference page."""
