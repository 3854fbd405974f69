"""One presence connection: lines of JSON over a socket that never blocks, with a limit on everything.

A line is a list whose first word says what it is. A side that has not said who it is yet may send little; a side
that does not read is given up when too much waits for it, for waiting would freeze all others.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress

from rendezvous.peers.handshake import Handshake, PeerIdentity
from rendezvous.values import NamedTuple

HANDSHAKE_BYTES_MAX = 1 << 14  # two ids and an address
LINE_BYTES_MAX = 1 << 18  # ten thousand member ids
OUTBOUND_BYTES_MAX = 1 << 19
_READ_SIZE = 1 << 16

HEARTBEAT: list[object] = ["beat"]
BYE: list[object] = ["bye"]
_HEARTBEAT_LINE = (
    b'["beat"]'  # most of what is ever said; whoever leads a thousand members takes a thousand in a second
)


class ConnectionEnd(NamedTuple):
    """Why a connection is over. `is_by_peer`: its kernel said so, by FIN or RST; else we gave it up."""

    is_by_peer: bool
    reason: str
    is_refusal: bool = False
    is_farewell: bool = False


class PeerConnection:
    """`expected` names the member that we dialled, "" if the other side dialled. Times are on the loop's clock."""

    def __init__(self, sock: socket.socket, *, expected: str, now: float) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.expected = expected
        self.handshake: Handshake | None = None  # while it is going on
        self.peer: PeerIdentity | None = None  # once it is done
        self.is_connecting = False
        self.is_provable = False
        self.opened_at = self.heard_at = self.sent_at = now
        self._inbound = bytearray()
        self._outbound = bytearray()

    @property
    def is_over(self) -> bool:
        """Whether it was closed on this side."""
        return self.sock.fileno() < 0

    @property
    def is_waiting(self) -> bool:
        """Whether something waits until the socket takes it."""
        return bool(self._outbound)

    def find_source_host(self) -> str:
        """The other side's address as the kernel sees it, as text; "" if it has gone."""
        try:
            return str(self.sock.getpeername()[0])
        except OSError:
            return ""

    def send(self, message: list[object], now: float) -> ConnectionEnd | None:
        """Queue a message and write what fits."""
        said = _HEARTBEAT_LINE if message is HEARTBEAT else json.dumps(message, separators=(",", ":")).encode("ascii")
        line = said + b"\n"
        assert len(line) <= LINE_BYTES_MAX, "the other side would take it for rubbish"
        if len(self._outbound) + len(line) > OUTBOUND_BYTES_MAX:
            return ConnectionEnd(False, "it does not read what it is sent")
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
        """The messages that have arrived, at most one reading's worth, and what ended the connection if it is over.

        A member's beats are not among them: that it was heard is all they say.
        """
        try:
            data = self.sock.recv(_READ_SIZE)
        except BlockingIOError:
            return [], None
        except OSError as error:
            return [], explain_error(error)
        if not data:
            return [], ConnectionEnd(True, "it has closed the connection")
        self.heard_at = now
        self._inbound += data
        limit = LINE_BYTES_MAX if self.peer is not None else HANDSHAKE_BYTES_MAX
        *lines, rest = self._inbound.split(b"\n")
        self._inbound = rest
        if len(rest) > limit or any(len(line) > limit for line in lines):
            return [], ConnectionEnd(False, f"it has sent more than {limit} bytes without an end")
        try:
            return [_parse(line) for line in lines if self.peer is None or line != _HEARTBEAT_LINE], None
        except (ValueError, RecursionError):
            return [], ConnectionEnd(False, "it has sent something else than meshrun would")

    def comes_from(self, host: str) -> bool:
        """Whether the other side's source address is `host`."""
        source = self.find_source_host()
        return bool(source) and _pack_address(source) == _pack_address(host)


def _parse(line: bytearray) -> list[object]:
    words = json.loads(line)
    if not isinstance(words, list) or not words:
        raise ValueError
    return words


def explain_error(error: OSError) -> ConnectionEnd:
    """What an error of the socket says of the other side: only a reset comes from its kernel."""
    is_reset = isinstance(error, (ConnectionResetError, BrokenPipeError))
    return ConnectionEnd(is_reset, error.strerror or "", isinstance(error, ConnectionRefusedError))


def find_dial_failure(sock: socket.socket) -> ConnectionEnd | None:
    """Why a dial has failed; None if it stands."""
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number == 0:
        return None
    import os

    return explain_error(OSError(number, os.strerror(number)))


def _pack_address(host: str) -> bytes | None:
    """An address as the kernel compares it; None if it is none."""
    host = host.partition("%")[0]  # an interface of ours says nothing about the other side
    if host.lower().startswith("::ffff:") and "." in host:
        host = host[7:]
    with suppress(OSError, ValueError):
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return None
