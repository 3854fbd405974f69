"""The detector of every kind of device, and what was asked for by name: --devices nvidia, amd:4, tpu:v5e-16, or foo:3.

A kind that is built in, or that a plug-in adds, is detected as usual; the name decides between two kinds, and a number
requires that many: more are left unused, fewer are refused. With --visible-env nothing is detected, and the number is
accepted as given. Imported only where there is a sign of a device, or one is requested.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from launcher import extensions
from launcher.config import plugins
from launcher.config.options.readers import DeviceRequest
from launcher.hardware.accelerators import contract
from launcher.hardware.accelerators.contract import Detector, Inventory
from launcher.hardware.accelerators.visible_list import DECLARED, find_mistake
from launcher.model.errors import UnfitError, UsageError, sanitize
from launcher.model.node import Device

GROUP = "meshrun.devices"


def make_detector(kind: str, *, is_requested: bool = False, isolates_workers: bool = False) -> Detector:
    """Create the detector of a built-in kind. `is_requested`: by name, so that graphics inside a CPU counts, too."""
    if kind not in contract.KINDS:
        return contract.CpuDetector()
    options = {
        "nvidia": {"isolates_workers": isolates_workers},
        "amd": {"with_integrated": is_requested},
        "intel": {"with_integrated": is_requested},
    }
    make = extensions.load_entry(extensions.DEVICES.get(kind, f"launcher.hardware.accelerators.{kind}:Detector"))
    detector: Detector = make(**options.get(kind, {}))
    return detector


def detect_requested(
    request: DeviceRequest, environ: Mapping[str, str], *, isolates_workers: bool = False
) -> Inventory:
    """Return the requested devices; at least one.

    Raises UsageError if none is present, or the kind is unknown, and UnfitError if some are missing or do not answer.
    """
    if request.variable:
        return _make_declared(request, environ)
    if request.kind in contract.KINDS:
        found = make_detector(request.kind, is_requested=True, isolates_workers=isolates_workers).detect(environ)
    else:
        found = _detect_by_plugin(request, environ)
    found = found.single_line
    count, reason = request.number, found.reason
    if request.shape:
        count, reason = extensions.load_entry(extensions.SHAPES[request.kind])(request, found, environ)
    if found.unresponsive_count and (count is None or not found.devices):
        raise contract.make_unresponsive_error(found)
    contract.refuse_mistake(found)
    if not found.devices:
        hint = "set --visible-env VARIABLE to use a number of devices that are not detected"
        hint = "run `meshctl doctor` to see what was examined" if request.kind in contract.KINDS else hint
        raise UsageError(f"{request}: no such device found ({reason})", hint)
    if count is not None and count > len(found.devices):
        shares = f"use --devices {request.kind} --nproc-per-node={count} for {count} workers that share them"
        sentence = f"{request}: {count} requested, {len(found.devices)} found ({reason})"
        raise UnfitError(sentence, shares, kind=("devices", len(found.devices)))
    return replace(found, devices=found.devices[:count], reason=reason)


def _make_declared(request: DeviceRequest, environ: Mapping[str, str]) -> Inventory:
    """Return as many as were declared. Where the variable is set already, its entries are this node's devices."""
    count = request.number or 0
    setting = environ.get(request.variable, "").strip()
    entries = [entry.strip() for entry in setting.split(",")] if setting else [str(index) for index in range(count)]
    setting = f"{request.variable}={sanitize(setting)}"
    if len(entries) < count:
        raise UsageError(f"{request}: {count} requested, but {setting} has {len(entries)}")
    if "" in entries or len(set(entries)) < len(entries):
        raise UsageError(f"{request}: {setting} has an empty or duplicate entry")
    if mistake := find_mistake(request.variable, environ.get(request.variable, ""), DECLARED):
        raise UsageError(mistake.mistake, mistake.hint)
    devices = tuple(
        Device(kind=request.kind, index=index, id=f"{request.kind}{entry}", visible=entry, variable=request.variable)
        for index, entry in enumerate(entries[:count])
    )
    return Inventory(devices, f"as --devices says, by {request.variable}")


def _detect_by_plugin(request: DeviceRequest, environ: Mapping[str, str]) -> Inventory:
    believed = "set --visible-env VARIABLE to use a number of devices without a plug-in"
    plugin = plugins.load(GROUP, request.kind, str(request), built_in=contract.KINDS, otherwise=believed)
    found = plugins.ask(plugin, "detect", Inventory, environ)
    variable = getattr(plugin.value, "variable", "")
    problem = _find_problem(found, variable)
    if problem:
        raise UsageError(f"{plugin}: detect() returned {problem}")
    return replace(
        found, devices=tuple(replace(device, variable=device.variable or variable) for device in found.devices)
    )


def _find_problem(found: Inventory, variable: object) -> str:
    """Return what is wrong with a plug-in's answer; "" if nothing is."""
    if not isinstance(found.devices, tuple) or not all(isinstance(device, Device) for device in found.devices):
        return "an Inventory whose devices are not a tuple of Device"
    if not isinstance(found.reason, str) or not isinstance(found.mistake, str) or not isinstance(variable, str):
        return "an Inventory or a variable that is not text"
    kinds = {device.kind for device in found.devices}
    if len(kinds) > 1:
        return f"devices of {len(kinds)} kinds"
    if len({device.id for device in found.devices}) < len(found.devices):
        return "the same device twice"
    if [device.index for device in found.devices] != list(range(len(found.devices))):
        return "devices that are not numbered from 0"
    return ""
