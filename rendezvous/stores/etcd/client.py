"""One request to a store of several servers: which is asked, with which token, how long, and what a failure means.

A request goes to the current endpoint; when nothing can have been done there it goes to the next, until every endpoint
has failed or the time is over. A request that may be repeated (a read, a renewal) continues also when its reply is
missing. A write whose reply is missing ends as `OutcomeUnknown`: it may have been done, or may yet be. Writes are
waited for longer than the rest, unless their server has stopped answering altogether (see watch_loop.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rendezvous.errors import OutcomeUnknown, StoreError, Unreachable
from rendezvous.stores import wire
from rendezvous.stores.etcd.channel import Endpoint, Endpoints
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError
from rendezvous.stores.wire import Method, Request, Response

if TYPE_CHECKING:
    import grpc


Effect = Literal["read", "renewal", "write"]  # all but a write may be repeated when the reply is missing

LOG_INS_MAX = 3  # a new token may expire, too, while a busy or stopped machine is between log-in and request
ALARM_S = 1.0  # by then a cluster without space has agreed to refuse writes beforehand; it takes one round of agreement


class EtcdSession:
    """The user's token. It is requested when first needed, and again after `forget`.

    A log-in costs etcd some 60 ms of work, and after its restart all clients log in at once. So it is given `limit_s`,
    longer than a call: calls that cannot wait that long fail, and a later one finds the token there.
    """

    def __init__(self, user: str, password: str, limit_s: float) -> None:
        self.has_user = bool(user)
        self._request = wire.AuthenticateRequest(user, password)
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._token: str | None = None if user else ""
        self._log_in: tuple[Endpoint, grpc.Future[bytes]] | None = None

    def get_token(self, endpoint: Endpoint, limit_s: float) -> str:
        """Return the token, "" without a user or where etcd needs none. Raises CallFailed; nothing was written then."""
        with self._lock:
            if self._token is not None:
                return self._token
            if self._log_in is None or self._log_in[0] is not endpoint:
                if self._log_in is not None:
                    self._log_in[1].cancel()
                self._log_in = (endpoint, endpoint.begin(wire.AUTHENTICATE, self._request, self._limit_s))
            log_in = self._log_in
        token = None
        try:
            token = endpoint.finish(wire.AUTHENTICATE, log_in[1], limit_s).token
        except CallFailed as failed:
            if "authentication is not enabled" in failed.refusal.phrase:
                token = ""  # as in etcd's own client: the user is given too early, or not needed
            else:
                kind = ErrorKind.ELSEWHERE if failed.refusal.kind is ErrorKind.UNKNOWN else failed.refusal.kind
                raise CallFailed(failed.refusal._replace(kind=kind)) from None
        finally:
            with self._lock:
                if self._log_in is log_in and (token is not None or log_in[1].done()):
                    self._log_in = None
                    self._token = token
        return token

    def forget(self, token: str) -> None:
        """Drop this token, which is no longer valid."""
        with self._lock:
            if self.has_user and self._token == token:
                self._token = None


# docs/internals/decisions/0011-own-etcd-client.md
class EtcdClient:
    """Makes requests; any number of threads may. `on_silent` is called with an endpoint that has stopped answering."""

    def __init__(
        self,
        endpoints: Endpoints,
        session: EtcdSession,
        limit_s: float,
        write_limit_s: float,
        on_silent: Callable[[Endpoint], None],
    ) -> None:
        self.endpoints = endpoints
        self.session = session
        self.limit_s = limit_s
        self._write_limit_s = write_limit_s
        self._on_silent = on_silent
        self._full_since: float | None = None

    def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        about: str,
        effect: Effect = "write",
        limit_s: float | None = None,
    ) -> Response:
        """Make a request and return its response. `about` names its object in messages. Raises StoreError."""
        if limit_s is None:
            limit_s = self._write_limit_s if effect == "write" else self.limit_s
        deadline = time.monotonic() + limit_s
        failures: dict[str, EtcdError] = {}
        for endpoint in self.endpoints.iterate():
            started = time.monotonic()
            if failures and started >= deadline:
                break
            try:
                response = self._call_endpoint(endpoint, method, request, effect == "write", deadline, limit_s)
            except CallFailed as failed:
                refusal = failures[endpoint.address] = failed.refusal
            else:
                if effect == "write":
                    self._full_since = None
                return response
            if refusal.kind is ErrorKind.FULL:
                self._full_since = self._full_since or started
                if started - self._full_since < ALARM_S:
                    raise OutcomeUnknown(f"{_describe(endpoint.address)} {refusal.phrase}", refusal.hint)
            if refusal.kind in (ErrorKind.REFUSED, ErrorKind.LOG_IN, ErrorKind.FULL):
                raise self.make_error(endpoint, refusal, about)
            self.give_up(endpoint, started)
            if refusal.kind is ErrorKind.UNKNOWN and effect == "write":
                raise OutcomeUnknown(f"{_describe(endpoint.address)} {refusal.phrase}", refusal.hint)
        raise make_unavailable(failures, effect)

    def _call_endpoint(
        self,
        endpoint: Endpoint,
        method: Method[Request, Response],
        request: Request,
        is_write: bool,
        deadline: float,
        limit_s: float,
    ) -> Response:
        log_ins = 0
        while True:
            token = self.session.get_token(endpoint, deadline - time.monotonic())
            try:
                remaining_s = deadline - time.monotonic()
                return endpoint.call(method, request, token, remaining_s, total_s=limit_s, is_patient=is_write)
            except CallFailed as failed:
                if not self.is_token_at_fault(failed.refusal, log_ins):
                    raise
            log_ins += 1
            self.session.forget(token)

    def is_token_at_fault(self, refusal: EtcdError, log_ins: int) -> bool:
        """Return whether a new token may help after `log_ins` log-ins; older servers deny an expired one all rights."""
        limit = 1 if refusal.is_permission else LOG_INS_MAX if refusal.kind is ErrorKind.LOG_IN else 0
        return self.session.has_user and log_ins < limit

    def give_up(self, endpoint: Endpoint, since: float) -> None:
        """Switch to another endpoint; call `on_silent` if this one has been silent since `since`, as when frozen."""
        self.endpoints.switch_from(endpoint)
        if endpoint.heard_at < since:
            self._on_silent(endpoint)

    def make_error(self, endpoint: Endpoint, refusal: EtcdError, about: str) -> StoreError:
        """Make the error for a request that was refused."""
        phrase = f"{refusal.phrase} {about}" if refusal.is_permission else refusal.phrase
        return refusal.error(f"{_describe(endpoint.address)} {phrase}", refusal.hint)


def make_unavailable(failures: dict[str, EtcdError], effect: Effect) -> StoreError:
    """Make the error for a request that failed at every endpoint."""
    is_unknown = effect != "read" and any(refusal.kind is ErrorKind.UNKNOWN for refusal in failures.values())
    sentences = [f"{_describe(address)} {refusal.phrase}" for address, refusal in failures.items()]
    hints = [refusal.hint for refusal in failures.values() if refusal.hint]
    return (OutcomeUnknown if is_unknown else Unreachable)("; ".join(sentences), hints[0] if hints else None)


def _describe(address: str) -> str:
    return f"the store at {address}"
