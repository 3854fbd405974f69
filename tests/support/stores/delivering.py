"""A memory store that tells its watches by a thread of its own, as a client of a store in the network does."""

from __future__ import annotations

import threading
from typing import Any

from rendezvous.stores.contract import Watch
from rendezvous.stores.memory.store import MemoryStore


class DeliveringStore(MemoryStore):
    """The thread runs until `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._has_changed = threading.Event()
        self._has_ended = False
        threading.Thread(target=self._run, name="deliveries", daemon=True).start()

    def apply(self, *arguments: Any) -> Any:
        applied = super().apply(*arguments)
        self._has_changed.set()
        return applied

    def lease_revoke(self, lease: int) -> None:
        super().lease_revoke(lease)
        self._has_changed.set()

    def watch(self, key: str, **arguments: Any) -> Watch:
        watch = super().watch(key, **arguments)
        self._has_changed.set()
        return watch

    def close(self) -> None:
        super().close()
        self._has_ended = True
        self._has_changed.set()

    def _run(self) -> None:
        while not self._has_ended:
            self._has_changed.wait()
            self._has_changed.clear()
            while self.deliver():
                pass
