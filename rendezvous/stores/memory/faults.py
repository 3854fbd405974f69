"""Switches that make a healthy memory store fail, for tests and simulations. Leases and watches are not affected."""

from __future__ import annotations

from rendezvous.errors import OutcomeUnknown, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Answer = TypeVar("Answer")


class StoreFaults:
    """The current faults. The store calls `admit` before each call and passes each reply through `answer`."""

    __slots__ = ("lose_answers", "lose_requests", "refuse")

    def __init__(self) -> None:
        self.refuse: str | None = None
        """While set, every call raises StoreError with this sentence and does nothing."""
        self.lose_requests = 0
        """How many of the next writing calls do nothing and raise OutcomeUnknown."""
        self.lose_answers = 0
        """How many of the next writing calls that would succeed are applied and raise OutcomeUnknown."""

    def admit(self, writes: bool) -> None:
        """Raise the error that a call that begins now must raise."""
        if self.refuse is not None:
            raise StoreError(self.refuse)
        if writes and self.lose_requests > 0:
            self.lose_requests -= 1
            raise OutcomeUnknown("the store did not answer (a fault that a test set)")

    def answer(self, answer: Answer) -> Answer:
        """Return the reply of a writing call, or raise OutcomeUnknown though it was applied."""
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise OutcomeUnknown("the store did not answer (a fault that a test set)")
        return answer
