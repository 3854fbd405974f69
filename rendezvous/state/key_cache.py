"""Which of two values of a key is newer: a copy of keys that late and repeated values do not spoil.

Replies, reads and watched events reach a member in any order. Each key is therefore kept with the revision that last
changed it, and only something newer replaces it. A read of a prefix also removes the keys that it no longer contains,
and older values that arrive after it are ignored. So a value that arrives late, twice or by two ways changes nothing.

A store that was restored to an earlier state has a second history: its revisions mean other writes. A read that cannot
belong to the first one, because it is as new as all that is known and has an older value, is noted in `regress`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rendezvous.reasons import Reason
from rendezvous.stores.contract import Batch, GetResult, KeyValue


class KeyCache:
    """Keys with their values, each at the newest revision known."""

    def __init__(self) -> None:
        self._items: dict[str, KeyValue] = {}
        self._folders: dict[str, set[str]] = {}  # the key up to its last "/" -> keys: avoids a search of all keys
        self._gone: dict[str, int] = {}
        self._read_at: dict[str, int] = {}  # the revision of the last read of each prefix
        self._seen_at: dict[str, float] = {}
        self.regress: Reason | None = None
        """What shows that the store has gone back or is another one."""

    def get(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def list_under(self, prefix: str) -> Iterator[KeyValue]:
        """List the keys that start with `prefix`, in byte order."""
        return (self._items[key] for key in sorted(self._list_keys_under(prefix)))

    def get_revision(self, key: str) -> int:
        """Return the mod revision of `key`, 0 when it is absent: the operand of a guarded write's compare."""
        item = self._items.get(key)
        return item.mod_revision if item else 0

    def get_first_seen_at(self, key: str) -> float:
        """Return when this member first saw the current value of the key, on its own clock."""
        return self._seen_at[key]

    def apply(self, batch: Batch, now: float) -> None:
        for event in batch.events:
            if event.kind == "put":
                self.put(event.item, now)
            else:
                self.note_absence(event.item.key, event.item.mod_revision)

    def load(self, found: GetResult, prefix: str, now: float) -> None:
        """Apply a read of all keys under `prefix`."""
        present = {item.key for item in found.items}
        for key in [key for key in self._list_keys_under(prefix) if key not in present]:
            self.note_absence(key, found.revision)
        for item in found.items:
            self.put(item, now, found.revision)
        self._read_at[prefix] = max(found.revision, self._read_at.get(prefix, 0))

    def put(self, item: KeyValue, now: float, read_at: int = 0) -> None:
        """Apply a value of a key; `read_at`: the revision of the read that showed it, 0 if an event did."""
        known, newest = self._items.get(item.key), self.find_newest(item.key)
        if item.mod_revision > newest:
            self._items[item.key] = item
            self._folders.setdefault(_find_parent(item.key), set()).add(item.key)
            self._seen_at[item.key] = now
        elif known.value != item.value if known and known.mod_revision == item.mod_revision else read_at >= newest:
            older = Reason.of("key-went-back", key=item.key, revision=item.mod_revision, was=newest)
            self.regress = self.regress or older

    def find_newest(self, key: str) -> int:
        """Return the newest revision as of which this key is known, or known to be absent."""
        read_at = self._read_at.get(key, 0)
        for prefix, revision in self._read_at.items():
            if prefix[-1] == "/" and revision > read_at and key.startswith(prefix):
                read_at = revision
        return max(read_at, self.get_revision(key), self._gone.get(key, 0))

    def note_absence(self, key: str, revision: int) -> None:
        """Note that the key was absent as of this revision."""
        self._gone[key] = max(revision, self._gone.get(key, 0))
        if self.get_revision(key) <= revision:
            self._items.pop(key, None)
            self._folders.get(_find_parent(key), set()).discard(key)
            self._seen_at.pop(key, None)

    def _list_keys_under(self, prefix: str) -> Iterator[str]:
        is_folder = prefix.endswith("/")
        for folder, keys in self._folders.items():
            if folder.startswith(prefix) if is_folder else prefix.startswith(folder) or folder.startswith(prefix):
                yield from keys if is_folder else (key for key in keys if key.startswith(prefix))


def _find_parent(key: str) -> str:
    return key[: key.rfind("/") + 1]
