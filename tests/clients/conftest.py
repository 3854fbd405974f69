"""What all clients have in common: none of them downloads anything, and the head of the report says who they are."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

CLIENTS = ("torch", "jax", "accelerate", "transformers", "deepspeed")


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
