"""A small agent with its keeper and supervisor, of whom nobody is left after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.tree import Agent


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent() as agent:
        yield agent
