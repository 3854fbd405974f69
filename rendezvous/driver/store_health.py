"""What people are told of a store in trouble: what it says, once, and that it is over.

A restart of the store that takes a moment, or one request that got lost, is nobody's business. What lasts is: a server
that cannot be reached, a certificate or a user that is refused, no space left. Requests are told apart by what they
are for, since a store without space still answers who only reads.

A store may also do all that it is asked, and be slow at it. Reads come from memory, but a write waits for the disks of
most servers, so that a slow disk shows in writes first. An etcd of one server does nothing else while its disk writes:
there reads and renewals wait as long, and a lease must be made for that.
"""

from __future__ import annotations

import math

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.settings import Settings

LOG_DELAY_S = 1.0
"""So long something must go wrong before it is told. The first words of a server that ends are about broken
connections, and a second later it is plain what is the matter."""
SLOW_S = 1.0
"""A write that takes so long is told; an etcd on a disk made for it takes some milliseconds."""
_HARMLESS_ERRORS = (LeaseNotFound, Compacted)  # answers as any other


class StoreHealthLog:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._since: dict[str, float] = {}  # purpose -> when it was first refused, and it was never answered since
        self._logged: dict[str, str] = {}
        self._slow_s = 0.0  # how long a write takes, as was told last

    def note(self, purpose: str, error: StoreError | None, now: float, took_s: float = 0.0) -> str:
        """A request for this purpose was answered, or failed, after so long; the sentence to be told, mostly ""."""
        if error is None or isinstance(error, _HARMLESS_ERRORS):
            return self._note_answer(purpose) or (self._note_pace(took_s) if purpose == "write" else "")
        since = self._since.setdefault(purpose, now)
        if now < since + LOG_DELAY_S or purpose in self._logged:
            return ""
        sentence = f"{error} ({error.hint})" if error.hint else str(error)
        is_news = sentence not in self._logged.values()
        self._logged[purpose] = sentence
        return sentence if is_news else ""

    def _note_answer(self, purpose: str) -> str:
        self._since.pop(purpose, None)
        was_told = self._logged.pop(purpose, "")
        return "the store does what it is asked again" if was_told and not self._logged else ""

    def _note_pace(self, took_s: float) -> str:
        """Told once, again when it is twice as bad, and when it is over."""
        if took_s >= max(SLOW_S, 2 * self._slow_s):
            self._slow_s = took_s
            slow = f"writes to the store take {took_s:.1f} s: joining and restarts take several of them"
            waited_s = min(math.ceil(took_s), self._settings.write_limit_s)  # no lease makes for a longer wait
            needed_s = waited_s * self._settings.call_parts
            longer = f"; if nodes lose their membership meanwhile, --lease-ttl {needed_s:g} waits longer"
            return slow + longer if self._settings.lease_ttl_s < needed_s else slow
        if self._slow_s and took_s < SLOW_S / 2:
            self._slow_s = 0.0
            return "writes to the store are fast again"
        return ""
