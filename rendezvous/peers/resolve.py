"""Resolves HOST:PORT to socket addresses without blocking the caller.

A name is looked up in a thread of its own, since the system's resolver may take half a minute to fail.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from rendezvous.errors import SettingsError
from rendezvous.stores.addresses import split_address

Target = tuple[int, tuple[str, int]]
"""A socket family and the address to connect to."""


def resolve(address: str, on_targets: Callable[[list[Target]], None]) -> None:
    """Call `on_targets` with the addresses of HOST:PORT: at once for an address, later and from a thread for a name.

    The list is empty if there is no such host.
    """
    try:
        host, port = split_address(address)
    except SettingsError:
        on_targets([])
        return
    found = _find_targets(host, port, socket.AI_NUMERICHOST)
    if found:
        on_targets(found)
        return

    def look_up() -> None:
        on_targets(_find_targets(host, port, 0))

    try:
        threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    except RuntimeError:  # the kernel gives no more threads
        on_targets([])


def _find_targets(host: str, port: int, flags: int) -> list[Target]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return []
    return [(family, target) for family, _, _, _, target in found]  # type: ignore[misc]
