"""Who may ask: with a token set, only who shows what `Authenticate` gave for it.

To clients it is etcd with one user, `meshrun`, whose password is the token. What they get for it, and send with every
call, is drawn anew by every server, so one that was started again makes them authenticate again. Without a token
everybody may ask, and `Authenticate` is refused as etcd refuses it, which clients take as "then go without".
"""

from __future__ import annotations

import hmac
import secrets

from rendezvous.stores import wire
from rendezvous.stores.server import errors
from rendezvous.stores.server.errors import ServedFailure

USER = "meshrun"


class Authenticator:
    """`token` is the shared secret; empty is none."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._issued_token = secrets.token_urlsafe(24)

    def authenticate(self, request: wire.AuthenticateRequest, header: wire.Header) -> wire.AuthenticateResponse:
        """The pass. Raises Refused for another user or password."""
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
        """Raises Refused for a call that shows no pass, or another."""
        if not self._token:
            return
        if token is None:
            raise ServedFailure(errors.USER_EMPTY)
        if not hmac.compare_digest(token, self._issued_token.encode()):
            raise ServedFailure(errors.BAD_TOKEN)


def _is_same(one: str, other: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))
