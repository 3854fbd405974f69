"""This node as one of several: its membership over a store in the network, and the store itself if it serves it.

The counterpart of `membership`, which is for one machine. Everything that runs a thread starts here, after the
supervisor's fork; `startup` has done what must precede it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from launcher import extensions
from launcher.agent.membership import NodeMembership, draw_random, read_clock
from launcher.agent.startup import stores
from launcher.agent.startup.addresses import describe_doubt, is_numeric
from launcher.agent.startup.duplicate_rank import require_unique_rank
from launcher.agent.startup.probe import probe
from launcher.agent.startup.served_store import Occupant, find_occupant
from launcher.agent.startup.startup import PAUSE_S, Startup, end_on_signal, settle_store
from launcher.config.config import Config, LaunchMode, RendezvousOptions, WorkerOptions
from launcher.locality.gather import Locality, resolve_locality
from launcher.model.console import log
from launcher.model.errors import TemporaryError
from launcher.model.locality_path import LEVELS
from launcher.model.node import Device
from launcher.model.text import hash_words
from launcher.placement.adapter.description import Description, encode_description
from launcher.placement.adapter.feasibility import require_feasible, resolve_limits
from launcher.placement.adapter.options import list_options
from launcher.placement.adapter.planner_adapter import PlannerAdapter
from rendezvous.driver.driver import Driver
from rendezvous.errors import StoreError, VersionError
from rendezvous.machine import MemberMachine
from rendezvous.peers.connections import PeerConnections
from rendezvous.records import Member, Spec, StoreOwner, name_own_run, name_run
from rendezvous.settings import DEFAULTS, Settings
from rendezvous.state.state import Setup
from rendezvous.stores.addresses import is_local_only, join_address, split_address
from rendezvous.stores.listeners import PortTaken

if TYPE_CHECKING:
    from rendezvous.stores.etcd.store import EtcdStore
    from rendezvous.stores.server.server import StoreServer

PORT_TAKEN_LIMIT_S = 10.0  # to probe a port that is taken: the agent that took it may not answer yet
_PAUSE_S = 0.1  # between two probes
SILENCE_DIVISOR = 2  # a connection without data for this part of a lease's time is unresponsive


def open_membership(
    config: Config,
    settings: Settings,
    startup: Startup,
    *,
    slot_count: int,
    run_id: str,
    worker_port: int,
    wake: Callable[[], None],
    is_leaving: Callable[[], bool] = lambda: False,
    devices: Sequence[Device] = (),
) -> NodeMembership:
    """Meet the other nodes in the store, which may take as long as `start_timeout_s`, and prepare to join them.

    `worker_port`: offered by launcher/ranks/ports.py, chosen in rendezvous/leader/commit.py. `is_leaving`: whether a
    signal has come that makes this node leave.
    Raises UsageError and TemporaryError, when the store does not admit this node; then nothing stays open.
    """
    options, mesh, node_rank = config.rendezvous, config.placement.grid, config.rendezvous.node_rank
    names = (startup.name, os.uname().nodename, startup.address)
    found = resolve_locality(config.locality, os.environ, names=names, devices=devices)
    for remark in found.remarks:
        if remark != found.unknown:
            log(remark)
    levels = tuple(dict.fromkeys((*LEVELS, *(level for level, _ in found.path))))
    limits, costs = resolve_limits(config.placement, levels)
    require_feasible(config.devices, mesh, limits, slot_count)
    with ExitStack() as opened:
        store, server, owner, version = meet(options, settings, startup, run_id, opened)
        if node_rank is not None:  # last: a claim lasts for the time of a lease
            require_unique_rank(store, startup, run_id, node_rank, settings.lease_ttl_s, is_leaving)
        node_count = 0 if node_rank is None else config.placement.nodes_min
        planner = PlannerAdapter(mesh, limits, costs, node_count=node_count)
        agreed = list_agreed_options(settings, node_rank, options.master_port)
        description = describe_node(options, config.workers.role, startup, found, slot_count)
        setup = Setup(
            settings=settings,
            spec=make_spec(config.workers, str(mesh), {**list_options(limits, costs), **agreed}),
            node=Member(
                member_id="",
                node_name=startup.name,
                boot_id=startup.boot_id,
                description=encode_description(description),
                presence_address=startup.presence_address,
            ),
            prefix=startup.network.prefix,
            run_id=run_id,
            attempt=options.attempt,
            sizer=planner.compute_size,
            hosts_store=server is not None,
            store_owner=owner,
        )
        machine = MemberMachine(setup, worker_port, draw_random, startup.credentials.secret)
        presence = PeerConnections(
            listener=startup.listener,
            address=startup.presence_address,
            secret=startup.credentials.secret,
            submit=lambda event: driver.submit(event),  # there is one before any peer appears
            clock=read_clock,
            silence_s=settings.lease_ttl_s / SILENCE_DIVISOR,
        )
        driver = Driver(
            machine=machine, store=store, planner=planner.plan, clock=read_clock, wake=wake, presence=presence
        )
        opened.pop_all()  # the membership closes it
    remarks = describe_meeting(startup, run_id, store, version) if startup.network.backend == "etcd" else []
    # Without a wish, and where nobody was asked for it, it is how most networks are.
    wishes = config.placement.texts.keys() & {"level-costs", "rates", "whole", "within"}
    if found.unknown and (found.results or len(mesh.axes) > 1 or wishes):
        remarks.append(found.unknown)
    return NodeMembership(driver, found.path, limits.elastic_max, server, tuple(remarks))


def meet(
    options: RendezvousOptions, settings: Settings, startup: Startup, run_id: str, opened: ExitStack
) -> tuple[EtcdStore, StoreServer | None, StoreOwner | None, str]:
    """Serve the store if that is this node's part, and open it; wait while it is another run's that has ended.

    Returns the store, its server if this agent serves it, its owner if an agent does, and its version. `opened` closes
    it again.
    Raises UsageError and TemporaryError.
    """
    own = StoreOwner(
        prefix=startup.network.prefix,
        run_id=run_id,
        node_name=startup.name,
        presence_address=startup.presence_address,
        attempt=startup.attempt,
    )
    port_option = "--rdzv-endpoint" if options.node_rank is None else "LAUNCHER_STORE_PORT"
    deadline = time.monotonic() + settings.start_timeout_s
    said = ""
    while True:
        endpoint = startup.network.endpoints[0]
        with ExitStack() as tried:
            server = serve_store(startup, own, settings.start_timeout_s, is_numbered=options.node_rank is not None)
            if server is not None:
                tried.callback(server.close)
            store = stores.open_store(startup.network, startup.credentials, settings)
            tried.callback(store.close)
            # It answered a moment ago: if it is away again, joining waits for it and reports it.
            version = stores.check(store, startup.network, run_id, may_be_unreachable=True)
            try:
                occupant = Occupant(own) if server is not None else None
                if server is None and startup.network.backend == "served":
                    occupant = find_occupant(store)
                is_earlier = occupant is not None and occupant.make_way(store, own, startup.credentials.secret)
            except StoreError as error:  # it is gone again: this agent may have to serve it now
                sentence, what = str(error), type(error).__name__
            except VersionError as error:
                raise extensions.ask("other version", error.version, endpoint, own.node_name, port_option) from None
            else:
                # A store whose run has ended is about to go, and this agent may have to serve the next.
                is_ours = occupant is None or occupant.is_of(own)
                is_kept = is_ours and not is_earlier and settings.on_finished == "exit"
                if occupant is None or not (occupant.is_over or is_earlier) or is_kept:
                    if occupant is not None and not is_ours:
                        raise extensions.ask("other run", occupant, own, endpoint, port_option)
                    opened.enter_context(tried.pop_all())
                    return store, server, None if occupant is None else occupant.owner, version
                what, state = name_run(occupant.owner.run_id), "has ended"
                if is_earlier:
                    what, state = f"attempt {occupant.owner.attempt} of {what}", "was asked to end"
                sentence = f"the store at {endpoint} belongs to {what}, which {state}: waiting"
        if time.monotonic() >= deadline:
            raise TemporaryError(f"no store could be used within {settings.start_timeout_s:g} s: {sentence}")
        if what != said:
            said = what
            log(sentence)
        with end_on_signal():
            time.sleep(PAUSE_S)
            network, serves_at = settle_store(options, startup.network, deadline - time.monotonic())
        startup = replace(startup, network=network, serves_at=serves_at)


def serve_store(startup: Startup, owner: StoreOwner, limit_s: float, *, is_numbered: bool) -> StoreServer | None:
    """Serve the store if that is this node's part; None if it is not, or if another agent of this machine does.

    Raises TemporaryError if the port is taken, for `limit_s` at most.
    """
    if not startup.serves_at:
        return None
    # Several agents of this machine may have found no store, and one of them binds the port first: the others join
    # it as clients, as soon as it answers. If two have number 0, that is reported when they meet.
    is_sole = bool(startup.network.is_host) and not is_numbered
    deadline = time.monotonic() + min(PORT_TAKEN_LIMIT_S, limit_s)
    while True:
        try:
            server = stores.serve(startup.network, startup.serves_at, startup.credentials, owner)
            break
        except PortTaken as error:
            found = "wrong" if is_sole else probe(startup.network).kind
            if found == "good":
                return None
            if found == "wrong" or time.monotonic() >= deadline:
                raise TemporaryError(str(error), "use another port on all nodes") from None
        time.sleep(_PAUSE_S)
    where = startup.network.endpoints[0]
    if not is_numeric(split_address(where)[0]):
        where += f" ({', '.join(startup.serves_at)})"
    alone = ", for this host alone" if all(map(is_local_only, startup.serves_at)) else ""
    log(f"this agent serves the job's store at {where}{alone}; if it is lost, the job is lost")
    doubt = "" if alone or startup.network.is_host else describe_doubt(startup.network.endpoints[0])
    if doubt:
        here = join_address(startup.address, server.port)
        log(f"{doubt}; to meet here, give all nodes --rdzv-endpoint {here}")
    return server


def describe_meeting(startup: Startup, run_id: str, store: EtcdStore, version: str) -> list[str]:
    """Return what the node that leads says of the store: where a node that is missing should have come to."""
    sentences = [f"{startup.name} leads {name_own_run(run_id)}, in etcd at {', '.join(startup.network.endpoints)}"]
    if store.may_end_leases_early(version):
        sentences.append(
            f"etcd {version} may end leases early when its leader's disk stalls, which restarts the round; etcd "
            "3.4.31, 3.5.13 and later do not"
        )
    return sentences


def describe_node(
    options: RendezvousOptions, role: str, startup: Startup, found: Locality, slot_count: int
) -> Description:
    """Return what the planner is to know of this node."""
    host = found.identity  # of a TPU slice
    return Description(
        slot_count=slot_count,
        address=startup.address,
        role=role,
        name=startup.name,
        machine=startup.boot_id,
        master_port=options.master_port or 0,
        node_rank=options.node_rank,
        master_addr=options.master_addr or "",
        locality=found.path,
        index=None if host is None else host.worker_id,
        slice_hosts=0 if host is None else host.host_count,
        host_pattern="" if host is None else host.host_pattern,
    )


def make_spec(workers: WorkerOptions, mesh: str, options: Mapping[str, str]) -> Spec:
    """Return what all nodes of the job must have alike. `options`: of the placement and of the agreement."""
    return Spec(
        mesh=mesh,
        options=options,
        digest=hash_program(workers.launch_mode, workers.script),
        script=os.path.basename(workers.script),
        arguments_digest=hash_words(*workers.script_args),
        shared_options={} if workers.framework == "auto" else {"--framework": workers.framework},
    )


def list_agreed_options(settings: Settings, node_rank: int | None, master_port: int | None) -> dict[str, str]:
    """Return the settings on which nodes that differed would disagree later, as options; defaults are left out.

    Where nodes are numbered, that they are; and the port, which is the same on all.
    """
    options = {}
    for name, value, default in (
        ("--lease-ttl", settings.lease_ttl_s, DEFAULTS.lease_ttl_s),
        ("--max-restarts", settings.max_restarts, DEFAULTS.max_restarts),
        ("--restart-window", settings.restart_window_s, DEFAULTS.restart_window_s),
        ("--grow", settings.grow, DEFAULTS.grow),
    ):
        if value != default:
            options[name] = f"{value:g}" if isinstance(value, float) else str(value)
    if not settings.continues_without_store:
        options["--store-outage"] = "stop"
    if not settings.presence_proof:
        options["LAUNCHER_PRESENCE_PROOF"] = "off"
    if node_rank is not None:
        options |= {"--rdzv-backend": "static", "--master-port": str(master_port)}
    return options


def hash_program(launch_mode: LaunchMode, script: str) -> str:
    """Return a digest of the form of the script and of its file name: each node may have it in another directory."""
    return hash_words(launch_mode, os.path.basename(script) or script)
