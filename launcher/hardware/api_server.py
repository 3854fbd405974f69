"""What a pod needs to ask the API server of its cluster: the address, the token of its account, and TLS.

The token is read again for each request, because Kubernetes replaces it. It goes over TLS, to a server that the
cluster's own authority certifies, and nowhere else: not through a proxy, and not into any message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.hardware.linux.sysfs import FileTree
from launcher.hardware.metadata_server import HttpResponse, NoAnswer, Server, is_token, parse_object

if TYPE_CHECKING:
    import ssl

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod has the token of its account, its namespace, and the API server's certificate authority."""

HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"  # kubernetes.io/docs/tasks/run-application/access-api-from-pod
_PORTS = ("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_SERVICE_PORT")
_TOKEN_MAX = 1 << 16
_OBJECT_MAX = 4 << 20
_WATCH_SIZE_MAX = 256 << 20
WATCH_S = 240
"""After which the API server ends a watch, and another begins."""
WATCH_EXTRA_S = 60
"""For a server that is slow to end it."""


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


class ApiServer:
    """The API server as the account of this pod sees it. `root`: the directory above /var, for tests.

    Raises NoAnswer with a whole clause where this is no pod.
    """

    def __init__(self, environ: Mapping[str, str], root: str = "/") -> None:
        self._address = find_address(environ)
        self._account = FileTree(root).resolve(ACCOUNT)

    def read_namespace(self) -> str:
        """Return the namespace of this pod. Raises NoAnswer."""
        return read_token(f"{self._account}/namespace", "no namespace of a service account")

    def ask(
        self, path: str, limit_s: float, *, method: str = "GET", content: bytes = b"", content_type: str = ""
    ) -> HttpResponse:
        """Return the response, whatever its status. Raises NoAnswer with a clause about the server."""
        headers = self._make_headers() | ({"Content-Type": content_type} if content_type else {})
        server = Server(self._address, limit_s, make_tls_context(f"{self._account}/ca.crt"))
        return server.ask(path, headers, method=method, content=content, size_max=_OBJECT_MAX)

    def watch(self, path: str, limit_s: float) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it. `limit_s`: to connect, and for the first answer.

        Raises NoAnswer with a clause about the server.
        """
        server = Server(self._address, limit_s, make_tls_context(f"{self._account}/ca.crt"))
        words = f"{path}&watch=true&timeoutSeconds={WATCH_S}"
        sizes = {"line_max": _OBJECT_MAX, "size_max": _WATCH_SIZE_MAX}
        for line in server.stream(words, self._make_headers(), lasts_s=WATCH_S + WATCH_EXTRA_S, **sizes):
            yield parse_object(line.decode(errors="replace"))

    def _make_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {read_token(f'{self._account}/token')}", "Accept": "application/json"}
