"""Where the nodes of a job meet, read from torchrun's rendezvous options: a store in the network, or none.

A job of one machine needs no store: its agreement runs inside the agent (`meeting` has the rules for that). Several
nodes meet in etcd, which knows nothing of torchrun's c10d and static ways, or in a store that one of their agents
serves, under the flags of c10d or of static (`static` has the rules for that). A password is never taken from a flag,
because everybody on a machine can read the command lines of its processes; refusals do not repeat one either.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.options import Given, did_you_mean
from launcher.options.reading import address, seconds_of
from rendezvous.stores.addresses import join_address
from rendezvous.values import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

ETCD_PORT = 2379
SERVED_PORT = 29400  # torchrun's for c10d
_SCHEMES = {"etcd": False, "http": False, "etcds": True, "https": True}
_ELSEWHERE = "put it into a file and name that by password_file=PATH or LAUNCHER_ETCD_PASSWORD_FILE"

# Keys of --rdzv-conf that torchrun reads for one backend or another, and mean nothing here.
_HEARTBEATS = ("heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt")
IGNORED = (*_HEARTBEATS, "read_timeout", "store_type", "use_libuv", "rank")
TIMES = ("timeout", "join_timeout", "last_call_timeout", "close_timeout")
_NUMBERS = (*TIMES, *_HEARTBEATS, "read_timeout")
_STORE = (
    "is_host", "protocol", "etcd_prefix", "user", "password_file",
    "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert",
)  # fmt: skip
KNOWN = (*TIMES, *_STORE, *IGNORED)


@dataclass(frozen=True, kw_only=True)
class Network:
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


def network(given: Mapping[str, Given], conf: Mapping[str, str], *, is_alone: bool, notes: list[str]) -> Network | None:
    """The store that these options name, None for a job of one machine. Raises UsageError.

    `is_alone`: the other options say that there is one node and no more. That decides for c10d only: a job of one
    node may use an etcd, so that spares can join.
    """
    backend, endpoint = given["rdzv-backend"], given["rdzv-endpoint"]
    scheme, texts = _endpoints(endpoint)
    if backend.text in ("etcd", "etcd-v2") or (backend.is_default and scheme):
        if endpoint.is_default:
            raise UsageError(f"{backend} needs --rdzv-endpoint", "--rdzv-endpoint HOST:PORT,... names the etcd servers")
        if given["rdzv-id"].is_default:
            raise UsageError(
                "a run that meets in etcd needs a name, and no --rdzv-id is given",
                "give every node the same --rdzv-id, one that no other run in this etcd has",
            )
        notes += unused_by_store(given, conf, tuple(key for key in _STORE if key != "is_host"))
        return _etcd(given, conf, tuple(_address(endpoint, text, ETCD_PORT) for text in texts), scheme)
    if backend.text != "c10d":
        return None
    if is_alone or endpoint.is_default:
        return None
    if scheme:
        raise UsageError(f"{endpoint} names an etcd, and {backend} another way to meet", "leave one of them out")
    require_no_file(given["rdzv-conf"], conf)
    if len(texts) > 1:
        raise UsageError(f"{endpoint}: one node serves the store, {len(texts)} are named")
    address = _address(endpoint, texts[0], SERVED_PORT)
    if address.endswith(":0"):
        raise UsageError(f"{endpoint}: the other nodes must know the port, 0 is any", f"{SERVED_PORT} is usual")
    is_host = _is_host(given["rdzv-conf"].origin, conf["is_host"]) if "is_host" in conf else _is_first(given)
    notes += unused_by_store(given, conf, ("is_host", "etcd_prefix"))
    return served(given, conf, address, is_host=is_host)


def served(given: Mapping[str, Given], conf: Mapping[str, str], endpoint: str, *, is_host: bool | None) -> Network:
    """A store that an agent serves at HOST:PORT. Raises UsageError."""
    return Network(backend="served", endpoints=(endpoint,), prefix=_prefix(given["rdzv-prefix"], conf), is_host=is_host)


def require_no_file(given: Given, conf: Mapping[str, str]) -> None:
    """torchrun's c10d can meet in a file that all nodes see. Raises UsageError for that."""
    if conf.get("store_type", "tcp").lower() != "tcp":
        raise UsageError(
            f"{given.origin}: store_type={conf['store_type']}: several nodes meet over the network, not in a file",
            "--rdzv-endpoint HOST:PORT, without store_type",
        )


def unused_by_store(given: Mapping[str, Given], conf: Mapping[str, str], usable: tuple[str, ...]) -> list[str]:
    """What is to be said of settings for another kind of store."""
    unused = [key for key in conf if key in _STORE and key not in usable]
    backend, origin = given["rdzv-backend"].text, given["rdzv-conf"].origin
    return [f"{origin}: {', '.join(unused)} without effect with --rdzv-backend {backend}"] if unused else []


def read_conf(given: Given) -> dict[str, str]:
    """KEY=VALUE,... as a dictionary. Raises UsageError, also for a time that is none, even where it has no effect;
    passwords are refused and not repeated.
    """
    conf: dict[str, str] = {}
    for part in given.text.split(",") if not given.is_default else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key == "password":
            raise UsageError(f"{given.origin}: a password in the command line can be read by others", _ELSEWHERE)
        if not key or not value:
            raise UsageError(f"{given}: {part.strip()!r} is not KEY=VALUE", "write it like timeout=600,read_timeout=60")
        if key in _NUMBERS:
            seconds_of(value, f"{given.origin}: {key}={value}")
        conf[key] = value
    return conf


def remarks(given: Given, conf: Mapping[str, str], without_effect: str, keys: tuple[str, ...]) -> list[str]:
    """What is to be said of keys that do nothing (`keys`, and why), and of unknown ones."""
    unused = [key for key in conf if key in keys]
    see = "; --lease-ttl is how long a node may be silent" if {*unused} & {*_HEARTBEATS} else ""
    notes = [f"{given.origin}: {', '.join(unused)} without effect{without_effect}{see}"] if unused else []
    for key in conf:
        if key not in KNOWN:
            question = did_you_mean(key, {key: key for key in KNOWN})
            notes.append(f"{given.origin}: {key} is not known" + (f", {question}" if question else ""))
    return notes


def _etcd(given: Mapping[str, Given], conf: Mapping[str, str], endpoints: tuple[str, ...], scheme: str) -> Network:
    origin = given["rdzv-conf"].origin
    cert, key = _either(origin, conf, "cert", "ssl_cert"), _either(origin, conf, "key", "ssl_cert_key")
    ca = _either(origin, conf, "cacert", "ca_cert")
    if (cert is None) != (key is None):
        there, missing = ("a certificate", "key") if cert else ("a key", "certificate")
        raise UsageError(f"{origin} names {there} but no {missing}", "cert=PATH,key=PATH names both")
    protocol = conf.get("protocol", "")
    if protocol not in ("", "http", "https"):
        raise UsageError(f"{origin}: protocol={protocol} is neither http nor https")
    is_plain = protocol == "http" or (scheme and not _SCHEMES[scheme])
    uses_tls = protocol == "https" or bool(scheme and _SCHEMES[scheme])
    if is_plain and uses_tls:
        raise UsageError(f"{given['rdzv-endpoint']} and protocol={protocol} contradict each other")
    if is_plain and (cert or ca):
        raise UsageError(f"{origin} names certificates for a connection without TLS", "etcds:// or protocol=https")
    return Network(
        backend="etcd",
        endpoints=endpoints,
        prefix=_prefix(given["rdzv-prefix"], conf),
        uses_tls=bool(uses_tls or cert or ca),
        ca_file=ca,
        cert_file=cert,
        key_file=key,
        user=conf.get("user", ""),
        password_file=conf.get("password_file"),
    )


def _endpoints(given: Given) -> tuple[str, list[str]]:
    """The scheme, "" without one, and the addresses behind it."""
    if given.is_default:
        return "", []
    if "@" in given.text:
        raise UsageError(f"{given.origin}: a user and password there can be read by others", _ELSEWHERE)
    scheme, mark, rest = given.text.strip().partition("://")
    if not mark:
        return "", given.text.split(",")
    if scheme not in _SCHEMES:
        raise UsageError(f"{given}: {scheme}:// is not known", "etcd:// is without TLS, etcds:// with it")
    texts = [text.strip().removeprefix(f"{scheme}://").rstrip("/") for text in rest.split(",")]
    return scheme, texts


def _address(given: Given, text: str, port: int) -> str:
    name, found = address(given, text)
    return join_address(name, port if found is None else found)


def _prefix(given: Given, conf: Mapping[str, str]) -> str:
    prefix = (given.text if not given.is_default else conf.get("etcd_prefix", given.text)).strip("/")
    if not prefix or not prefix.isprintable():
        raise UsageError(f"{given}: the prefix of the keys is empty or cannot be printed")
    return prefix


def _is_first(given: Mapping[str, Given]) -> bool | None:
    """Whether this is the node that is to serve, where a job controller has named it; None to find out."""
    if not given["rdzv-endpoint"].is_detected or not given["node-rank"].is_detected:
        return None
    return given["node-rank"].text == "0"


def _is_host(origin: str, text: str) -> bool:
    answers = {"1": True, "true": True, "t": True, "yes": True, "0": False, "false": False, "f": False, "no": False}
    if text.lower() not in answers:
        raise UsageError(f"{origin}: is_host={text} is neither 1 nor 0")
    return answers[text.lower()]


def _either(origin: str, conf: Mapping[str, str], *names: str) -> str | None:
    """torchrun calls the same file by another name in each backend."""
    found = [name for name in names if name in conf]
    if len(found) > 1:
        raise UsageError(f"{origin}: {' and '.join(found)} are the same setting", "give one of them")
    return conf[found[0]] if found else None
