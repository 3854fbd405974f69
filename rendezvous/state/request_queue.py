"""Requests to the store, one at a time for each purpose, and all other actions of a member.

A purpose is, for example, keeping the lease, reporting, leading. A request for a purpose that has one under way is
dropped: whoever asks compares again after every event and will ask again. A purpose whose request brought nothing
pauses for a moment, and longer after each further write that was not answered, so that a store in trouble is not
pressed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rendezvous.events import (
    Action,
    Answer,
    Log,
    Request,
    StoreOutcomeUnknown,
    StoreRejected,
    StoreReply,
    StoreRequest,
    get_request_kind,
)
from rendezvous.settings import Settings
from rendezvous.values import NamedTuple


class _PendingRequest(NamedTuple):
    """A request under way: what to do with its answer, and when it was sent."""

    purpose: str
    sent_at: float
    on_answer: Callable[[Answer, float], None]
    on_unknown: Callable[[float], None]
    kind: str


class RequestQueue:
    """What a member has asked for and will have done. `rng` returns a random number in [0, 1)."""

    def __init__(self, settings: Settings, rng: Callable[[], float]) -> None:
        self.settings = settings
        self.rng = rng
        self.sent_at = 0.0  # when the request that is being answered was sent
        self.actions: list[Action] = []  # of this step
        self._pending: dict[int, _PendingRequest] = {}
        self._retry_at: dict[str, float] = {}
        self._unanswered: dict[str, int] = {}  # purpose -> how many writes in a row brought no answer
        self.next_id = 1
        self.wake_at = math.inf  # when to send Tick if nothing else happens before
        self._last_status = ""

    def begin_step(self) -> None:
        """Forget the actions of the last step: they are done."""
        self.actions = []

    def begin_membership(self) -> None:
        """Whatever is still answered concerns nobody any more."""
        self.drop_requests()
        self._last_status = ""

    # --- asking ---

    def request(
        self,
        purpose: str,
        why: str,
        request: Request,
        on_answer: Callable[[Answer, float], None],
        now: float,
        on_unknown: Callable[[float], None] = lambda now: None,
    ) -> None:
        """Send a request, unless one is under way for this purpose or it pauses after a refusal."""
        if self.is_busy(purpose):
            return
        retry_at = self._retry_at.get(purpose, -math.inf)
        if now < retry_at:
            self.wake_by(retry_at)
            return
        id = self.make_request_id()
        self._pending[id] = _PendingRequest(purpose, now, on_answer, on_unknown, get_request_kind(request))
        self.actions.append(StoreRequest(id, why, request))

    def is_busy(self, purpose: str) -> bool:
        return any(pending.purpose == purpose for pending in self._pending.values())

    def pause(self, purpose: str, now: float) -> None:
        """Request nothing for this purpose for a moment."""
        self._retry_at[purpose] = now + self.settings.retry_delay_s

    def _back_off(self, purpose: str, now: float) -> None:
        """Pause for twice as long as the last time."""
        count = self._unanswered[purpose] = self._unanswered.get(purpose, 0) + 1
        self._retry_at[purpose] = now + self.settings.compute_retry_s(count)

    def reset_backoff(self) -> None:
        """Ask again at once: the store was away, not slow, and is back."""
        for purpose in self._unanswered:
            self._retry_at.pop(purpose, None)
        self._unanswered.clear()

    def drop_requests(self) -> None:
        """Whatever is still answered concerns nobody any more."""
        self._pending.clear()
        self._retry_at.clear()
        self._unanswered.clear()

    def handle_outcome(self, event: StoreReply | StoreRejected | StoreOutcomeUnknown, now: float) -> str:
        """Act on what became of a request; its purpose, empty if it concerns nobody."""
        pending = self._pending.pop(event.id, None)
        if pending is None:
            return ""
        match event:
            case StoreReply(_, answer):
                self._retry_at.pop(pending.purpose, None)
                self._unanswered.pop(pending.purpose, None)
                self.sent_at = pending.sent_at
                pending.on_answer(answer, now)
            case StoreRejected():
                self.pause(pending.purpose, now)
            case StoreOutcomeUnknown():
                if pending.kind == "write":
                    self._back_off(pending.purpose, now)
                else:
                    self.pause(pending.purpose, now)
                pending.on_unknown(now)
        return pending.purpose

    # --- the rest ---

    def emit(self, action: Action) -> None:
        self.actions.append(action)

    def log_status(self, sentence: str, rule: str = "") -> None:
        """How things stand, for people: said when it changes."""
        if sentence != self._last_status:
            self._last_status = sentence
            self.actions.append(Log(sentence, rule=rule))

    def log(self, sentence: str, rule: str = "") -> None:
        """Something that happened, for people; how things stand is not changed by it."""
        self.actions.append(Log(sentence, True, rule))

    def wake_by(self, at: float) -> None:
        """Ask for a Tick at `at` at the latest."""
        self.wake_at = min(self.wake_at, at)

    def make_token(self) -> str:
        """A fresh random word of 64 bits."""
        return "".join(f"{int(self.rng() * 2**32):08x}" for _ in range(2))

    def make_lease_id(self) -> int:
        """A fresh random id for a lease: 63 bits, not 0."""
        return int(self.make_token(), 16) >> 1 or 1

    def make_request_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1
