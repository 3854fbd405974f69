"""The port that this node offers to rank 0 of the next round.

A port found free is no longer free once somebody else has looked too. So the agent keeps a socket bound to the
port, without SO_REUSEADDR while it binds and with it afterwards, and does not listen: plain probes and
binds with SO_REUSEPORT are then refused, while a server that binds with SO_REUSEADDR, as torch's TCPStore does
in both its forms, gets the port. Every round takes a fresh one, so nothing of a round is found in the next.
"""

from __future__ import annotations

import socket

from launcher.errors import TemporaryError


class HeldPort:
    """One free port of all local addresses, kept until `close`. Raises TemporaryError when there is none."""

    def __init__(self) -> None:
        try:
            self._socket = _bound()
        except OSError as error:
            raise TemporaryError(f"no port can be had for rank 0: {error.strerror}") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def _bound() -> socket.socket:
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        both.bind(("::", 0))
        return both
    except OSError:  # a kernel without IPv6
        only_four = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        only_four.bind(("0.0.0.0", 0))
        return only_four
