"""A memory store that tells its watches by a thread of its own, as a client of a store in the network does."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from rendezvous.stores.memory.store import MemoryStore

_CHANGING = ("apply", "lease_revoke", "watch", "close")
_OTHER = ("get", "lease_grant", "lease_keep_alive", "describe_lease", "list_leases")


class DeliveringStore(MemoryStore):
    """The thread runs until `close`. Any number of threads may share it: the memory store itself is for one."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # also held while callbacks run, so they must not wait for another thread
        self._has_changed = threading.Event()
        self._has_ended = False
        for name in (*_CHANGING, *_OTHER):
            setattr(self, name, self._lock_call(getattr(self, name), name in _CHANGING))
        self._hub.drop = self._lock_call(self._hub.drop, False)  # type: ignore[method-assign]
        threading.Thread(target=self._run, name="deliveries", daemon=True).start()

    def _lock_call(self, function: Callable[..., Any], is_change: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                result = function(*arguments, **named)
            if is_change:
                self._has_changed.set()
            return result

        return call

    def close(self) -> None:
        super().close()
        self._has_ended = True

    def _run(self) -> None:
        while not self._has_ended:
            self._has_changed.wait()
            self._has_changed.clear()
            with self._lock:
                while self.deliver():
                    pass
