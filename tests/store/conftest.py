"""The stores that the suite runs over. A further kind of store is one more entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rendezvous.stores.contract import Store
from tests.store.real import RealUnderTest, close_shared_servers, shared_server
from tests.store.served import ServedUnderTest
from tests.store.under_test import MemoryUnderTest, StoreUnderTest
from tests.support.stores.etcd import VERSIONS, EtcdServer
from tests.support.stores.raw_etcd import RawClient

KINDS: dict[str, Callable[[], StoreUnderTest]] = {
    "memory": MemoryUnderTest,
    "served": ServedUnderTest,
    "etcd-3.4": lambda: RealUnderTest("3.4"),
    "etcd-3.5": lambda: RealUnderTest("3.5"),
}
NEEDS_SERVER = ("served", "etcd-3.4", "etcd-3.5")


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[None]:
    yield
    close_shared_servers()


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.server if kind in NEEDS_SERVER else ()) for kind in KINDS])
def store_under_test(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    under_test = KINDS[request.param]()
    yield under_test
    under_test.close()


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of its own, for a test that kills, freezes or counts."""
    with EtcdServer(request.param, tmp_path) as server:
        yield server


@pytest.fixture
def etcd() -> EtcdServer:
    """The etcd that all tests share, for a test of the client that leaves the server alone."""
    return shared_server("3.5")


@pytest.fixture
def store(store_under_test: StoreUnderTest) -> Store:
    return store_under_test.new_client()


@pytest.fixture
def key(store_under_test: StoreUnderTest) -> Callable[[str], str]:
    return store_under_test.key


@pytest.fixture
def served() -> Iterator[ServedUnderTest]:
    served = ServedUnderTest()
    yield served
    served.close()


@pytest.fixture
def client(served: ServedUnderTest) -> Iterator[RawClient]:
    with RawClient(served.endpoint) as client:
        yield client
