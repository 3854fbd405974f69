"""The served store for the conformance suite: a server of its own, our client, and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rendezvous.stores.contract import Store
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.server.server import StoreServer
from tests.store.under_test import FakeClock, StoreUnderTest
from tests.support.stores.compaction import compact

LIMIT_S = 20.0  # of a call: generous, for tests share two cores with others


class ServedUnderTest(StoreUnderTest):
    def __init__(self, *, token: str = "") -> None:
        self.clock = FakeClock()
        self.token = token
        self.server = StoreServer("127.0.0.1", 0, token=token, clock=self.clock)
        self.server.start()
        self.endpoint = f"127.0.0.1:{self.server.port}"
        self.clients: list[EtcdStore] = []

    def new_client(self) -> Store:
        user = "meshrun" if self.token else ""
        client = EtcdStore([self.endpoint], user=user, password=self.token, call_limit_s=LIMIT_S)
        self.clients.append(client)
        return client

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        self._run_in_loop(self.server._store.expire)  # the server sleeps by the real clock and cannot know

    def compact(self, revision: int) -> None:
        self._run_in_loop(lambda: compact(self.server._store, revision))

    def _run_in_loop(self, function: Callable[[], object]) -> None:
        """Call it in the server's thread, which alone may use its store."""

        async def call() -> None:
            function()

        loop = self.server._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(call(), loop).result(LIMIT_S)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()


@contextmanager
def serve(**options: Any) -> Iterator[StoreServer]:
    """A store served by this process on a port of the kernel's choice."""
    server = StoreServer("127.0.0.1", 0, **options)
    server.start()
    try:
        yield server
    finally:
        server.close()


SERVE = """
import sys
from rendezvous.stores.server.server import StoreServer
server = StoreServer("127.0.0.1", int(sys.argv[1]), token=sys.argv[2])
server.start()
print(server.port, flush=True)
sys.stdin.read()
server.close()
"""


class ServingProcess:
    """A store served by a process of its own, which can be killed and frozen; `log` takes its stderr."""

    def __init__(self, port: int = 0, *, token: str = "", log: Path | None = None) -> None:
        command = [sys.executable, "-c", SERVE, str(port), token]
        with nullcontext() if log is None else log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
