"""The port of a served store: a listening socket, or the reason why it cannot listen and which process has the port."""

from __future__ import annotations

import errno
import socket

from rendezvous.errors import StoreError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.foreign_listener import find_foreign_listener

_BACKLOG = 1024  # a thousand members may connect at the same moment


class PortTaken(StoreError):
    """Another process listens on the port, or did at that moment."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; 0 is any port. Raises PortTaken, StoreError for what a retry cannot fix."""
    sock = None
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket_type, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        prefix = f"the store cannot listen on {join_address(host, port)}"
        if error.errno != errno.EADDRINUSE:
            raise StoreError(f"{prefix}: {error.strerror or error}") from error
        holder = find_foreign_listener(port)
        sentence = f"{prefix}: the port is taken" + (f" by {holder}" if holder else "")
        raise PortTaken(sentence, hint="give another port, or 0 for any that is free") from error
    return sock
