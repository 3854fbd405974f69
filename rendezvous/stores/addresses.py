"""Addresses as text: how HOST:PORT is written and read, and which addresses no other machine can use.

An IPv6 address has brackets where a port follows.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_pton  # socket has enums, for which a start need not wait
from contextlib import suppress

from rendezvous.errors import SettingsError


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, or [HOST]:PORT for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, the host without brackets. Raises SettingsError."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # an IPv6 address without brackets: which colon is the port's?
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not is_number or not 0 < int(port) < 65536:
        raise SettingsError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def is_local_only(address: str) -> bool:
    """Return whether only this machine, or its neighbours on one link, can use the address: loopback or link-local."""
    host = address.lower().removeprefix("::ffff:")
    return host in ("localhost", "::1") or host.startswith(("127.", "169.254.", "fe8", "fe9", "fea", "feb"))


def resolve_host(host: str, port: int, flags: int = 0) -> list[tuple[int, tuple[str, int]]]:
    """Return the addresses of a host by getaddrinfo(3), each with its family; none if there is no such host."""
    import socket

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return []
    return [(family, place) for family, _, _, _, place in found]  # type: ignore[misc]


def pack_address(host: str) -> bytes | None:
    """Return an address as the kernel compares it; None if it is not an address."""
    host = host.partition("%")[0]  # an interface of this side says nothing about the other
    if host.lower().startswith("::ffff:") and "." in host:
        host = host[7:]
    with suppress(OSError, ValueError):
        return inet_pton(AF_INET6 if ":" in host else AF_INET, host)
    return None
