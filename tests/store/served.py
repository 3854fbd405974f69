"""The served store for the conformance suite: a server of its own, our client, and a clock that only the test moves."""

from __future__ import annotations

from rendezvous.stores.contract import Store
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.server.server import StoreServer
from tests.store.under_test import FakeClock, StoreUnderTest

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
        self.server._store.expire()  # the server sleeps by the real clock and cannot know

    def compact(self, revision: int) -> None:
        self.server._store.compact(revision)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
