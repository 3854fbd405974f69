"""What a node of a multi-machine job does before it forks the supervisor: find the store and take its node lock.

It waits until the store answers, or it turns out that this node is to serve it, so that nothing is started for a job
that cannot begin; it finds the address by which others reach this node; it ends what an earlier agent of the run has
left here; and it binds the listener whose closing will prove that nothing of this node is left. That has to happen
before the fork, because keeper, supervisor and workers hold the listener too. While nothing runs here, any signal ends
the process at once.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from launcher import extensions
from launcher.agent.startup import addresses, stores
from launcher.agent.startup.host_agents import HostAgents, take_host_place
from launcher.agent.startup.probe import probe
from launcher.agent.startup.stale_agents import Attempt, NodeLock, take_node_lock
from launcher.config import credentials
from launcher.config.config import RendezvousOptions
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.hardware.linux.kernel import read_boot_id
from launcher.hardware.linux.limits import require_timer
from launcher.model.console import log
from launcher.model.errors import TemporaryError, UsageError
from launcher.supervisor.keeper import open_standard_streams
from rendezvous.errors import MeshrunError
from rendezvous.peers import connections
from rendezvous.records import UNNAMED_RUN
from rendezvous.stores.addresses import join_address, split_address
from rendezvous.stores.listeners import find_foreign_listener

PAUSE_S = 0.25  # between two probes of a store that does not answer yet
STALE_S = 30.0  # a name may resolve to its previous machine for this long: the usual lifetime of a DNS answer
END_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


class Startup(Struct, frozen=True):
    """What an agent has found out and reserved before it joins."""

    network: StoreConfig
    credentials: Credentials
    name: str
    boot_id: str
    """The kernel's id of this boot of the machine."""
    address: str
    """Where others reach this node, and its workers each other."""
    node_lock: NodeLock
    """Keeps a second agent of this name away."""
    listener: socket.socket
    """For the presence of this node."""
    serves_at: tuple[str, ...]
    """Addresses of this node at which it is to serve the store, none if another node does."""
    host_agents: HostAgents | None = None
    """The run's agents on this host; None if the user has named this one."""
    attempt: int = 0
    """Of the run, 0 if none are counted."""

    @property
    def presence_address(self) -> str:
        return join_address(self.address, self.listener.getsockname()[1])

    @property
    def inherited_fds(self) -> tuple[int, ...]:
        """Descriptors that keeper, supervisor and workers hold too."""
        return (self.listener.fileno(), self.node_lock.descriptor)

    def release(self) -> None:
        """Make way for the next agent of this name."""
        _release(self.host_agents, self.node_lock)


def _release(host_agents: HostAgents | None, place: NodeLock) -> None:
    is_clean = place.release()
    if host_agents is not None:
        host_agents.leave(is_clean=is_clean)


@contextmanager
def end_on_signal() -> Iterator[None]:
    """Let the kernel end this process: Python would handle a Ctrl-C only after a name look-up.

    For process 1 of a container the kernel drops signals that are not handled.
    """

    def exit_process(signum: int, frame: object) -> None:
        os._exit(128 + signum)

    before = {signum: signal.getsignal(signum) for signum in END_SIGNALS}
    for signum, disposition in before.items():
        if disposition is not signal.SIG_IGN:
            signal.signal(signum, exit_process if os.getpid() == 1 else signal.SIG_DFL)
    try:
        yield
    finally:
        for signum, disposition in before.items():
            signal.signal(signum, disposition)


@end_on_signal()
def start_up(
    options: RendezvousOptions, network: StoreConfig, environ: Mapping[str, str], *, uses_accelerators: bool
) -> Startup:
    """Raises UsageError for what waiting cannot fix, TemporaryError when the store does not answer in time."""
    open_standard_streams()  # or the listener might get one of their numbers, and not reach the workers
    stores.require("grpc")
    require_timer()
    found = credentials.read(network, environ)
    run = options.run_id or UNNAMED_RUN
    scope = "\0".join((network.prefix, *sorted(network.endpoints)))  # one id in two stores: two runs
    network, serves_at = settle_store(options, network, options.start_timeout_s)
    address = addresses.find_own_address(
        local_addr=options.local_addr, interface=options.interface, endpoints=network.endpoints
    )
    host_agents, name, boot_id = None, options.node_name, read_boot_id()
    attempt = Attempt(options.attempt or 0, options.start_timeout_s)
    if name:
        place = take_node_lock(run, name, environ, scope=scope, attempt=attempt)
    else:
        host_agents, place = take_host_place(
            run, os.uname().nodename, boot_id, environ,
            scope=scope, uses_accelerators=uses_accelerators, node_rank=options.node_rank, attempt=attempt,
        )  # fmt: skip
        name = host_agents.name
    try:
        require_master_port(options)
        listener = listen(address, options.port_range)
    except MeshrunError:
        _release(host_agents, place)
        raise
    return Startup(
        network=network,
        credentials=found,
        name=name,
        boot_id=boot_id,
        address=address,
        node_lock=place,
        listener=listener,
        serves_at=serves_at,
        host_agents=host_agents,
        attempt=attempt.number,
    )


def settle_store(
    options: RendezvousOptions, network: StoreConfig, limit_s: float
) -> tuple[StoreConfig, tuple[str, ...]]:
    """Return the store as this node reaches it, and the addresses to serve it at, none if another node does."""
    serves_at = find_store(options, network, limit_s)
    if serves_at:
        stores.require("h2")
    if serves_at and not addresses.is_here(network.endpoints[0]):
        _, port = split_address(network.endpoints[0])  # the others use another route
        network = replace(network, endpoints=(join_address(serves_at[0], port),))
    return network, serves_at


def find_store(options: RendezvousOptions, network: StoreConfig, limit_s: float) -> tuple[str, ...]:
    """Wait for the store; or, if this node is to serve it and no other does, return the addresses to serve it at."""
    host = split_address(network.endpoints[0])[0]
    if network.backend == "etcd":
        return wait_for_store(network, limit_s)
    if options.node_rank is not None:
        whose = "the agent of node rank 0 serves it"
        hint = f"check that it runs: {whose}, with the same --master-addr and --master-port"
    elif _is_named_by_scheduler(options, network):
        whose = "the agent of node 0 serves it"
        hint = f"check that it runs: {options.origins['rdzv_endpoint']} is its address; or run alone with --standalone"
    elif network.is_host is False:
        whose, hint = "the node with is_host=1 serves it", "set --rdzv-conf is_host=1 on one of the nodes"
    else:
        whose = "the agent of the node with that address serves it"
        hint = f"check --rdzv-endpoint: {host} is not an address of this node, nor of a node seen so far; see is_host"
    if network.is_host is False:
        return wait_for_store(network, limit_s, server_note=whose, hint=hint)
    if network.is_host:
        whose = f"this node will serve it once {host} is an address of this node"
    believed_until, noted = time.monotonic() + STALE_S, ""

    def claim() -> tuple[str, ...]:
        nonlocal noted
        try:
            at = choose_serving_addresses(options, network)
        except UsageError:
            if addresses.is_numeric(host) or time.monotonic() >= believed_until:
                raise
            return ()
        other = addresses.find_other_server(network.endpoints[0]) if at and network.is_host is None else ""
        if other and other != noted:
            noted = other
            log(f"{host} has addresses of several hosts: the node at {other} serves the store, not this one")
        return () if other else at

    # A store that is there already may be an earlier attempt's, which makes way.
    is_sole = bool(network.is_host) and options.node_rank is None and not options.attempt
    return wait_for_store(network, limit_s, server_note=whose, hint=hint, claim=claim, is_sole=is_sole)


def choose_serving_addresses(options: RendezvousOptions, network: StoreConfig) -> tuple[str, ...]:
    """Return where this node would serve the store: if it is the named host, or was set to. Raises UsageError."""
    endpoint = network.endpoints[0]
    if at := addresses.find_serving_addresses(endpoint, local_addr=options.local_addr, interface=options.interface):
        return at
    if not network.is_host or not addresses.is_resolvable(endpoint):
        return ()
    if options.local_addr is not None or options.interface is not None:
        return (addresses.find_own_address(local_addr=options.local_addr, interface=options.interface, endpoints=()),)
    raise extensions.ask("not the host", options, endpoint, _is_named_by_scheduler(options, network))


def _is_named_by_scheduler(options: RendezvousOptions, network: StoreConfig) -> bool:
    """Whether only the environment of a scheduler, not the user, determines the store's node."""
    return options.node_rank is None and network.is_host is not None and "is_host" not in options.rdzv_conf


def wait_for_store(
    network: StoreConfig,
    limit_s: float,
    *,
    server_note: str = "",
    hint: str = "check that the store of --rdzv-endpoint runs, and that this node can reach it",
    claim: Callable[[], tuple[str, ...]] = tuple,
    is_sole: bool = False,
) -> tuple[str, ...]:
    """Probe until a store answers, or none does and this node is to serve it: then return the addresses of `claim`.

    `server_note`: which node serves it, for messages. `is_sole`: this node was set to serve it alone. Raises UsageError
    for a server that is no store, TemporaryError after `limit_s`.
    """
    deadline, said = time.monotonic() + limit_s, set[str]()
    while True:
        own = claim()
        finding = probe(network)
        if finding.kind == "good":
            if own and is_sole:
                raise extensions.ask("served already", network.endpoints[0])
            return ()
        if finding.kind == "wrong":
            raise UsageError(finding.sentence, finding.hint)
        if own:
            return own
        if time.monotonic() >= deadline:
            sentence = f"no store could be used within {limit_s:g} s: {finding.sentence}"
            raise TemporaryError(sentence, finding.hint or hint)
        if finding.sentence not in said:  # two may come by turns, for as long as it takes
            said.add(finding.sentence)
            why = "; ".join(filter(None, (finding.sentence, server_note)))
            log(f"waiting up to {limit_s:g} s (--start-timeout) for the store: {why}")
        time.sleep(PAUSE_S)


def require_master_port(options: RendezvousOptions) -> None:
    """Check that rank 0 can listen on the port that all nodes were given, if that is here. Raises TemporaryError."""
    if options.node_rank != 0 or options.master_port is None:
        return
    if holder := find_foreign_listener(options.master_port):
        sentence = f"port {options.master_port} is meant for rank 0 on this node, but {holder} listens there"
        raise TemporaryError(sentence, "set --master-port to another port, on all nodes")


def listen(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Listen for the other agents. `ports`: the first and the last. Raises UsageError and TemporaryError."""
    first, last = ports or (0, 0)
    try:
        return connections.bind(address, range(first, last + 1))
    except OSError as error:
        raise extensions.ask("no listener", error, address, first, last) from None
