"""Whose a connection on loopback is: the kernel knows the user of the socket at its other end."""

from __future__ import annotations

import socket

from rendezvous.stores.listeners import find_owner


def find_peer_user(end: socket.socket) -> int | None:
    """Return the user id of the process of this machine at the other end of a TCP connection; None if unknown."""
    if end.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        ends = [(socket.inet_pton(end.family, name[0]), name[1]) for name in (end.getpeername(), end.getsockname())]
    except (OSError, ValueError):
        return None
    return find_owner(end.family, *ends)
