"""The port of a served store: listened on, or a sentence that says why not and who is there."""

from __future__ import annotations

import errno
import socket

from rendezvous.errors import StoreError
from rendezvous.stores.addresses import join_address
from rendezvous.stores.foreign_listener import find_foreign_listener

_BACKLOG = 1024  # a thousand members may come in one moment


class PortTaken(StoreError):
    """Another process listens on the port, or did at that moment."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; 0 is any port. Raises PortTaken, and StoreError for what waiting will not mend."""
    end = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        end = socket.socket(family, kind, number)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind(address)
        end.listen(_BACKLOG)
    except OSError as error:
        if end is not None:
            end.close()
        where = f"the store cannot listen on {join_address(host, port)}"
        if error.errno != errno.EADDRINUSE:
            raise StoreError(f"{where}: {error.strerror or error}") from error
        holder = find_foreign_listener(port)
        taken = f"{where}: the port is taken" + (f" by {holder}" if holder else "")
        raise PortTaken(taken, hint="give another port, or 0 for any that is free") from error
    return end
