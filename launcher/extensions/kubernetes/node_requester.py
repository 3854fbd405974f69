"""--request-nodes: a part that runs a command which is told how many nodes the run wants and has.

Only the agent that leads tells (`node_demand` decides what and when). The command gets an event as a line of JSON on
its stdin, and the figures as variables; only the newest figures wait. What was asked for is
withdrawn when the run ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.agent.membership import PartContext
from launcher.model.console import format_time, log
from launcher.model.errors import sanitize
from launcher.parts.part import Effect, Fact, Publish
from launcher.views.run_events import NodesRequested, encode_event
from launcher.views.sinks.node_demand import DemandHistory, choose_wanted, count_useful_nodes, decide_demand
from launcher.views.sinks.shell_command import require_timeout_program, run_command
from launcher.views.sinks.teller import Teller
from rendezvous.events import Exit
from rendezvous.machine import MemberMachine

LIMIT_S = 60.0
"""An API that provides machines may take tens of seconds to answer."""
CHECK_S = 1.0
"""Between two looks at the members: a leader hears of each change at once, others become leaders."""


class NodeRequester(Teller):
    """`make_event` makes the event of these figures: wanted, present, reason, since.

    `warn` gets what is told, or could not be.
    Raises UsageError for a command that can never be run.
    """

    def __init__(
        self,
        command: str,
        origin: str,
        wanted: int,
        machine: MemberMachine,
        make_event: Callable[..., NodesRequested],
        warn: Callable[[str], None],
    ) -> None:
        label = f"{origin} {sanitize(command)}"
        require_timeout_program(label)
        super().__init__(label, 1, warn)
        self._command = command
        self._origin = origin
        self._wanted = wanted
        self._machine = machine
        self._make_event = make_event
        self._history: DemandHistory | None = None
        self._has_ended = False  # the run, which is still to be said
        self._check_at = 0.0

    def tell(self, line: bytes, variables: Mapping[str, str]) -> str:
        return run_command(self._command, line, LIMIT_S, variables)

    @property
    def wake_at(self) -> float:
        return -math.inf if self._has_ended else self._check_at

    def take(self, fact: Fact) -> None:
        self._has_ended |= isinstance(fact.what, Exit) and fact.what.verdict is not None

    def advance(self, now: float) -> Iterable[Effect]:
        """Look at the members, and tell the command if it is time to."""
        if self.thread.is_missing:
            self.thread.start()
        if self._has_ended:
            self._has_ended = False
            return self._withdraw()
        self._check_at = now + CHECK_S
        if not self._machine.is_leader:
            self._history = None
            self.drop()  # the leader has newer figures
            return ()
        if self._history is None:  # others may have led this run before
            self._history = DemandHistory(is_owed=self._machine.has_taken_over)
        present = len(self._machine.list_members())
        decision = decide_demand(self._history, self._wanted, present, now)
        self._history = decision.history
        if not decision.reason:
            return ()
        since = decision.history.below_since
        since_text = "" if since is None else format_time(time.time() - (now - since))
        self._warn(f"{self._origin} runs its command: {decision.reason}")
        said = {"reason": decision.reason, "since": since_text}
        return self._queue(self._make_event(wanted=self._wanted, present=present, **said))

    def _withdraw(self) -> Iterable[Effect]:
        if self._history is None or not self._history.is_owed:
            return ()
        return self._queue(self._make_event(wanted=0, present=0, reason="the run has ended", since=""))

    def _queue(self, event: NodesRequested) -> Iterable[Effect]:
        variables = {"NODES_WANTED": str(event.wanted), "NODES_PRESENT": str(event.present), "NODES_SINCE": event.since}
        self.put(encode_event(event), variables)
        return [Publish(event)]


def make_requester(node: PartContext) -> NodeRequester:
    """Make the part for --request-nodes. Raises UsageError for a command that can never be run."""
    options, asked = node.config.placement, node.config.extensions["request-nodes"]
    useful = count_useful_nodes(options.grid, node.membership.elastic_max, len(node.slots))
    target = int(node.config.rendezvous.settings.get("target_nodes", 0))

    def make_event(**figures: Any) -> NodesRequested:
        own: dict[str, Any] = {"run_id": node.layout.run_id, "node": node.host, "round": node.running.number}
        return NodesRequested(at=time.time(), **own, **figures)

    wanted = choose_wanted(options.nodes_min, options.nodes_max, target, useful)
    machine = node.membership.driver.machine
    return NodeRequester(asked.read(), asked.origin, wanted, machine, make_event, log)
