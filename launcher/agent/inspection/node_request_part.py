"""The part that asks for nodes: `--request-nodes`, as long as this agent leads."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

from launcher.agent.parts.part import Effect, Fact, Publish
from launcher.config.config import Config
from launcher.model import mesh as meshes
from launcher.model.console import log
from launcher.observe.run_events import NodesRequested
from launcher.observe.sinks.node_demand import choose_wanted, count_useful_nodes
from launcher.observe.sinks.node_requester import NodeRequester
from rendezvous.events import Exit
from rendezvous.machine import MemberMachine


class NodeRequestPart:
    """`make_event` makes the event of (wanted, present, reason, since). Raises UsageError for a command that cannot be
    run at all.
    """

    def __init__(
        self,
        command: str,
        origin: str,
        wanted: int,
        machine: MemberMachine,
        make_event: Callable[[int, int, str, str], NodesRequested],
    ) -> None:
        self._events: deque[NodesRequested] = deque()
        self._make_event = make_event
        self._has_ended = False  # the run, and that has not been said yet
        self._requester = NodeRequester(
            command,
            origin,
            wanted,
            lambda: len(machine.list_members()) if machine.is_leader else None,
            lambda: machine.has_taken_over,
            self._add_event,
            log,
        )

    @property
    def wake_at(self) -> float:
        return -math.inf if self._has_ended else self._requester.wake_at

    def take(self, fact: Fact) -> None:
        self._has_ended |= isinstance(fact.what, Exit) and fact.what.verdict is not None

    def advance(self, now: float) -> Iterable[Effect]:
        if self._has_ended:
            self._has_ended = False
            self._requester.withdraw()
        else:
            self._requester.advance(now)
        if self._requester.thread.is_missing:
            self._requester.thread.start()
        return [Publish(self._events.popleft()) for _ in range(len(self._events))]

    def close(self) -> None:
        self._requester.close()

    def _add_event(self, wanted: int, present: int, reason: str, since: str) -> NodesRequested:
        self._events.append(self._make_event(wanted, present, reason, since))
        return self._events[-1]


def make_node_request_part(
    config: Config,
    command: str,
    machine: MemberMachine,
    elastic_max: int | None,
    slot_count: int,
    find_round: Callable[[], int],
    run_id: str,
    node: str,
) -> NodeRequestPart:
    """Make what runs the command. `slot_count`: of this node, as of those that are wanted. `elastic_max`: the largest
    size of the elastic axis, None for no limit. Raises UsageError.
    """
    useful = count_useful_nodes(config.mesh or meshes.DEFAULT_MESH, elastic_max, slot_count)
    target = int(config.settings.get("target_nodes", 0))

    def make_event(wanted: int, present: int, reason: str, since: str) -> NodesRequested:
        return NodesRequested(
            at=time.time(),
            run_id=run_id,
            node=node,
            round=find_round(),
            wanted=wanted,
            present=present,
            reason=reason,
            since=since,
        )

    wanted = choose_wanted(config.nodes_min, config.nodes_max, target, useful)
    return NodeRequestPart(command, config.origins["request_nodes"], wanted, machine, make_event)
