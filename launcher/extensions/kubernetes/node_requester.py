"""--request-nodes: a command that is told how many nodes the run wants and has, so that it can provide some.

Only the agent that leads tells (`node_demand` decides what and when). The command gets an event as a line of JSON on
its stdin, and the figures as variables; only the newest figures wait. What was asked for is
withdrawn when the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from launcher.model.console import format_time
from launcher.model.errors import sanitize
from launcher.observe.run_events import NodesRequested
from launcher.observe.sinks.node_demand import DemandHistory, decide_demand
from launcher.observe.sinks.shell_command import require_timeout_program, run_command
from launcher.observe.sinks.teller import Teller

LIMIT_S = 60.0
"""An API that provides machines may take tens of seconds to answer."""
CHECK_S = 1.0
"""Between two looks at the members: a leader hears of each change at once, others become leaders."""


class NodeRequester(Teller):
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
        label = f"{origin} {sanitize(command)}"
        require_timeout_program(label)

        def tell(line: bytes, variables: Mapping[str, str]) -> str:
            return run_command(command, line, LIMIT_S, variables)

        super().__init__(tell, label, 1, warn)
        self._origin = origin
        self._wanted = wanted
        self._count_nodes = count_nodes
        self._takes_over = takes_over
        self._has_ended = has_ended
        self._add_event = add_event
        self._history: DemandHistory | None = None
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
            self.drop()  # the leader has newer figures
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
        super().close()

    def _queue(self, event: NodesRequested) -> None:
        variables = {"NODES_WANTED": str(event.wanted), "NODES_PRESENT": str(event.present), "NODES_SINCE": event.since}
        self.put(event, variables)
