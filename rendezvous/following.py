"""What a member knows of the store: its copy of the keys it follows, as records that were checked.

The copy is kept by watches. A watch that ends is made up for by reading what it covered. A watch can also fall
silent without ending; `look_again` reads everything that is followed and replaces the watches that missed
something. A value that is no record of ours is named once and ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from rendezvous import records
from rendezvous.errors import RecordError
from rendezvous.lanes import Lanes
from rendezvous.messages import Answer, Follow, Txn, Unfollow, Watched, WatchLost
from rendezvous.mirror import Mirror
from rendezvous.records import Leader
from rendezvous.settings import Settings
from rendezvous.store import Found, Get, KeyValue, Put, TxnResult

REFUSED_MAX = 100
"""Keys whose values are named to people: who writes rubbish again and again does not fill the logs of all nodes."""


class Following(Lanes):
    """`secret`: what records are signed with and checked by, empty if the job has none."""

    def __init__(self, settings: Settings, chance: Callable[[], float], secret: bytes) -> None:
        super().__init__(settings, chance)
        self.secret = secret
        self.mirror = Mirror()
        self._decoded: dict[str, tuple[int, object]] = {}
        self._followed: set[str] = set()
        self._unwatched: set[str] = set()  # followed keys whose watch has ended
        self._refused: set[str] = set()  # keys whose values were named

    def forget_all(self) -> None:
        """Know nothing: what is followed next is read anew."""
        self.unfollow_all()
        self.mirror = Mirror()
        self._decoded = {}

    @property
    def is_blind(self) -> bool:
        """Whether a watch has ended and what it covered was not read again yet."""
        return bool(self._unwatched)

    # --- records ---

    def read(self, kind: type[records.Record], key: str) -> records.Record | None:
        """The record under `key` as this member knows it, decoded once per revision.

        An unreadable value reads as the record that it replaced, if that is known: whoever wrote it has not ended a
        round or a membership by that. An unreadable leader is none, so that another one can be elected.
        """
        item = self.mirror.get(key)
        if item is None:
            self._decoded.pop(key, None)
            return None
        known = self._decoded.get(key)
        if known is None or known[0] != item.mod_revision:
            record: object = self.decode(kind, item)
            if record is None and known is not None and kind is not Leader:
                record = known[1]
            known = self._decoded[key] = (item.mod_revision, record)
        return known[1] if isinstance(known[1], kind) else None

    def is_readable(self, kind: type[records.Record], key: str) -> bool:
        """Whether there is nothing under `key`, or something of which at least the value before is known."""
        return self.mirror.get(key) is None or self.read(kind, key) is not None

    def decode(self, kind: type[records.Record], item: KeyValue) -> records.Record | None:
        """What the store holds there; None, and a sentence, if that is no such record."""
        try:
            return records.decode(kind, item.value, item.key, self.secret)
        except RecordError as error:
            if item.key not in self._refused and len(self._refused) < REFUSED_MAX:
                self._refused.add(item.key)
                self.remark(f"{error}; it is ignored")
            return None

    def encode(self, record: records.AnyRecord, key: str) -> bytes:
        """The record as it is written under `key`, signed if this job has a secret."""
        return records.encode(record, key, self.secret)

    def wrote(self, put: Put, revision: int, now: float) -> None:
        """Take an own write into the copy without waiting for the watch."""
        old = self.mirror.get(put.key)
        created = old.create_revision if old else revision
        version = old.version + 1 if old else 1
        self.mirror.put(KeyValue(put.key, put.value, created, revision, version, put.lease), now)

    # --- watches ---

    def follow(self, key: str, start_revision: int) -> None:
        """Watch `key` (a prefix if it ends with "/"), until `unfollow` or the end of this membership."""
        self._followed.add(key)
        self._unwatched.discard(key)
        self.act(Follow(key, start_revision))

    def unfollow(self, *watched: str) -> None:
        for key in sorted(self._followed.intersection(watched)):
            self._followed.remove(key)
            self._unwatched.discard(key)
            self.act(Unfollow(key))

    def unfollow_all(self) -> None:
        self.unfollow(*self._followed)

    def take_watched(self, event: Watched | WatchLost, now: float) -> None:
        if event.key not in self._followed:
            return
        if isinstance(event, Watched):
            self.mirror.apply(event.batch, now)
        else:
            self._unwatched.add(event.key)
            self.pause(_lane(event.key), now)

    def mend_watches(self, now: float) -> None:
        """Read what a watch covered that has ended, and watch from there."""
        for key in sorted(self._unwatched):
            self._follow_again(key, now)

    def _follow_again(self, key: str, now: float) -> None:
        def read_again(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if key in self._unwatched:
                self.mirror.load(answer.found[0], key, now)
                self.follow(key, answer.revision + 1)

        self.ask(_lane(key), f"read {key} again", Txn((), (_whole(key),)), read_again, now)

    def look_again(self, now: float, looked: Callable[[float], None]) -> None:
        """Read all that is followed, and replace each watch that has ended or missed something.

        `looked`: all of it was read, by a request sent then.
        """
        followed = tuple(sorted(self._followed))

        def seen(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            for key, found in zip(followed, answer.found, strict=True):
                has_ended = key in self._unwatched
                if key in self._followed and (self._load_news(key, found, now) or has_ended):
                    if not has_ended:
                        self.unfollow(key)
                    self.follow(key, answer.revision + 1)
            looked(self.sent_at)

        reads = tuple(_whole(key) for key in followed)
        self.ask("look again", "see whether a watch has fallen silent", Txn((), reads), seen, now)

    def _load_news(self, key: str, found: Found, now: float) -> bool:
        before = {item.key: item.mod_revision for item in self.mirror.under(key)}
        self.mirror.load(found, key, now)
        return before != {item.key: item.mod_revision for item in self.mirror.under(key)}


def _whole(key: str) -> Get:
    return Get(key, prefix=key.endswith("/"))


def _lane(key: str) -> str:
    return f"follow {key}"
