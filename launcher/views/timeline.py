"""A run's rounds and workers, built from its events: what status, history, metrics and pages show of the past.

One agent sees its own workers, and of the rounds what all agents are told: when they began and ended, how large they
were, and what ended them.
"""

from __future__ import annotations

from launcher.views import run_events
from launcher.views.goodput import TimeSpent
from launcher.views.run_events import RunEvent
from launcher.views.run_view import RankView, RoundView
from rendezvous.reasons import Reason

ROUNDS_MAX = 100
"""Rounds that are kept, the newest; as many as the store keeps."""
_OF_START = ("round", "world_size", "node_count", "ranks", "restart_count", "waited_s", "mesh")
"""What a round has of the event of its start."""


class RunTimeline:
    """What has happened so far. `waiting`: what the node waits for, None in a round.

    `before`: what became of the time since the agent's start, up to the first of `rounds`. `end_counts`: how many
    rounds ended, by cause.
    """

    def __init__(self) -> None:
        self.before = TimeSpent(until=0.0)
        self.rounds: list[RoundView] = []
        self.workers: dict[int, RankView] = {}
        self.waiting: Reason | None = None
        self.failure_counts: dict[str, int] = {}
        self.end_counts: dict[str, int] = {}
        self.checkpoint_count = 0
        self.hang_count = 0

    @property
    def current(self) -> RoundView | None:
        """The round that runs here, or is being stopped."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].ended_at else None

    def take(self, event: RunEvent, reason: Reason | None = None) -> None:
        """Take the next event. `reason`: why it happened, of which the event has the sentence."""
        self.before.until = self.before.until or event.at
        current = self.current
        match event:
            case run_events.RoundStarted():
                self.waiting, self.workers = None, {}
                for old in self.rounds[: 1 - ROUNDS_MAX]:
                    self.before.add(old, event.at)
                self.rounds = [*self.rounds[1 - ROUNDS_MAX :], _begin_round(event, reason)]
            case run_events.WorkerStarted():
                self.workers[event.local_rank] = _begin_worker(event)
            case run_events.WorkerEnded():
                worker = self.workers.setdefault(event.local_rank, _begin_worker(event))
                worker.state, worker.ended_at, worker.exit_code = event.outcome, event.at, event.exit_code
                worker.sentence = event.sentence
            case run_events.WaitChanged():
                self.waiting = reason
            case run_events.HangReported():
                self.hang_count += 1
                if current is not None:
                    current.hang = (event.sentence, *event.details)
            case run_events.HangEnded() if current is not None:
                current.hang = ()
            case _ if current is not None:
                self._take_of_round(current, event, reason)

    def _take_of_round(self, current: RoundView, event: RunEvent, reason: Reason | None) -> None:
        match event:
            case run_events.FailureFound():
                current.failed_rank, current.failure_class, current.error = event.rank, reason, event.error
                kind = str(reason.values.get("failure_class", "unknown")) if reason is not None else "unknown"
                self.failure_counts[kind] = self.failure_counts.get(kind, 0) + 1
            case run_events.CheckpointReported():
                current.saved_at = event.at
                self.checkpoint_count += 1
            case run_events.RoundStopping():
                current.cause, current.ended, current.nodes = event.cause, reason, event.nodes
            case run_events.RoundEnded():
                current.ended_at, current.ran_s, current.step = event.at, event.ran_s, max(current.step, event.step)
                self.end_counts[current.cause or "unknown"] = self.end_counts.get(current.cause or "unknown", 0) + 1


def _begin_round(event: run_events.RoundStarted, reason: Reason | None) -> RoundView:
    return RoundView(reason=reason, began_at=event.at, **{name: getattr(event, name) for name in _OF_START})


def _begin_worker(event: run_events.WorkerStarted | run_events.WorkerEnded) -> RankView:
    return RankView(rank=event.rank, local_rank=event.local_rank, pid=event.pid, started_at=event.at)
