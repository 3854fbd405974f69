"""--notify: a command or an address that is told of round changes, of a hang and of the job's end.

Only the agent that leads tells, so each change is told once. A command gets the event as a line of JSON on its stdin
(`shell_command`), an http(s) address as the body of a POST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from launcher.model.errors import sanitize
from launcher.views.run_events import (
    AgentEnded,
    HangEnded,
    HangReported,
    RoundStarted,
    RoundStopping,
    RunEvent,
    encode_event,
)
from launcher.views.sinks.shell_command import require_timeout_program, run_command
from launcher.views.sinks.teller import Teller
from rendezvous import codec

LIMIT_S = 10.0
PENDING_MAX = 100
_URLS = ("http://", "https://")
TOLD = (RoundStarted, RoundStopping, HangReported, HangEnded, AgentEnded)


class Notifier(Teller):
    """`is_leader`: whether this agent leads now. Raises UsageError for a target that can never be told."""

    def __init__(self, target: str, origin: str, is_leader: Callable[[], bool], warn: Callable[[str], None]) -> None:
        label = f"{origin} {_shorten_target(target)}"
        if not target.startswith(_URLS):
            require_timeout_program(label)
        super().__init__(label, PENDING_MAX, warn)
        self._target = target
        self._is_leader = is_leader

    def tell(self, line: bytes, variables: Mapping[str, str]) -> str:
        is_url = self._target.startswith(_URLS)
        return _post(self._target, line) if is_url else run_command(self._target, line, LIMIT_S, variables)

    def write(self, event: RunEvent) -> None:
        """Tell of an event, if this agent is the one to tell."""
        if isinstance(event, TOLD) and self._is_leader() and self.put(add_text(event)):
            self._complain(f"{PENDING_MAX} events are waiting already, so the oldest is dropped")


def add_text(event: RunEvent) -> bytes:
    """Return an event's line with the field `text`, for chats and people: all that is known of a failure."""
    from launcher.views.event_view import describe_in_full  # after the workers' start

    fields: dict[str, Any] = msgspec.json.decode(encode_event(event))
    return codec.encode({**fields, "text": describe_in_full(fields)})


def _post(target: str, line: bytes) -> str:
    import urllib.request  # some 30 ms, after the workers' start

    request = urllib.request.Request(target, line, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=LIMIT_S):
        return ""


def _shorten_target(target: str) -> str:
    """Return what logs may hold of it: of an address only where it is, since those of chats are secrets."""
    scheme, colon, rest = target.partition("://")
    if scheme not in ("http", "https"):
        return sanitize(target)
    return sanitize(f"{scheme}{colon}{rest.partition('/')[0].rpartition('@')[2]}")
