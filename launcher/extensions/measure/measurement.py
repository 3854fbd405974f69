"""One node's part in `meshctl measure`, from the options to what is printed and written.

It joins the store as an agent does: by the same options, at the same address, and serving the store where that is this
node's part.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping

from msgspec import Struct

from launcher.agent.command import parse
from launcher.agent.startup import stores
from launcher.agent.startup.addresses import find_own_address
from launcher.agent.startup.stale_agents import list_running_agents
from launcher.agent.startup.startup import find_store
from launcher.config import credentials
from launcher.config.config import Config, DeviceOptions, WorkerOptions
from launcher.extensions.measure import wording
from launcher.extensions.measure.session import Answer, Terms, take_part
from launcher.hardware.accelerators.slots import make_node_slots
from launcher.locality.gather import resolve_locality
from launcher.meshctl.job_store import NAME_STORE
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import LauncherError, UnfitError, UsageError
from launcher.model.locality_path import is_level_identifier
from launcher.model.text import format_list
from rendezvous import records
from rendezvous.errors import StoreError
from rendezvous.stores.contract import Store
from rendezvous.stores.listeners import PortTaken

_NOT_MEASURED = ("MODULE", "NO_PYTHON", "RUN_PATH")  # variables, after LAUNCHER_ and PET_, of what a job runs
_SERVER_FAREWELL_S = 3.0  # that the node that serves the store waits for the others to end


class MeasureRequest(Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    run_id: str
    node_count: int
    levels: str
    output: str | None
    as_json: bool
    insist: bool
    wait_s: float
    options: Mapping[str, str]
    """Name of an option of meshrun to its text."""


def run(request: MeasureRequest) -> int:
    """Measure, print the finding, write the places on the coordinator; 1 if the tree cannot be told."""
    levels = tuple(request.levels.split(","))
    if not all(map(is_level_identifier, levels)) or "host" in levels or len(set(levels)) < len(levels):
        raise UsageError(
            f"--levels {request.levels} is not a list of level names", "list them outermost first, e.g. spine,leaf"
        )
    if not request.insist and (pids := [pid for pid in list_running_agents() if _is_in_this_network(pid)]):
        raise UsageError(
            f"an agent runs on this node, and measuring would disturb its job: pid {format_list(list(map(str, pids)))}",
            "add --insist to measure anyway",
        )
    environ = {name: text for name, text in os.environ.items() if name.partition("_")[2] not in _NOT_MEASURED}
    config = parse(_make_words(request), environ)
    for signum in (signal.SIGTERM, signal.SIGHUP):  # so that the others are told at once, as by Ctrl-C
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as nohup does
            signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    with contextlib.ExitStack() as ending:
        answer, number = _measure(request, config, len(levels), ending)
    sentences = wording.describe(answer, levels)
    own = {"verdict": answer.finding.kind, "sentences": sentences, "seconds": round(answer.seconds, 2)}
    found = json.dumps({**own, **wording.make_cluster(answer, levels)}) if request.as_json else "\n".join(sentences)
    write_stdout(found)
    if answer.finding.kind == "unknown":
        return 1
    if request.output and number == 0:
        _write(request.output, wording.make_places(answer, levels))
    return 0


def _make_words(request: MeasureRequest) -> list[str]:
    """Return the command line of an agent of this run, which runs nothing."""
    given = {"rdzv-backend": "etcd", **request.options}
    given |= {"rdzv-id": request.run_id, "nnodes": str(request.node_count), "start-timeout": f"{request.wait_s:g}"}
    return [*(f"--{name}={text}" for name, text in given.items()), "--no-python", "true"]


def _is_in_this_network(pid: int) -> bool:
    """Whether the process has the interfaces of this one; also if that may not be read."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/self/ns/net"))
    except OSError:
        return True


def _measure(request: MeasureRequest, config: Config, depth: int, ending: contextlib.ExitStack) -> tuple[Answer, int]:
    """Return the finding and this node's number in it. `ending`: closes what is opened here."""
    options, network = config.rendezvous, config.rendezvous.network
    if network is None:
        raise UsageError("no store is set", NAME_STORE)
    login = credentials.read(network, os.environ)
    serves_at = find_store(options, network, request.wait_s)
    address = find_own_address(local_addr=options.local_addr, interface=options.interface, endpoints=network.endpoints)
    name = options.node_name or os.uname().nodename
    path = resolve_locality(config.locality, os.environ, names=(name, os.uname().nodename, address)).path
    terms = Terms(
        root=f"/{network.prefix}/{request.run_id}/measure",
        secret=login.secret,
        node_count=request.node_count,
        wait_s=request.wait_s,
        depth=depth,
        log=lambda line: write_stderr(f"meshctl: {line}"),
    )
    server = None
    if serves_at:
        with contextlib.suppress(PortTaken):  # by another node of this machine, or `check` says what answers there
            server = ending.enter_context(contextlib.closing(stores.serve(network, serves_at, login)))
    store = ending.enter_context(contextlib.closing(stores.open_store(network, login)))
    stores.check(store, network, request.run_id)
    if not request.insist:
        _require_no_job(store, network.prefix, request.run_id)
    if server is not None:
        ending.callback(_wait_for_others, store, f"{terms.root}/session/members/")
    count = _count_devices(config.devices, config.workers)
    return take_part(store, terms, name=name, address=address, path=path, devices=count)


def _require_no_job(store: Store, prefix: str, run_id: str) -> None:
    """Raise UsageError if the run has a job with members and without an end. Raises StoreError."""
    current = store.get(records.make_current_key(prefix, run_id)).first
    if current is None:
        return
    keys = records.make_job_keys(prefix, run_id, current.value.decode(errors="replace"))
    if store.get(keys.members, prefix=True).items and store.get(keys.verdict).first is None:
        raise UsageError(
            f"{records.name_run(run_id)} has a job that measuring would disturb", "add --insist to measure anyway"
        )


def _count_devices(devices: DeviceOptions, workers: WorkerOptions) -> int:
    try:
        return max(1, len(make_node_slots(devices, workers, os.environ)[0]))
    except UnfitError:
        return 1


def _wait_for_others(store: Store, members: str) -> None:
    until = time.monotonic() + _SERVER_FAREWELL_S
    with contextlib.suppress(StoreError):  # what this node has found, or its error, counts
        while store.get(members, prefix=True).items and time.monotonic() < until:
            time.sleep(0.05)


def _write(path: str, places: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(places)
    except OSError as error:
        raise LauncherError(f"cannot write {path}: {error.strerror}") from None
    write_stderr(f"meshctl: the locations of all nodes are in {path}, for meshrun --locality @{path}")
