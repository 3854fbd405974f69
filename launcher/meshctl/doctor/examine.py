"""One examination: a run's steps on this machine, the findings of each, and the result as one object.

The same modules as in a run read everything, so the result is what a run would do, in another order; and a failure
does not prevent the next step: without workers the store is still queried. No worker is started, nothing written and
no framework imported.

The object is the format of `--json`, from which the text is rendered too. Fields are only ever added; `version`
changes if one has to be removed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from launcher.agent.membership import make_settings
from launcher.config import config, credentials, files, frameworks, schedulers
from launcher.config.config import LocalityOptions, RendezvousOptions, WorkerOptions
from launcher.config.options import command_line
from launcher.config.options.readers import DeviceRequest, Value
from launcher.config.options.table import find_row
from launcher.extensions import OPTIONS, ask
from launcher.hardware import slice_identity
from launcher.hardware.accelerators import named
from launcher.hardware.accelerators.contract import KINDS, Inventory, find_visible_variable
from launcher.hardware.accelerators.slots import make_node_slots
from launcher.locality import gather
from launcher.locality.gather import Locality
from launcher.meshctl.doctor import checks
from launcher.meshctl.doctor.environment import choose_node_count, list_worker_remarks, plan_world
from launcher.meshctl.doctor.machine import MachineInfo, read_machine
from launcher.meshctl.doctor.network import check_store, find_advertised_address
from launcher.model.errors import LauncherError, UsageError, describe_bug, sanitize
from launcher.model.node import Device, Slot
from rendezvous import __version__

VERSION = 1
NO_SCRIPT = "SCRIPT"
"""Represents the script where none is given."""
FRAMEWORKS = ("torch", "jax", "torch_xla", "paddle")
NO_FRAMEWORK = "workers get torchrun's variables: no other framework was found"


def examine(argv: Sequence[str], environ: Mapping[str, str], *, node_count: int | None = None) -> dict[str, Any]:
    """Examine a run with these arguments, as values for JSON. Raises UsageError as the run would.

    The script may be missing from `argv`. `node_count` None: as many as the options say.
    """
    words = command_line.parse(argv)
    python = environ.get("PYTHON_EXEC") or sys.executable
    hostname = os.uname().nodename
    misspelt: dict[str, str] = ask("misspelt", environ)
    run = config.resolve(
        replace(words, script=words.script or NO_SCRIPT),
        {name: text for name, text in environ.items() if name not in misspelt},
        python,
        hostname,
        is_whole_job=node_count in (None, 1),
    )
    workers, meeting, placement = run.workers, run.rendezvous, run.placement
    gathered = schedulers.resolve(command_line.resolve_values(words.values, environ), environ, hostname)
    findings: list[checks.Finding] = []

    slots: tuple[Slot, ...] = ()
    with _report(findings, "workers"):
        slots, reason, _ = make_node_slots(run.devices, workers, environ)
    if not slots:
        reason = findings[-1].seen
    used = [device for slot in slots for device in slot.devices]
    choice = frameworks.choose_environments(workers.framework, used, workers.python, environ)
    machine = read_machine(environ, run.output.log_dir)
    devices = examine_devices(run.devices.request, workers.device_binding == "visible", environ)
    if slots:  # else the problem has been reported
        findings += check_devices(devices)
    address, why, problems = find_advertised_address(meeting, placement.nodes_max)
    findings += problems
    names = tuple(filter(None, (meeting.node_name, hostname, address)))
    locality, stands = _examine_locality(run.locality, workers.is_alone, used, environ, names, findings)
    count = choose_node_count(placement, node_count)
    may_grow = meeting.network is not None and placement.nodes_max is None and node_count is None
    world = []
    try:
        world = plan_world(meeting, placement, slots, count, locality) if slots else []
    except UsageError as error:
        seen = str(error) if count == 1 else f"{count} nodes like this one: {error}"
        findings.append(checks.Finding("placement", "note" if may_grow else "stop", seen, "", error.hint or ""))
    findings += check_interpreter(workers, environ)
    with _report(findings, "options"):  # whether the agreement's limits can be kept together
        make_settings(meeting, workers.max_restarts, run.shutdown.shutdown_timeout_s)
    if world:
        with _report(findings, "workers"):
            remarks = list_worker_remarks(workers, placement, slots, world[0], environ, hostname)
            findings += [checks.Finding("start", "note", remark) for remark in remarks]
    planned = checks.PlannedRun(
        worker_count=len(slots),
        accelerators=frozenset(device.kind for device in used) - {"cpu"},
        node_count=count,
        frameworks=choice.names,
        shutdown_timeout_s=run.shutdown.shutdown_timeout_s,
        is_bound=workers.numa_binding is not None,
        health_check=run.health.origins["health_check"] if run.health.health_check else "",
        environ=environ,
    )
    findings += [finding for check in checks.CHECKS for finding in check(machine, planned)]
    store = _examine_store(meeting, environ, findings)
    if words.script is not None:
        with _report(findings, "script"):
            files.check_script(workers, placement.mesh)
    findings += [checks.Finding("variables", "hurt", sentence, "a run ignores it") for sentence in misspelt.values()]
    findings = checks.sort_findings([*findings, *(checks.Finding("options", "note", note) for note in run.notes)])
    return {
        "version": VERSION,
        "meshrun": __version__,
        "python": {"version": ".".join(map(str, sys.version_info[:3])), "agent": sys.executable, "workers": python},
        "torch": find_version("torch"),
        "workers": {"count": len(slots), "reason": reason},
        "devices": devices,
        "tpu_slice": _describe_tpu_slice(environ, locality),
        "frameworks": list_frameworks(workers.python, environ),
        "framework": {"names": list(choice.names), "reason": choice.reason or NO_FRAMEWORK},
        "locality": stands,
        "network": {
            "interfaces": to_builtins(machine.interfaces),
            "rdma_devices": list(machine.rdma_devices),
            "address": address,
            "reason": why,
        },
        "hangs": describe_evidence(machine, workers, choice.names),
        "controller": _describe_scheduler(gathered),
        "options": _describe_options(gathered, meeting, hostname),
        "secrets": credentials.find_variables(environ),
        "machine": _describe_machine(machine),
        "store": store,
        "notes": [*misspelt.values(), *run.notes],
        "findings": [finding._asdict() for finding in findings],
        "verdict": {
            "would_start": not any(finding.level == "stop" for finding in findings),
            "sentence": checks.describe_verdict(findings),
        },
    }


@contextmanager
def _report(findings: list[checks.Finding], check: str) -> Iterator[None]:
    """Turn an error of a run's step into a finding."""
    try:
        yield
    except LauncherError as error:
        findings.append(checks.make_stop(check, error))


# --- steps of a run ---


def examine_devices(
    request: DeviceRequest | None, isolates_workers: bool, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Examine every kind of device: what is present, the reason, or why there is none; CPUs last.

    Each detector is run, where a run stops at the first one with a result. A kind that is not built in is included if
    `request`, of --devices, names it. `isolates_workers`: a worker sees its own devices only. An exception is a reason
    too: a driver in a bad state is a case for this command.
    """
    asked = request.kind if request is not None else ""

    def detect(kind: str) -> Inventory:
        if request is not None and kind not in (*KINDS, "cpu"):
            return named.detect_requested(request, environ, isolates_workers=isolates_workers)
        made = named.make_detector(kind, is_requested=asked == kind, isolates_workers=isolates_workers)
        return made.detect(environ)

    found = []
    for kind in dict.fromkeys((*KINDS, *filter(None, [asked]), "cpu")):
        try:
            inventory = detect(kind)
        except LauncherError as error:
            inventory = Inventory((), str(error))
        except Exception as error:
            inventory = Inventory((), f"{type(error).__name__}: {error}")
        found.append(_describe_inventory(kind, inventory))
    return found


def _describe_inventory(kind: str, inventory: Inventory) -> dict[str, Any]:
    devices, shown = inventory.devices, ("index", "id", "model", "numa_node", "domain")
    variable = next((device.variable for device in devices if device.variable), find_visible_variable(kind))
    return {
        "kind": kind,
        "count": len(devices),
        "reason": inventory.reason,
        "mistake": inventory.mistake,
        "silent": inventory.unresponsive_count,
        "visible_by": variable,
        "ids": [device.id for device in devices],
        "devices": [{name: getattr(device, name) for name in shown} for device in devices],
    }


def _examine_locality(
    options: LocalityOptions,
    is_alone: bool,
    devices: Sequence[Device],
    environ: Mapping[str, str],
    names: Sequence[str],
    findings: list[checks.Finding],
) -> tuple[Locality | None, dict[str, Any]]:
    """Return this node's locality, and the same with the sources, to be shown."""
    try:
        found = gather.resolve_locality(options, environ, names=names, devices=devices)
    except LauncherError as error:
        level: checks.Severity = "note" if is_alone else "stop"  # one machine queries no source
        findings.append(checks.make_stop("locality", error)._replace(level=level))
        return None, {"levels": [], "reason": str(error), "looked": [], "no_sign_of": [], "remarks": []}
    answered = {one.source for one in found.results}
    return found, {
        "levels": [level._asdict() for level in found.levels],
        "reason": "" if found.levels else "no source gives the location of this node",
        "looked": [{"source": one.source, "reason": one.reason, "levels": len(one.levels)} for one in found.results],
        "no_sign_of": [name for name in gather.BUILT_IN if name not in answered],
        "remarks": list(found.remarks) if found.levels else [],
    }


def _examine_store(
    options: RendezvousOptions, environ: Mapping[str, str], findings: list[checks.Finding]
) -> dict[str, Any] | None:
    """Examine the store, if there is one in the network."""
    network = options.network
    if network is None:
        return None
    found = check_store(options, network, environ)
    findings += found.findings
    shown = {"kind": network.backend, "endpoints": list(network.endpoints), "tls": network.uses_tls}
    return shown | {name: getattr(found, name) for name in found.__struct_fields__ if name != "findings"}


# --- further parts of the object ---


def find_version(distribution: str) -> str | None:
    """Return the version installed for the agent's Python, without importing it; of a damaged one what is wrong."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    except Exception as error:
        return describe_bug(error)


def list_frameworks(python: str, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the workers' Python could import, as far as visible without starting it, with versions."""
    return {
        name: {
            "found": frameworks.has_package(name, python, environ),
            "version": find_version(name) if python == sys.executable else None,
        }
        for name in FRAMEWORKS
    }


def describe_evidence(machine: MachineInfo, workers: WorkerOptions, names: Sequence[str]) -> dict[str, str]:
    """Describe what will be known of workers that hang: where their stacks and their collectives are read."""
    is_ours = workers.launch_mode != "program" and workers.python == sys.executable
    stacks = "by py-spy" if machine.has_stack_reader and not machine.trace_refusal else ""
    stacks = stacks or ("written by the workers" if is_ours else "none")
    if "jax" in names:
        return {"stacks": stacks, "collectives": "not known: JAX has no flight recorder"}
    if workers.hang_evidence == "0":
        return {"stacks": stacks, "collectives": "not known: LAUNCHER_HANG_EVIDENCE=0"}
    if workers.hang_evidence == "1" or is_ours:
        return {"stacks": stacks, "collectives": "by torch's flight recorder"}
    why = "workers are a program, or run in another Python: set LAUNCHER_HANG_EVIDENCE=1"
    return {"stacks": stacks, "collectives": f"not known, unless the script calls launcher.worker: {why}"}


def _describe_tpu_slice(environ: Mapping[str, str], locality: Locality | None) -> dict[str, Any] | None:
    """Return what is known of this host's slice of TPUs; None without a sign of one."""
    found = locality.identity if locality is not None else None
    if found is None and not any(environ.get(name) for name in slice_identity.IDENTITY_VARIABLES):
        return None
    results = locality.results if locality is not None else ()
    reason = next((one.reason for one in results if one.source == "slice"), "")
    if found is None:
        found, why = slice_identity.read_identity(environ)
        reason = reason or why
    if found is None:
        return {"name": "", "reason": reason}
    return {**asdict(found), "hostnames": list(found.hostnames), "reason": reason}


def _describe_options(
    gathered: schedulers.ResolvedOptions, options: RendezvousOptions, hostname: str
) -> dict[str, dict[str, str]]:
    """Describe every option; a default that depends on others with its value here."""
    means = {
        "rdzv-id": options.run_id or "random",
        "rdzv-backend": options.rdzv_backend,
        "node-name": hostname,
        "master-port": str(options.master_port or "a fresh one for every round"),
    }
    unset = {row.name: Value(row, row.default, "default") for row in map(find_row, OPTIONS) if row is not None}
    return {
        name: {"value": means.get(name, value.text) if value.is_default else value.text, "origin": value.origin}
        for name, value in {**gathered.values, **unset, **gathered.values}.items()
    }


def _describe_scheduler(gathered: schedulers.ResolvedOptions) -> dict[str, Any] | None:
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
    found = to_builtins(machine)
    names = ("cpu_quota", "memory", "memory_limit", "oom_groups", "numa_nodes", "shared_memory", "logs")
    limits = {name: found[name] for name in ("open_files", "user_processes", "locked_memory")}
    return {
        "cpus": machine.cpu_count,
        **{name: found[name] for name in names},
        "numa_nodes": [{"node": node, "cpus": cpus} for node, cpus in machine.numa_nodes.items()],
        "limits": {**limits, "processes": found["process_limit"]},
    }


# --- checks of the run itself ---


def check_devices(kinds: Sequence[Mapping[str, Any]]) -> Iterator[checks.Finding]:
    """Yield problems with them, besides those that keep workers from starting."""
    for kind in kinds:
        if kind["silent"]:
            seen = f"{kind['silent']} more {kind['kind']} devices do not respond"
            small = "this node is smaller than its peers"
            remedy = "check dmesg, then reset the device or restart the machine"
            yield checks.Finding("devices", "hurt", seen, f"workers start only on the others, and {small}", remedy)
        if kind["mistake"]:
            harm = "fewer devices are used than are present"
            yield checks.Finding("devices", "hurt", kind["mistake"], harm, "correct the value")


def check_interpreter(workers: WorkerOptions, environ: Mapping[str, str]) -> Iterator[checks.Finding]:
    """Check that the workers' Python, or the program, exists."""
    path = environ.get("PATH", os.defpath)
    if workers.launch_mode != "program":
        if shutil.which(workers.python, path=path) is None:
            seen = f"the workers' Python, {workers.python}, cannot be executed"
            yield checks.Finding("python", "stop", seen, "", "set PYTHON_EXEC")
    elif workers.script != NO_SCRIPT and shutil.which(workers.script, path=path) is None:
        remedy = "check that it is executable; write ./PROGRAM for a program outside PATH"
        yield checks.Finding("script", "stop", f"the program {sanitize(workers.script)} cannot be run", "", remedy)
