"""What an etcd error means: was anything written, may another endpoint answer, which sentence do people read.

gRPC gives a status code and a text; etcd's own texts begin with "etcdserver:". The table below is read from the top,
and its first row whose phrase is in the text decides. An unknown text counts as an unknown outcome, the safe reading.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rendezvous.errors import LeaseExists, LeaseNotFound, StoreError


class ErrorKind(Enum):
    ELSEWHERE = "nothing was done here; another endpoint may do it, or this one later"
    LOG_IN = "nothing was done; the token is missing or no longer good"
    REFUSED = "nothing was done, and asking again will not help"
    UNKNOWN = "it may have been done, or may yet be"
    FULL = "there is no space; the write that took the last of it was done all the same (seen with etcd 3.4)"


class EtcdError(Struct, frozen=True):
    """One error. `phrase` continues "the store at HOST:PORT"; `hint` says what to do, if that is known."""

    kind: ErrorKind
    phrase: str
    hint: str | None = None
    error: type[StoreError] = StoreError
    is_permission: bool = False


# gRPC's texts for a connection that was never established: the request was not sent.
_NOT_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

_TLS_HINT = "check the authority's, the client's certificate and the client's key that are given for the store"
_PLAIN_HINT = "for a store without TLS, give no certificates and no https"
_NAME_HINT = "use a name that the certificate carries"
_SPACE_HINT = "delete unused keys; for etcd also compact, defragment, then `etcdctl alarm disarm`"
_OTHER_NAME = EtcdError(ErrorKind.ELSEWHERE, "shows a certificate for another name", _NAME_HINT)
_UNKNOWN_NAME = EtcdError(ErrorKind.ELSEWHERE, "cannot be reached: its name is not known")
_NO_TLS = EtcdError(ErrorKind.ELSEWHERE, "does not speak TLS", _PLAIN_HINT)
_NOT_SIGNED = EtcdError(ErrorKind.ELSEWHERE, "shows a certificate that the given authority has not signed", _TLS_HINT)
_WANTS_TLS = EtcdError(ErrorKind.ELSEWHERE, "wants a client certificate, and accepts none that it was shown", _TLS_HINT)
_CLOSES = EtcdError(ErrorKind.ELSEWHERE, "closes every connection at once", "it may want TLS, or not be etcd")
_TOO_LARGE = EtcdError(ErrorKind.REFUSED, "does not accept a request of this size")
_BAD_TOKEN = EtcdError(ErrorKind.LOG_IN, "does not accept the token it gave this user")

_ERRORS = {
    # No connection
    "errors resolving": _UNKNOWN_NAME,
    "DNS resolution failed": _UNKNOWN_NAME,
    "Connection refused": EtcdError(ErrorKind.ELSEWHERE, "cannot be reached: connection refused"),
    "No route to host": EtcdError(ErrorKind.ELSEWHERE, "cannot be reached: no route to the host"),
    "Network is unreachable": EtcdError(ErrorKind.ELSEWHERE, "cannot be reached: no route to its network"),
    "receiving SETTINGS": EtcdError(ErrorKind.ELSEWHERE, "takes connections but does not answer"),
    "Failed parsing HTTP/2": EtcdError(ErrorKind.ELSEWHERE, "is not etcd: what listens there does not speak HTTP/2"),
    "Handshake read failed": _NO_TLS,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "not in peer certificate": _OTHER_NAME,
    "Hostname Verification Check failed": _OTHER_NAME,
    "certificate has expired": EtcdError(ErrorKind.ELSEWHERE, "shows a certificate that has expired"),
    "CERTIFICATE_VERIFY_FAILED": _NOT_SIGNED,
    "SSL_ERROR": _WANTS_TLS,
    "Tls handshake failed": EtcdError(ErrorKind.ELSEWHERE, "does not agree to a TLS connection", _TLS_HINT),
    "failed to connect to all addresses": _CLOSES,
    # Another server
    "http2 header with status": EtcdError(ErrorKind.REFUSED, "is not etcd: it answers as a web server does"),
    # The cluster
    "etcdserver: no leader": EtcdError(ErrorKind.ELSEWHERE, "has no leader: it is cut off from most of its cluster"),
    "etcdserver: too many requests": EtcdError(ErrorKind.ELSEWHERE, "has too much to do"),
    "not supported for learner": EtcdError(ErrorKind.ELSEWHERE, "is a learner, which serves nobody yet"),
    "etcdserver: request timed out": EtcdError(ErrorKind.UNKNOWN, "has found no majority of its cluster in time"),
    "database space exceeded": EtcdError(ErrorKind.FULL, "has no space left in its database", _SPACE_HINT),
    "requested lease not found": EtcdError(ErrorKind.REFUSED, "does not know the lease any more", error=LeaseNotFound),
    "lease already exists": EtcdError(ErrorKind.REFUSED, "has a lease of this id already", error=LeaseExists),
    "request is too large": _TOO_LARGE,
    "message larger than max": _TOO_LARGE,
    # Users
    "permission denied": EtcdError(ErrorKind.REFUSED, "denies this user", is_permission=True),
    "authentication failed": EtcdError(ErrorKind.REFUSED, "does not accept this user and password"),
    "invalid auth token": _BAD_TOKEN,
    "auth store is old": _BAD_TOKEN,
    "user name is empty": EtcdError(ErrorKind.LOG_IN, "wants a user and a password"),
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
    for words, refusal in _ERRORS.items():
        if words in text and (refusal.kind is not ErrorKind.ELSEWHERE or not was_sent or text.startswith("etcdserver")):
            return refusal
    message = text.removeprefix("etcdserver: ").strip() or code
    if code == "UNAUTHENTICATED":
        return EtcdError(ErrorKind.LOG_IN, f"wants a user and a password ({message})")
    if code == "UNIMPLEMENTED":
        return EtcdError(ErrorKind.REFUSED, "is not etcd, or older than its version 3")
    if code in _BEFORE_WRITING:
        return EtcdError(ErrorKind.REFUSED, f"refused a request: {message}")
    return EtcdError(ErrorKind.UNKNOWN, f"broke off before its answer came: {message}")


class CallFailed(Exception):
    """One attempt at one endpoint has failed. It is not raised outside the client of etcd."""

    def __init__(self, refusal: EtcdError) -> None:
        super().__init__(refusal.phrase)
        self.refusal = refusal
