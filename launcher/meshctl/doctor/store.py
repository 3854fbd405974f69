"""Checks that the job's store can be used from here, as a run would use it, without writing.

First the probe that an agent makes before anything else (`startup.probe`), then the real client: it logs in, asks for
the version, and reads the run's keys. The right to write there is tested by a transaction whose condition never holds:
etcd checks the right to every key that a transaction names before it evaluates the condition (etcd,
server/etcdserver/apply_auth.go).

A store that an agent serves exists while its job runs. If none serves it now, the node that would is what matters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launcher.agent import stores
from launcher.agent.startup.addresses import is_resolvable
from launcher.agent.startup.probe import ProbeResult as Look
from launcher.agent.startup.probe import probe
from launcher.agent.startup.startup import choose_serving_addresses
from launcher.config import credentials
from launcher.config.config import Config
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.meshctl.doctor.findings import Finding, Severity
from launcher.meshctl.doctor.with_timeout import call_with_timeout
from launcher.model.errors import TemporaryError
from rendezvous import records
from rendezvous.errors import MeshrunError, StoreError
from rendezvous.stores.addresses import split_address
from rendezvous.stores.contract import Compare, Put

STORE_LIMIT_S = 10.0
"""For the whole check: each step has limits of its own, but there may be many endpoints."""
VERSION_LIMIT_S = 2.0
_VERSION_MIN = "3.4"
_NO_SECRET = Finding(
    "secret",
    "note",
    "no job secret is set",
    "whoever may write where this job's records lie in etcd can choose its MASTER_ADDR, stop it, and restart it",
    "where others may write there, set LAUNCHER_JOB_SECRET_FILE on all nodes",
)


@dataclass(frozen=True, kw_only=True)
class StoreCheck:
    """`state`: "answers", "refuses", "absent", or "here" where this node would serve it. `served_by`: the node that
    does or would; "" for etcd. `version` and `rights` are empty where they are not known.
    """

    state: str
    sentence: str
    served_by: str = ""
    version: str = ""
    rights: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()


def check_store(
    config: Config, network: StoreConfig, environ: Mapping[str, str], limit_s: float = STORE_LIMIT_S
) -> StoreCheck:
    """Check the store, for at most `limit_s` seconds. Raises nothing."""
    began = time.monotonic()

    def ask() -> StoreCheck:
        try:
            return _check_store(config, network, environ)
        except MeshrunError as error:
            return _make_failure("refuses", str(error), error.hint)

    late = f"{', '.join(network.endpoints)} did not answer within {limit_s:g} s"
    found = call_with_timeout(limit_s, ask, lambda: _make_failure("absent", late, None))
    return replace(found, seconds=round(time.monotonic() - began, 3))


def _check_store(config: Config, network: StoreConfig, environ: Mapping[str, str]) -> StoreCheck:
    stores.require_grpc()
    found = credentials.read(network, environ)
    look = probe(network)
    if network.backend == "served":
        return _check_served(config, network, found, look)
    if look.kind == "good":
        return _check_access(config, network, found, "")
    if "is a web server" in look.sentence and (old := _read_old_version(network)):
        sentence = f"{network.endpoints[0]} is etcd {old}, which speaks version 2 of its language alone"
        return _make_failure("refuses", sentence, f"etcd {_VERSION_MIN} or later is needed")
    hint = look.hint or "--rdzv-endpoint names the store; is it there, and does a firewall let this node in?"
    return _make_failure("refuses" if look.kind == "wrong" else "absent", look.sentence, hint)


def _check_served(config: Config, network: StoreConfig, login: Credentials, probed: Look) -> StoreCheck:
    endpoint = network.endpoints[0]
    if probed.kind == "wrong":
        return _make_failure("refuses", probed.sentence, probed.hint)
    here = choose_serving_addresses(config, network) if network.is_host is not False else ()
    who = _describe_server(config, network, bool(here))
    if probed.kind == "good":
        return _check_access(config, network, login, who)
    if here:
        stores.require_h2()
        sentence = f"nobody serves it now; this node would, at {', '.join(here)}"
        if amiss := _check_listen(here[0], endpoint):
            return _make_failure("refuses", f"this node is to serve the store, and cannot: {amiss}", None, who)
        return StoreCheck(state="here", sentence=sentence, served_by=who)
    level: Severity = "note" if is_resolvable(endpoint) else "hurt"
    finding = Finding(
        "store",
        level,
        f"{probed.sentence}; {who} is to serve the store",
        "agents wait for it at the start, for --start-timeout",
        "" if level == "note" else "is the name right, and known to this node?",
    )
    return StoreCheck(state="absent", sentence=probed.sentence, served_by=who, findings=(finding,))


def _describe_server(config: Config, network: StoreConfig, is_local: bool) -> str:
    """Describe the node whose agent serves the store."""
    if is_local:
        return "this node"
    if network.is_host and config.node_rank is None:
        return f"this node, once {split_address(network.endpoints[0])[0]} is an address of its own"
    if config.node_rank is not None:
        return "the agent of node rank 0"
    if network.is_host is False and "is_host" in config.rdzv_conf:
        return "the node with is_host=1"
    if network.is_host is False:
        return "the agent of node 0"
    return f"the agent of the node that is called {split_address(network.endpoints[0])[0]}"


def _check_access(config: Config, network: StoreConfig, login: Credentials, served_by: str) -> StoreCheck:
    """Check a store that answers: log in, read, and test the right to write."""
    run_id = config.run_id or "none"
    key = records.make_current_key(network.prefix, run_id)
    store = stores.open_store(network, login)
    try:
        version = stores.check(store, network, run_id)
        try:
            store.txn([Compare(key, "version", "<", 0)], [Put(key, b"")])
        except StoreError as error:
            return _make_failure(
                "refuses", f"{error}", error.hint or "grant it read and write below the prefix", served_by
            )
    except TemporaryError as error:
        return _make_failure("refuses", str(error), error.hint, served_by)
    finally:
        store.close()
    name = f"etcd {version}" if network.backend == "etcd" else "a job's store"
    rights = f"may read and write {key}" + (f" as user {login.user}" if login.user else "")
    return StoreCheck(
        state="answers",
        sentence=f"{name} answers, {rights}",
        served_by=served_by,
        version=version,
        rights=rights,
        findings=() if login.secret or network.backend == "served" else (_NO_SECRET,),
    )


def _make_failure(state: str, sentence: str, hint: str | None, served_by: str = "") -> StoreCheck:
    finding = Finding("store", "stop", sentence, "no node could join the job", hint or "")
    return StoreCheck(state=state, sentence=sentence, served_by=served_by, findings=(finding,))


def _check_listen(address: str, endpoint: str) -> str:
    """Return why a server could not have this address and port; "" if it could."""
    import socket

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, split_address(endpoint)[1]))
        except OSError as error:
            return f"{endpoint}: {error.strerror}"
    return ""


def _read_old_version(network: StoreConfig) -> str:
    """Return the version of an etcd from before gRPC, "" if it is something else."""
    import http.client
    import json
    import ssl

    host, port = split_address(network.endpoints[0])
    kind = http.client.HTTPSConnection if network.uses_tls else http.client.HTTPConnection
    connection = kind(host, port, timeout=VERSION_LIMIT_S)
    try:
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read(4096))
        return str(answer["etcdserver"])[:40]
    except (OSError, ssl.SSLError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()
