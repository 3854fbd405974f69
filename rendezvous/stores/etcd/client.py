"""One question to a store of several servers: who is asked, with which token, how long, and what a failure means.

A question goes to the current endpoint; when nothing can have been done there it goes to the next, until every
endpoint has failed or the time is over. A question that may be asked twice (a read, a renewal) goes on also when
its answer is missing. A write whose answer is missing ends as `OutcomeUnknown`: it may have been done, or may yet be.
Writes are waited for longer than the rest, unless their server has stopped answering altogether (see `watching`).
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
from rendezvous.stores.wire import Answer, Method, Question

if TYPE_CHECKING:
    import grpc


Effect = Literal["read", "renewal", "write"]  # all but a write may be asked again when the answer is missing

LOG_INS_MAX = 3  # a new token may expire, too, while a busy or stopped machine is between log-in and question
ALARM_S = 1.0  # by then a cluster without space has agreed to refuse writes beforehand; it takes one round of agreement


class EtcdSession:
    """The user's token. It is asked for when first needed, and again after `drop`.

    A log-in costs etcd some 60 ms of work, and after its restart everybody comes at once. So it is given
    `limit_s`, longer than a call: calls that cannot wait so long fail, and a later one finds the token there.
    """

    def __init__(self, user: str, password: str, limit_s: float) -> None:
        self.has_user = bool(user)
        self._question = wire.AuthenticateRequest(user, password)
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._token: str | None = None if user else ""
        self._asked: tuple[Endpoint, grpc.Future[bytes]] | None = None

    def get_token(self, endpoint: Endpoint, limit_s: float) -> str:
        """The token, "" without a user or where etcd asks for none. Raises CallFailed; nothing was written then."""
        with self._lock:
            if self._token is not None:
                return self._token
            if self._asked is None or self._asked[0] is not endpoint:
                if self._asked is not None:
                    self._asked[1].cancel()
                self._asked = (endpoint, endpoint.begin(wire.AUTHENTICATE, self._question, self._limit_s))
            asked = self._asked
        token = None
        try:
            token = endpoint.finish(wire.AUTHENTICATE, asked[1], limit_s).token
        except CallFailed as failed:
            if "authentication is not enabled" in failed.refusal.phrase:
                token = ""  # as etcd's own client takes it: a user given too early, or in vain
            else:
                kind = ErrorKind.ELSEWHERE if failed.refusal.kind is ErrorKind.UNKNOWN else failed.refusal.kind
                raise CallFailed(failed.refusal._replace(kind=kind)) from None
        finally:
            with self._lock:
                if self._asked is asked and (token is not None or asked[1].done()):
                    self._asked = None
                    self._token = token
        return token

    def forget(self, token: str) -> None:
        """This token is no longer good."""
        with self._lock:
            if self.has_user and self._token == token:
                self._token = None


# docs/internals/decisions/0011-own-etcd-client.md
class EtcdClient:
    """Asks questions; any number of threads may. `on_silent` is told of an endpoint that has stopped answering."""

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
        method: Method[Question, Answer],
        question: Question,
        *,
        about: str,
        effect: Effect = "write",
        limit_s: float | None = None,
    ) -> Answer:
        """The answer. `about` names what is asked for in sentences: "the key '/a'". Raises StoreError."""
        if limit_s is None:
            limit_s = self._write_limit_s if effect == "write" else self.limit_s
        deadline = time.monotonic() + limit_s
        failures: dict[str, EtcdError] = {}
        for endpoint in self.endpoints.iterate():
            started = time.monotonic()
            if failures and started >= deadline:
                break
            try:
                answer = self._call_endpoint(endpoint, method, question, effect == "write", deadline, limit_s)
            except CallFailed as failed:
                refusal = failures[endpoint.address] = failed.refusal
            else:
                if effect == "write":
                    self._full_since = None
                return answer
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
        method: Method[Question, Answer],
        question: Question,
        is_write: bool,
        deadline: float,
        limit_s: float,
    ) -> Answer:
        log_ins = 0
        while True:
            token = self.session.get_token(endpoint, deadline - time.monotonic())
            try:
                left_s = deadline - time.monotonic()
                return endpoint.call(method, question, token, left_s, given_s=limit_s, is_patient=is_write)
            except CallFailed as failed:
                if not self.is_token_at_fault(failed.refusal, log_ins):
                    raise
            log_ins += 1
            self.session.forget(token)

    def is_token_at_fault(self, refusal: EtcdError, log_ins: int) -> bool:
        """Whether a new token may help, after so many. Older servers take an expired one for a user without rights."""
        most = 1 if refusal.is_permission else LOG_INS_MAX if refusal.kind is ErrorKind.LOG_IN else 0
        return self.session.has_user and log_ins < most

    def give_up(self, endpoint: Endpoint, since: float) -> None:
        """Ask elsewhere from now on. Silent since then, it may be frozen, and whoever listens to it should know."""
        self.endpoints.switch_from(endpoint)
        if endpoint.heard_at < since:
            self._on_silent(endpoint)

    def make_error(self, endpoint: Endpoint, refusal: EtcdError, about: str) -> StoreError:
        """What is raised for a question that was refused."""
        phrase = f"{refusal.phrase} {about}" if refusal.is_permission else refusal.phrase
        return refusal.error(f"{_describe(endpoint.address)} {phrase}", refusal.hint)


def make_unavailable(failures: dict[str, EtcdError], effect: Effect) -> StoreError:
    """What is raised when every endpoint has failed."""
    is_unknown = effect != "read" and any(refusal.kind is ErrorKind.UNKNOWN for refusal in failures.values())
    sentences = [f"{_describe(address)} {refusal.phrase}" for address, refusal in failures.items()]
    hints = [refusal.hint for refusal in failures.values() if refusal.hint]
    return (OutcomeUnknown if is_unknown else Unreachable)("; ".join(sentences), hints[0] if hints else None)


def _describe(address: str) -> str:
    return f"the store at {address}"
