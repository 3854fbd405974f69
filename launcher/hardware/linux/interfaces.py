"""The addresses of a network interface of this node, as the kernel lists them.

Python's library has the interfaces' names and nothing more. For IPv4 an ioctl is used, which returns an
interface's first address; for IPv6 a file lists all of them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

_SIOCGIFADDR = 0x8915  # include/uapi/linux/sockios.h
_IF_INET6 = "/proc/net/if_inet6"  # one address a line: address, index, prefix length, scope, flags, name


def list_addresses(name: str) -> list[str]:
    """Return all addresses of a network interface, IPv4 before IPv6; none if there is no such interface."""
    return [*_list_ipv4(name), *_list_ipv6(name)]


def _list_ipv4(name: str) -> Iterator[str]:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query, contextlib.suppress(OSError):
        found = fcntl.ioctl(query, _SIOCGIFADDR, struct.pack("256s", name.encode(errors="replace")[:15]))
        yield socket.inet_ntoa(found[20:24])


def _list_ipv6(name: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(_IF_INET6) as file:
        lines = [line.split() for line in file]
        for digits, *_, found in sorted(lines, key=lambda fields: fields[3]):  # global scope is 00, link-local 20
            if found == name:
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
