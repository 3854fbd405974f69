"""The handshake by which two connected agents authenticate each other: a state machine without sockets.

The side that dialled sends hello first: its member id, where it listens, the member that it wants, and a nonce. The
other side answers in kind, or closes the connection without an answer if it is not that member. Both prove that they
know the job: an HMAC over the identities and nonces of both sides, with the job's secret as the key or, where there is
none, the job's random key, which an agent reads from the store. The HMAC names the side that makes it, so it cannot be
sent back, and covers both nonces, so an old one is of no use. The dialler sends its HMAC last, when it has verified the
other's. So a listener that does not belong to the job learns ids, an address and a nonce from it; neither the job's key
nor anything by which it could guess a secret.

What follows is not signed line by line. An attacker who can rewrite packets between two nodes can also forge the
refusals on which the presence proof rests; this keeps out those that can merely connect.
"""

from __future__ import annotations

import hmac
import json

from msgspec import Struct
from msgspec.structs import astuple

TEXT_CHARACTERS_MAX = 2048
NONCE_BYTES = 16


class PeerIdentity(Struct, frozen=True):
    """The identity that one side claims."""

    job: str
    member_id: str
    address: str
    """HOST:PORT of its presence listener."""


class HandshakeError(Exception):
    """The other side is not the expected member, or violates the protocol."""


# docs/internals/decisions/0040-authentication-of-peers.md
class Handshake:
    """One side. `expected`: the member that was dialled, "" on the dialled side. `nonce` is fresh and random."""

    def __init__(self, own: PeerIdentity, *, expected: str, secret: bytes, nonce: bytes) -> None:
        self._own = own
        self._expected = expected
        self._is_dialler = bool(expected)
        self._key = secret or own.job.encode(errors="surrogatepass")
        self._nonce = nonce.hex()
        self._peer_nonce = ""
        self._peer: PeerIdentity | None = None
        self.is_done = False

    @property
    def peer(self) -> PeerIdentity:
        """The identity of the other side, once `is_done`."""
        assert self._peer is not None
        return self._peer

    def open(self) -> list[list[object]]:
        """Return what to send as soon as the connection is up."""
        return [self._make_hello("")] if self._is_dialler else []

    def take(self, message: list[object]) -> list[list[object]]:
        """Handle one message of the other side and return the answer. Raises HandshakeError: close the connection."""
        if self._peer is None:
            self._take_hello(message)
            if not self._is_dialler:
                return [self._make_hello(self._make_code("dialled"))]
            self.is_done = True
            return [["proof", self._make_code("dialler")]]
        if len(message) != 2 or message[0] != "proof" or not self._is_code_valid(message[1], "dialler"):
            raise HandshakeError
        self.is_done = True
        return []

    def _make_hello(self, code: str) -> list[object]:
        side = "dialler" if self._is_dialler else "dialled"
        wanted = self._expected if self._peer is None else self._peer.member_id
        return ["hello", side, self._own.member_id, self._own.address, wanted, self._nonce, code]

    def _take_hello(self, message: list[object]) -> None:
        texts = [item for item in message if isinstance(item, str) and len(item) <= TEXT_CHARACTERS_MAX]
        if not len(message) == len(texts) == 7:
            raise HandshakeError
        kind, side, member_id, address, wanted, nonce, code = texts
        # Our own hello has our own side: a dial may have connected to itself on an unused port.
        other_side = "dialled" if self._is_dialler else "dialler"
        is_hello = kind == "hello" and side == other_side and len(nonce) == 2 * NONCE_BYTES
        # Between two memberships there is no own id, and no job's key to know.
        is_meant = bool(self._own.member_id) and wanted == self._own.member_id
        is_other = member_id not in ("", wanted) and self._expected in ("", member_id)
        if not (is_hello and is_meant and is_other):
            raise HandshakeError
        self._peer_nonce, self._peer = nonce, PeerIdentity(self._own.job, member_id, address)
        if self._is_dialler and not self._is_code_valid(code, "dialled"):
            raise HandshakeError

    def _is_code_valid(self, code: object, side: str) -> bool:
        own = self._make_code(side).encode()
        return isinstance(code, str) and hmac.compare_digest(code.encode(errors="replace"), own)

    def _make_code(self, side: str) -> str:
        first = (astuple(self._own), self._nonce)
        second = (astuple(self.peer), self._peer_nonce)
        if not self._is_dialler:
            first, second = second, first
        signed = json.dumps(["meshrun presence", side, *first, *second]).encode()
        return hmac.new(self._key, signed, "sha256").hexdigest()
