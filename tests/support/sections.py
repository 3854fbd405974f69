"""Slots of a node and environments of workers, by the few options that matter to a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from launcher.config.options.readers import DeviceRequest
from launcher.extensions.paddle.environment import PaddleEnvironment
from launcher.hardware.accelerators import contract, named
from launcher.hardware.accelerators import slots as node_slots
from launcher.hardware.accelerators.contract import Detector
from launcher.model.node import Slot
from launcher.ranks.environments.jax import JaxEnvironment
from launcher.ranks.environments.torch import TorchEnvironment
from tests.support.options import resolve


def assign_devices(
    worker_count: int | str | None,
    width: Any,
    environ: Mapping[str, str],
    *,
    request: DeviceRequest | None = None,
    framework: str = "torch",
    python: str = "python3",
    accelerators: Sequence[Detector] | None = None,
    cpu: Detector | None = None,
) -> tuple[tuple[Slot, ...], str]:
    """The slots of a node with --nproc-per-node, --devices-per-worker and --devices as these.

    `accelerators`, `cpu`: what detects there, where they are given.
    """
    made, origins = resolve(f"--framework={framework}"), {"worker_count": "--nproc-per-node"}
    devices = replace(
        made.devices, worker_count=worker_count, devices_per_worker=width, request=request, origins=origins
    )
    workers = replace(made.workers, python=python)
    cpu = cpu or contract.CpuDetector()
    if accelerators is None:
        return node_slots.make_node_slots(devices, workers, environ)[:2]
    with (
        patch.object(node_slots, "list_candidates", lambda *_: accelerators),
        patch.object(named, "make_detector", lambda *_, **__: accelerators[0]),
        patch.object(named, "_detect_by_plugin", lambda _, environ: accelerators[0].detect(environ)),
        patch.object(contract, "CpuDetector", lambda: cpu),
    ):
        return node_slots.make_node_slots(devices, workers, environ)[:2]


def make_torch(**changes: Any) -> TorchEnvironment:
    return TorchEnvironment(options=replace(resolve().workers, **changes))


def make_jax(mpi_reason: str = "", **changes: Any) -> JaxEnvironment:
    return JaxEnvironment(options=replace(resolve().workers, **changes), mpi_reason=mpi_reason)


def make_paddle(**changes: Any) -> PaddleEnvironment:
    return PaddleEnvironment(options=replace(resolve().workers, **changes))
