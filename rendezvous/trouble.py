"""What people are told of a store in trouble: what it says, once, and that it is over.

A restart of the store that takes a moment, or one request that got lost, is nobody's business. What lasts is: a server
that cannot be reached, a certificate or a user that is refused, no space left. Requests are told apart by what they
are for, since a store without space still answers who only reads.
"""

from __future__ import annotations

from rendezvous.errors import Compacted, LeaseNotFound, StoreError

PATIENCE_S = 1.0
"""So long something must go wrong before it is told. The first words of a server that ends are about broken
connections, and a second later it is plain what is the matter."""
_NO_TROUBLE = (LeaseNotFound, Compacted)  # answers as any other


class Trouble:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # purpose -> when it was first refused, and it was never answered since
        self._told: dict[str, str] = {}

    def take(self, purpose: str, error: StoreError | None, now: float) -> str:
        """A request for this purpose was answered, or failed; the sentence to be told, mostly ""."""
        if error is None or isinstance(error, _NO_TROUBLE):
            return self._answered(purpose)
        since = self._since.setdefault(purpose, now)
        if now < since + PATIENCE_S or purpose in self._told:
            return ""
        sentence = f"{error} ({error.hint})" if error.hint else str(error)
        is_news = sentence not in self._told.values()
        self._told[purpose] = sentence
        return sentence if is_news else ""

    def _answered(self, purpose: str) -> str:
        self._since.pop(purpose, None)
        was_told = self._told.pop(purpose, "")
        return "the store does what it is asked again" if was_told and not self._told else ""
