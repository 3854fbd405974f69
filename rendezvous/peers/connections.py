"""Presence: connections between agents that show within milliseconds what a lease shows within seconds.

A lease shows that a member has been silent for too long. A connection shows more: when a process ends, for whatever
reason, its kernel ends its connections at once, and refuses new ones when no process holds the listener any more. Every
agent listens, and keeps one connection to the leader. The listener is bound before keeper and supervisor are forked and
is held by them and by the workers, and the keeper ends last: refused dials prove that not only the agent is gone but
all that its workers have started, so their ranks can be given to others at once. Silence proves nothing, and is
reported as silence.

This module is what the driver uses: calls go in, events come out, and nothing here waits for the network. A thread of
its own (connection_loop.py) does; handshake.py authenticates two agents to each other, connection.py is one connection,
dial_attempt.py decides when to dial and what a refusal proves, resolve.py resolves names to addresses.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterable

from rendezvous.events import Event
from rendezvous.peers.connection_loop import ConnectionLoop
from rendezvous.stores.addresses import split_address

BACKLOG = 4096  # all members of a large job dial a new leader at once; the kernel has a limit of its own
CLOSE_LIMIT_S = 1.0


def bind(host: str, ports: Iterable[int]) -> socket.socket:
    """Return a listening socket on the first free one of these ports of `host`; port 0 is any.

    Raises OSError of the last port that was tried.
    """
    failure = OSError("no port to listen on was given")
    # Unused ports first. Then those where the kernel still remembers connections, for an agent that was restarted; it
    # cannot tell them from a port that is reserved for the rank 0 of another job.
    for is_reused, port in itertools.product((False, True), ports):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_reused)
            listener.bind((host, port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)  # inherited by its connections
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    raise failure


class PeerConnections:
    """The connections of one agent. Methods may be called from any thread and return at once.

    `listener` is listening and is still held by the caller: agent, keeper, supervisor and workers. `address` is
    HOST:PORT by which others reach it. With a `secret` only agents that know it are authenticated. `submit` is called
    from the thread of the connections with PeerUp, PeerDown, PeerGone and PeerMessage. `silence_s`: how long nothing
    may arrive until a connection counts as silent.

    Each PeerUp is followed by one PeerDown before the next, unless it reports that the member has become provable.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        address: str,
        secret: bytes,
        submit: Callable[[Event], None],
        clock: Callable[[], float],
        silence_s: float,
    ) -> None:
        split_address(address)
        self._loop = ConnectionLoop(
            listener=listener, address=address, secret=secret, submit=submit, clock=clock, silence_s=silence_s
        )
        self._thread: threading.Thread | None = None
        self.address = address

    def set_identity(self, job: str, member_id: str) -> None:
        """Be this member of this job from now on; connections under another identity are ended."""
        self._loop.call_soon(self._loop.set_identity, job, member_id)
        if self._thread is None:
            thread = threading.Thread(target=self._loop.run, name="presence", daemon=True)
            thread.start()  # raises where the machine has no more
            self._thread = thread

    def connect_to(self, member_id: str, address: str) -> None:
        """Keep a connection to this member and dial no other; an empty id ends it. Proofs about others go on."""
        self._loop.call_soon(self._loop.connect_to, member_id, address)

    def send(self, member_id: str, text: str) -> None:
        """Send a text to a connected member. It is lost if there is no connection or the member does not read."""
        self._loop.call_soon(self._loop.send, member_id, text)

    def close(self) -> None:
        """End all connections without a farewell, so that others may prove that no process is left."""
        self._loop.call_soon(self._loop.stop)
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # called from the thread itself
                self._thread.join(CLOSE_LIMIT_S)
        else:
            self._loop.close()
