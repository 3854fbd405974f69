"""Calls with a time limit to what may never answer: a name server, a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def call_with_timeout(limit_s: float, call: Callable[[], _Answer], fallback: Callable[[], _Answer]) -> _Answer:
    """Run `call` in a thread of its own; return its result within `limit_s` seconds, else that of `fallback`.

    `call` must not raise. A thread that is abandoned ends with the process.
    """
    answers: list[_Answer] = []
    asking = threading.Thread(target=lambda: answers.append(call()), daemon=True, name="doctor")
    asking.start()
    asking.join(limit_s)
    return answers[0] if answers else fallback()
