"""Waiting for the world outside a test: never a blind sleep, always a limit and a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(condition: Callable[[], Answer], limit_s: float = 20.0, what: str = "") -> Answer:
    """Call `condition` until its answer is true and return that; fail with `what` was awaited after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:g} s for {what or getattr(condition, '__name__', 'a condition')}")
        time.sleep(0.01)
