"""How HOST:PORT becomes places to connect to without holding anybody up.

A name is looked up in a thread of its own, since the system's resolver may take half a minute to say that it does
not know.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from rendezvous.errors import SettingsError
from rendezvous.stores.addresses import split_address

Target = tuple[int, tuple[str, int]]
"""A socket family and where to connect to."""


def resolve(address: str, on_targets: Callable[[list[Target]], None]) -> None:
    """Call `take` with where HOST:PORT is: at once for an address, later and from another thread for a name.

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

    def ask() -> None:
        on_targets(_find_targets(host, port, 0))

    try:
        threading.Thread(target=ask, name=f"look up {host}", daemon=True).start()
    except RuntimeError:  # the kernel gives no more threads
        on_targets([])


def _find_targets(host: str, port: int, flags: int) -> list[Target]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return []
    return [(family, place) for family, _, _, _, place in found]  # type: ignore[misc]
