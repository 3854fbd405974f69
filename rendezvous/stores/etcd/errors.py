"""What an etcd error means: was anything written, may another endpoint answer, which sentence do people read.

gRPC gives a status code and a text; etcd's own texts begin with "etcdserver:". The table below is read from the top,
and its first row of which a phrase is in the text decides. An unknown text counts as an unknown outcome, the safe
reading.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from rendezvous.errors import LeaseExists, LeaseNotFound, StoreEnded, StoreError
from rendezvous.stores.wire import STORE_ENDED


class ErrorKind(Enum):
    """What an error means for the request."""

    ELSEWHERE = auto()
    """Nothing was done here; another endpoint may do it, or this one later."""
    LOG_IN = auto()
    """Nothing was done; the token is missing or no longer good."""
    NO_USERS = auto()
    """Nothing was done; etcd has no users to log in."""
    REFUSED = auto()
    """Nothing was done, and another attempt will not help."""
    UNKNOWN = auto()
    """It may have been done, or may yet be."""
    FULL = auto()
    """There is no space; the write that took the last of it was done all the same (seen with etcd 3.4)."""


class EtcdError(Struct, frozen=True):
    """One error. `phrase` continues "the store at HOST:PORT"; `hint` says what to do, if that is known."""

    kind: ErrorKind
    phrase: str
    hint: str | None = None
    error: type[StoreError] = StoreError
    is_permission: bool = False


# gRPC's texts for a connection that was never established: the request was not sent.
_NOT_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

_TLS_HINT = "check the CA certificate, the client certificate and the client key that are given for the store"
_PLAIN_HINT = "remove the certificates and https for a store without TLS"
_SPACE_HINT = "delete unused keys; for etcd also compact, defragment, then `etcdctl alarm disarm`"
_ELSEWHERE, _LOG_IN, _REFUSED = ErrorKind.ELSEWHERE, ErrorKind.LOG_IN, ErrorKind.REFUSED

_ERRORS = {  # by phrases of the text, separated by "|"
    # No connection
    "errors resolving|DNS resolution failed": EtcdError(_ELSEWHERE, "cannot be reached: its name is not known"),
    "Connection refused": EtcdError(_ELSEWHERE, "cannot be reached: connection refused"),
    "No route to host": EtcdError(_ELSEWHERE, "cannot be reached: no route to the host"),
    "Network is unreachable": EtcdError(_ELSEWHERE, "cannot be reached: no route to its network"),
    "receiving SETTINGS": EtcdError(_ELSEWHERE, "accepts connections but does not answer"),
    "Failed parsing HTTP/2": EtcdError(_ELSEWHERE, "is not etcd: what listens there does not speak HTTP/2"),
    "Handshake read failed|WRONG_VERSION_NUMBER": EtcdError(_ELSEWHERE, "does not speak TLS", _PLAIN_HINT),
    "not in peer certificate|Hostname Verification Check failed": EtcdError(
        _ELSEWHERE, "presents a certificate for another name", "use a host name or address from the certificate"
    ),
    "certificate has expired": EtcdError(_ELSEWHERE, "presents a certificate that has expired"),
    "CERTIFICATE_VERIFY_FAILED": EtcdError(
        _ELSEWHERE, "presents a certificate that the given CA has not signed", _TLS_HINT
    ),
    "SSL_ERROR": EtcdError(_ELSEWHERE, "requires a client certificate, and accepts none that it was given", _TLS_HINT),
    "Tls handshake failed": EtcdError(_ELSEWHERE, "refuses a TLS connection", _TLS_HINT),
    "failed to connect to all addresses": EtcdError(
        _ELSEWHERE, "closes every connection immediately", "check whether it requires TLS, and whether it is etcd"
    ),
    # A served store
    STORE_ENDED: EtcdError(_REFUSED, "has ended with the agent that served it", error=StoreEnded),
    # Another server
    "http2 header with status": EtcdError(_REFUSED, "is a web server, not etcd", "check the port; etcd uses 2379"),
    # The cluster
    "etcdserver: no leader": EtcdError(_ELSEWHERE, "has no leader: it is cut off from most of its cluster"),
    "etcdserver: too many requests": EtcdError(_ELSEWHERE, "is overloaded"),
    "not supported for learner": EtcdError(_ELSEWHERE, "is a learner, which does not serve clients yet"),
    "etcdserver: request timed out": EtcdError(ErrorKind.UNKNOWN, "has found no majority of its cluster in time"),
    "database space exceeded": EtcdError(ErrorKind.FULL, "has no space left in its database", _SPACE_HINT),
    "requested lease not found": EtcdError(_REFUSED, "does not know the lease any more", error=LeaseNotFound),
    "lease already exists": EtcdError(_REFUSED, "has a lease of this id already", error=LeaseExists),
    "request is too large|message larger than max": EtcdError(_REFUSED, "does not accept a request of this size"),
    # Users
    "permission denied": EtcdError(_REFUSED, "denies this user", is_permission=True),
    "authentication failed": EtcdError(_REFUSED, "does not accept this user and password"),
    "invalid auth token|auth store is old": EtcdError(_LOG_IN, "does not accept the token it gave this user"),
    "user name is empty": EtcdError(_LOG_IN, "wants a user and a password"),
    "authentication is not enabled": EtcdError(ErrorKind.NO_USERS, "has no users"),
}

# Codes that etcd returns before it writes anything.
_BEFORE_WRITING = (
    *("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "PERMISSION_DENIED", "OUT_OF_RANGE"),
    *("RESOURCE_EXHAUSTED", "ALREADY_EXISTS"),
)


def classify(code: str, text: str, limit_s: float) -> EtcdError:
    """Classify a status. `code` as gRPC names it, "" where there is none; `limit_s`: the time limit of the call."""
    was_sent = not any(words in text for words in _NOT_SENT)
    if code == "DEADLINE_EXCEEDED" and not text.startswith("etcdserver"):
        return EtcdError(ErrorKind.UNKNOWN, f"did not answer within {limit_s:.1f} s")
    for phrases, refusal in _ERRORS.items():
        if refusal.kind is _ELSEWHERE and was_sent and not text.startswith("etcdserver"):
            continue
        if any(phrase in text for phrase in phrases.split("|")):
            return refusal
    message = text.removeprefix("etcdserver: ").strip() or code
    if code == "UNAUTHENTICATED":
        return EtcdError(_LOG_IN, f"wants a user and a password ({message})")
    if code == "UNIMPLEMENTED":
        return EtcdError(_REFUSED, "is not etcd, or older than its version 3")
    if code in _BEFORE_WRITING:
        return EtcdError(_REFUSED, f"refused a request: {message}")
    return EtcdError(ErrorKind.UNKNOWN, f"broke off before it answered: {message}")


class CallFailed(Exception):
    """One attempt at one endpoint has failed. It is not raised outside the client of etcd."""

    def __init__(self, refusal: EtcdError) -> None:
        super().__init__(refusal.phrase)
        self.refusal = refusal
