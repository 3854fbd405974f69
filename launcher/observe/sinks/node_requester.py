"""--request-nodes: a command that is told how many nodes the run wants and has, so that it can provide some.

Only the agent that leads tells (`node_demand` decides what and when). The command gets an event as a line of JSON on
its stdin, and the figures as variables; it runs in a thread, one after another, and only the newest figures wait.
Nothing waits for it but the end of the run, for a moment: what was asked for is withdrawn then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from launcher.model.concurrency import NO_THREAD, LateThread
from launcher.model.console import format_time
from launcher.model.errors import describe_bug, sanitize
from launcher.observe.run_events import NodesRequested, encode_event
from launcher.observe.sinks.node_demand import DemandHistory, decide_demand
from launcher.observe.sinks.shell_command import require_timeout_program, run_command

LIMIT_S = 60.0
"""An API that provides machines may take tens of seconds to answer."""
END_LIMIT_S = 3.0
"""For what is withdrawn when the run ends."""
CHECK_S = 1.0
"""Between two looks at the members: a leader hears of each change at once, others become leaders."""


class NodeRequester:
    """`count_nodes` returns how many nodes are members if this agent leads, else None. `takes_over`: whether others may
    have led this run before. `has_ended`: whether it has. `add_event` makes and keeps the event of (wanted, present,
    reason, since). `warn` gets a sentence about what is told, or could not be.

    Raises UsageError for a command that can never be run.
    """

    def __init__(
        self,
        command: str,
        origin: str,
        wanted: int,
        count_nodes: Callable[[], int | None],
        takes_over: Callable[[], bool],
        has_ended: Callable[[], bool],
        add_event: Callable[[int, int, str, str], NodesRequested],
        warn: Callable[[str], None],
    ) -> None:
        self._command = command
        self._origin = origin
        self._label = f"{origin} {sanitize(command)}"
        require_timeout_program(self._label)
        self._wanted = wanted
        self._count_nodes = count_nodes
        self._takes_over = takes_over
        self._has_ended = has_ended
        self._add_event = add_event
        self._warn = warn
        self._history: DemandHistory | None = None
        self._changed = threading.Condition()
        self._next: NodesRequested | None = None
        self._is_closing = False
        self.thread = LateThread(self._run, "request nodes")
        self._has_warned = False
        self.wake_at = 0.0
        """When to call `advance`."""

    def advance(self, now: float) -> None:
        """Look at the members, and tell the command if it is time to."""
        if now < self.wake_at:
            return
        self.wake_at = now + CHECK_S
        present = self._count_nodes()
        if present is None:
            self._history = None
            with self._changed:
                self._next = None  # the leader has newer figures
            return
        if self._history is None:
            self._history = DemandHistory(is_owed=self._takes_over())
        decision = decide_demand(self._history, self._wanted, present, now)
        self._history = decision.history
        if decision.reason:
            since = decision.history.below_since
            since_text = "" if since is None else format_time(time.time() - (now - since))
            self._warn(f"{self._origin} runs its command: {decision.reason}")
            self._queue(self._add_event(self._wanted, present, decision.reason, since_text))

    def close(self) -> None:
        """Withdraw what was asked for if the run has ended, and wait a moment for that."""
        if self._history is not None and self._history.is_owed and self._has_ended():
            self._queue(self._add_event(0, 0, "the run has ended", ""))
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self.thread.finish(END_LIMIT_S)
        with self._changed:
            if self._next is not None:
                why = NO_THREAD if self.thread.is_missing else f"it still runs after {END_LIMIT_S:g} s"
                self._warn(f"{self._label}: {why}, and the last figures are not told")

    def _queue(self, event: NodesRequested) -> None:
        with self._changed:
            self._next = event
            self._changed.notify()
        self.thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._is_closing)
                event, self._next = self._next, None
            if event is None:
                return
            variables = {
                "NODES_WANTED": str(event.wanted),
                "NODES_PRESENT": str(event.present),
                "NODES_SINCE": event.since,
            }
            try:
                problem = run_command(self._command, encode_event(event), LIMIT_S, variables)
            except Exception as error:  # such as too many processes; none may end the thread
                problem = describe_bug(error)
            if problem and not self._has_warned:
                self._warn(f"{self._label}: {problem}")
            self._has_warned = bool(problem)
