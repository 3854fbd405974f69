"""What a member knows of the store: a copy of the keys that it follows, as validated records.

The copy is kept up to date by watches. When a watch ends, the keys that it covered are read again. A watch can also
stop delivering events without ending; `resync` reads all followed keys and replaces the watches that missed something.
A value that is not a valid record is logged once and ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from rendezvous import records
from rendezvous.errors import RecordError
from rendezvous.events import StartWatch, StopWatch, Txn, WatchLost, WatchUpdate
from rendezvous.reasons import Reason
from rendezvous.records import LeaderRecord
from rendezvous.state.key_cache import KeyCache
from rendezvous.state.request_queue import RequestQueue
from rendezvous.stores.contract import Get, GetResult, KeyValue, Put, TxnResult

REJECTED_MAX = 100
"""Keys whose invalid values are logged: a writer of many invalid values does not fill the logs of all nodes."""


class WatchCache:
    """The copy of the followed keys. `secret`: signs and verifies records, empty if the job has none."""

    def __init__(self, requests: RequestQueue, secret: bytes) -> None:
        self._requests = requests
        self.secret = secret
        self.keys = KeyCache()
        self._decoded: dict[str, tuple[int, object]] = {}
        self.watched: set[str] = set()
        self.lost_watches: set[str] = set()  # followed keys whose watch has ended and that were not read again yet
        self._rejected: set[str] = set()  # keys whose invalid values were logged

    def clear(self) -> None:
        """Stop all watches and forget all keys."""
        self.unwatch_all()
        self.keys = KeyCache()
        self._decoded = {}

    # --- records ---

    def read(self, kind: type[records.AnyRecord], key: str) -> records.AnyRecord | None:
        """Return the record under `key` as this member knows it, decoded once per revision; None if there is none.

        An unreadable value reads as the record that it replaced, if that is known: an invalid value has not ended a
        round or a membership. An unreadable leader record reads as None, so that another leader can be elected.
        """
        item = self.keys.get(key)
        if item is None:
            self._decoded.pop(key, None)
            return None
        known = self._decoded.get(key)
        if known is None or known[0] != item.mod_revision:
            record: object = self.decode(kind, item)
            if record is None and known is not None and kind is not LeaderRecord:
                record = known[1]
            known = self._decoded[key] = (item.mod_revision, record)
        return known[1] if isinstance(known[1], kind) else None

    def is_readable(self, kind: type[records.AnyRecord], key: str) -> bool:
        """Return whether `key` is absent, or its value or the one before can be read."""
        return self.keys.get(key) is None or self.read(kind, key) is not None

    def decode(self, kind: type[records.AnyRecord], item: KeyValue) -> records.AnyRecord | None:
        """Decode a key's value; None, which is logged, if it is not such a record."""
        try:
            return records.decode(kind, item.value, item.key, self.secret)
        except RecordError as error:
            if item.key not in self._rejected and len(self._rejected) < REJECTED_MAX:
                self._rejected.add(item.key)
                self._requests.log(Reason.of("record-ignored", error=str(error)))
            return None

    def encode(self, record: records.Record, key: str) -> bytes:
        """Encode the record as it is written under `key`, signed if this job has a secret."""
        return records.encode(record, key, self.secret)

    def note_own_write(self, put: Put, revision: int, now: float) -> None:
        """Apply an own write to the copy without waiting for the watch."""
        old = self.keys.get(put.key)
        created = old.create_revision if old else revision
        version = old.version + 1 if old else 1
        self.keys.put(KeyValue(put.key, put.value, created, revision, version, put.lease), now)

    # --- watches ---

    def watch(self, key: str, start_revision: int) -> None:
        """Watch `key` (a prefix if it ends with "/"), until `unwatch` or the end of this membership."""
        self.watched.add(key)
        self.lost_watches.discard(key)
        self._requests.emit(StartWatch(key, start_revision))

    def unwatch(self, *watched: str) -> None:
        for key in sorted(self.watched.intersection(watched)):
            self.watched.remove(key)
            self.lost_watches.discard(key)
            self._requests.emit(StopWatch(key))

    def unwatch_all(self) -> None:
        self.unwatch(*self.watched)

    def handle_watch(self, event: WatchUpdate | WatchLost, now: float) -> None:
        if isinstance(event, WatchUpdate):
            self._requests.note_revision(event.batch.revision)
        if event.key not in self.watched:
            return
        if isinstance(event, WatchUpdate):
            self.keys.apply(event.batch, now)
        else:
            self._requests.note_error(event.error)
            self.lost_watches.add(event.key)
            self._requests.pause(_make_purpose(event.key), now)

    def restore_watches(self, now: float) -> None:
        """Read the keys of each watch that has ended, and watch from there."""
        for key in sorted(self.lost_watches):
            self.rewatch(key, now)

    def rewatch(self, key: str, now: float) -> None:
        def on_reply(answer: TxnResult, now: float) -> None:
            self.keys.load(answer.found[0], key, now)  # news even if `resync` has replaced the watch
            if key in self.lost_watches:
                self.watch(key, answer.revision + 1)

        self._requests.request(_make_purpose(key), "read again", Txn((), (_get_all(key),)), on_reply, now)

    def resync(self, now: float, on_done: Callable[[float], None]) -> None:
        """Read all followed keys, and replace each watch that has ended or missed something.

        `on_done` is called with the time at which the request was sent that read all of them.
        """
        followed = tuple(sorted(self.watched))

        def on_reply(answer: TxnResult, now: float) -> None:
            for key, found in zip(followed, answer.found, strict=True):
                has_ended = key in self.lost_watches
                if key in self.watched and (self._load_changes(key, found, now) or has_ended):
                    if not has_ended:
                        self.unwatch(key)
                    self.watch(key, answer.revision + 1)
            on_done(self._requests.sent_at)

        reads = tuple(_get_all(key) for key in followed)
        self._requests.request("look again", "resync", Txn((), reads), on_reply, now)

    def _load_changes(self, key: str, found: GetResult, now: float) -> bool:
        before = {item.key: item.mod_revision for item in self.keys.list_under(key)}
        self.keys.load(found, key, now)
        return before != {item.key: item.mod_revision for item in self.keys.list_under(key)}


def _get_all(key: str) -> Get:
    return Get(key, prefix=key.endswith("/"))


def _make_purpose(key: str) -> str:
    return f"follow {key}"
