"""A process in which no thread can be started for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_threads() -> Iterator[list[str]]:
    """Refuse all, as Python does where the kernel says EAGAIN; give the names of those that were wanted."""
    wanted: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        wanted.append(thread.name)
        raise RuntimeError("can't start new thread")

    with mock.patch.object(threading.Thread, "start", refuse):
        yield wanted
