"""Kubeflow's controllers for PyTorch set torchrun's own PET_ variables, which are read as options in any case.

So there is nothing to detect here; the controller is only logged. PyTorchJob (v1) also sets RANK and WORLD_SIZE, which
count pods and not workers: every worker gets its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.config.schedulers.contract import Detection

_REASON = "it says all that is needed in PET_ variables"


def detect(environ: Mapping[str, str], known_by: tuple[str, ...]) -> Detection | None:
    """Return which of them it is; None for PET_ variables from elsewhere."""
    if "-node-0-0." in environ.get("PET_MASTER_ADDR", ""):
        return Detection(controller="Kubeflow Trainer", known_by=known_by, reason=_REASON)
    endpoint = environ.get("PET_RDZV_ENDPOINT", "").partition(":")[0]
    if endpoint.endswith("-worker-0") or environ.get("PET_MASTER_ADDR", "").endswith("-master-0"):
        return Detection(controller="Kubeflow PyTorchJob", known_by=known_by, reason=_REASON)
    return None
