"""What the driver does next: the states of all agents in, actions out, each with its reason. Pure.

Every slot is one bundle that Ray has been asked for, and the agent in it. A slot goes round: Ray gives its bundle a
node, the driver starts an actor there, the actor's agent runs and ends. What may be lost at any time is the node. Ray
tells that in two errors, seconds apart: first it cannot reach the actor, which may be an outage of the network, so the
same actor is asked again; once Ray holds the node for dead the actor is gone, Ray gives the bundle another node as soon
as there is one, and an agent is started there, after a pause. Neither is a failure of the job, which goes on without
the node meanwhile, by meshrun's own rules, and neither is counted as a restart.

The first bundles, as many as the job needs at least, are one group of Ray's, which is placed all at once or not at all.
Each further bundle is a group of its own that excludes the nodes in use, so that one missing node holds up no other; it
is asked for only once the first group has its nodes, since it could take the last one of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.extensions.ray.bundles import ClusterNode, Demand, describe_shortage
from launcher.logs.reports.outcome import RunOutcome
from launcher.views.sinks.node_demand import DemandHistory, decide_demand
from rendezvous.errors import EXIT_BUG, EXIT_FAILURE, EXIT_FENCED, EXIT_STOPPED, EXIT_TEMPORARY

ASK_AGAIN_S = 1.0  # an actor that could not be reached
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0  # before an agent is started again; doubled while agents end soon
STEADY_S = 60.0  # an agent that ran for so long has not failed at its start
CRASHES_MAX = 5  # of agents in one slot, one soon after the other; or starts that failed
EXCLUDE_AGAIN_S = 5.0  # between two requests for the same bundle
END_LIMIT_S = 15.0  # beyond the workers' grace, for agents to end once the job has

Phase = Literal["unplaced", "starting", "running", "unreachable", "pausing", "ended"]
_ACTIVE = ("starting", "running", "unreachable")


# --- what has happened ---


class StartReported(Struct, frozen=True):
    slot: int
    node: str


class EndReported(Struct, frozen=True):
    """An agent has ended."""

    slot: int
    exit_code: int
    """Negative for a signal."""
    outcome: RunOutcome | None
    """None if the agent left none, as after SIGKILL."""


class ActorUnreachable(Struct, frozen=True):
    slot: int


class ActorDied(Struct, frozen=True):
    slot: int
    reason: str


class StopRequested(Struct, frozen=True):
    signum: int


PoolEvent = StartReported | EndReported | ActorUnreachable | ActorDied | StopRequested


class ClusterView(Struct, frozen=True):
    """What Ray shows of its cluster."""

    nodes: Sequence[ClusterNode]
    placed: Mapping[int, str]
    """Slot to the node of its bundle, where Ray has given it one."""
    draining: frozenset[str] = frozenset()
    """Nodes that Ray is about to take away."""


# --- what to do ---


class RequestGroup(Struct, frozen=True):
    """Ask Ray for bundles for these slots, on a node each that is none of `excluded`."""

    slots: tuple[int, ...]
    excluded: tuple[str, ...] = ()


class RemoveGroup(Struct, frozen=True):
    """Give back the bundle of this slot, which is a group of its own."""

    slot: int


class StartAgent(Struct, frozen=True):
    """Start an actor in the slot's bundle. `number` is 1 for the first agent on its node, 2 for another beside it."""

    slot: int
    node: str
    number: int


class AskAgain(Struct, frozen=True):
    slot: int


class StopAgent(Struct, frozen=True):
    slot: int


class DiscardActor(Struct, frozen=True):
    slot: int


class Say(Struct, frozen=True):
    sentence: str


class FinishJob(Struct, frozen=True):
    outcome: RunOutcome


PoolAction = RequestGroup | RemoveGroup | StartAgent | AskAgain | StopAgent | DiscardActor | Say | FinishJob


class _AgentSlot(Struct):
    """A place for one agent, and what has happened there."""

    index: int
    phase: Phase = "unplaced"
    node: str = ""
    excluded: tuple[str, ...] | None = None
    """Nodes that the request for its bundle excludes, None without a request."""
    requested_at: float = -math.inf
    started_at: float = 0.0
    next_at: float = 0.0
    """When to start an agent, or to ask an actor again."""
    pause_s: float = PAUSE_MIN_S
    crashes: int = 0
    failed_starts: int = 0
    is_leaving: bool = False
    """Its agent was told to leave a node that is drained."""
    outcome: RunOutcome | None = None
    """Of its last agent."""


# docs/internals/decisions/0053-agents-as-actors-and-a-store-in-the-driver.md
class AgentPool(Struct, kw_only=True):
    """Decides for one job. All times are seconds of one clock, which `step` gets."""

    demand: Demand
    grace_s: float
    """From the stop signal to the kill of workers."""
    format_moment: Callable[[float], str]
    """Makes the time of day of a time, for sentences."""
    start_limit_s: float = math.inf
    """For the first agent."""
    return_limit_s: float = math.inf
    """For another, once all are lost."""
    _slots: list[_AgentSlot] = field(default_factory=list)
    _actions: list[PoolAction] = field(default_factory=list)  # of the present step
    _now: float = 0.0
    _main_was_placed: bool = False
    _has_run: bool = False
    """Whether any agent has run."""
    _nodes: DemandHistory = DemandHistory()
    """How many were wanted and present, and what was logged about it."""
    _empty_since: float | None = None
    """Since when no agent has run, None while one does."""
    _asked_to_stop: StopRequested | None = None
    _ends_by: float = math.inf
    _verdict: RunOutcome | None = None
    _is_finished: bool = False

    def __post_init__(self) -> None:
        self._slots += [_AgentSlot(index=index) for index in range(self.demand.most)]

    def step(self, events: Iterable[PoolEvent], view: ClusterView, now: float) -> tuple[PoolAction, ...]:
        """Return what to do now."""
        self._now, self._actions = now, []
        if self._slots[0].excluded is None:  # the first step
            self._request(tuple(range(self.demand.least)), ())
        for event in events:
            self._take(event)
        if not self._is_finished and self._asked_to_stop is None and self._verdict is None:
            self._drain(view)
            self._place(view)
            self._start(view)
            self._say_shortage(view)
        self._ask_again()
        if not self._is_finished:
            self._finish()
        return tuple(self._actions)

    # --- events ---

    def _take(self, event: PoolEvent) -> None:
        if isinstance(event, StopRequested):
            self._stop(event)
            return
        slot = self._slots[event.slot]
        if slot.phase not in _ACTIVE:
            return  # of an actor that was discarded
        if isinstance(event, StartReported):
            slot.phase, slot.node, slot.failed_starts, self._has_run = "running", event.node, 0, True
            if slot.is_leaving or self._asked_to_stop is not None:
                self._do(StopAgent(slot.index))  # again: its node could not be reached, and the first may be lost
        elif isinstance(event, EndReported):
            self._end(slot, event)
        elif isinstance(event, ActorUnreachable):
            if slot.phase != "unreachable":
                self._say(f"node {_short(slot.node)} does not answer Ray: its agent may still run; asking again")
            slot.phase, slot.next_at = "unreachable", self._now + ASK_AGAIN_S
        else:
            self._lose(slot, event.reason)

    def _stop(self, event: StopRequested) -> None:
        if self._asked_to_stop is not None:
            self._ends_by = self._now  # asked again: without waiting for agents
            return
        self._asked_to_stop = event
        self._ends_by = min(self._ends_by, self._now + self.grace_s + END_LIMIT_S)
        for slot in self._slots:
            if slot.phase == "running":
                self._do(StopAgent(slot.index))
            else:
                self._discard(slot)

    def _end(self, slot: _AgentSlot, event: EndReported) -> None:
        code, how = event.exit_code, f"ended with exit code {event.exit_code}"
        if event.exit_code < 0:
            code, how = 128 - event.exit_code, f"was ended by signal {-event.exit_code}"
        outcome = event.outcome or RunOutcome(exit_code=code, reason=f"the agent on node {_short(slot.node)} {how}")
        slot.phase, slot.outcome = "ended", outcome
        self._do(DiscardActor(slot.index))
        if outcome.has_verdict:
            if self._verdict is not None:
                self._verdict = merge_outcomes(self._verdict, outcome)
            else:
                self._verdict = outcome
                self._ends_by = min(self._ends_by, self._now + self.grace_s + END_LIMIT_S)
                for other in self._slots:
                    if other.phase in ("unplaced", "pausing", "starting"):
                        self._discard(other)
            return
        if self._asked_to_stop is not None or self._verdict is not None:
            return
        if slot.is_leaving:
            slot.phase, slot.is_leaving, slot.next_at = "pausing", False, self._now
            self._say(f"the agent on node {_short(slot.node)} has left; another node takes its place when there is one")
        elif event.exit_code < 0 or outcome.exit_code in (EXIT_BUG, EXIT_FENCED, EXIT_TEMPORARY):
            self._restart(slot, outcome)
        elif outcome.exit_code:
            self._say(f"the agent on node {_short(slot.node)} has left: {outcome.reason}")

    def _restart(self, slot: _AgentSlot, outcome: RunOutcome) -> None:
        """Start an agent that ended by itself again, after a pause, unless that has failed several times in a row."""
        is_steady = self._now >= slot.started_at + STEADY_S
        slot.crashes = 1 if is_steady else slot.crashes + 1
        slot.pause_s = PAUSE_MIN_S if is_steady else min(slot.pause_s * 2, PAUSE_MAX_S)
        if slot.crashes >= CRASHES_MAX:
            self._say(f"the agent on node {_short(slot.node)} is not started again: {outcome.reason}")
            return
        slot.phase, slot.next_at = "pausing", self._now + slot.pause_s
        self._say(f"{outcome.reason}; it is started again in {slot.pause_s:g} s")

    def _lose(self, slot: _AgentSlot, reason: str) -> None:
        slot.failed_starts += slot.phase == "starting"
        if slot.failed_starts >= CRASHES_MAX:
            sentence = f"no agent can be started on node {_short(slot.node)}: {reason}"
            slot.phase, slot.outcome = "ended", RunOutcome(exit_code=EXIT_FAILURE, reason=sentence)
            self._do(DiscardActor(slot.index))
            self._say(sentence)
            return
        is_steady = self._now >= slot.started_at + STEADY_S
        slot.pause_s = PAUSE_MIN_S if is_steady else min(slot.pause_s * 2, PAUSE_MAX_S)
        slot.phase, slot.next_at, slot.is_leaving = "pausing", self._now + slot.pause_s, False
        self._do(DiscardActor(slot.index))
        if self._asked_to_stop is None and self._verdict is None:
            again = "it is started again where Ray places its bundle"
            self._say(f"the agent on node {_short(slot.node)} is lost: {reason}; {again}")

    # --- placement ---

    def _drain(self, view: ClusterView) -> None:
        for slot in self._slots:
            if slot.phase == "running" and slot.node in view.draining and not slot.is_leaving:
                slot.is_leaving = True
                self._do(StopAgent(slot.index))
                self._say(f"Ray is removing node {_short(slot.node)}: its agent leaves")

    def _place(self, view: ClusterView) -> None:
        least = self.demand.least
        if not self._main_was_placed:
            self._main_was_placed = all(view.placed.get(index) for index in range(least))
            if not self._main_was_placed:
                return
        for slot in self._slots:
            if slot.phase == "starting" and view.placed.get(slot.index) != slot.node:
                slot.failed_starts = 0
                self._lose(slot, "Ray has moved its bundle before the agent began")
        for slot in self._slots[least:]:
            if slot.phase == "ended" and slot.excluded is not None:
                self._do(RemoveGroup(slot.index))  # others may have the node that it will not use again
                slot.excluded = None
            if slot.phase in _ACTIVE or slot.phase == "ended":
                continue
            used = self._list_used(view, slot)
            node = view.placed.get(slot.index, "")
            is_old = not node and slot.excluded != used
            is_due = self._now >= slot.requested_at + EXCLUDE_AGAIN_S
            if slot.excluded is None:
                self._request((slot.index,), used)
            elif node in used or (is_due and (is_old or node in view.draining)):
                self._do(RemoveGroup(slot.index))
                self._request((slot.index,), used)

    def _list_used(self, view: ClusterView, own: _AgentSlot) -> tuple[str, ...]:
        """Return the nodes on which another slot's agent still runs, or that Ray has given to an earlier slot."""
        nodes = {slot.node for slot in self._slots if slot is not own and slot.phase in _ACTIVE}
        nodes |= {view.placed.get(slot.index, "") for slot in self._slots[: own.index]}
        return tuple(sorted(nodes - {""}))

    def _start(self, view: ClusterView) -> None:
        alive = {node.id for node in view.nodes}
        requested = {action.slots[0] for action in self._actions if isinstance(action, RequestGroup)}
        for slot in self._slots:
            node = view.placed.get(slot.index, "")
            is_due = slot.phase == "unplaced" or (slot.phase == "pausing" and self._now >= slot.next_at)
            if not is_due or slot.index in requested or node not in alive or node in view.draining:
                continue
            if not self._main_was_placed:
                continue
            number = 1 + sum(other.node == node and other.phase in _ACTIVE for other in self._slots)
            slot.phase, slot.node, slot.started_at, slot.outcome = "starting", node, self._now, None
            self._do(StartAgent(slot.index, node, number))

    def _request(self, slots: tuple[int, ...], excluded: tuple[str, ...]) -> None:
        for index in slots:
            self._slots[index].excluded, self._slots[index].requested_at = excluded, self._now
        self._do(RequestGroup(slots, excluded))

    # --- what people are told ---

    def _say_shortage(self, view: ClusterView) -> None:
        """Say how many nodes have their agent, once that has lasted, and again ever more seldom; and that all have."""
        present = sum(slot.phase == "running" for slot in self._slots)
        wanted = sum(slot.phase != "ended" for slot in self._slots)
        decision = decide_demand(self._nodes, wanted, present, self._now)
        self._nodes = decision.history
        since = decision.history.below_since
        if decision.reason and since is not None:
            starting = sum(slot.phase == "starting" for slot in self._slots)
            self._say(describe_shortage(self.demand, wanted, present, starting, view.nodes, self.format_moment(since)))
        elif decision.reason:
            self._say(decision.reason)

    def _say(self, sentence: str) -> None:
        self._do(Say(sentence))

    # --- the end ---

    def _ask_again(self) -> None:
        for slot in self._slots:
            if slot.phase == "unreachable" and self._now >= slot.next_at:
                slot.next_at = math.inf  # until its answer
                self._do(AskAgain(slot.index))

    def _finish(self) -> None:
        now = self._now
        active = [slot for slot in self._slots if slot.phase in _ACTIVE]
        if self._asked_to_stop is not None or self._verdict is not None:
            if not active or now >= self._ends_by:
                self._finish_by(self._verdict or self._make_stopped(len(active)))
            return
        if any(slot.phase != "starting" for slot in active):
            self._empty_since = None
            return
        since = now if self._empty_since is None else self._empty_since
        self._empty_since = since
        since = max([since, *(slot.started_at for slot in active)])
        if not active:
            self._finish_if_all_left()
        limit_s = self.return_limit_s if self._has_run else self.start_limit_s
        if not self._is_finished and now >= since + limit_s:
            missing = "no node has come back" if self._has_run else "Ray has not given the job its nodes"
            option = "--rejoin-timeout" if self._has_run else "--start-timeout"
            sentence = f"{'no agent has started' if active else missing} for {limit_s:g} s ({option})"
            self._finish_by(RunOutcome(exit_code=EXIT_TEMPORARY, reason=sentence))

    def _finish_if_all_left(self) -> None:
        has_left = any(
            slot.phase == "ended" and max(slot.crashes, slot.failed_starts) < CRASHES_MAX for slot in self._slots
        )
        is_returning = any(
            not has_left if slot.outcome is None else slot.outcome.exit_code != EXIT_TEMPORARY
            for slot in self._slots
            if slot.phase == "pausing"
        )
        if (last := self._find_last_outcome()) is not None and not is_returning:
            self._finish_by(last)

    def _make_stopped(self, left: int) -> RunOutcome:
        assert self._asked_to_stop is not None
        if (last := self._find_last_outcome()) is not None and not left:
            return last
        reason = "the job was stopped" + (f", and {left} agents had not ended yet" if left else "")
        code = EXIT_STOPPED if self._asked_to_stop.signum <= 0 else 128 + self._asked_to_stop.signum
        return RunOutcome(exit_code=code, reason=reason)

    def _find_last_outcome(self) -> RunOutcome | None:
        """Return how the agents ended, those that were started again aside: the first that was no success, if any."""
        outcomes = [slot.outcome for slot in self._slots if slot.outcome is not None]
        return next((outcome for outcome in outcomes if outcome.exit_code), outcomes[0] if outcomes else None)

    def _finish_by(self, outcome: RunOutcome) -> None:
        self._is_finished = True
        for slot in self._slots:
            self._discard(slot)
        self._do(FinishJob(outcome))

    def _discard(self, slot: _AgentSlot) -> None:
        if slot.phase in _ACTIVE:
            self._do(DiscardActor(slot.index))
        slot.phase = "ended"

    def _do(self, action: PoolAction) -> None:
        self._actions.append(action)


def merge_outcomes(first: RunOutcome, other: RunOutcome) -> RunOutcome:
    """Return what two agents say of the same end: all ranks, and the failures of the one that has its last lines."""
    if first.round != other.round or first.exit_code != other.exit_code:
        return first
    has_more = bool(other.failures and other.failures[0].tail) and not (first.failures and first.failures[0].tail)
    return replace(other if has_more else first, ranks=tuple(sorted({*first.ranks, *other.ranks})))


def _short(node: str) -> str:
    """Return a node's id as Ray's own tables shorten it."""
    return node[:8] or "?"
