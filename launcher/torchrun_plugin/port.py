"""The port that this node offers for the store of the next round, in case it has rank 0.

A port that was found free may be taken when it is needed. So the offer is a socket: bound to the one address that the
others get, and not listening. torch's server takes over the socket itself, so no other process can take the port. Every
round uses a new one, so nothing of a round is found in the next.
"""

from __future__ import annotations

import socket

from launcher.model.errors import TemporaryError
from launcher.ranks.ports import order_candidates


class OfferedPort:
    """A port of `address` for the store of the next round, from `ports`, FIRST and LAST, if given.

    Raises TemporaryError when there is none.
    """

    def __init__(self, address: str, ports: tuple[int, int] | None) -> None:
        self._address, self._ports = address, ports
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket: socket.socket | None = None
        self.number = 0
        self.renew()

    def renew(self) -> None:
        """Offer another port from now on. Raises TemporaryError."""
        self.close()
        failure: OSError | None = None
        for port in order_candidates(self._ports, self.number):
            bound = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                bound.bind((self._address, port))
            except OSError as error:
                bound.close()
                failure = error
            else:
                self._socket, self.number = bound, bound.getsockname()[1]
                return
        where = "" if self._ports is None else f" from {self._ports[0]} to {self._ports[1]}"
        raise TemporaryError(
            f"no port of {self._address}{where} can be had for the store of a round: {failure}",
            "LAUNCHER_WORKER_PORT_RANGE names others" if where else None,
        )

    def hand_over(self) -> int:
        """Return the descriptor, which the caller owns from now on."""
        assert self._socket is not None
        descriptor, self._socket = self._socket.detach(), None
        return descriptor

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
