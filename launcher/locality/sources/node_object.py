"""The labels of this pod's Node object, from Kubernetes' API server with the pod's own account.

The token is read again each time, because Kubernetes replaces it. It goes over TLS, to a server that the cluster's own
authority certifies, and nowhere else: not through a proxy, and not into any message. Only the object's metadata is
requested, since a whole Node lists every image on the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.hardware.metadata_server import NoAnswer, Server, parse_object
from launcher.locality.sources.cloud_detection import ACCOUNT, SERVICE_HOST

if TYPE_CHECKING:
    import ssl

NODE_NAMES = ("NODE_NAME", "LAUNCHER_NODE_NAME")
"""The variables of spec.nodeName in a pod; the second is also meshrun's name of the node."""

RULE = 'apiGroups [""], resources [nodes], verbs [get]'

LIMIT_S = 1.5
"""Less than all sources have together, so that an unresponsive server is named."""

_PORTS = ("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_SERVICE_PORT")
_ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ACCOUNT_NAME = re.compile(r"system:serviceaccount:[a-z0-9.:-]{1,320}")
_SIZE_MAX = 4 << 20
_TOKEN_MAX = 1 << 16


def read_node_labels(environ: Mapping[str, str], limit_s: float, root: str = "/") -> dict[str, str]:
    """Return the labels by key. `root`: the directory above /var, for tests. Raises NoAnswer with a whole clause."""
    account = os.path.join(root, ACCOUNT)
    node = next((environ[name] for name in NODE_NAMES if environ.get(name)), "")
    if not node:
        raise NoAnswer(f"{NODE_NAMES[0]} is not set from spec.nodeName, so the node's labels cannot be asked for")
    if not _NODE.fullmatch(node):
        raise NoAnswer(f"{node[:60]!r} is no name of a Kubernetes node")
    host, port = _find_address(environ)
    token = _read_token(f"{account}/token")
    tls = _make_tls_context(f"{account}/ca.crt")
    try:
        answer = Server((host, port), min(limit_s, LIMIT_S), tls).ask(
            f"/api/v1/nodes/{node}", {"Authorization": f"Bearer {token}", "Accept": _ACCEPT}, size_max=_SIZE_MAX
        )
        if answer.status != 200:
            raise NoAnswer(_describe_refusal(answer.status, answer.text, node))
        metadata = parse_object(answer.text).get("metadata")
    except NoAnswer as error:
        raise NoAnswer(f"the API server {error}") from None
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    labels = labels if isinstance(labels, dict) else {}
    return {name: value for name, value in labels.items() if isinstance(value, str)}


def _find_address(environ: Mapping[str, str]) -> tuple[str, int]:
    host = environ.get(SERVICE_HOST, "")
    port = next((environ[name] for name in _PORTS if environ.get(name)), "443")
    if not (host.isascii() and host.isprintable() and host and " " not in host):
        raise NoAnswer(f"no {SERVICE_HOST}, so there is no API server to ask")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise NoAnswer(f"{port[:20]!r} is no port of an API server")
    return host, int(port)


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            token = file.read(_TOKEN_MAX).strip()
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise NoAnswer(f"no token of a service account (automountServiceAccountToken): {path}: {why}") from None
    if not (token.isascii() and token.isprintable() and token and " " not in token):
        raise NoAnswer(f"{path} holds no token")
    return token


def _make_tls_context(authority: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the cluster's authority, and no other.

    Python 3.13 requires more of certificates than Kubernetes (VERIFY_X509_STRICT): authorities of many clusters, those
    of EKS among them, have no key identifier and would be refused (kubernetes-client/python, issue 2394).
    """
    import ssl

    try:
        trusting = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise NoAnswer(f"{authority} cannot be used: {error.strerror or 'no certificate'}") from None
    trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return trusting


def _describe_refusal(status: int, text: str, node: str) -> str:
    if status == 401:
        return "does not accept the token of the pod's service account"
    if status == 403:
        who = _ACCOUNT_NAME.search(text)
        return f"does not let {who[0] if who else 'this pod'} read its node: a ClusterRole with {RULE} is missing"
    if status == 404:
        return f"knows no node {node}: {NODE_NAMES[0]} must be spec.nodeName"
    return f"answers {status}"
