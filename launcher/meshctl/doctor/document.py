"""The result of `meshctl doctor` as one object: the format of `--json`, from which the text is rendered too.

The same modules as in a run read everything, so the result is what a run would do. No worker is started, nothing
written and no framework imported. Fields are only ever added; `version` changes if one has to be removed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.config import config, credentials
from launcher.config.config import Config
from launcher.config.options import command_line
from launcher.config.schedulers import detection
from launcher.meshctl.doctor import probes
from launcher.meshctl.doctor.examination import Examination, ExaminationRequest
from launcher.meshctl.doctor.findings import Finding, can_start, describe_verdict, sort_findings
from launcher.meshctl.doctor.machine import CgroupLimit, DiskSpace, MachineInfo, ResourceLimit
from launcher.model.version import __version__

VERSION = 1
_DEFAULT_REQUEST = ExaminationRequest()


def examine(
    argv: Sequence[str], environ: Mapping[str, str], request: ExaminationRequest = _DEFAULT_REQUEST
) -> dict[str, Any]:
    """Examine a run with these arguments, as values for JSON. Raises UsageError as the run would.

    The script may be missing from `argv`.
    """
    words = command_line.parse(argv)
    python = environ.get("PYTHON_EXEC") or sys.executable
    hostname = os.uname().nodename
    resolved = config.resolve(words._replace(script=words.script or probes.NO_SCRIPT), environ, python, hostname)
    gathered = detection.resolve(words.values, environ, hostname)
    look = Examination(resolved, environ, hostname, request)
    if words.script is not None:
        look.findings += probes.check_script(resolved)
    found = {
        "version": VERSION,
        "meshrun": __version__,
        "python": {"version": ".".join(map(str, sys.version_info[:3])), "agent": sys.executable, "workers": python},
        "torch": probes.find_version("torch"),
        "workers": {"count": len(look.slots), "reason": look.reason},
        "devices": look.devices,
        "tpu_slice": probes.examine_tpu_slice(environ, look.found_locality),
        "frameworks": probes.list_frameworks(resolved, environ),
        "framework": look.framework,
        "locality": look.locality,
        "network": look.network,
        "controller": _describe_scheduler(gathered),
        "options": dict(_describe_options(gathered, resolved, hostname)),
        "secrets": credentials.find_variables(environ),
        "machine": _describe_machine(look.machine),
        "store": look.store,
        "environment": look.environment,
        "notes": list(resolved.notes),
    }
    look.findings += [Finding("options", "note", note) for note in resolved.notes]
    findings = sort_findings(look.findings)
    found["findings"] = [finding._asdict() for finding in findings]
    found["verdict"] = {"would_start": can_start(findings), "sentence": describe_verdict(findings)}
    return found


def _describe_options(
    gathered: detection.ResolvedOptions, resolved: Config, hostname: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Describe every option; a default that depends on others with its value here."""
    means = {
        "rdzv-id": resolved.run_id or "random",
        "rdzv-backend": resolved.rdzv_backend,
        "node-name": hostname,
        "master-port": str(resolved.master_port or "a fresh one for every round"),
    }
    for name, value in gathered.values.items():
        text = means.get(name, value.text) if value.is_default else value.text
        yield name, {"value": text, "origin": value.origin}


def _describe_scheduler(gathered: detection.ResolvedOptions) -> dict[str, Any] | None:
    """Describe the scheduler of the environment: the signs of it, its values, and what a run uses of them."""
    found = gathered.detection
    if found is None:
        return None
    says = {
        name: {"value": value.text, "origin": value.origin, "unused": gathered.unused.get(name)}
        for name, value in found.values.items()
    }
    return {"name": found.controller, "known_by": list(found.known_by), "reason": found.reason, "says": says}


def _describe_machine(machine: MachineInfo) -> dict[str, Any]:
    """Describe what the checks have read."""

    def to_json(found: CgroupLimit | DiskSpace | ResourceLimit | None) -> dict[str, Any] | None:
        return None if found is None else found._asdict()

    return {
        "cpus": machine.cpu_count,
        "cpu_quota": to_json(machine.cpu_quota),
        "memory": machine.memory,
        "memory_limit": to_json(machine.memory_limit),
        "oom_groups": list(machine.oom_groups),
        "numa_nodes": [{"node": node, "cpus": cpus} for node, cpus in machine.numa_nodes.items()],
        "shared_memory": to_json(machine.shared_memory),
        "logs": to_json(machine.logs),
        "limits": {
            "open_files": to_json(machine.open_files),
            "user_processes": to_json(machine.user_processes),
            "locked_memory": to_json(machine.locked_memory),
            "processes": to_json(machine.process_limit),
        },
    }
