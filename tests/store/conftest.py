"""The stores that the suite runs over. A further kind of store is one more entry in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rendezvous.store import Store
from tests.store.under_test import MemoryUnderTest, StoreUnderTest

KINDS: dict[str, Callable[[], StoreUnderTest]] = {
    "memory-virtual": lambda: MemoryUnderTest(threaded=False),
    "memory-threaded": lambda: MemoryUnderTest(threaded=True),
}


@pytest.fixture(params=KINDS)
def store_under_test(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    under_test = KINDS[request.param]()
    yield under_test
    under_test.close()


@pytest.fixture
def store(store_under_test: StoreUnderTest) -> Store:
    return store_under_test.new_client()


@pytest.fixture
def key(store_under_test: StoreUnderTest) -> Callable[[str], str]:
    return store_under_test.key
