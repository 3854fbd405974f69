"""The devices that the user has named: --devices nvidia, amd:4, tpu:v5e-16, ascend, or foo:3 --visible-env FOO.

A kind that is built in, or that a plug-in adds, is detected as usual; the name decides between two kinds, and a number
requires that many: more are left unused, fewer are refused. With --visible-env nothing is detected, and the number is
accepted as given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.config import plugins
from launcher.config.options.command_line import sanitize
from launcher.hardware.accelerators.built_in import make_detector
from launcher.hardware.accelerators.contract import KINDS, Detector, Inventory, make_unresponsive_error
from launcher.hardware.tpu import slice_identity, slice_types
from launcher.model.errors import UnfitError, UsageError
from launcher.model.node import Device

if TYPE_CHECKING:
    from launcher.config.options.worker_options import DeviceRequest

GROUP = "meshrun.devices"


def detect_requested(
    request: DeviceRequest,
    environ: Mapping[str, str],
    *,
    isolates_workers: bool = False,
    detectors: Sequence[Detector] | None = None,
) -> Inventory:
    """Return the requested devices; at least one. `detectors` are for tests.

    Raises UsageError if none is present, or the kind is unknown, and UnfitError if some are missing or do not answer.
    """
    if request.variable:
        return _make_declared(request, environ)
    if detectors is not None:
        found = detectors[0].detect(environ)
    elif request.kind in KINDS:
        found = make_detector(request.kind, is_requested=True, isolates_workers=isolates_workers).detect(environ)
    else:
        found = _detect_by_plugin(request, environ)
    found = found.single_line
    count, reason = request.number, found.reason
    if request.shape:
        count, reason = _count_tpu_chips(request, found, environ)
    if found.unresponsive_count and (count is None or not found.devices):
        raise make_unresponsive_error(found)
    if not found.devices:
        hint = "with --visible-env VARIABLE a number of them is believed, and nothing is looked for"
        hint = "`meshctl doctor` shows what was looked at" if request.kind in KINDS else hint
        raise UsageError(found.mistake or f"{request}: none is there ({reason})", None if found.mistake else hint)
    if count is not None and count > len(found.devices):
        there = f"{len(found.devices)} {'is' if len(found.devices) == 1 else 'are'} there"
        shares = f"--devices {request.kind} --nproc-per-node={count} starts {count} workers that share them"
        raise UnfitError(f"{request}: {count} are asked for, {there} ({reason})", shares)
    return found._replace(devices=found.devices[:count], reason=reason)


def _make_declared(request: DeviceRequest, environ: Mapping[str, str]) -> Inventory:
    """Return as many as were declared. Where the variable is set already, its entries are this node's devices."""
    count = request.number or 0
    setting = environ.get(request.variable, "").strip()
    entries = [entry.strip() for entry in setting.split(",")] if setting else [str(index) for index in range(count)]
    setting = f"{request.variable}={sanitize(setting)}"
    if len(entries) < count:
        raise UsageError(f"{request}: {count} are asked for, and {setting} has {len(entries)}")
    if "" in entries or len(set(entries)) < len(entries):
        raise UsageError(f"{request}: {setting} has an entry that is empty, or there twice")
    devices = tuple(
        Device(
            kind=request.kind, index=index, id=f"{request.kind}{entries[index]}", visible=entries[index],
            variable=request.variable,
        )
        for index in range(count)
    )  # fmt: skip
    return Inventory(devices, f"as --devices says, by {request.variable}")


def _count_tpu_chips(request: DeviceRequest, found: Inventory, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of chips that this host has in a slice of the type, and the reason extended by it.

    Raises UsageError if the slice of this host has another number of hosts.
    """
    try:
        slice_type = slice_types.parse(request.shape, len(found.devices) or None)
    except UsageError as error:
        raise UsageError(f"{request}: {error}", error.hint) from None
    identity, said = slice_identity.read_identity(environ)
    if identity is not None and identity.host_count != slice_type.hosts:
        raise UsageError(f"{request}: {slice_type.hosts} hosts have such a slice, and this is one of {said}")
    return slice_type.chips_per_host, f"{slice_type.description}; {found.reason}"


def _detect_by_plugin(request: DeviceRequest, environ: Mapping[str, str]) -> Inventory:
    believed = "with --visible-env VARIABLE a number of any devices is believed"
    plugin = plugins.load(GROUP, request.kind, str(request), built_in=KINDS, otherwise=believed)
    found = plugins.ask(plugin, "detect", Inventory, environ)
    variable = getattr(plugin.value, "variable", "")
    problem = _find_problem(found, variable)
    if problem:
        raise UsageError(f"{plugin}: detect() returned {problem}")
    return found._replace(
        devices=tuple(replace(device, variable=device.variable or variable) for device in found.devices)
    )


def _find_problem(found: Inventory, variable: object) -> str:
    """Return what is wrong with a plug-in's answer; "" if nothing is."""
    if not isinstance(found.devices, tuple) or not all(isinstance(device, Device) for device in found.devices):
        return "an Inventory whose devices are not a tuple of Device"
    if not isinstance(found.reason, str) or not isinstance(found.mistake, str) or not isinstance(variable, str):
        return "an Inventory, or has a variable, that is no text"
    kinds = {device.kind for device in found.devices}
    if len(kinds) > 1:
        return f"devices of {len(kinds)} kinds"
    if len({device.id for device in found.devices}) < len(found.devices):
        return "the same device twice"
    if [device.index for device in found.devices] != list(range(len(found.devices))):
        return "devices that are not numbered from 0"
    return ""
