"""What --metrics-port and --metrics-file need, found out before anything is started, while an error costs nothing.

The port is bound at once; who connects before the server runs waits for it.
"""

from __future__ import annotations

import errno
import os
import socket
from importlib.util import find_spec
from typing import Any

from launcher.model.errors import UsageError, sanitize
from rendezvous.stores.addresses import join_address

BACKLOG = 64


def require_library() -> None:
    """Raise UsageError if prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        raise UsageError("metrics need the package prometheus_client", "pip install 'meshrun[metrics]'")


def require_directory(path: str) -> None:
    """Raise UsageError if no file can be made at this path."""
    directory = os.path.dirname(path) or "."
    called = f"--metrics-file {sanitize(path)}"
    if not os.path.isdir(directory):
        raise UsageError(
            f"{called}: there is no directory {sanitize(directory)}", "make it, and let node_exporter read it"
        )
    if os.path.isdir(path):
        raise UsageError(f"{called} is a directory", "name a file in it that ends in .prom")
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(f"{called}: directory {sanitize(directory)} is not writable")


def open_listener(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 is any free one. Raises UsageError."""
    name = join_address(host, port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"--metrics-port {name}: there is no host of that name", "an address works, too") from None
    try:
        return _listen(*found[0])
    except OSError as error:
        hints = {
            errno.EADDRINUSE: f"ss -ltnp 'sport = :{port}' names its owner; port 0 is any free one",
            errno.EADDRNOTAVAIL: "it has to be an address of this machine; 0.0.0.0 is all of them",
            errno.EACCES: "ports below 1024 need privileges",
        }
        sentence = f"--metrics-port cannot listen on {name}: {error.strerror}"
        raise UsageError(sentence, hints.get(error.errno or 0)) from None


def _listen(family: int, kind: int, protocol: int, _: str, place: Any) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of the agent before this one may linger; another listener is refused nevertheless.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
