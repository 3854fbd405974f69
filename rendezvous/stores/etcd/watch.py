"""One watch over a network: how far it has been told, and the callbacks that tell it.

`watch_loop.py` has the stream that carries all watches of a client. Whatever becomes of that stream, a watch knows
from which revision on it is still to be told, and asks the next stream to go on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rendezvous.errors import StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import Batch, KeyEvent, KeyValue, Watch

CALLBACK_LIMIT_S = 10.0  # how long cancel() waits for a callback that is running


class EtcdWatch(Watch):
    """`about` names it in sentences. `drop` is called when it has ended, from any thread."""

    def __init__(
        self,
        about: str,
        question: wire.WatchCreateRequest,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
        drop: Callable[[EtcdWatch], None],
    ) -> None:
        self.about = about
        self.question = question
        """What asks for the rest of it."""
        self.log_ins = 0
        """How often a new token was asked for because this watch was refused."""
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._drop = drop
        self._events: list[KeyEvent] = []  # of a response that has come in part
        self._is_cancelled = threading.Event()
        self._calling = threading.RLock()  # held while a callback runs

    @property
    def has_ended(self) -> bool:
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """Stop; waits for a callback of this watch that is running on another thread, so hold no lock that it needs.

        Raises StoreError when that callback has not ended in CALLBACK_LIMIT_S; no further one starts even then.
        """
        self.stop()
        self._drop(self)
        if not self._calling.acquire(timeout=CALLBACK_LIMIT_S):
            raise StoreError(f"a callback of a watch has not ended in {CALLBACK_LIMIT_S:g} s")
        self._calling.release()

    def stop(self) -> None:
        """Have no further callback begin; one that is running is not waited for."""
        self._is_cancelled.set()

    # On the thread that reads

    def begin(self) -> None:
        """It was asked for anew: what was told in part will be told again."""
        self._events.clear()

    def take(self, response: wire.WatchResponse) -> None:
        """Tell what the server says. What a callback raises is shown as any thread's end is, and this watch's last."""
        self._events += [_decode_event(event) for event in response.events]
        if response.fragment:
            return
        events, self._events = self._events, []
        for batch in _split_batches(events):
            if batch.revision >= self.question.start_revision:
                self._deliver(batch)
                self._resume_from(batch.revision + 1)
        if not events:  # a sign of life: everything up to this revision has been told
            self._resume_from(response.header.revision + 1)

    def lose(self, error: StoreError) -> None:
        """Tell it last of all that it is lost."""
        try:
            with self._calling:
                if not self.has_ended:
                    self.stop()
                    self._on_lost(error)
        except Exception as raised:
            print_traceback(raised)
        self._drop(self)

    def _resume_from(self, revision: int) -> None:
        if revision > self.question.start_revision:
            self.question = self.question._replace(start_revision=revision)

    def _deliver(self, batch: Batch) -> None:
        try:
            with self._calling:
                if not self.has_ended:
                    self._on_batch(batch)
        except Exception as raised:
            print_traceback(raised)
            self.lose(StoreError(f"a callback of the watch raised {raised!r}"))


def _decode_event(event: wire.WireEvent) -> KeyEvent:
    return KeyEvent("delete" if event.type == wire.DELETE else "put", decode_item(event.kv))


def decode_item(item: wire.WireKeyValue) -> KeyValue:
    """A key as etcd sends it, as the contract has it. Names that are no text come from strangers and stay unequal."""
    key = item.key.decode(errors="surrogateescape")
    return KeyValue(key, item.value, item.create_revision, item.mod_revision, item.version, item.lease)


def _split_batches(events: Sequence[KeyEvent]) -> list[Batch]:
    """Events grouped by their revision; they come in order."""
    groups: list[list[KeyEvent]] = []
    for event in events:
        if groups and groups[-1][0].item.mod_revision == event.item.mod_revision:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [Batch(group[0].item.mod_revision, tuple(group)) for group in groups]


def print_traceback(error: Exception) -> None:
    """As Python shows what ends a thread."""
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
