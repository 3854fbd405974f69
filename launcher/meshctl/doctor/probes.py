"""Runs each detector of a run separately: a run stops at the first one with a result.

An exception is a finding too: a driver in a bad state is a case for this command.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.config import files, frameworks
from launcher.config.config import Config
from launcher.config.options.command_line import sanitize
from launcher.hardware.accelerators import built_in, named
from launcher.hardware.accelerators.contract import KINDS, Inventory, find_visible_variable
from launcher.hardware.tpu import slice_identity
from launcher.locality import gather
from launcher.meshctl.doctor.findings import Finding, Severity
from launcher.model.errors import LauncherError, UsageError
from launcher.model.node import Slot

if TYPE_CHECKING:
    from launcher.locality.gather import Locality

NO_SCRIPT = "SCRIPT"
"""Represents the script where none is given."""
FRAMEWORKS = ("torch", "jax", "torch_xla")


def examine_devices(config: Config, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Examine every kind of device: what is present, the reason, or why there is none; CPUs last.

    A kind that is not built in is included if --devices names it.
    """
    request, each_its_own = config.devices, config.device_binding == "visible"
    kinds: list[tuple[str, Callable[[], Inventory]]] = [
        (
            kind,
            lambda kind=kind: built_in.make_detector(  # type: ignore[misc]
                kind, is_requested=request is not None and request.kind == kind, isolates_workers=each_its_own
            ).detect(environ),
        )
        for kind in (*KINDS, "cpu")
    ]
    if request is not None and request.kind not in (*KINDS, "cpu"):
        kinds.insert(
            -1, (request.kind, lambda: named.detect_requested(request, environ, isolates_workers=each_its_own))
        )
    return [_examine_kind(kind, detect, environ) for kind, detect in kinds]


def _examine_kind(kind: str, detect_inventory: Callable[[], Inventory], environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        inventory = detect_inventory()
    except LauncherError as error:
        inventory = Inventory((), str(error))
    except Exception as error:
        inventory = Inventory((), f"{type(error).__name__}: {error}")
    found = inventory.devices
    return {
        "kind": kind,
        "count": len(found),
        "reason": inventory.reason,
        "mistake": inventory.mistake,
        "silent": inventory.unresponsive_count,
        "visible_by": next(
            (device.variable for device in found if device.variable), find_visible_variable(kind, environ)
        ),
        "ids": [device.id for device in found],
        "devices": [
            {
                "index": device.index,
                "id": device.id,
                "model": device.model,
                "numa_node": device.numa_node,
                "domain": device.domain,
            }
            for device in found
        ],
    }


def check_devices(kinds: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield problems with them, besides those that keep workers from starting."""
    for kind in kinds:
        if kind["silent"]:
            yield Finding(
                "devices",
                "hurt",
                f"{kind['silent']} more of {kind['kind']} are there and do not answer",
                "workers start on the others alone, and a node that should have all of them is smaller than its peers",
                "see dmesg; such a device often needs a reset, or the machine a restart",
            )
        if kind["mistake"]:
            yield Finding("devices", "hurt", kind["mistake"], "fewer devices are used than there are", "mend it")


def examine_tpu_slice(environ: Mapping[str, str], locality: Locality | None) -> dict[str, Any] | None:
    """Return what is known of this host's slice of TPUs; None without a sign of one."""
    found = locality.identity if locality is not None else None
    if found is None and not any(environ.get(name) for name in slice_identity.IDENTITY_VARIABLES):
        return None
    reason = next((one.reason for one in locality.results if one.source == "slice"), "") if locality is not None else ""
    if found is None:
        found, why = slice_identity.read_identity(environ)
        reason = reason or why
    if found is None:
        return {"name": "", "reason": reason}
    return {**found._asdict(), "hostnames": list(found.hostnames), "reason": reason}


def choose_framework(config: Config, slots: Sequence[Slot], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the frameworks whose variables workers get, and the reason."""
    found = frameworks.choose_environments(
        config.framework, [device for slot in slots for device in slot.devices], config.python, environ
    )
    reason = found.reason or "workers get torchrun's variables: nothing speaks for another framework"
    return {"names": list(found.names), "reason": reason}


def list_frameworks(config: Config, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the workers' Python could import, as far as visible without starting it, with versions."""
    return {
        name: {
            "found": frameworks.has_package(name, config.python, environ),
            "version": find_version(name) if config.python == sys.executable else None,
        }
        for name in FRAMEWORKS
    }


def examine_locality(
    config: Config, slots: Sequence[Slot], environ: Mapping[str, str], names: Sequence[str]
) -> tuple[Locality | None, dict[str, Any], list[Finding]]:
    """Return this node's locality; the same with the sources, to be shown; what would stop a job."""
    found = [device for slot in slots for device in slot.devices]
    asked = config if config.network is not None else replace(config, locality_command=None)  # as in a run: see notes
    try:
        stands = gather.resolve_locality(asked, environ, names=names, devices=found, is_thorough=True)
    except LauncherError as error:
        reason = str(error)
        empty = {"levels": [], "reason": reason, "looked": [], "no_sign_of": [], "remarks": []}
        level: Severity = "stop" if config.network is not None else "note"  # one machine queries no source
        return None, empty, [Finding("locality", level, reason, "", error.hint or "")]
    looked = [{"source": one.source, "reason": one.reason, "levels": len(one.levels)} for one in stands.results]
    answered = {one["source"] for one in looked}
    shown = {
        "levels": [level._asdict() for level in stands.levels],
        "reason": "" if stands.levels else "nothing says where this node stands",
        "looked": looked,
        "no_sign_of": [name for name in gather.BUILT_IN if name not in answered],
        "remarks": list(stands.remarks) if stands.levels else [],
    }
    return stands, shown, []


def find_version(distribution: str) -> str | None:
    """Return the version installed for the agent's Python, without importing the framework."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_script(config: Config) -> Iterator[Finding]:
    """Yield what a run would report of its files."""
    try:
        files.check(replace(config, log_dir=None))  # which would be created
    except UsageError as error:
        yield Finding("script", "stop", str(error), "", error.hint or "")


def check_interpreter(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the workers' Python, or the program, exists."""
    path = environ.get("PATH", os.defpath)
    if config.launch_mode != "program":
        if shutil.which(config.python, path=path) is None:
            yield Finding(
                "python", "stop", f"the workers' Python, {config.python}, cannot be run", "", "see PYTHON_EXEC"
            )
    elif config.script != NO_SCRIPT and shutil.which(config.script, path=path) is None:
        remedy = "is it executable? a program that is here, and not in PATH, is written ./PROGRAM"
        yield Finding("script", "stop", f"the program {sanitize(config.script)} cannot be run", "", remedy)
