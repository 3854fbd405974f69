"""What metrics need, found out before anything is started, while an error costs nothing."""

from __future__ import annotations

import os
from importlib.util import find_spec

from launcher.model.errors import UsageError, sanitize


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
