"""The port that this node offers to rank 0 of the next round, MASTER_PORT if it gets that rank.

The leader takes the offer of the node with rank 0 (`_find_coordinator` in rendezvous/leader/commit.py).

A port that was found free may be taken a moment later. So the agent keeps a socket bound to the
port, without SO_REUSEADDR while it binds and with it afterwards, and does not listen: plain probes and
binds with SO_REUSEPORT are then refused, while a server that binds with SO_REUSEADDR, as torch's TCPStore does
in both its forms and JAX's coordinator with SO_REUSEPORT besides, gets the port. Every round takes a fresh one, so
nothing of a round is found in the next.

The port is held on all local addresses, because torch's and JAX's servers will bind to all. A socket that does not
listen accepts no connections: clients are refused until rank 0 serves there. The agent cannot keep off a server that
binds as rank 0 does, with SO_REUSEADDR, and listens first; `rendezvous.stores.listeners` finds it.

If the user has set a port, it is used in every round and nothing is offered. A foreign process there is then reported,
but does not excuse the failure: the next round would meet the same one.
"""

from __future__ import annotations

import _socket  # socket, on top of it, makes enums of all constants: 2 ms before the first worker
import os
import time
from collections.abc import Iterable

from launcher.model.console import log
from launcher.model.errors import TemporaryError, find_shortage_hint
from launcher.placement.adapter.description import NodeAssignment

ATTEMPTS, RETRY_INTERVAL_S = 25, 0.02  # for a process to end, ten times as long as one of JAX takes


class MasterPort:
    """A free port of all local addresses, held until `close`; from `ports`, FIRST and LAST, if given.

    With a `user_port`, set by the user, none is held or offered. Raises TemporaryError when there is none.
    """

    def __init__(self, user_port: int | None = None, ports: tuple[int, int] | None = None) -> None:
        self._ports = ports
        self._socket: _socket.socket | None = None
        self.number = 0
        """The port that this node offers for the next round, 0 if none."""
        if user_port is None:
            self._reserve(order_candidates(ports, 0))

    def _reserve(self, candidates: Iterable[int]) -> None:
        family, host = (_socket.AF_INET6, "::") if _has_ipv6() else (_socket.AF_INET, "0.0.0.0")
        try:
            self._socket = bind_first(family, host, candidates)
        except OSError as error:
            where = "" if self._ports is None else f" from {self._ports[0]} to {self._ports[1]}"
            hint = find_shortage_hint(error.errno) or ("set --worker-port-range to a larger range" if where else None)
            raise TemporaryError(f"cannot reserve a port{where} for rank 0: {error.strerror}", hint) from error
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        self.number = self._socket.getsockname()[1]

    def renew(self) -> None:
        """Offer another port for the next round; the same again only if there is no other."""
        old, number = self._socket, self.number
        if old is None:
            return
        try:
            self._reserve(port for port in order_candidates(self._ports, number) if port != number)
        except TemporaryError:
            return
        old.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def is_taken(self, share: NodeAssignment) -> bool:
        """Whether rank 0 of this round is here and a foreign process listens on the offered port, to blame the port."""
        if share.group_rank != 0:
            return False
        from launcher.hardware.linux import kernel
        from rendezvous.stores.listeners import PortHolder, find_foreign_listener

        def list_own() -> set[int]:
            return {os.getpid(), *kernel.list_descendants(os.getpid())}

        # For a worker that has just failed the kernel may not show any more what it listened on: try again.
        for _ in range(ATTEMPTS):
            stranger = find_foreign_listener(share.master_port, list_own)
            if stranger != PortHolder():
                break
            time.sleep(RETRY_INTERVAL_S)
        if stranger:
            log(f"port {share.master_port} is for rank 0, but {stranger} listens there")
        return stranger is not None and self._socket is not None


def order_candidates(ports: tuple[int, int] | None, last: int) -> Iterable[int]:
    """The ports to try: in a range those after the last one first, so that each is reused as late as possible."""
    if ports is None:
        return (0,)
    first, end = ports[0], ports[1] + 1
    start = max(first, last + 1)
    return (*range(start, end), *range(first, min(start, end)))


def bind_first(family: int, host: str, candidates: Iterable[int]) -> _socket.socket:
    """Bind the first of these ports that is free; "::" is for IPv4 as well. Raises the last port's OSError."""
    failure = OSError(0, "no other port is left")
    for port in candidates:
        held = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            if host == "::":
                held.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            held.bind((host, port))
        except OSError as error:
            held.close()
            failure = error
        else:
            return held
    raise failure


def _has_ipv6() -> bool:
    try:
        bind_first(_socket.AF_INET6, "::", (0,)).close()
    except OSError:  # a kernel without IPv6
        return False
    return True
