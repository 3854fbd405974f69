"""--notify: a command or an address that is told of round changes and of the job's end.

Only the agent that leads tells, so each change is told once. A thread does it, one event after another, each within a
limit; what waits longer than the queue has room for is dropped, which is said once. Nothing waits for it but the end
of the agent, for a moment.

A command gets the event as a line of JSON on its stdin, in a shell, and writes to the agent's stderr; an http(s)
address gets it as the body of a POST. The program `timeout` ends a command that takes longer, with its process group,
also when this agent is gone. What a command leaves in the background when it ends itself is its author's.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable

from launcher.model.errors import UsageError, sanitize
from launcher.observe.run_events import AgentEnded, RoundStarted, RoundStopping, RunEvent, encode_event

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
        if not self._is_url and shutil.which("timeout") is None:
            raise UsageError(f"{self._label}: the program timeout is not on the path", "it is in coreutils and busybox")
        self._events: queue.Queue[bytes | None] = queue.Queue(PENDING_MAX)
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def write(self, event: RunEvent) -> None:
        """Tell of an event, if this agent is the one to tell."""
        if not isinstance(event, TOLD) or not self._is_leader():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
            self._thread.start()
        try:
            self._events.put_nowait(encode_event(event))
        except queue.Full:
            self._complain(f"{PENDING_MAX} events are waiting already, and further ones are dropped")

    def close(self) -> None:
        """Wait a moment for what is still to be told."""
        if self._thread is None:
            return
        try:
            self._events.put(None, timeout=END_LIMIT_S)
        except queue.Full:
            return
        self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        while (line := self._events.get()) is not None:
            try:
                problem = self._post(line) if self._is_url else self._run_command(line)
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

    def _run_command(self, line: bytes) -> str:
        """Run the command; return what went wrong. The agent reaps its children, so the exit code comes as text."""
        script = f'timeout -k 1 {LIMIT_S:g} sh -c "$1" >&2; echo $?'
        began_at = time.monotonic()
        words = ["sh", "-c", script, "sh", self._target]
        # In a session of its own: Ctrl-C is for the agent, and the event of the stop must still be told.
        done = subprocess.run(words, input=line + b"\n", stdout=subprocess.PIPE, start_new_session=True)
        code = done.stdout.strip().decode(errors="replace")
        if code in ("124", "137") and time.monotonic() - began_at >= LIMIT_S:
            return f"it has not ended within {LIMIT_S:g} s"
        return "" if code == "0" else f"exit code {code or 'unknown'}"

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
