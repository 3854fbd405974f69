"""What an agent has for --metrics-port and --metrics-file: threads that read its report and pass it on.

They begin a second after the agent, once its workers are on their way: what they import takes 40 ms. A server that
cannot start, a reader that hangs, a full disk: none of it reaches the job.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.model.console import log
from launcher.model.errors import UsageError, describe_bug, sanitize
from launcher.views.http_server import HttpServer, open_listener
from rendezvous.stores.addresses import join_address

if TYPE_CHECKING:
    from launcher.config.options.readers import Value
    from launcher.extensions.metrics.server import ReadNode
    from launcher.extensions.metrics.textfile import MetricsFile
    from launcher.views.questions.messages import Question

DELAY_S = 1.0
RETRY_S = 1.0


class MetricsExporter:
    """Listens from the beginning, and answers from a second after `start`.

    `address`: host and port, None for no server; `path`: of the file, None for none. Raises UsageError for an address
    or a directory that cannot be had.
    """

    def __init__(self, address: tuple[str, int] | None, path: str | None) -> None:
        self._path = path
        self._listener: socket.socket | None = None
        self._server: HttpServer | None = None
        self._file: MetricsFile | None = None
        self._read: ReadNode | None = None
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        require_library()
        if path is not None:
            require_directory(path)
        if address is not None:
            host, port = address
            self._listener = open_listener(host, port, "--metrics-port")
            if not port:
                log(f"metrics at http://{join_address(host, self.port)}/metrics")

    @property
    def port(self) -> int:
        """The port of the server; 0 for no server."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else 0

    def start(self, exchange: Callable[[Question, float], bytes], run_id: str, delay_s: float = DELAY_S) -> None:
        """Begin in `delay_s`. `exchange`: asks the agent, by its socket.

        Raises RuntimeError where no threads are to be had. Later ones cost a reader its own, and no more.
        """
        for is_server, is_wanted in ((True, self._listener is not None), (False, self._path is not None)):
            if is_wanted:
                arguments = (is_server, exchange, run_id, delay_s)
                threading.Thread(target=self._run, args=arguments, name="metrics", daemon=True).start()

    def close(self) -> None:
        """End the server, and remove the file."""
        with self._lock:
            self._is_closed.set()
        if self._file is not None:
            self._file.close()
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()

    def _run(self, is_server: bool, exchange: Callable[[Question, float], bytes], run_id: str, delay_s: float) -> None:
        has_failed = False
        while not self._is_closed.wait(delay_s):
            try:
                from launcher.extensions.metrics.server import make_metrics_server, share_node
                from launcher.extensions.metrics.textfile import MetricsFile
                from launcher.views.questions.local_socket import QuestionSource

                with self._lock:
                    if self._is_closed.is_set():
                        return
                    read = self._read = self._read or share_node(QuestionSource(exchange, run_id))
                    if is_server and self._listener is not None:
                        self._server = make_metrics_server(self._listener, read)
                    elif self._path is not None:
                        self._file = MetricsFile(self._path, read)
                    part = self._server if is_server else self._file
                if part is not None:
                    part.run()
                return
            except Exception as error:  # noqa: PERF203 - no descriptor is left to import it with, or a bug
                if not has_failed:
                    log(f"metrics are not available: {describe_bug(error)}; the agent tries again every {RETRY_S:g} s")
                has_failed, delay_s = True, RETRY_S


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


def make_exporter(options: Mapping[str, Value]) -> MetricsExporter:
    """Make it from the options of extensions that were set, by name. Raises UsageError as its class does."""
    address, path = (options[name].read() if name in options else None for name in ("metrics-port", "metrics-file"))
    return MetricsExporter(address, path)
