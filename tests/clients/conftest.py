"""What all clients have in common: none of them downloads anything, and the head of the report says who they are."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.support.stores.etcd import EtcdServer

CLIENTS = ("torch", "jax", "accelerate", "transformers", "lightning", "torchx", "deepspeed")


def pytest_report_header() -> str:
    return f"clients: {', '.join(map(described, CLIENTS))}"


def described(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name}: not installed, its tests are skipped"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server
