"""Requests to the store, one at a time for each purpose, and all other actions of a member.

The purposes: "join", "lease", "assignment" and "status" of a round, "campaign" and "lead", "look again" and "follow
KEY" for the copy of the store, "farewell" at the end. A request for a purpose that has one in progress is dropped: the
part that made it compares again after every event and makes it again. A purpose whose request failed pauses for a
moment, and longer after each further write without a reply, to relieve an overloaded store.

A reply at a lower revision than was known when it was requested comes from a store that has lost writes; it is noted in
`regress` and not handled, as is the answer of another store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from rendezvous.errors import StoreError, StoreReplaced
from rendezvous.events import (
    Action,
    Log,
    Request,
    Revoke,
    StoreOutcomeUnknown,
    StoreRejected,
    StoreReply,
    StoreRequest,
    get_request_kind,
)
from rendezvous.reasons import Reason
from rendezvous.settings import Settings
from rendezvous.stores.contract import Renewal, TxnResult


class _PendingRequest(Struct, frozen=True):
    """A request in progress: its callbacks, and when it was sent."""

    purpose: str
    sent_at: float
    revision: int
    """The store's, as known when it was sent."""
    on_answer: Callable[[Any, float], None]
    on_unknown: Callable[[], None]
    is_write: bool


class RequestQueue:
    """The requests and actions of a member. `rng` returns a random number in [0, 1)."""

    def __init__(self, settings: Settings, rng: Callable[[], float]) -> None:
        self.settings = settings
        self.rng = rng
        self.sent_at = 0.0  # when the request that is being answered was sent
        self.actions: list[Action] = []  # of this step
        self._pending: dict[int, _PendingRequest] = {}
        self._retry_at: dict[str, float] = {}
        self._unanswered: dict[str, int] = {}  # purpose -> how many writes in a row brought no answer
        self.next_id = 1
        self.revision = 0
        """The highest revision that the store has shown; it outlives memberships."""
        self.regress: Reason | None = None
        """What shows that the store has gone back or is another one."""
        self.wake_at = math.inf  # when to send Tick if nothing else happens before
        self._last_status: Reason | None = None

    def begin_membership(self) -> None:
        """Drop the requests of the last membership: their replies are ignored."""
        self.drop_requests()
        self._last_status = None

    # --- requests ---

    def request(
        self,
        purpose: str,
        kind: str,
        request: Request,
        on_answer: Callable[[Any, float], None],
        now: float,
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a request, unless one is in progress for this purpose or it pauses after a failure.

        `kind`: a word for a trace. `on_answer` gets what the store answers to such a request, as in `execute_request`,
        and the time.
        """
        if self.is_busy(purpose):
            return
        retry_at = self._retry_at.get(purpose, -math.inf)
        if now < retry_at:
            self.wake_by(retry_at)
            return
        request_id = self.make_request_id()
        is_write = get_request_kind(request) == "write"
        self._pending[request_id] = _PendingRequest(purpose, now, self.revision, on_answer, on_unknown, is_write)
        self.actions.append(StoreRequest(request_id, kind, request))

    def is_busy(self, purpose: str) -> bool:
        """Return whether a request for this purpose is in progress."""
        return any(pending.purpose == purpose for pending in self._pending.values())

    def pause(self, purpose: str, now: float) -> None:
        """Send no request for this purpose for `retry_delay_s`."""
        self._retry_at[purpose] = now + self.settings.retry_delay_s

    def reset_backoff(self) -> None:
        """Send requests again at once: the store was unavailable, not slow, and is back."""
        for purpose in self._unanswered:
            self._retry_at.pop(purpose, None)
        self._unanswered.clear()

    def drop_requests(self) -> None:
        """Drop all requests in progress: their replies are ignored."""
        self._pending.clear()
        self._retry_at.clear()
        self._unanswered.clear()

    def handle_outcome(self, event: StoreReply | StoreRejected | StoreOutcomeUnknown, now: float) -> str:
        """Handle the outcome of a request and return its purpose; "" if the request was dropped."""
        pending = self._pending.pop(event.id, None)
        revision = self._read_revision(event)
        if pending is None:
            self.note_revision(revision)
            return ""
        match event:
            case StoreReply(_, answer):
                self._retry_at.pop(pending.purpose, None)
                self._unanswered.pop(pending.purpose, None)
                self.sent_at = pending.sent_at
                if 0 < revision < pending.revision:
                    self.regress = Reason.of("revision-went-back", revision=revision, was=pending.revision)
                else:
                    self.note_revision(revision)
                    pending.on_answer(answer, now)
            case StoreRejected(_, error):
                self.note_error(error)
                self.pause(pending.purpose, now)
            case StoreOutcomeUnknown():
                self.pause(pending.purpose, now)
                if pending.is_write:
                    count = self._unanswered[pending.purpose] = self._unanswered.get(pending.purpose, 0) + 1
                    self._retry_at[pending.purpose] = now + self.settings.compute_retry_s(count)
                pending.on_unknown()
        return pending.purpose

    def _read_revision(self, event: StoreReply | StoreRejected | StoreOutcomeUnknown) -> int:
        """Return the revision that an answer shows, 0 if it shows none."""
        answer = event.answer if isinstance(event, StoreReply) else None
        return answer.revision if isinstance(answer, (TxnResult, Renewal)) else 0

    def note_revision(self, revision: int) -> None:
        """Note a revision that the store has shown: no later request is answered with a lower one."""
        self.revision = max(self.revision, revision)

    def note_error(self, error: StoreError) -> None:
        """Note it if a request or a watch has failed because another store answers."""
        if isinstance(error, StoreReplaced):
            self.regress = Reason.of("store-error", error=str(error))

    def give_back(self, lease_id: int) -> None:
        """Revoke a lease, whatever the reply."""
        self.actions.append(StoreRequest(self.make_request_id(), "revoke", Revoke(lease_id)))

    # --- the rest ---

    def emit(self, action: Action) -> None:
        self.actions.append(action)

    def log_status(self, reason: Reason, rule: str = "", until: float = math.inf, setting: str = "") -> None:
        """Log the current state for people; an unchanged one is logged once."""
        if reason != self._last_status:
            self._last_status = reason
            self.actions.append(Log(reason, rule=rule, until=until, setting=setting))

    def log(self, reason: Reason, rule: str = "", until: float = math.inf, setting: str = "") -> None:
        """Log something that happened, which leaves the current state of `log_status` unchanged."""
        self.actions.append(Log(reason, True, rule, until, setting))

    def wake_by(self, at: float) -> None:
        """Request a Tick at `at` at the latest."""
        self.wake_at = min(self.wake_at, at)

    def make_token(self) -> str:
        """Make a random word of 64 bits."""
        return "".join(f"{int(self.rng() * 2**32):08x}" for _ in range(2))

    def make_lease_id(self) -> int:
        """Make a random lease id: 63 bits, not 0."""
        return int(self.make_token(), 16) >> 1 or 1

    def make_request_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1
