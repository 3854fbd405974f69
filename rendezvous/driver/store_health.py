"""What is logged about a failing store: its error, once, and that it is over.

A short restart of the store, or one lost request, is not worth a message. A lasting problem is: a server that cannot be
reached, a certificate or a user that is refused, no space left. Problems are kept per purpose of the requests, since a
store without space still answers reads.

A store may also do all that it is asked, and be slow. Reads come from memory, but a write waits for the disks of most
servers, so a slow disk shows in writes first. An etcd of one server does nothing else while its disk writes: there
reads and renewals wait as long, and the lease must be long enough for that.
"""

from __future__ import annotations

import math

from rendezvous.errors import Compacted, LeaseNotFound, StoreError
from rendezvous.reasons import Reason
from rendezvous.settings import Settings

LOG_DELAY_S = 1.0
"""How long a problem must last before it is logged. The first errors of a server that ends are broken connections; the
cause shows a second later."""
SLOW_S = 1.0
"""A write that takes this long is logged; an etcd on a suitable disk takes some milliseconds."""
_HARMLESS_ERRORS = (LeaseNotFound, Compacted)  # normal answers of a healthy store


class StoreHealthLog:
    """The problems of the store that are not over, by purpose."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._since: dict[str, float] = {}  # purpose -> when it first failed, if no request has succeeded since
        self._logged: dict[str, Reason] = {}
        self._slow_s = 0.0  # how long a write takes, as was logged last

    def note(self, purpose: str, error: StoreError | None, now: float, took_s: float = 0.0) -> Reason | None:
        """Note the outcome of a request, which took `took_s` seconds; return what to log, mostly None."""
        if error is None or isinstance(error, _HARMLESS_ERRORS):
            return self._note_answer(purpose) or (self._note_pace(took_s) if purpose == "write" else None)
        since = self._since.setdefault(purpose, now)
        if now < since + LOG_DELAY_S or purpose in self._logged:
            return None
        reason = Reason.of("store-failing", error=str(error), hint=error.hint or "")
        is_news = reason not in self._logged.values()
        self._logged[purpose] = reason
        return reason if is_news else None

    def _note_answer(self, purpose: str) -> Reason | None:
        self._since.pop(purpose, None)
        was_logged = self._logged.pop(purpose, None)
        return Reason.of("store-answers-again") if was_logged and not self._logged else None

    def _note_pace(self, took_s: float) -> Reason | None:
        """Return a reason when writes become slow, when they become twice as slow, and when that is over."""
        if took_s >= max(SLOW_S, 2 * self._slow_s):
            self._slow_s = took_s
            slow = Reason.of("store-slow", write_s=took_s)
            waited_s = min(math.ceil(took_s), self._settings.write_limit_s)  # no lease allows a longer wait
            needed_s = waited_s * self._settings.call_parts
            advice = Reason.of("longer-lease-waits", lease_ttl_s=needed_s)
            return slow.add(advice) if self._settings.lease_ttl_s < needed_s else slow
        if self._slow_s and took_s < SLOW_S / 2:
            self._slow_s = 0.0
            return Reason.of("store-fast-again")
        return None
