"""Authentication: with a token set, only clients that show the key from `Authenticate` are served.

To clients it is etcd with one user, `meshrun`, whose password is the token. The key that they get for it, and send with
every call, is random for each server, so clients of a restarted server authenticate again. Without a token every client
is served, and `Authenticate` is refused as etcd refuses it, upon which clients continue without.
"""

from __future__ import annotations

import hmac
import secrets

from rendezvous.stores import wire
from rendezvous.stores.server import errors
from rendezvous.stores.server.errors import ServedFailure

USER = "meshrun"


class Authenticator:
    """`token` is the shared secret; empty means none."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._issued_token = secrets.token_urlsafe(24)

    def authenticate(self, request: wire.AuthenticateRequest, header: wire.Header) -> wire.AuthenticateResponse:
        """Return the issued token. Raises ServedFailure for another user or password."""
        if not self._token:
            raise ServedFailure(errors.AUTH_NOT_ENABLED)
        is_user = _is_same(request.name, USER)
        if not (_is_same(request.password, self._token) and is_user):
            raise ServedFailure(errors.AUTH_FAILED)
        return wire.AuthenticateResponse(header, self._issued_token)

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def admit(self, token: bytes | None) -> None:
        """Raise ServedFailure for a call without the issued token, or with another."""
        if not self._token:
            return
        if token is None:
            raise ServedFailure(errors.USER_EMPTY)
        if not hmac.compare_digest(token, self._issued_token.encode()):
            raise ServedFailure(errors.BAD_TOKEN)


def _is_same(text: str, other: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(text.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))
