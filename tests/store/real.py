"""Real etcd for the conformance suite: one server of each version for all tests, and keys of its own for each test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.stores.contract import Lease
from rendezvous.stores.etcd.store import EtcdStore
from tests.store.under_test import StoreUnderTest
from tests.support.stores.etcd import EtcdServer, Version
from tests.support.stores.raw_etcd import COMPACT, CompactionRequest

ROOTS = itertools.count()
SHARED: dict[Version, EtcdServer] = {}


def shared_server(version: Version) -> EtcdServer:
    """The one server of this version, started when first asked for."""
    if version not in SHARED:
        SHARED[version] = EtcdServer(version, Path(tempfile.mkdtemp(prefix="etcd-")))
        SHARED[version].start()
    return SHARED[version]


def close_shared_servers() -> None:
    for server in SHARED.values():
        server.close()
        shutil.rmtree(server.directory)
    SHARED.clear()


class Client(EtcdStore):
    """Remembers the leases it was granted: one that ends by itself would make a revision in a later test."""

    def __init__(self, endpoint: str) -> None:
        super().__init__([endpoint], call_limit_s=10)
        self.leases: list[int] = []

    def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
        lease = super().lease_grant(ttl_s, id=id)
        self.leases.append(lease.id)
        return lease

    def compact(self, revision: int) -> None:
        try:
            self._client.call(COMPACT, CompactionRequest(revision), "the history")
        except StoreError as error:
            raise Compacted(revision) if "has been compacted" in str(error) else error from None


class RealUnderTest(StoreUnderTest):
    margin_s = 1.0
    advances_at_once = False

    def __init__(self, version: Version) -> None:
        self.server = shared_server(version)
        self.root = f"t{next(ROOTS)}/"
        self.clients: list[Client] = []

    def new_client(self) -> Client:
        self.clients.append(Client(self.server.endpoint))
        return self.clients[-1]

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)  # not to wait for something: a lease ends by the server's own clock

    def compact(self, revision: int) -> None:
        self.clients[0].compact(revision)

    def close(self) -> None:
        cleaner = Client(self.server.endpoint)
        for client in self.clients:
            for lease in client.leases:
                with suppress(LeaseNotFound):
                    cleaner.lease_revoke(lease)
            client.close()
        cleaner.delete(self.root, prefix=True)
        cleaner.close()
