"""The address by which the other nodes reach this one.

A node has many addresses, and most of them are of no use to others: loopback, link-local, those of container bridges.
The best default is the source address of packets to the store, because all nodes can reach the store. The kernel
returns it when a UDP socket is connected, and sends nothing for that. The user may set another address, or the name
of an interface.

Whose the store is follows from the endpoint: the host that has its address serves. That several hosts may have it, for
a name may stand for several (a headless service of Kubernetes) or for loopback on each of them, is taken into account
as far as it can be seen here: of several addresses the first serves, and what leaves a doubt is a remark.

A host's own name is of no help on the host itself: some distributions write it into /etc/hosts as 127.0.1.1, while
others find it under its real address. A node with such a name uses its source address towards the outside.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from launcher.hardware.linux.interfaces import list_addresses
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import is_local_only, resolve_host, split_address

LOOPBACK = "127.0.0.1"
_LOOPBACK_HOSTS = ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
# Of networks for documentation (RFC 5737, RFC 3849): the route there is the default route, and nothing is sent.
_DOCUMENTATION_ENDPOINTS = ("192.0.2.1:9", "[2001:db8::1]:9")


def find_own_address(*, local_addr: str | None, interface: str | None, endpoints: Sequence[str]) -> str:
    """Return a numeric address of this node for the others: the one set, or the interface's first usable one,
    or the one from which the first of the store's `endpoints` (HOST:PORT) that has a route is reached, or loopback.

    Raises UsageError for an unknown name or interface, and for an address that no other node can reach while the store
    is on another host.
    """
    if local_addr is not None:
        address, what = _resolve_host(local_addr), f"--local-addr {local_addr}"
    elif interface is not None:
        address, what = find_interface_address(interface), f"LAUNCHER_INTERFACE={interface}"
    else:
        address = next(filter(None, map(find_source_address, endpoints)), LOOPBACK)
        if is_local_only(address) and any(map(_is_own_name, endpoints)):
            address = find_main_address() or address
        what = f"the route to the store at {', '.join(endpoints)}"
    if is_local_only(address):
        elsewhere = [endpoint for endpoint in endpoints if not is_here(endpoint)]
        if elsewhere:
            raise UsageError(
                f"{what} gives {address}, which other nodes cannot reach, but {elsewhere[0]} is on another node",
                "set --local-addr, or LAUNCHER_INTERFACE, to an address at which others reach this node",
            )
    return address


def find_source_address(endpoint: str) -> str:
    """Return the source address of packets to HOST:PORT; "" if there is no such host or no route."""
    for family, place in _resolve_endpoint(endpoint):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(place)
            return str(asked.getsockname()[0])
    return ""


def find_serving_addresses(endpoint: str, *, local_addr: str | None, interface: str | None) -> tuple[str, ...]:
    """Return the numeric addresses of this node to which HOST of HOST:PORT resolves; none if it is on another.

    If only this node can use these, though it is a name that others use for it, add the one that they can use.
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


def find_other_server(endpoint: str) -> str:
    """Return the address of the other host that is to serve, "" if it is this one, which has an address of HOST's.

    A host may have several addresses, so if all of one family are its own, no other host is meant. Else the first of
    all serves, in an order that is the same everywhere; name services give them in a random one.
    """
    found = {(family, str(place[0])): _is_own(family, place[0]) for family, place in _resolve_endpoint(endpoint)}
    families = {family for family, _ in found}
    if not found or any(all(own for (of, _), own in found.items() if of == family) for family in families):
        return ""
    first = min(found, key=lambda place: (place[0], socket.inet_pton(place[0], place[1].partition("%")[0])))
    return "" if found[first] else first[1]


def describe_doubt(endpoint: str) -> str:
    """Return why another host may take the store at HOST:PORT for its own, too; "" if nothing indicates that."""
    host = split_address(endpoint)[0]
    found = list(dict.fromkeys(str(place[0]) for _, place in _resolve_endpoint(endpoint)))
    if {"0.0.0.0", "::"} & {*found}:
        return f"{host} means every host, so each host would serve a store of its own"
    names = (host, host.partition(".")[0])
    if not _is_own_name(endpoint) or any(name.lower() == os.uname().nodename.lower() for name in names):
        return ""
    own = os.uname().nodename
    return (
        f"{host} is {' and '.join(found)} on this host, {own}: another host where it is loopback, too, "
        "would serve a store of its own, and the nodes would never meet"
    )


def _is_own_name(endpoint: str) -> bool:
    """Whether HOST is a name that others use for this node, and resolves to loopback addresses here."""
    host = split_address(endpoint)[0]
    found = [str(place[0]) for _, place in _resolve_endpoint(endpoint)]
    is_meant = host in found or host.partition(".")[0] in _LOOPBACK_HOSTS
    return bool(found) and not is_meant and all(map(is_local_only, found))


def find_main_address() -> str:
    """Return the source address of this node towards the outside, or else its first that others can use; or ""."""
    interfaces = [name for _, name in socket.if_nameindex()]
    others = (address for name in interfaces for address in list_addresses(name))
    usable = (
        address
        for address in (*map(find_source_address, _DOCUMENTATION_ENDPOINTS), *others)
        if address and not is_local_only(address)
    )
    return next(usable, "")


def is_resolvable(endpoint: str) -> bool:
    """Whether HOST resolves to an address."""
    return bool(_resolve_endpoint(endpoint))


def is_numeric(host: str) -> bool:
    """Whether this is an address and no name, so that its meaning never changes."""
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
    """Return the first address of an interface that others can use, IPv4 before IPv6; else its first of all.

    Raises UsageError.
    """
    found = list_addresses(name)
    if not found:
        names = ", ".join(known for _, known in socket.if_nameindex())
        sentence = f"LAUNCHER_INTERFACE={name}: no such interface, or it has no address"
        raise UsageError(sentence, f"choose one of {names}")
    return next((address for address in found if not is_local_only(address)), found[0])


def _resolve_host(host: str) -> str:
    """Return the address to which a name resolves. Raises UsageError."""
    addresses = [place[0] for _, place in resolve_host(host, 0)]
    if not addresses:
        raise UsageError(f"--local-addr {host}: not an address, and no host has that name")
    return next((address for address in addresses if is_here(f"[{address}]:1")), addresses[0])


def _resolve_endpoint(endpoint: str) -> list[tuple[int, tuple[str, int]]]:
    return resolve_host(*split_address(endpoint))
