"""--notify: a command or an address that is told of round changes and of the job's end.

Only the agent that leads tells, so each change is told once. A thread does it, one event after another, each within a
limit; what waits longer than the queue has room for is dropped, which is said once. Nothing waits for it but the end
of the agent, for a moment.

A command gets the event as a line of JSON on its stdin (`shell_command`), an http(s) address as the body of a POST.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

from launcher.model.concurrency import NO_THREAD, LateThread
from launcher.model.errors import sanitize
from launcher.observe.run_events import AgentEnded, RoundStarted, RoundStopping, RunEvent, encode_event
from launcher.observe.sinks.shell_command import require_timeout_program, run_command

LIMIT_S = 10.0
END_LIMIT_S = 3.0
"""For what is still to be told when the agent ends."""
PENDING_MAX = 100
TOLD = (RoundStarted, RoundStopping, AgentEnded)


class Notifier:
    """`is_leader`: whether this agent leads now. `warn` gets a sentence about what could not be told.

    Raises UsageError for a target that can never be told.
    """

    def __init__(self, target: str, origin: str, is_leader: Callable[[], bool], warn: Callable[[str], None]) -> None:
        self._target = target
        self._label = f"{origin} {_shorten_target(target)}"
        self._is_leader = is_leader
        self._warn = warn
        self._is_url = target.startswith(("http://", "https://"))
        if not self._is_url:
            require_timeout_program(self._label)
        self._events: queue.Queue[bytes | None] = queue.Queue(PENDING_MAX)
        self.thread = LateThread(self._run, "notify")
        self._has_warned = False

    def write(self, event: RunEvent) -> None:
        """Tell of an event, if this agent is the one to tell."""
        if not isinstance(event, TOLD) or not self._is_leader():
            return
        try:
            self._events.put_nowait(encode_event(event))
        except queue.Full:
            self._complain(f"{PENDING_MAX} events are waiting already, and further ones are dropped")
        self.thread.start()

    def close(self) -> None:
        """Wait a moment for what is still to be told."""
        if self.thread.is_missing:
            self.thread.start()
        limit_s = END_LIMIT_S if self.thread.has_started else 0.0
        try:
            self._events.put(None, timeout=limit_s)
        except queue.Full:
            limit_s = 0.0
        if not self.thread.finish(limit_s):
            why = f": {NO_THREAD}" if self.thread.is_missing else f" within {END_LIMIT_S:g} s"
            self._complain(f"the last events were not told{why}")

    def _run(self) -> None:
        while (line := self._events.get()) is not None:
            try:
                problem = self._post(line) if self._is_url else run_command(self._target, line, LIMIT_S)
            except Exception as error:  # urllib raises many kinds, and none may end the thread
                # What http.client refuses it repeats, and addresses of chats are secrets.
                is_told = not self._is_url or isinstance(error, OSError)
                problem = (sanitize(str(error)) if is_told else "") or type(error).__name__
            if problem:
                self._complain(problem)
            else:
                self._has_warned = False

    def _post(self, line: bytes) -> str:
        import urllib.request  # some 30 ms, after the workers' start

        request = urllib.request.Request(self._target, line, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            return ""

    def _complain(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{self._label}: {problem}")


def _shorten_target(target: str) -> str:
    """Return what logs may hold of it: of an address only where it is, since those of chats are secrets."""
    scheme, colon, rest = target.partition("://")
    if scheme not in ("http", "https"):
        return sanitize(target)
    return sanitize(f"{scheme}{colon}{rest.partition('/')[0].rpartition('@')[2]}")
