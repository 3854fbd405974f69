"""The supervisor's handle on a fork server: a process that may import for minutes, and then forks workers at once.

It is started like a worker, by an exec, and communicates over a socket whose number is in its environment. It runs
foreign code, so the supervisor never waits for it, validates everything that it sends, and kills it when it is
useless. What happens to workers then is decided in warm.py.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Protocol

from launcher.hardware.linux import kernel
from launcher.supervisor.channel import Channel
from launcher.supervisor.child import ProcessHost
from launcher.supervisor.messages import ForkServerSpec, WorkerSpec, describe_exit

SOCKET_VARIABLE = "LAUNCHER_FORK_SERVER"
_DESCRIPTORS_MAX = 8  # descriptors that travel with one message
# Its socket closes a moment before it can be reaped.
_REAP_LIMIT_S = 1.0


class ForkServerListener(Protocol):
    """Receives the events of a fork server. After it is lost or refused there are no more."""

    def on_started(self, pid: int) -> None: ...
    def on_ready(self, pid: int, seconds: float, remarks: tuple[str, ...]) -> None: ...
    def on_refused(self, sentence: str, hint: str) -> None: ...
    def on_lost(self, sentence: str) -> None: ...


# docs/internals/decisions/0034-fork-server-beside-the-supervisor.md
class ForkServer:
    """One process, from its fork to its end. Raises OSError if it cannot be forked."""

    def __init__(self, loop: ProcessHost, server_spec: ForkServerSpec, listener: ForkServerListener) -> None:
        self._loop = loop
        self._server_spec = server_spec
        self._listener = listener
        self.is_ready = False
        self._is_started = self._is_over = False
        self.lost_at = math.inf
        """When to call handle_timeout()."""
        ours, theirs = socket.socketpair()
        try:
            env = {**server_spec.env, SOCKET_VARIABLE: str(theirs.fileno())}
            # Its stdout is the agent's stderr, since stdout belongs to the workers.
            spec = WorkerSpec(-1, server_spec.argv, env, server_spec.unset, 2, None, server_spec.affinity)
            self._loop.note_descriptors(ours.fileno(), theirs.fileno())
            self.pid, self._poll_start = loop.start(
                spec, "the fork server", self._handle_start, inherit=(theirs.fileno(),)
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._unsent: list[socket.socket] = []  # ends of workers in orders that the socket has not accepted yet
        loop.watch(self._channel.fileno(), self._receive)
        self._channel.send(["preload", server_spec.modules, loop.pid, loop.kept_descriptors])

    def _handle_start(self, failure: list[Any]) -> None:
        if self._is_over:
            return
        self._is_started = True
        if failure:
            self._handle_loss(f"the fork server could not be started: {failure[0]}")
        else:
            self._listener.on_started(self.pid)

    def request_forks(self, ends: Collection[socket.socket]) -> None:
        """Have a worker forked for each of these sockets, which are closed here. Raises OSError."""
        waiting, is_sent = list(ends), True
        self._unsent += waiting
        while waiting:
            batch, waiting = waiting[:_DESCRIPTORS_MAX], waiting[_DESCRIPTORS_MAX:]
            is_sent = self._channel.send(["fork"], tuple(end.fileno() for end in batch))
        if is_sent:
            self._close_unsent()
        else:
            self._loop.watch(self._channel.fileno(), self._receive, until_writable=True)

    def _close_unsent(self) -> None:
        for end in self._unsent:
            end.close()
        self._unsent.clear()

    def _receive(self) -> None:
        try:
            if self._channel.flush() and self._unsent:
                self._close_unsent()
                self._loop.watch(self._channel.fileno(), self._receive)
            for (verb, *words), descriptors in self._channel.receive():
                for descriptor in descriptors:
                    os.close(descriptor)
                self._take(verb, *words)
        except (ValueError, TypeError, OSError) as error:
            self.give_up(f"could not be understood ({error})")
        if self._channel.has_ended and not self._is_over:
            self._stop_listening()
            if kernel.is_past_user_code(self.pid):
                self.lost_at = time.monotonic() + _REAP_LIMIT_S
            else:  # an import has restarted Python, by an exec: kill it at once, before it runs the script
                self.give_up("closed its socket")

    def _take(self, verb: str, *words: Any) -> None:
        if self._is_over:  # sent after its last message
            return
        if verb == "ready" and not self.is_ready:
            seconds, remarks = words
            self.is_ready = True
            self._listener.on_ready(self.pid, float(seconds), tuple(map(str, remarks)))
        elif verb == "refused" and not self.is_ready:
            sentence, hint = map(str, words)
            self.kill()
            self._listener.on_refused(sentence, hint)
        else:
            raise ValueError(f"{verb!r}"[:80])

    def handle_timeout(self) -> None:
        """Handle that `lost_at` has been reached."""
        self.give_up("closed its socket")

    def handle_exit(self, exit_code: int) -> None:
        """Handle its end, once it has been reaped."""
        if not self._is_started:
            self._poll_start()
        if not self._is_over:
            self._handle_loss(f"the fork server (pid {self.pid}) {describe_exit(exit_code)}{self._describe_phase()}")

    def give_up(self, reason: str) -> None:
        """Kill it: `reason` continues the sentence that the listener gets."""
        during = self._describe_phase()
        self.kill()
        self._listener.on_lost(f"the fork server (pid {self.pid}) {reason}{during} and was killed")

    def kill(self) -> None:
        """Kill it and its intermediate processes, and ignore further events."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):  # forked, and not yet the leader of its group
            os.killpg(self.pid, signal.SIGKILL)
        self._is_over = True
        self._stop_listening()

    def _handle_loss(self, sentence: str) -> None:
        self._is_over = True
        self._stop_listening()
        self._listener.on_lost(sentence)

    def _stop_listening(self) -> None:
        if self._channel.fileno() != -1:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
        self._close_unsent()
        self.lost_at = math.inf

    def _describe_phase(self) -> str:
        return "" if self.is_ready else f" while it imported {', '.join(self._server_spec.modules)}"
