"""The detectors of the built-in kinds, each imported when it is requested."""

from __future__ import annotations

from launcher.hardware.accelerators.contract import Detector
from launcher.hardware.accelerators.cpu import Detector as CpuDetector


def make_detector(kind: str, *, is_requested: bool = False, isolates_workers: bool = False) -> Detector:
    """Create the detector of a built-in kind. `is_requested`: by name, so that graphics inside a CPU counts, too."""
    match kind:
        case "nvidia":
            from launcher.hardware.accelerators.nvidia import Detector as NvidiaDetector

            return NvidiaDetector(isolates_workers=isolates_workers)
        case "amd":
            from launcher.hardware.accelerators.amd import Detector as AmdDetector

            return AmdDetector(with_integrated=is_requested)
        case "intel":
            from launcher.hardware.accelerators.intel import Detector as IntelDetector

            return IntelDetector(with_integrated=is_requested)
        case "tpu":
            from launcher.hardware.tpu.chips import Detector as TpuDetector

            return TpuDetector()
    return CpuDetector()
