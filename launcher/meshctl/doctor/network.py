"""What a run would reach over the network: the address of this node for the others, and the job's store.

The store is used as a run would, without writing. First comes the probe that an agent makes before anything else
(`startup.probe`), then the real client: it logs in, asks for the version, and reads the run's keys. The right to write
there is tested by a transaction whose condition never holds: etcd checks the right to every key that a transaction
names before it evaluates the condition (etcd, server/etcdserver/apply_auth.go). A store that an agent serves exists
while its job runs. If none serves it now, the node that would is what matters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from launcher.agent.startup import stores
from launcher.agent.startup.addresses import find_own_address, find_serving_addresses, is_resolvable
from launcher.agent.startup.probe import probe
from launcher.agent.startup.startup import choose_serving_addresses, listen, require_master_port
from launcher.config import credentials
from launcher.config.config import RendezvousOptions
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.meshctl.doctor.checks import Finding, make_stop
from launcher.model.errors import LauncherError, TemporaryError, UsageError
from rendezvous import records
from rendezvous.errors import MeshrunError, StoreError
from rendezvous.stores import listeners
from rendezvous.stores.addresses import is_local_only, join_address, split_address
from rendezvous.stores.contract import Compare, Put

LIMIT_S = 10.0
"""For the address, and for the whole check of the store: each step has limits of its own, but there may be many."""
_NO_SECRET = Finding(
    "secret",
    "note",
    "no job secret is set",
    "any user who can write this job's records in etcd can choose its MASTER_ADDR, stop it, and restart it",
    "set LAUNCHER_JOB_SECRET_FILE on all nodes if other users can write there",
)
_Answer = TypeVar("_Answer")


def call_with_timeout(limit_s: float, call: Callable[[], _Answer], fallback: Callable[[], _Answer]) -> _Answer:
    """Run `call` in a thread of its own; return its result within `limit_s` seconds, else that of `fallback`.

    `call` must not raise. A thread that is abandoned ends with the process.
    """
    answers: list[_Answer] = []
    asking = threading.Thread(target=lambda: answers.append(call()), daemon=True, name="doctor")
    asking.start()
    asking.join(limit_s)
    return answers[0] if answers else fallback()


# --- this node's address ---


def find_advertised_address(options: RendezvousOptions, nodes_max: int | None) -> tuple[str, str, list[Finding]]:
    """Return the address that a run would advertise, "" if there is none, the reason, and what would stop a job.

    Name servers have LIMIT_S seconds to resolve the store's.
    """
    network = options.network
    if network is not None:
        sentence = f"the route to the store at {', '.join(network.endpoints)} was not found within {LIMIT_S:g} s"
        late = _fail_address(UsageError(sentence, "check that the name servers respond"))
        return call_with_timeout(LIMIT_S, lambda: _find_network_address(options, network, nodes_max), lambda: late)
    for name, address in (("master_addr", options.master_addr), ("local_addr", options.local_addr)):
        if address is not None:
            return address, f"set by {options.origins[name]}, on one node", []
    return "127.0.0.1", "a single node needs no other address", []


def _find_network_address(
    options: RendezvousOptions, network: StoreConfig, nodes_max: int | None
) -> tuple[str, str, list[Finding]]:
    store = ", ".join(network.endpoints)
    place = {"local_addr": options.local_addr, "interface": options.interface}
    if not any(place.values()) and not any(map(is_resolvable, network.endpoints)):
        return "", f"unknown while {store} cannot be resolved", []
    try:
        serves = find_serving_addresses(network.endpoints[0], **place)
        port = split_address(network.endpoints[0])[1]
        endpoints = (join_address(serves[0], port),) if serves else network.endpoints
        address = find_own_address(**place, endpoints=endpoints)
        listen(address, options.port_range).close()
    except LauncherError as error:
        return _fail_address(error)
    if options.local_addr is not None:
        reason = f"set by {options.origins['local_addr']}"
    elif options.interface is not None:
        reason = f"the first usable address of {options.interface} ({options.origins['interface']})"
    else:
        reason = f"the local address of connections to the store at {store}"
    problems = []
    if is_local_only(address):
        reason += "; nodes on other machines cannot reach it"
        if nodes_max != 1:
            seen = f"this node's address is {address}, which nodes on other machines cannot reach"
            harm = "agents and workers on other machines would look for this node on their own machine"
            remedy = "set --local-addr or LAUNCHER_INTERFACE; ignore this on a single machine"
            problems = [Finding("address", "hurt", seen, harm, remedy)]
    try:
        require_master_port(options)
    except LauncherError as error:
        return address, reason, [*problems, make_stop("master-port", error, "workers would not find each other")]
    return address, reason, problems


def _fail_address(error: LauncherError) -> tuple[str, str, list[Finding]]:
    return "", str(error), [make_stop("address", error, "no other node could reach this one")]


# --- the store ---


class StoreCheck(Struct, kw_only=True):
    """What a look at the store found."""

    state: str = ""
    """"answers", "refuses", "absent", or "here" if this node would serve it."""
    sentence: str = ""
    served_by: str = ""
    """The node that serves it or would; "" for etcd."""
    version: str = ""
    """Empty if unknown."""
    rights: str = ""
    """Empty if unknown."""
    seconds: float = 0.0
    findings: list[Finding] = []

    def fail(self, state: str, error: MeshrunError) -> StoreCheck:
        self.state, self.sentence = state, str(error)
        self.findings = [make_stop("store", error, "no node could join the job")]
        return self


def check_store(
    options: RendezvousOptions, network: StoreConfig, environ: Mapping[str, str], limit_s: float = LIMIT_S
) -> StoreCheck:
    """Check the store, for at most `limit_s` seconds. Raises nothing."""
    began = time.monotonic()
    late = UsageError(f"{', '.join(network.endpoints)} did not answer within {limit_s:g} s")

    def ask() -> StoreCheck:
        found = StoreCheck()
        try:
            _check_store(options, network, credentials.read(network, environ), found)
        except MeshrunError as error:
            found.fail("refuses", error)
        return found

    found = call_with_timeout(limit_s, ask, lambda: StoreCheck().fail("absent", late))
    found.seconds = round(time.monotonic() - began, 3)
    return found


def _check_store(options: RendezvousOptions, network: StoreConfig, login: Credentials, found: StoreCheck) -> None:
    """Fill `found`. Raises MeshrunError for a store that refuses."""
    stores.require("grpc")
    answer = probe(network)
    kind, sentence, hint = answer.kind, answer.sentence, answer.hint
    if network.backend == "etcd":
        hint = hint or "check --rdzv-endpoint, that the store is running, and the firewall"
    if kind == "wrong":
        raise UsageError(sentence, hint)
    if network.backend == "served":
        here = choose_serving_addresses(options, network) if network.is_host is not False else ()
        if here and kind == "absent":
            stores.require("h2")
        found.served_by = _describe_server(options, network, bool(here))
        if here and kind == "absent":
            listeners.listen(here[0], split_address(network.endpoints[0])[1]).close()
            found.state, found.sentence = "here", f"it is not served yet; this node would serve it at {', '.join(here)}"
            return
    if kind == "good":
        _check_access(options, network, login, found)
    elif network.backend == "etcd":
        found.fail("absent", TemporaryError(sentence, hint))
    else:
        is_known = is_resolvable(network.endpoints[0])
        found.state, found.sentence = "absent", sentence
        seen = f"{sentence}; {found.served_by} will serve the store"
        harm = "agents wait for it at the start, for --start-timeout"
        remedy = "" if is_known else "check that the name is correct and that this node can resolve it"
        found.findings = [Finding("store", "note" if is_known else "hurt", seen, harm, remedy)]


def _describe_server(options: RendezvousOptions, network: StoreConfig, is_local: bool) -> str:
    """Describe the node whose agent serves the store."""
    host = split_address(network.endpoints[0])[0]
    if is_local:
        return "this node"
    if network.is_host and options.node_rank is None:
        return f"this node, once {host} is one of its addresses"
    if options.node_rank is not None:
        return "the agent of node rank 0"
    if network.is_host is False:
        return "the node with is_host=1" if "is_host" in options.rdzv_conf else "the agent of node 0"
    return f"the agent of node {host}"


def _check_access(options: RendezvousOptions, network: StoreConfig, login: Credentials, found: StoreCheck) -> None:
    """Check a store that answers: log in, read, and test the right to write."""
    run_id = options.run_id or records.UNNAMED_RUN
    key = records.make_current_key(network.prefix, run_id)
    store = stores.open_store(network, login)
    try:
        version = stores.check(store, network, run_id)
        try:
            store.txn([Compare(key, "version", "<", 0)], [Put(key, b"")])
        except StoreError as error:
            raise TemporaryError(
                str(error), error.hint or "grant the user read and write access below the prefix"
            ) from None
    finally:
        store.close()
    name = f"etcd {version}" if network.backend == "etcd" else "a job's store"
    found.state, found.version = "answers", version
    found.rights = f"may read and write {key}" + (f" as user {login.user}" if login.user else "")
    found.sentence = f"{name} answers, {found.rights}"
    if not login.secret and network.backend == "etcd":
        found.findings = [_NO_SECRET]
