"""The options of the metrics, what they need, and the parts that they add."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.config.options.readers import Option, make_optional, parse_listen_address, parse_text
from launcher.model.errors import UsageError, sanitize

if TYPE_CHECKING:
    from launcher.agent.membership import Ask, PartContext

# fmt: off
ROWS = (
    Option("ours", "metrics-port", "metrics", "[HOST:]PORT", make_optional(parse_listen_address), "",
           "Port for /metrics, /healthz and /readyz. HOST defaults to loopback; PORT 0 selects a free port."),
    Option("ours", "metrics-file", "metrics", "FILE", make_optional(parse_text), "",
           "File to which metrics are written every 15 s, for the textfile collector of node_exporter."),
)
# fmt: on


def add_metrics(node: PartContext, ask: Ask) -> None:
    """Serve the paths of --metrics-port. Raises LauncherError for an address that cannot be had."""
    from launcher.views.http.http_part import make_part

    require_library()
    option = node.config.extensions["metrics-port"]
    origin = node.parts, option, "launcher.extensions.metrics.paths:make_paths", ask, node.layout.run_id
    sentence = "" if option.read()[1] else "metrics at {address}metrics"
    part = make_part(*origin, is_open=True, announcement=sentence)
    assert part is not None  # that of the page comes later
    part.listen()
    node.parts.add(part)


def add_file(node: PartContext, ask: Ask) -> None:
    """Write the file of --metrics-file. Raises UsageError for one that cannot be written."""
    from launcher.extensions.metrics.textfile import MetricsFile

    path = node.config.extensions["metrics-file"].read()
    require_library()
    require_directory(path)
    node.parts.add(MetricsFile(path, ask, node.layout.run_id))


def require_library() -> None:
    """Raise UsageError if prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        raise UsageError("metrics need the package prometheus_client", "run pip install 'prometheus-client>=0.22'")


def require_directory(path: str) -> None:
    """Raise UsageError if no file can be made at this path."""
    directory = os.path.dirname(path) or "."
    called = f"--metrics-file {sanitize(path)}"
    if not os.path.isdir(directory):
        raise UsageError(
            f"{called}: directory {sanitize(directory)} does not exist", "create it, readable for node_exporter"
        )
    if os.path.isdir(path):
        raise UsageError(f"{called} is a directory", "name a file in it that ends in .prom")
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(f"{called}: directory {sanitize(directory)} is not writable")
