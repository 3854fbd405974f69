"""One watch over a network: the revision that it has reached, and its callbacks.

`watch_loop.py` has the stream that carries all watches of a client. Whatever happens to that stream, a watch knows the
next revision that it needs, and asks the next stream to continue from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rendezvous.errors import StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import Batch, KeyEvent, KeyValue, Watch

CALLBACK_LIMIT_S = 10.0  # how long cancel() waits for a callback that is running


class EtcdWatch(Watch):
    """One watch. `about` names it in messages. `drop` is called when it has ended, from any thread."""

    def __init__(
        self,
        about: str,
        request: wire.WatchCreateRequest,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
        drop: Callable[[EtcdWatch], None],
    ) -> None:
        self.about = about
        self.request = request
        """The request for the events that are still to be delivered."""
        self.log_ins = 0
        """How often a new token was requested because this watch was refused."""
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._drop = drop
        self._events: list[KeyEvent] = []  # of a response that has arrived in part
        self._is_cancelled = threading.Event()
        self._callback_lock = threading.RLock()  # held while a callback runs

    @property
    def has_ended(self) -> bool:
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """Stop; waits for a callback of this watch that runs on another thread, so hold no lock that it needs.

        Raises StoreError when that callback has not ended in CALLBACK_LIMIT_S; no further one starts even then.
        """
        self.stop()
        self._drop(self)
        if not self._callback_lock.acquire(timeout=CALLBACK_LIMIT_S):
            raise StoreError(f"a callback of a watch has not ended in {CALLBACK_LIMIT_S:g} s")
        self._callback_lock.release()

    def stop(self) -> None:
        """Start no further callback; a running one is not waited for."""
        self._is_cancelled.set()

    # On the reading thread

    def begin(self) -> None:
        """Begin again on a new stream: events of a partial response will be sent again."""
        self._events.clear()

    def take(self, response: wire.WatchResponse) -> None:
        """Deliver a response. An exception of a callback is printed as of any thread, and ends this watch."""
        self._events += [_decode_event(event) for event in response.events]
        if response.fragment:
            return
        events, self._events = self._events, []
        for batch in _split_batches(events):
            if batch.revision >= self.request.start_revision:
                self._deliver(batch)
                self._resume_from(batch.revision + 1)
        if not events:  # a progress notification: everything up to this revision has been delivered
            self._resume_from(response.header.revision + 1)

    def lose(self, error: StoreError) -> None:
        """End the watch; its last callback reports the error."""
        try:
            with self._callback_lock:
                if not self.has_ended:
                    self.stop()
                    self._on_lost(error)
        except Exception as raised:
            print_traceback(raised)
        self._drop(self)

    def _resume_from(self, revision: int) -> None:
        if revision > self.request.start_revision:
            self.request = self.request._replace(start_revision=revision)

    def _deliver(self, batch: Batch) -> None:
        try:
            with self._callback_lock:
                if not self.has_ended:
                    self._on_batch(batch)
        except Exception as raised:
            print_traceback(raised)
            self.lose(StoreError(f"a callback of the watch raised {raised!r}"))


def _decode_event(event: wire.WireEvent) -> KeyEvent:
    return KeyEvent("delete" if event.type == wire.DELETE else "put", decode_item(event.kv))


def decode_item(item: wire.WireKeyValue) -> KeyValue:
    """Decode a key as etcd sends it. A key that is not text was written by others; its bytes become surrogates."""
    key = item.key.decode(errors="surrogateescape")
    return KeyValue(key, item.value, item.create_revision, item.mod_revision, item.version, item.lease)


def _split_batches(events: Sequence[KeyEvent]) -> list[Batch]:
    """Group events, which come in order, by their revision."""
    groups: list[list[KeyEvent]] = []
    for event in events:
        if groups and groups[-1][0].item.mod_revision == event.item.mod_revision:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [Batch(group[0].item.mod_revision, tuple(group)) for group in groups]


def print_traceback(error: Exception) -> None:
    """Print an exception as Python does when it ends a thread."""
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
