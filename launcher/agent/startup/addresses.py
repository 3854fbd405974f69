"""The address by which the other nodes reach this one.

A node has many addresses, and most of them are of no use to others: loopback, link-local, those of container bridges.
The one that is right without being told is the one that packets to the store come from, because the store is a place
that all nodes can reach. The kernel says which it is when a UDP socket is connected, and sends nothing for that.
Whoever knows better says so: an address, or the name of an interface.

A host's own name is of no help on the host itself: some distributions write it into /etc/hosts as 127.0.1.1, while
others find it under its real address. Who is meant by such a name takes the address that it has towards the world.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from launcher.hardware.linux.interfaces import list_addresses
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import is_local_only, split_address

LOOPBACK = "127.0.0.1"
_LOOPBACK_HOSTS = ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
# Of networks for documentation (RFC 5737, RFC 3849): the way there is the way to anywhere, and nothing is sent.
_DOCUMENTATION_ENDPOINTS = ("192.0.2.1:9", "[2001:db8::1]:9")


def find_own_address(*, local_addr: str | None, interface: str | None, endpoints: Sequence[str]) -> str:
    """An address of this node for the others, in digits: the one given, or the interface's first that others can use,
    or the one from which the first of the store's `endpoints` (HOST:PORT) that has a route is reached, or loopback.

    Raises UsageError for an unknown name or interface, and for an address that nobody else can reach while the store is
    on another host.
    """
    if local_addr is not None:
        address, what = _resolve_host(local_addr), f"--local-addr {local_addr}"
    elif interface is not None:
        address, what = find_interface_address(interface), f"--interface {interface}"
    else:
        address = next(filter(None, map(find_source_address, endpoints)), LOOPBACK)
        if is_local_only(address) and any(map(_is_own_name, endpoints)):
            address = find_main_address() or address
        what = f"the way to the store at {', '.join(endpoints)}"
    if is_local_only(address):
        elsewhere = [endpoint for endpoint in endpoints if not is_here(endpoint)]
        if elsewhere:
            raise UsageError(
                f"{what} gives {address}, by which no other node reaches this one; {elsewhere[0]} is on another",
                "--local-addr ADDRESS or --interface NAME says how others reach it",
            )
    return address


def find_source_address(endpoint: str) -> str:
    """The address from which packets to HOST:PORT leave this node; "" if there is no such host or no route."""
    for family, place in _resolve_endpoint(endpoint):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(place)
            return str(asked.getsockname()[0])
    return ""


def find_serving_addresses(endpoint: str, *, local_addr: str | None, interface: str | None) -> tuple[str, ...]:
    """The addresses of this node, in digits, that HOST of HOST:PORT stands for; none if it is on another.

    If these are of use to this node alone, though a name by which others mean it, the one that they can use too.
    Raises UsageError for an unknown name or interface.
    """
    found = tuple(
        dict.fromkeys(str(place[0]) for family, place in _resolve_endpoint(endpoint) if _is_own(family, place[0]))
    )
    if not found or not _is_own_name(endpoint):
        return found
    if local_addr is not None or interface is not None:
        other = find_own_address(local_addr=local_addr, interface=interface, endpoints=())
    else:
        other = find_main_address()
    return tuple(dict.fromkeys((*found, *filter(None, (other,)))))


def _is_own_name(endpoint: str) -> bool:
    """Whether HOST is a name by which others mean this node, and stands for loopback addresses here."""
    host = split_address(endpoint)[0]
    found = [str(place[0]) for _, place in _resolve_endpoint(endpoint)]
    is_meant = host in found or host.partition(".")[0] in _LOOPBACK_HOSTS
    return bool(found) and not is_meant and all(map(is_local_only, found))


def find_main_address() -> str:
    """The address from which this node speaks to the world at large, or else its first that others can use; or ""."""
    interfaces = [name for _, name in socket.if_nameindex()]
    others = (address for name in interfaces for address in list_addresses(name))
    usable = (
        address
        for address in (*map(find_source_address, _DOCUMENTATION_ENDPOINTS), *others)
        if address and not is_local_only(address)
    )
    return next(usable, "")


def is_resolvable(endpoint: str) -> bool:
    """Whether HOST stands for an address."""
    return bool(_resolve_endpoint(endpoint))


def is_numeric(host: str) -> bool:
    """Whether this is an address and no name, so that it will never mean anything else."""
    return ":" in host or host.replace(".", "").isdigit()


def is_here(endpoint: str) -> bool:
    """Whether HOST:PORT is on this node; an unknown host is not."""
    return any(_is_own(family, place[0]) for family, place in _resolve_endpoint(endpoint))


def _is_own(family: int, address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trial:
        trial.bind((address, 0))
        return True
    return False


def find_interface_address(name: str) -> str:
    """The first address of a network interface that others can use, IPv4 before IPv6; else its first of all.

    Raises UsageError.
    """
    found = list_addresses(name)
    if not found:
        names = ", ".join(known for _, known in socket.if_nameindex())
        raise UsageError(f"--interface {name}: there is no such interface with an address", f"there are {names}")
    return next((address for address in found if not is_local_only(address)), found[0])


def _resolve_host(host: str) -> str:
    """The address that a name stands for. Raises UsageError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"--local-addr {host}: there is no such address, and no host of that name") from None
    addresses = [str(place[0]) for *_, place in found]
    return next((address for address in addresses if is_here(f"[{address}]:1")), addresses[0])


def _resolve_endpoint(endpoint: str) -> list[tuple[int, tuple[str, int]]]:
    host, port = split_address(endpoint)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    return [(family, place) for family, _, _, _, place in found]  # type: ignore[misc]
