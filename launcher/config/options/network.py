"""The store of a job of several nodes, from torchrun's rendezvous options.

A job of one machine needs none (launcher/config/options/rendezvous.py has its rules). Several nodes meet in etcd, to
which torchrun's c10d and static backends do not apply, or in a store that one of their agents serves, under the flags
of c10d or of static. A password is never taken from a flag, because every user of a machine can read the command lines
of its processes; error messages do not repeat one either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from launcher.config.options.readers import STORE_KEYS, Value, parse_address
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import join_address

ETCD_PORT = 2379
SERVED_PORT = 29400  # torchrun's for c10d
_MASTER_ADDR, _MASTER_PORT = "127.0.0.1", 29500  # torchrun's
_PORT_MAX = 65535
_USES_TLS = {"etcd": False, "http": False, "etcds": True, "https": True}
_ANSWERS = {"1": True, "true": True, "t": True, "yes": True, "0": False, "false": False, "f": False, "no": False}


class StoreConfig(Struct, frozen=True, kw_only=True):
    """The store in which the nodes meet. `endpoints` are HOST:PORT, an IPv6 address in brackets.

    `backend` "served": the agent of the node that `endpoints` names serves it; `is_host` says whether that is this
    node, None to find out. `ca_file` None: the roots of the system.
    """

    backend: Literal["etcd", "served"]
    endpoints: tuple[str, ...]
    prefix: str = "meshrun"
    is_host: bool | None = None
    uses_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str = ""
    password_file: str | None = None


def _list_unused_settings(
    values: Mapping[str, Value], conf: Mapping[str, str], used_keys: tuple[str, ...]
) -> list[str]:
    """Return remarks on settings for another kind of store."""
    unused = [key for key in conf if key in STORE_KEYS and key not in used_keys]
    backend, origin = values["rdzv-backend"].text, values["rdzv-conf"].origin
    return [f"{origin}: {', '.join(unused)} without effect with --rdzv-backend {backend}"] if unused else []


def resolve_network(
    values: Mapping[str, Value], conf: Mapping[str, str], *, is_alone: bool, notes: list[str]
) -> StoreConfig | None:
    """Return the store that these options name, None for a job of one machine. Raises UsageError.

    `is_alone`: the other options allow one node only.
    """
    backend, endpoint = values["rdzv-backend"], values["rdzv-endpoint"]
    scheme, texts = _split_endpoints(endpoint)
    if backend.text in ("etcd", "etcd-v2") or (backend.is_default and scheme):
        if endpoint.is_default:
            raise UsageError(
                f"{backend} needs --rdzv-endpoint", "set --rdzv-endpoint HOST:PORT,... to the etcd servers"
            )
        if values["rdzv-id"].is_default:
            hint = "use the same --rdzv-id on every node, and a different one for each run"
            raise UsageError("an etcd rendezvous needs --rdzv-id", hint)
        notes += _list_unused_settings(values, conf, tuple(key for key in STORE_KEYS if key != "is_host"))
        endpoints = tuple(_parse_endpoint(endpoint, text, ETCD_PORT) for text in texts)
        return _make_etcd_store(values, conf, endpoints, scheme)
    # A job of one node may use a store that another program serves, so that spares can join.
    is_client = conf.get("is_host") is not None and not _is_serving_node(values, conf["is_host"])
    if backend.text != "c10d" or (is_alone and not is_client) or endpoint.is_default:
        return None
    if scheme:
        raise UsageError(f"{endpoint} names an etcd, but {backend} does not use one", f"write {texts[0]} for c10d")
    _require_no_file_store(values["rdzv-conf"], conf)
    if len(texts) > 1:
        raise UsageError(f"{endpoint}: name exactly one node for c10d, not {len(texts)}")
    address = _parse_endpoint(endpoint, texts[0], SERVED_PORT)
    if address.endswith(":0"):
        raise UsageError(
            f"{endpoint}: other nodes connect to this port: it cannot be 0", f"use {SERVED_PORT}, the usual port"
        )
    is_host = _is_serving_node(values, conf.get("is_host"))
    notes += _list_unused_settings(values, conf, ("is_host", "etcd_prefix"))
    return _make_served_store(values, conf, address, is_host=is_host)


def _split_endpoints(value: Value) -> tuple[str, list[str]]:
    """Return the scheme, "" without one, and the addresses after it."""
    if value.is_default:
        return "", []
    value.read()
    scheme, mark, rest = value.text.strip().partition("://")
    if not mark:
        return "", value.text.split(",")
    if scheme not in _USES_TLS:
        raise UsageError(f"{value}: unknown scheme {scheme}://", f"write {rest}, or etcds://{rest} for etcd with TLS")
    return scheme, [text.strip().removeprefix(f"{scheme}://").rstrip("/") for text in rest.split(",")]


def _parse_endpoint(value: Value, text: str, port: int) -> str:
    name, found = parse_address(value, text)
    return join_address(name, port if found is None else found)


def _make_etcd_store(
    values: Mapping[str, Value], conf: Mapping[str, str], endpoints: tuple[str, ...], scheme: str
) -> StoreConfig:
    origin = values["rdzv-conf"].origin
    cert, key = _find_setting(origin, conf, "cert", "ssl_cert"), _find_setting(origin, conf, "key", "ssl_cert_key")
    ca = _find_setting(origin, conf, "cacert", "ca_cert")
    if (cert is None) != (key is None):
        there, missing = ("a certificate", "key") if cert else ("a key", "certificate")
        raise UsageError(f"{origin} names {there} but no {missing}", "set both, as in cert=PATH,key=PATH")
    protocol = conf.get("protocol", "")
    if protocol not in ("", "http", "https"):
        raise UsageError(f"{origin}: protocol={protocol} is neither http nor https")
    asked = {_USES_TLS[name] for name in (protocol, scheme) if name}
    if len(asked) == 2:
        raise UsageError(f"{values['rdzv-endpoint']} and protocol={protocol} contradict each other")
    if False in asked and (cert or ca):
        raise UsageError(
            f"{origin} names certificates for a connection without TLS",
            "prefix the endpoint with etcds://, or set protocol=https in --rdzv-conf",
        )
    return StoreConfig(
        backend="etcd",
        endpoints=endpoints,
        prefix=_parse_prefix(values["rdzv-prefix"], conf),
        uses_tls=bool(True in asked or cert or ca),
        ca_file=ca,
        cert_file=cert,
        key_file=key,
        user=conf.get("user", ""),
        password_file=conf.get("password_file"),
    )


def _find_setting(origin: str, conf: Mapping[str, str], *names: str) -> str | None:
    """Return the setting; torchrun has another name for the same file in each backend."""
    found = [name for name in names if name in conf]
    if len(found) > 1:
        raise UsageError(f"{origin}: {' and '.join(found)} are the same setting", "give one of them")
    return conf[found[0]] if found else None


def _make_served_store(
    values: Mapping[str, Value], conf: Mapping[str, str], endpoint: str, *, is_host: bool | None
) -> StoreConfig:
    prefix = _parse_prefix(values["rdzv-prefix"], conf)
    return StoreConfig(backend="served", endpoints=(endpoint,), prefix=prefix, is_host=is_host)


def _parse_prefix(value: Value, conf: Mapping[str, str]) -> str:
    prefix = (conf.get("etcd_prefix", value.text) if value.is_default else value.text).strip("/")
    if not prefix or not prefix.isprintable():
        raise UsageError(f"{value}: the prefix of the keys is empty or cannot be printed")
    return prefix


def _is_serving_node(values: Mapping[str, Value], answer: str | None) -> bool | None:
    """Whether this is the node that serves, as is_host=`answer` or a scheduler says; None to find out."""
    if answer is not None:
        if answer.lower() not in _ANSWERS:
            raise UsageError(f"{values['rdzv-conf'].origin}: is_host={answer} is neither 1 nor 0")
        return _ANSWERS[answer.lower()]
    is_detected = values["rdzv-endpoint"].is_detected and values["node-rank"].is_detected
    return values["node-rank"].text == "0" if is_detected else None


def _require_no_file_store(value: Value, conf: Mapping[str, str]) -> None:
    """Raise UsageError for a file as the store, which torchrun's c10d supports."""
    if conf.get("store_type", "tcp").lower() != "tcp":
        asked = f"{value.origin}: store_type={conf['store_type']}"
        hint = "set --rdzv-endpoint HOST:PORT, and leave out store_type"
        raise UsageError(f"{asked}: several nodes cannot use a file as their store", hint)


# docs/internals/decisions/0022-static-node-ranks.md
def resolve_static(
    values: Mapping[str, Value], conf: Mapping[str, str], node_range: tuple[int, int | None], notes: list[str]
) -> dict[str, Any]:
    """Return the fields of sections where the user has numbered the nodes. Raises UsageError.

    All nodes get the address of number 0, torchrun's "master". So ranks follow the numbers, even where another order
    would be shorter, and the workers get the master's address and port unchanged, in every round. Number 0 serves the
    store beside that port. `node_range`: the minimum and maximum of nodes.
    """
    nodes, node_rank, (least, most) = values["nnodes"], values["node-rank"].read(), node_range
    if most is None:
        hint = "set --nnodes N, or use --rdzv-backend c10d for a range"
        raise UsageError(f"{nodes}: a static rendezvous needs an exact number of nodes", hint)
    if node_rank >= most:
        raise UsageError(f"{values['node-rank']}: the node ranks of {nodes} are 0 to {most - 1}")
    if least != most:
        notes.append(f"{nodes}: a static rendezvous starts with all {most} nodes; with c10d fewer are enough")
    master_addr, master_port = _choose_master(values, notes)
    _require_no_file_store(values["rdzv-conf"], conf)
    notes += _list_unused_settings(values, conf, ("etcd_prefix",))
    store = join_address(master_addr, _choose_store_port(values["store-port"], master_port))
    network = _make_served_store(values, conf, store, is_host=node_rank == 0)
    found = {"network": network, "nodes_min": most, "nodes_max": most, "node_rank": node_rank}
    return {**found, "master_addr": master_addr, "master_port": master_port}


def _choose_master(values: Mapping[str, Value], notes: list[str]) -> tuple[str, int]:
    """Return where rank 0 listens: the endpoint overrides the other two, as under torchrun."""
    origin = values["rdzv-endpoint"]
    if not origin.is_default:
        found, at = parse_address(origin)
        if at is None:
            raise UsageError(f"{origin}: a static rendezvous needs HOST:PORT")
    else:
        addr, origin = values["master-addr"], values["master-port"]
        found, at = addr.read() or _MASTER_ADDR, _MASTER_PORT if origin.is_default else origin.read()
        if addr.is_default:
            notes.append(f"--master-addr is not set: agents on other machines cannot reach {_MASTER_ADDR}")
    if not at:
        raise UsageError(
            f"{origin}: other nodes connect to this port: it cannot be 0", f"use {_MASTER_PORT}, the usual port"
        )
    return found, at


def _choose_store_port(value: Value, master_port: int) -> int:
    store_port: int = master_port + 1 if value.is_default else value.read()
    if store_port > _PORT_MAX:
        sentence = f"the store uses the port after {master_port}, which is the last one"
        raise UsageError(sentence, f"set {value.option.flag}")
    if not store_port:
        raise UsageError(f"{value}: other nodes connect to this port: it cannot be 0")
    if store_port == master_port:
        raise UsageError(f"{value}: rank 0 listens on that port", "choose another port")
    return store_port
