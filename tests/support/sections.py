"""Slots of a node and environments of workers, by the few options that matter to a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from launcher.config.options.readers import DeviceRequest
from launcher.extensions.paddle.environment import PaddleEnvironment
from launcher.hardware.accelerators.slots import make_node_slots
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
    **detectors: Any,
) -> tuple[tuple[Slot, ...], str]:
    """The slots of a node with --nproc-per-node, --devices-per-worker and --devices as these."""
    made, origins = resolve(f"--framework={framework}"), {"worker_count": "--nproc-per-node"}
    devices = replace(
        made.devices, worker_count=worker_count, devices_per_worker=width, request=request, origins=origins
    )
    return make_node_slots(devices, replace(made.workers, python="python3"), environ, **detectors)


def make_torch(**changes: Any) -> TorchEnvironment:
    return TorchEnvironment(options=replace(resolve().workers, **changes))


def make_jax(mpi_reason: str = "", **changes: Any) -> JaxEnvironment:
    return JaxEnvironment(options=replace(resolve().workers, **changes), mpi_reason=mpi_reason)


def make_paddle(**changes: Any) -> PaddleEnvironment:
    return PaddleEnvironment(options=replace(resolve().workers, **changes))
