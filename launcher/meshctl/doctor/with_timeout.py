"""Asking what may never answer: a name server, a store. After a while nobody waits any longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def call_with_timeout(limit_s: float, call: Callable[[], _Answer], fallback: Callable[[], _Answer]) -> _Answer:
    """What `ask` gives, in a thread of its own, if it does so within `limit_s` seconds; else what `otherwise` gives.

    `ask` must not raise. A thread that is not waited for ends with the process.
    """
    answers: list[_Answer] = []
    asking = threading.Thread(target=lambda: answers.append(call()), daemon=True, name="doctor")
    asking.start()
    asking.join(limit_s)
    return answers[0] if answers else fallback()
