"""Opens the store of a job's nodes, and serves it where that is this node's part.

grpc is imported here at the earliest, so after the supervisor's fork: it runs threads, which a fork would lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.model.errors import TemporaryError, UsageError
from rendezvous import records
from rendezvous.errors import StoreError, Unreachable
from rendezvous.records import StoreOwner
from rendezvous.settings import DEFAULTS, Settings
from rendezvous.stores.addresses import split_address
from rendezvous.stores.listeners import PortTaken

if TYPE_CHECKING:
    from rendezvous.stores.etcd.store import EtcdStore
    from rendezvous.stores.server.server import StoreServer

SERVED_USER = "meshrun"  # the user of a served store's token


_PACKAGES = {
    "grpc": ("a job whose nodes meet in a store", "grpcio", ">=1.60,<2"),
    "h2": ("the agent that serves the job's store", "h2", ">=4.4,<5"),
}
"""Module -> who needs it, its package, and the versions."""


def require(module: str) -> None:
    """Raise UsageError if it is not installed, as after an installation without dependencies. Imports nothing."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        user, package, versions = _PACKAGES[module]
        sentence = f"{user} needs the package {package}, which is not installed"
        raise UsageError(sentence, f"pip install '{package}{versions}'")


def open_store(network: StoreConfig, credentials: Credentials, limits: Settings | None = None) -> EtcdStore:
    """Return a client of the store, without connecting yet; `probe` has read its files.

    Without `limits`, for a command that keeps no lease, a read has the time limit of a write: the store may be slow.
    """
    require("grpc")
    from rendezvous.stores.etcd.store import EtcdStore, Tls

    read_s, write_s = DEFAULTS.write_limit_s, DEFAULTS.write_limit_s
    if limits is not None:
        read_s, write_s = limits.call_limit_s, limits.write_limit_s
    tls = Tls(network.ca_file, network.cert_file, network.key_file) if network.uses_tls else None
    if network.backend == "served":
        user, password = (SERVED_USER, credentials.token) if credentials.token else ("", "")
    else:
        user, password = credentials.user, credentials.password
    return EtcdStore(
        network.endpoints, user=user, password=password, tls=tls, call_limit_s=read_s, write_limit_s=write_s
    )


def check(store: EtcdStore, network: StoreConfig, run_id: str, *, may_be_unreachable: bool = False) -> str:
    """Log in and read the run's location, so that a mistake shows within a second; return the server's version.

    Raises TemporaryError with the reason. `may_be_unreachable`: an unreachable store is no error, and the version is
    "" then.
    """
    try:
        version = store.connect()
        store.get(records.make_current_key(network.prefix, run_id))
    except StoreError as error:
        if may_be_unreachable and isinstance(error, Unreachable):
            return ""
        raise TemporaryError(str(error), error.hint) from None
    return version


def serve(
    network: StoreConfig, hosts: Sequence[str], credentials: Credentials, owner: StoreOwner | None = None
) -> StoreServer:
    """Serve the job's store at these addresses of this node and the port of its endpoint, until it is closed.

    `owner`: whose it is. Raises PortTaken, and TemporaryError for another reason.
    """
    from rendezvous.stores.server.server import StoreServer

    _, port = split_address(network.endpoints[0])
    server = StoreServer(hosts[0], port, also=hosts[1:], token=credentials.token, owner=owner)
    try:
        server.start()
    except PortTaken:
        raise
    except StoreError as error:
        raise TemporaryError(str(error), "set another port on all nodes") from None
    return server
