"""What a node of a job on several machines does before it forks the warden: look round, and take its place.

It waits until the store answers, so that nothing has been started for a job that cannot begin; it finds the address by
which others reach this node; it sees to what an earlier agent of the run has left here; and it binds the listener whose
silence will prove, one day, that nothing of this node is left. That has to happen before the fork, because warden and
workers hold the listener too. While nothing runs here, any signal ends the process at once.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from launcher import credentials, stores
from launcher.addresses import is_here, own_address, seen_here_alone
from launcher.config import Config
from launcher.console import tell
from launcher.credentials import Credentials
from launcher.errors import TemporaryError, UsageError
from launcher.options.network import Network
from launcher.predecessors import Place, take_place
from launcher.probe import probe
from launcher.warden import open_standard_streams
from rendezvous import presence
from rendezvous.addresses import join_address
from rendezvous.errors import MeshrunError
from rendezvous.settings import Settings

PAUSE_S = 0.25  # between two looks at a store that is not there yet
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Arrival(NamedTuple):
    """`address`: where others reach this node, and its workers each other. `hosts_store`: this node serves the store.

    `listener` is for the presence of this node, `place` what keeps a second agent off; `boot_id` is the kernel's word
    for this boot of the machine.
    """

    network: Network
    credentials: Credentials
    name: str
    boot_id: str
    address: str
    place: Place
    listener: socket.socket
    hosts_store: bool

    @property
    def presence_address(self) -> str:
        return join_address(self.address, self.listener.getsockname()[1])

    @property
    def keep(self) -> tuple[int, ...]:
        """Descriptors that the warden and the workers hold too."""
        return (self.listener.fileno(), self.place.lock)


def arrive(config: Config, network: Network, environ: Mapping[str, str]) -> Arrival:
    """Raises UsageError for what nobody can mend by waiting, TemporaryError when the store does not come in time."""
    open_standard_streams()  # or the listener might land on one of them, and not with the workers
    with _signals_end_it():
        return _arrive(config, network, environ)


def _arrive(config: Config, network: Network, environ: Mapping[str, str]) -> Arrival:
    stores.require_grpc()
    found = credentials.read(network, environ)
    limit_s = float(config.terms.get("start_timeout_s", Settings.start_timeout_s))
    hosts_store = _is_to_serve(network)
    if not hosts_store:
        _wait(network, limit_s)
    address = own_address(local_addr=config.local_addr, interface=config.interface, endpoints=network.endpoints)
    name = config.node_name or os.uname().nodename
    run = config.run_id or "none"
    # Runs in a store that agents serve seldom have names of their own: there the store tells them apart.
    run = f"{run} at {network.endpoints[0]}" if network.backend == "served" else run
    place = take_place(run, name, environ)
    try:
        listener = _listen(config, address)
    except MeshrunError:
        place.leave()
        raise
    return Arrival(
        network=network,
        credentials=found,
        name=name,
        boot_id=_boot_id(),
        address=address,
        place=place,
        listener=listener,
        hosts_store=hosts_store,
    )


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let the kernel end this process: Python would wait for a name to be looked up before it saw a Ctrl-C.

    For process 1 of a container the kernel drops what is not handled.
    """

    def end(signum: int, frame: object) -> None:
        os._exit(128 + signum)

    before = {signum: signal.getsignal(signum) for signum in _ENDING}
    for signum, disposition in before.items():
        if disposition is not signal.SIG_IGN:
            signal.signal(signum, end if os.getpid() == 1 else signal.SIG_DFL)
    try:
        yield
    finally:
        for signum, disposition in before.items():
            signal.signal(signum, disposition)


def _is_to_serve(network: Network) -> bool:
    """Whether the store is this node's to serve: it is named, and nobody serves there yet."""
    if network.backend != "served" or network.is_host is False:
        return False
    endpoint = network.endpoints[0]
    if not is_here(endpoint):
        if network.is_host:
            raise UsageError(f"is_host=1, and {endpoint} is not on this node", "--rdzv-endpoint names the node that is")
        return False
    finding = probe(network)
    if finding.kind == "wrong":
        raise UsageError(finding.sentence, finding.hint)
    if finding.kind == "good" and network.is_host:
        raise UsageError(f"is_host=1, and {endpoint} is served already", "--rdzv-conf is_host=0 joins that job")
    if finding.kind == "good":
        return False
    if address := seen_here_alone(endpoint):
        tell(f"{endpoint} is {address} on this node, where no other reaches a store: an address in its place helps")
    return True


def _wait(network: Network, limit_s: float) -> None:
    """Look until a store answers."""
    deadline, said = time.monotonic() + limit_s, ""
    while (finding := probe(network)).kind != "good":
        if finding.kind == "wrong":
            raise UsageError(finding.sentence, finding.hint)
        if time.monotonic() >= deadline:
            raise TemporaryError(
                f"no store could be used within {limit_s:g} s: {finding.sentence}",
                finding.hint or "--rdzv-endpoint names the store, --start-timeout is how long it is waited for",
            )
        if finding.sentence != said:
            said = finding.sentence
            tell(f"waiting up to {limit_s:g} s for the store: {said}")
        time.sleep(PAUSE_S)


def _listen(config: Config, address: str) -> socket.socket:
    first, last = config.port_range or (0, 0)
    try:
        return presence.bind(address, range(first, last + 1))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{address} is no address of this node", "--local-addr or --interface names one") from None
        if error.errno == errno.EADDRINUSE:
            raise TemporaryError(
                f"every port from {first} to {last} of {address} is taken", "--port-range gives others"
            ) from None
        raise TemporaryError(f"cannot listen on {address}: {error.strerror}") from None


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
