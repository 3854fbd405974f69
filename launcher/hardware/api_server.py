"""What a pod needs to ask the API server of its cluster: the address, the token of its account, and TLS.

The token is read again for each request, because Kubernetes replaces it. It goes over TLS, to a server that the
cluster's own authority certifies, and nowhere else: not through a proxy, and not into any message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.hardware.metadata_server import NoAnswer, is_token

if TYPE_CHECKING:
    import ssl

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod has the token of its account, its namespace, and the API server's certificate authority."""

HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"  # kubernetes.io/docs/tasks/run-application/access-api-from-pod
_PORTS = ("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_SERVICE_PORT")
_TOKEN_MAX = 1 << 16


def find_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the API server. Raises NoAnswer."""
    host = environ.get(HOST_VARIABLE, "")
    port = next((environ[name] for name in _PORTS if environ.get(name)), "443")
    if not is_token(host):
        raise NoAnswer(f"no {HOST_VARIABLE}, so no API server can be queried")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise NoAnswer(f"{port[:20]!r} is not a valid port of an API server")
    return host, int(port)


def read_token(path: str, missing: str = "no token of a service account (automountServiceAccountToken)") -> str:
    """Return the token in a file. `missing`: what it means if there is none. Raises NoAnswer."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            token = file.read(_TOKEN_MAX).strip()
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise NoAnswer(f"{missing}: {path}: {why}", "token") from None
    if not is_token(token):
        raise NoAnswer(f"{path} does not contain a token", "token")
    return token


def make_tls_context(authority: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the cluster's authority, and no other. Raises NoAnswer.

    Python 3.13 requires more of certificates than Kubernetes (VERIFY_X509_STRICT): authorities of many clusters, those
    of EKS among them, have no key identifier and would be refused (kubernetes-client/python, issue 2394).
    """
    import ssl

    try:
        trusting = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise NoAnswer(f"{authority} cannot be used: {error.strerror or 'no certificate'}", "authority") from None
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return trusting
