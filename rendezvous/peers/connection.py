"""One presence connection: lines of JSON over a non-blocking socket, with a limit on everything.

A line is a list whose first item is its kind. A side that has not authenticated yet may send little; a side that does
not read is disconnected when too much is queued for it, because waiting would freeze all others.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from enum import Enum, auto

from rendezvous.peers.handshake import Handshake, PeerIdentity
from rendezvous.stores.addresses import pack_address

HANDSHAKE_BYTES_MAX = 1 << 14  # two ids and an address
LINE_BYTES_MAX = 1 << 18  # ten thousand member ids
OUTBOUND_BYTES_MAX = 1 << 19
_READ_SIZE = 1 << 16

HEARTBEAT: list[object] = ["beat"]
BYE: list[object] = ["bye"]
_HEARTBEAT_LINE = b'["beat"]'  # most of the traffic; the leader of a thousand members receives a thousand per second


class ConnectionEnd(Enum):
    """Who has ended a connection."""

    OURS = auto()
    """This side."""
    PEER = auto()
    """The peer's kernel, by FIN or RST."""
    REFUSED = auto()
    """The peer's kernel, which refused the dial."""
    FAREWELL = auto()
    """The peer, with a farewell."""


class PeerConnection:
    """One connection. `expected`: the member that this side dialled, "" if the other did. Times: the loop's clock."""

    def __init__(self, sock: socket.socket, *, expected: str, now: float) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.expected = expected
        self.handshake: Handshake | None = None  # while it is in progress
        self.peer: PeerIdentity | None = None  # once it is complete
        self.is_connecting = False
        self.is_provable = False
        self.opened_at = self.heard_at = self.sent_at = now
        self._inbound = bytearray()
        self._outbound = bytearray()

    @property
    def is_over(self) -> bool:
        """Return whether it was closed on this side."""
        return self.sock.fileno() < 0

    @property
    def is_waiting(self) -> bool:
        """Return whether outbound data waits for the socket."""
        return bool(self._outbound)

    def send(self, message: list[object], now: float) -> ConnectionEnd | None:
        """Queue a message and write what fits."""
        data = _HEARTBEAT_LINE if message is HEARTBEAT else json.dumps(message, separators=(",", ":")).encode("ascii")
        line = data + b"\n"
        assert len(line) <= LINE_BYTES_MAX, "the other side would take it for rubbish"
        if len(self._outbound) + len(line) > OUTBOUND_BYTES_MAX:
            return ConnectionEnd.OURS  # it does not read what it is sent
        self._outbound += line
        self.sent_at = now
        return self.flush()

    def flush(self) -> ConnectionEnd | None:
        """Write what fits."""
        try:
            while self._outbound and not self.is_connecting:
                del self._outbound[: self.sock.send(self._outbound)]
        except BlockingIOError:
            pass
        except OSError as error:
            return explain_error(error)
        return None

    def receive(self, now: float) -> tuple[list[list[object]], ConnectionEnd | None]:
        """Return the messages that have arrived, at most one read's worth, and why the connection ended, if it did.

        A member's heartbeats are left out: they only show that it is alive.
        """
        try:
            data = self.sock.recv(_READ_SIZE)
        except BlockingIOError:
            return [], None
        except OSError as error:
            return [], explain_error(error)
        if not data:
            return [], ConnectionEnd.PEER
        self.heard_at = now
        self._inbound += data
        limit = LINE_BYTES_MAX if self.peer is not None else HANDSHAKE_BYTES_MAX
        *lines, remainder = self._inbound.split(b"\n")
        self._inbound = remainder
        if len(remainder) > limit or any(len(line) > limit for line in lines):
            return [], ConnectionEnd.OURS
        try:
            return [_parse(line) for line in lines if self.peer is None or line != _HEARTBEAT_LINE], None
        except (ValueError, RecursionError):
            return [], ConnectionEnd.OURS

    def comes_from(self, host: str) -> bool:
        """Return whether the other side's source address is `host`."""
        try:
            source = str(self.sock.getpeername()[0])
        except OSError:  # it is gone
            return False
        return pack_address(source) == pack_address(host)


def _parse(line: bytearray) -> list[object]:
    message = json.loads(line)
    if not isinstance(message, list) or not message:
        raise ValueError
    return message


def explain_error(error: OSError) -> ConnectionEnd:
    """Make the end of a connection from a socket error: only these come from the other side's kernel."""
    if isinstance(error, ConnectionRefusedError):
        return ConnectionEnd.REFUSED
    return ConnectionEnd.PEER if isinstance(error, (ConnectionResetError, BrokenPipeError)) else ConnectionEnd.OURS


def find_dial_failure(sock: socket.socket) -> ConnectionEnd | None:
    """Return why a dial has failed; None if it is connected."""
    error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return explain_error(OSError(error_number, "")) if error_number else None
