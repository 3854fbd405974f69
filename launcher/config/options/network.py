"""The store of a job, from torchrun's rendezvous options: one in the network, or none.

A job of one machine needs no store: its agreement runs inside the agent (`rendezvous` has the rules for that). Several
nodes meet in etcd, to which torchrun's c10d and static backends do not apply, or in a store that one of their agents
serves, under the flags of c10d or of static (`static` has the rules for that). A password is never taken from a flag,
because every user of a machine can read the command lines of its processes; error messages do not repeat one either.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.config.options.command_line import Value, suggest
from launcher.config.options.readers import parse_address, parse_seconds_text
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import join_address
from rendezvous.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

ETCD_PORT = 2379
SERVED_PORT = 29400  # torchrun's for c10d
_SCHEMES = {"etcd": False, "http": False, "etcds": True, "https": True}
_PASSWORD_HINT = "put it into a file and name that by password_file=PATH or LAUNCHER_ETCD_PASSWORD_FILE"

# Keys of --rdzv-conf that torchrun reads for one backend or another, and that have no effect here.
_HEARTBEAT_KEYS = ("heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt")
IGNORED_KEYS = (*_HEARTBEAT_KEYS, "read_timeout", "store_type", "use_libuv", "rank")
TIME_KEYS = ("timeout", "join_timeout", "last_call_timeout", "close_timeout")
_NUMBER_KEYS = (*TIME_KEYS, *_HEARTBEAT_KEYS, "read_timeout")
_STORE_KEYS = (
    "is_host", "protocol", "etcd_prefix", "user", "password_file",
    "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert",
)  # fmt: skip
KNOWN_KEYS = (*TIME_KEYS, *_STORE_KEYS, *IGNORED_KEYS)


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
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


def resolve_network(
    values: Mapping[str, Value], conf: Mapping[str, str], *, is_alone: bool, notes: list[str]
) -> StoreConfig | None:
    """Return the store that these options name, None for a job of one machine. Raises UsageError.

    `is_alone`: the other options allow one node only. That decides for c10d only: a job of one node may use an etcd,
    so that spares can join.
    """
    backend, endpoint = values["rdzv-backend"], values["rdzv-endpoint"]
    scheme, texts = _split_endpoints(endpoint)
    if backend.text in ("etcd", "etcd-v2") or (backend.is_default and scheme):
        if endpoint.is_default:
            raise UsageError(f"{backend} needs --rdzv-endpoint", "--rdzv-endpoint HOST:PORT,... names the etcd servers")
        if values["rdzv-id"].is_default:
            raise UsageError(
                "a run that meets in etcd needs a name, and no --rdzv-id is given",
                "give every node the same --rdzv-id, one that no other run in this etcd has",
            )
        notes += list_unused_settings(values, conf, tuple(key for key in _STORE_KEYS if key != "is_host"))
        return _make_etcd_store(
            values, conf, tuple(_parse_endpoint(endpoint, text, ETCD_PORT) for text in texts), scheme
        )
    if backend.text != "c10d":
        return None
    if is_alone or endpoint.is_default:
        return None
    if scheme:
        raise UsageError(f"{endpoint} names an etcd, and {backend} another way to meet", "leave one of them out")
    require_no_file_store(values["rdzv-conf"], conf)
    if len(texts) > 1:
        raise UsageError(f"{endpoint}: one node serves the store, {len(texts)} are named")
    address = _parse_endpoint(endpoint, texts[0], SERVED_PORT)
    if address.endswith(":0"):
        raise UsageError(f"{endpoint}: the other nodes must know the port, 0 is any", f"{SERVED_PORT} is usual")
    is_host = (
        _parse_is_host(values["rdzv-conf"].origin, conf["is_host"]) if "is_host" in conf else _is_serving_node(values)
    )
    notes += list_unused_settings(values, conf, ("is_host", "etcd_prefix"))
    return make_served_store(values, conf, address, is_host=is_host)


def make_served_store(
    values: Mapping[str, Value], conf: Mapping[str, str], endpoint: str, *, is_host: bool | None
) -> StoreConfig:
    """Return a store that an agent serves at HOST:PORT. Raises UsageError."""
    return StoreConfig(
        backend="served", endpoints=(endpoint,), prefix=_parse_prefix(values["rdzv-prefix"], conf), is_host=is_host
    )


def require_no_file_store(value: Value, conf: Mapping[str, str]) -> None:
    """Raise UsageError for a file as the store, which torchrun's c10d supports."""
    if conf.get("store_type", "tcp").lower() != "tcp":
        raise UsageError(
            f"{value.origin}: store_type={conf['store_type']}: several nodes meet over the network, not in a file",
            "--rdzv-endpoint HOST:PORT, without store_type",
        )


def list_unused_settings(values: Mapping[str, Value], conf: Mapping[str, str], used_keys: tuple[str, ...]) -> list[str]:
    """Return remarks on settings for another kind of store."""
    unused = [key for key in conf if key in _STORE_KEYS and key not in used_keys]
    backend, origin = values["rdzv-backend"].text, values["rdzv-conf"].origin
    return [f"{origin}: {', '.join(unused)} without effect with --rdzv-backend {backend}"] if unused else []


def parse_conf(option_value: Value) -> dict[str, str]:
    """Parse KEY=VALUE,... as a dictionary. Raises UsageError, also for an invalid time, even where it has no effect;
    passwords are refused and not repeated.
    """
    conf: dict[str, str] = {}
    for part in option_value.text.split(",") if not option_value.is_default else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key == "password":
            raise UsageError(
                f"{option_value.origin}: a password in the command line can be read by others", _PASSWORD_HINT
            )
        if not key or not value:
            raise UsageError(
                f"{option_value}: {part.strip()!r} is not KEY=VALUE", "write it like timeout=600,read_timeout=60"
            )
        if key in _NUMBER_KEYS:
            parse_seconds_text(value, f"{option_value.origin}: {key}={value}")
        conf[key] = value
    return conf


def list_conf_remarks(value: Value, conf: Mapping[str, str], scope: str, keys: tuple[str, ...]) -> list[str]:
    """Return remarks on keys without effect (`keys`, and why), and on unknown ones."""
    unused = [key for key in conf if key in keys]
    see = "; --lease-ttl is how long a node may be silent" if {*unused} & {*_HEARTBEAT_KEYS} else ""
    notes = [f"{value.origin}: {', '.join(unused)} without effect{scope}{see}"] if unused else []
    for key in conf:
        if key not in KNOWN_KEYS:
            question = suggest(key, {key: key for key in KNOWN_KEYS})
            notes.append(f"{value.origin}: {key} is not known" + (f", {question}" if question else ""))
    return notes


def _make_etcd_store(
    values: Mapping[str, Value], conf: Mapping[str, str], endpoints: tuple[str, ...], scheme: str
) -> StoreConfig:
    origin = values["rdzv-conf"].origin
    cert, key = _find_setting(origin, conf, "cert", "ssl_cert"), _find_setting(origin, conf, "key", "ssl_cert_key")
    ca = _find_setting(origin, conf, "cacert", "ca_cert")
    if (cert is None) != (key is None):
        there, missing = ("a certificate", "key") if cert else ("a key", "certificate")
        raise UsageError(f"{origin} names {there} but no {missing}", "cert=PATH,key=PATH names both")
    protocol = conf.get("protocol", "")
    if protocol not in ("", "http", "https"):
        raise UsageError(f"{origin}: protocol={protocol} is neither http nor https")
    is_plain = protocol == "http" or (scheme and not _SCHEMES[scheme])
    uses_tls = protocol == "https" or bool(scheme and _SCHEMES[scheme])
    if is_plain and uses_tls:
        raise UsageError(f"{values['rdzv-endpoint']} and protocol={protocol} contradict each other")
    if is_plain and (cert or ca):
        raise UsageError(f"{origin} names certificates for a connection without TLS", "etcds:// or protocol=https")
    return StoreConfig(
        backend="etcd",
        endpoints=endpoints,
        prefix=_parse_prefix(values["rdzv-prefix"], conf),
        uses_tls=bool(uses_tls or cert or ca),
        ca_file=ca,
        cert_file=cert,
        key_file=key,
        user=conf.get("user", ""),
        password_file=conf.get("password_file"),
    )


def _split_endpoints(value: Value) -> tuple[str, list[str]]:
    """Return the scheme, "" without one, and the addresses after it."""
    if value.is_default:
        return "", []
    if "@" in value.text:
        raise UsageError(f"{value.origin}: a user and password there can be read by others", _PASSWORD_HINT)
    scheme, mark, rest = value.text.strip().partition("://")
    if not mark:
        return "", value.text.split(",")
    if scheme not in _SCHEMES:
        raise UsageError(f"{value}: {scheme}:// is not known", "etcd:// is without TLS, etcds:// with it")
    texts = [text.strip().removeprefix(f"{scheme}://").rstrip("/") for text in rest.split(",")]
    return scheme, texts


def _parse_endpoint(value: Value, text: str, port: int) -> str:
    name, found = parse_address(value, text)
    return join_address(name, port if found is None else found)


def _parse_prefix(value: Value, conf: Mapping[str, str]) -> str:
    prefix = (value.text if not value.is_default else conf.get("etcd_prefix", value.text)).strip("/")
    if not prefix or not prefix.isprintable():
        raise UsageError(f"{value}: the prefix of the keys is empty or cannot be printed")
    return prefix


def _is_serving_node(values: Mapping[str, Value]) -> bool | None:
    """Whether this is the node that serves, where a scheduler has named it; None to find out."""
    if not values["rdzv-endpoint"].is_detected or not values["node-rank"].is_detected:
        return None
    return values["node-rank"].text == "0"


def _parse_is_host(origin: str, text: str) -> bool:
    answers = {"1": True, "true": True, "t": True, "yes": True, "0": False, "false": False, "f": False, "no": False}
    if text.lower() not in answers:
        raise UsageError(f"{origin}: is_host={text} is neither 1 nor 0")
    return answers[text.lower()]


def _find_setting(origin: str, conf: Mapping[str, str], *names: str) -> str | None:
    """Return the setting; torchrun has another name for the same file in each backend."""
    found = [name for name in names if name in conf]
    if len(found) > 1:
        raise UsageError(f"{origin}: {' and '.join(found)} are the same setting", "give one of them")
    return conf[found[0]] if found else None
