"""What torchrun's rendezvous options mean for a job of one node.

On one node nobody has to be found: the agreement runs on a store inside the agent. The options still say where
rank 0 listens and what the run is called, and torchrun 2.13's rules for that are kept: --standalone overrides
the others; a static rendezvous hands MASTER_ADDR and MASTER_PORT to the workers unchanged, the address of the
endpoint before --master-addr; c10d uses neither. One rule is not kept: torchrun forgets an --rdzv-id when it
falls back to a local rendezvous, here it always names the run, except with --standalone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from launcher.errors import UsageError
from launcher.options import Given, did_you_mean

# What torchrun 2.13 reads for one backend or another; a key that is not here is named.
_CONF_KEYS = (
    "timeout", "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout",
    "keep_alive_interval", "keep_alive_max_attempt", "is_host", "store_type", "rank", "protocol", "etcd_prefix",
    "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert",
)  # fmt: skip

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Meeting(NamedTuple):
    """The fields of `Config` that these options make."""

    standalone: bool
    backend: str
    endpoint: str | None
    conf: Mapping[str, str]
    run_id: str | None
    master_addr: str | None
    master_port: int | None


def meet(given: Mapping[str, Given], notes: list[str], *, standalone: bool, node_rank: int) -> Meeting:
    """Apply the rules above, adding a note for every option that has no effect. Raises UsageError."""
    backend, run_id = given["rdzv-backend"], given["rdzv-id"]
    masters = [given["master-addr"], given["master-port"]]
    rank = [given["node-rank"]] if node_rank else []
    conf = _conf(given["rdzv-conf"], notes)
    if standalone:
        others = [value for value in (backend, run_id, given["rdzv-endpoint"]) if value.text != "c10d"]
        _unused(notes, [*others, *rank, *masters], f"beside {given['standalone']}")
        return Meeting(True, "c10d", None, conf, None, None, None)
    _require_backend(backend)
    if "/" in printable(run_id):
        raise UsageError(f"{run_id}: a run's name is part of a directory's name and cannot hold a /")
    endpoint = None if given["rdzv-endpoint"].is_default else _address(given["rdzv-endpoint"])
    if backend.text == "c10d":
        _unused(notes, [*rank, *masters], f"with {backend}")
        if endpoint is not None and endpoint[0] not in _LOOPBACK:
            _unused(notes, [given["rdzv-endpoint"]], "on one node: its rendezvous is inside the agent")
        master_addr, master_port = None, None
    elif rank:
        raise UsageError(f"{rank[0]}: a job of one node has only node rank 0")
    elif endpoint is not None:
        master_addr, master_port = endpoint
        if master_port is None:
            raise UsageError(f"{given['rdzv-endpoint']}: a static rendezvous needs HOST:PORT")
        _unused(notes, masters, f"beside {given['rdzv-endpoint']}")
    else:
        master_addr = None if masters[0].is_default else host(masters[0], masters[0].text)
        master_port = None if masters[1].is_default else _port(masters[1], masters[1].text)
    if master_addr is not None:
        _unused(notes, [given["local-addr"]], "on one node when the master's address is given")
    # torchrun calls a run "none" unless it draws a name, which it does for a purely local rendezvous.
    is_local = backend.text == "static" and master_port is None
    return Meeting(
        standalone=False,
        backend=backend.text,
        endpoint=given["rdzv-endpoint"].text_if_given,
        conf=conf,
        run_id=run_id.text_if_given or (None if is_local else "none"),
        master_addr=master_addr,
        master_port=master_port or None,  # 0 asks for any free port
    )


def _unused(notes: list[str], values: Iterable[Given], why: str) -> None:
    given = [str(value) for value in values if not value.is_default]
    if given:
        notes.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {why}")


def _require_backend(given: Given) -> None:
    if given.text in ("etcd", "etcd-v2"):
        raise UsageError(f"{given} does not work yet", "a job of one node needs no etcd: leave it out")
    if given.text not in ("static", "c10d"):
        known = {name: name for name in ("static", "c10d")}
        raise UsageError(
            f"{given}: no such rendezvous backend", did_you_mean(given.text, known) or "on one node leave it out"
        )


def _conf(given: Given, notes: list[str]) -> dict[str, str]:
    """Read KEY=VALUE,...; all keys are without effect on one node, the unknown ones are named apart."""
    conf: dict[str, str] = {}
    if given.is_default:
        return conf
    for part in given.text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value:
            raise UsageError(f"{given}: {part.strip()!r} is not KEY=VALUE", "write it like timeout=600,read_timeout=60")
        conf[key] = value
    known = [key for key in conf if key in _CONF_KEYS]
    if known:
        notes.append(f"{given.origin}: {', '.join(known)} without effect on one node")
    for key in conf:
        if key not in _CONF_KEYS:
            question = did_you_mean(key, {key: key for key in _CONF_KEYS})
            notes.append(f"{given.origin}: {key} is not known" + (f", {question}" if question else ""))
    return conf


def _address(given: Given) -> tuple[str, int | None]:
    """HOST[:PORT], an IPv6 address in brackets if a port follows."""
    text = given.text.strip()
    name, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        name, port = text, ""
    return host(given, name), _port(given, port) if port else None


def _port(given: Given, text: str) -> int:
    port = whole_number(text)
    if port is None or not 0 <= port < 65536:
        raise UsageError(f"{given}: a port is a number from 0 (any free one) to 65535")
    return port


def host(given: Given, text: str) -> str:
    """A name or an address, without the brackets that IPv6 wears beside a port. Raises UsageError for neither."""
    name = text.strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    address = name.partition("%")[0]  # fe80::1%eth0 names its interface
    if ":" in name:
        is_plausible = set(address) <= set("0123456789abcdefABCDEF:.")
    else:
        is_plausible = all(letter.isalnum() or letter in "_.-" for letter in address)
    if not address or not is_plausible:
        raise UsageError(f"{given}: {name!r} is no address and no name of a host")
    return name


def printable(given: Given) -> str:
    """The text, which becomes part of messages and file names. Raises UsageError for what cannot be shown."""
    if not given.text.isprintable():
        raise UsageError(f"{given.origin} {given.text!r}: only printable characters will do")
    return given.text


def whole_number(text: str) -> int | None:
    """The number that `text` is, None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None
