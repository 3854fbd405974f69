"""This node as one of several: its membership over a store in the network, and the store itself if it serves it.

What `membership` is for one machine. Everything that runs a thread is begun here, after the warden's fork; what had to
happen before it has happened in `arrival`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

from launcher import stores
from launcher.arrival import Arrival
from launcher.arrival.probe import probe
from launcher.config import Config
from launcher.console import tell
from launcher.errors import TemporaryError
from launcher.locality import LEVELS
from launcher.locality.gather import Locality, gather
from launcher.membership import Membership, chance, demands, now, require_possible
from launcher.mesh import Mesh
from launcher.node import Device
from launcher.roster import RosterPlanner
from launcher.roster.demand import written
from launcher.roster.description import Description, describe
from rendezvous.driver.driver import Driver
from rendezvous.errors import MeshrunError
from rendezvous.machine import MemberMachine
from rendezvous.peers.connections import PeerConnections
from rendezvous.records import Spec
from rendezvous.settings import Settings
from rendezvous.stores.contract import Store
from rendezvous.stores.server.listen import PortTaken

if TYPE_CHECKING:
    from launcher.devices.tpu_slice import Identity
    from rendezvous.stores.server.server import StoreServer

TAKEN_LIMIT_S = 10.0
"""How long a port that is taken is looked at: the agent that took it may not answer yet."""
_PAUSE_S = 0.1  # between two looks
SILENT_PARTS = 2  # a connection on which nothing is heard for this part of a lease's time is silent


class InSlice(TypedDict, total=False):
    """Fields of a description that hosts of TPU slices have."""

    index: int
    slice_hosts: int
    host_pattern: str


class NetworkedMembership(Membership):
    """Raises UsageError and TemporaryError, when the store does not take this node in."""

    def __init__(
        self,
        config: Config,
        limits: Settings,
        mesh: Mesh,
        arrival: Arrival,
        *,
        slot_count: int,
        run_id: str,
        worker_port: int,
        wake: Callable[[], None],
        devices: Sequence[Device] = (),
    ) -> None:
        found = locality(config, arrival, devices)
        asked = demands(config, mesh, levels=tuple(dict.fromkeys((*LEVELS, *(level for level, _ in found.place)))))
        require_possible(config, mesh, asked[0], slot_count)
        is_numbered = config.node_rank is not None
        planner = RosterPlanner(mesh, *asked, node_count=config.nodes_min if is_numbered else 0)
        description = Description(
            slot_count=slot_count,
            address=arrival.address,
            role=config.role,
            name=arrival.name,
            machine=arrival.boot_id,
            master_port=config.master_port or 0,
            node_rank=config.node_rank,
            master_addr=config.master_addr or "",
            locality=found.place,
            **_in_slice(found.identity),
        )
        self._arrival = arrival
        self._limits = limits
        self._server = self._serve(is_numbered)
        try:
            self._store = self._open(run_id, config.node_rank)
        except MeshrunError:
            self._end_service()
            raise
        protocol = MemberMachine(
            settings=limits,
            spec=Spec(
                mesh=str(mesh),
                limits=f"{written(*asked)}{_agreed(limits)}{_master(config)}",
                digest=_digest(config),
                has_secret=bool(arrival.credentials.secret),
            ),
            node_name=arrival.name,
            boot_id=arrival.boot_id,
            description=describe(description),
            worker_port=worker_port,
            prefix=arrival.network.prefix,
            run_id=run_id,
            sizer=planner.size,
            rng=chance,
            presence_address=arrival.presence_address,
            secret=arrival.credentials.secret,
            attempt="" if config.attempt is None else str(config.attempt),
            hosts_store=self._server is not None,
        )
        presence = PeerConnections(
            listener=arrival.listener,
            address=arrival.presence_address,
            secret=arrival.credentials.secret,
            submit=lambda event: self.driver.submit(event),  # there is one before anybody appears
            clock=now,
            silence_s=limits.lease_ttl_s / SILENT_PARTS,
        )
        driver = Driver(
            protocol=protocol,
            store=self._store,
            planner=planner.plan,
            clock=now,
            wake=wake,
            is_local=False,
            presence=presence,
        )
        super().__init__(driver, limits.call_limit_s)

    def close(self) -> None:
        """Give everything up, the store that others may need last."""
        super().close()
        self._end_service()

    def _end_service(self) -> None:
        if self._server is not None:
            self._server.close()

    def _serve(self, is_numbered: bool) -> StoreServer | None:
        arrival = self._arrival
        if not arrival.serves_at:
            return None
        # Several agents of this machine may have seen no store, and one of them binds the port first: the others join
        # it as clients, as soon as it answers. If two have number 0, that is said when they meet.
        is_sole = bool(arrival.network.is_host) and not is_numbered
        deadline = time.monotonic() + min(TAKEN_LIMIT_S, self._limits.start_timeout_s)
        while True:
            try:
                server = stores.serve(arrival.network, arrival.serves_at, arrival.credentials)
                break
            except PortTaken as error:
                found = "wrong" if is_sole else probe(arrival.network).kind
                if found == "good":
                    return None
                if found == "wrong" or time.monotonic() >= deadline:
                    raise TemporaryError(str(error), "all nodes may be given another port") from None
            time.sleep(_PAUSE_S)
        tell(f"this agent serves the job's store at {arrival.network.endpoints[0]}; if it is lost, the job is lost")
        return server

    def _open(self, run_id: str, node_rank: int | None) -> Store:
        network = self._arrival.network
        store = stores.open_store(network, self._arrival.credentials, self._limits)
        try:
            # It was there a moment ago: if it is away again, whoever joins waits for it and says so.
            version = stores.check(store, network, run_id, may_be_away=True)
            if node_rank is not None:
                from launcher.arrival.namesakes import require_own_number

                require_own_number(store, self._arrival, run_id, node_rank, lease_ttl_s=self._limits.lease_ttl_s)
        except MeshrunError:
            store.close()
            raise
        what = f"etcd {version}".rstrip() if network.backend == "etcd" else "the store"
        name, address = self._arrival.name, self._arrival.presence_address
        who = f"{name} ({address})" if node_rank is None else f"{name} ({address}), node rank {node_rank},"
        tell(f"{who} meets the other nodes of run {run_id} in {what} at {', '.join(network.endpoints)}")
        if network.backend == "etcd" and stores.may_end_leases_early(version):
            tell(
                f"etcd {version} may end leases early when its leader's disk stalls, which restarts the round; etcd "
                "3.4.31, 3.5.13 and later do not"
            )
        return store


def locality(config: Config, arrival: Arrival, devices: Sequence[Device]) -> Locality:
    """Where this node stands, which is told to people. Raises UsageError and TemporaryError for what they say wrong."""
    found = gather(config, os.environ, names=(arrival.name, os.uname().nodename, arrival.address), devices=devices)
    for remark in found.remarks:
        tell(remark)
    if found.levels:
        sources = dict.fromkeys(source for source, levels, _ in found.looked if set(levels) & set(found.levels))
        place = ",".join(f"{level}={domain}" for level, domain in found.place)
        tell(f"this node stands at {place}, by {' and '.join(sources)}")
    return found


def _in_slice(identity: Identity | None) -> InSlice:
    """What the others must know of this host of a TPU slice."""
    if identity is None:
        return {}
    return {"index": identity.worker_id, "slice_hosts": identity.host_count, "host_pattern": identity.host_pattern}


def _agreed(limits: Settings) -> str:
    """Of the terms, those on which nodes that differed would disagree later, as options; defaults are left out."""
    usual = Settings
    words = {
        f"--lease-ttl {limits.lease_ttl_s:g}": limits.lease_ttl_s != usual.lease_ttl_s,
        f"--max-restarts {limits.max_restarts}": limits.max_restarts != usual.max_restarts,
        f"--restart-window {limits.restart_window_s:g}": limits.restart_window_s != usual.restart_window_s,
        f"--grow {limits.growth}": limits.growth != usual.growth,
        "--store-outage stop": not limits.continues_without_store,
        "--presence-proof off": not limits.presence_proof,
    }
    return "".join(f" {word}" for word, is_given in words.items() if is_given)


def _master(config: Config) -> str:
    """Where the nodes are numbered, that they are; and the port, which is the same on all, though written anew."""
    return "" if config.node_rank is None else f" --rdzv-backend static --master-port {config.master_port}"


def _digest(config: Config) -> str:
    """What all nodes must run alike, in a few letters: the command and its arguments."""
    import hashlib

    command = json.dumps([config.launch_mode, config.script, *config.script_args])
    return hashlib.sha256(command.encode(errors="surrogateescape")).hexdigest()[:16]
