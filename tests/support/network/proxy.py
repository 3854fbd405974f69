"""A wire between a client and a server that a test can cut: a TCP proxy on a port of its own.

`cut()` breaks every connection and refuses new ones; `is_mute` swallows what the server says, so that a request is
carried out and its answer is lost; `join()` is the healthy wire again.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    def __init__(self, port: int) -> None:
        """Forwards to `port`."""
        self.is_mute = False
        self._target = ("127.0.0.1", port)
        self._is_cut = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        return f"{self._target[0]}:{self.port}"

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self.is_mute = False
        with self._lock:
            self._is_cut = False

    def lead_to(self, port: int) -> None:
        """Forward to another port from here on, as a name or a load balancer may; connections break."""
        self.cut()
        self._target = ("127.0.0.1", port)
        self.join()

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        client.close()
                        continue
                    try:
                        server = socket.create_connection(self._target)
                    except OSError:
                        client.close()
                        continue
                    self._sockets += [client, server]
                self._start(lambda client=client, server=server: self._forward(client, server, False))  # type: ignore[misc]
                self._start(lambda client=client, server=server: self._forward(server, client, True))  # type: ignore[misc]

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not (is_answer and self.is_mute):
                    target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if source in self._sockets:  # both directions end; the second one finds nothing left
                self._sockets.remove(source)
        source.close()

    @staticmethod
    def _start(work: object) -> None:
        threading.Thread(target=work, name="proxy", daemon=True).start()  # type: ignore[arg-type]
