"""The callbacks of a watch of any store: one at a time, none after its end, and its end if one of them raises."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable

from rendezvous.errors import StoreError
from rendezvous.stores.contract import CALLBACK_LIMIT_S, Batch, OnBatch, OnLost, Watch

STILL_RUNNING = "a callback of a watch has not ended in {:g} s"


class CallbackWatch(Watch):
    """A watch that a store keeps until it calls `drop`, which any thread may do, more than once."""

    def __init__(self, on_batch: OnBatch, on_lost: OnLost, drop: Callable[[CallbackWatch], None]) -> None:
        self.has_ended = False
        """Whether no further callback starts."""
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._drop = drop
        self._running = RLock()  # held while a callback runs

    def cancel(self) -> None:
        self.has_ended = True
        self._drop(self)
        if not self._running.acquire(timeout=CALLBACK_LIMIT_S):
            raise StoreError(STILL_RUNNING.format(CALLBACK_LIMIT_S))
        self._running.release()

    def notify(self, message: Batch | StoreError) -> None:
        """Run the callback for a batch, or for the error that ends the watch, unless it has ended."""
        with self._running:
            if self.has_ended:
                return
            if isinstance(message, StoreError):
                self.has_ended = True
                self._on_lost(message)
            else:
                self._on_batch(message)

    def deliver(self, message: Batch | StoreError) -> None:
        """As `notify`, but an exception of the callback is printed as that of any thread, and ends this watch."""
        try:
            self.notify(message)
        except Exception as raised:
            print_traceback(raised)
            self.deliver(StoreError(f"a callback of the watch raised {raised!r}"))
        if self.has_ended:
            self._drop(self)


def print_traceback(error: Exception) -> None:
    """Print an exception as Python does when it ends a thread."""
    import threading

    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
