"""What `meshctl doctor` finds out: the options in force, Python, torch and the devices of this node.

Nothing is started and no framework imported: torch's version is read from its package's metadata, devices are
counted by the same detectors that a run uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from typing import Any

from launcher import __version__, config, controllers, credentials, options
from launcher.devices import choose
from launcher.errors import UsageError

_DETECTORS = ("nvidia", "cpu")
_NO_SCRIPT = "SCRIPT"


def examine(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What a run with these words would work with, as values for JSON. Raises UsageError as the run would.

    The script may be missing from `argv`.
    """
    words = options.parse(argv)
    python = environ.get("PYTHON_EXEC") or sys.executable
    hostname = os.uname().nodename
    resolved = config.resolve(words._replace(script=words.script or _NO_SCRIPT), environ, python, hostname)
    gathered = controllers.gather(words.values, environ, hostname)
    return {
        "meshrun": __version__,
        "python": {"version": ".".join(map(str, sys.version_info[:3])), "agent": sys.executable, "workers": python},
        "torch": _torch_version(),
        "workers": _workers(resolved, environ),
        "devices": [_detected(kind, environ) for kind in _DETECTORS],
        "controller": _controller(gathered),
        "options": {
            name: {"value": value.text, "origin": value.origin}
            for name, value in gathered.given.items()
            if value.option.state != "not yet"
        },
        "secrets": credentials.given(environ),
        "notes": list(resolved.notes),
    }


def _controller(gathered: controllers.Gathered) -> dict[str, Any] | None:
    """Which job controller the environment speaks of, by what it is known, what it says, and what is made of that."""
    found = gathered.detection
    if found is None:
        return None
    says = {
        name: {"value": value.text, "origin": value.origin, "unused": gathered.unused.get(name)}
        for name, value in found.values.items()
    }
    return {"name": found.controller, "known_by": list(found.known_by), "reason": found.reason, "says": says}


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _workers(resolved: config.Config, environ: Mapping[str, str]) -> dict[str, Any]:
    """How many workers there would be and why, or why there can be none."""
    try:
        slots, reason = choose.worker_devices(
            resolved.worker_count, resolved.devices_per_worker, environ, python=resolved.python
        )
    except UsageError as error:
        return {"count": 0, "reason": str(error)}
    return {"count": len(slots), "reason": reason}


def _detected(kind: str, environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        inventory = import_module(f"launcher.devices.{kind}").Detector().detect(environ)
    except Exception as error:  # a driver in a bad state is what this command is for
        return {"kind": kind, "count": 0, "reason": f"{type(error).__name__}: {error}", "ids": []}
    return {
        "kind": kind,
        "count": len(inventory.devices),
        "reason": inventory.reason,
        "ids": [device.id for device in inventory.devices],
    }


def _told(controller: Mapping[str, Any] | None) -> Iterator[str]:
    if controller is None:
        yield "  none is recognised"
        return
    yield f"  {controller['name']}, by {', '.join(controller['known_by'])}"
    yield f"  {controller['reason']}"
    for name, said in controller["says"].items():
        why = f"not used: {said['unused']}" if said["unused"] else "used"
        yield f"  {name:<20} {said['value']:<36} {said['origin']}, {why}"


def describe(findings: Mapping[str, Any]) -> str:
    """The same as text for people."""
    python = findings["python"]
    lines = [
        f"meshrun {findings['meshrun']}, Python {python['version']} ({python['agent']})",
        f"workers run by {python['workers']}",
        f"torch {findings['torch'] or 'none'} installed for the agent's Python",
        f"a run would {'start' if findings['workers']['count'] else 'not start'}: {findings['workers']['reason']}",
        "",
        "devices",
        *(f"  {found['kind']:<20} {found['count']}: {found['reason']}" for found in findings["devices"]),
        "",
        "job controller",
        *_told(findings["controller"]),
        "",
        "options",
        *(
            f"  {name:<20} {value['value'] or '-':<36} {value['origin']}".rstrip()
            for name, value in findings["options"].items()
        ),
        "",
        "secrets (their values are not shown)",
        *(f"  {name:<26} given by {variable}" for name, variable in findings["secrets"].items()),
        *(["  none"] if not findings["secrets"] else []),
        *(f"note: {note}" for note in findings["notes"]),
    ]
    return "\n".join(lines)
