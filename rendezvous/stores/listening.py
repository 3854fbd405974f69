"""Whether a port can be listened on, asked before gRPC tries: its own error says neither why nor who is there."""

from __future__ import annotations

import errno
import socket

from rendezvous.addresses import join_address
from rendezvous.errors import StoreError
from rendezvous.listeners import foreign_listener


class PortTaken(StoreError):
    """Another process listens on the port, or did at that moment."""


def check_can_listen(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises PortTaken, and StoreError for what waiting will not mend."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
            return int(probe.getsockname()[1])
    except OSError as error:
        where = f"the store cannot listen on {join_address(host, port)}"
        if error.errno != errno.EADDRINUSE:
            raise StoreError(f"{where}: {error.strerror or error}") from error
        holder = foreign_listener(port)
        taken = f"{where}: the port is taken" + (f" by {holder}" if holder else "")
        raise PortTaken(taken, hint="give another port, or 0 for any that is free") from error
