"""What runs on a simulated machine beside the agent: the processes of one round, and the watchdog that ends them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from rendezvous.events import (
    CheckpointSaved,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    StartRound,
    StopRound,
    WatchdogExpired,
)
from rendezvous.testing.simulation.shape import parse_rank

if TYPE_CHECKING:
    from rendezvous.testing.simulation.node import SimulatedNode

SUPERVISOR_LATE_S = 0.05  # a supervisor kills its workers within this after the agent's end


class Running(NamedTuple):
    """The processes of one node: what they were told."""

    job: str
    round: int
    rank: int
    world_size: int
    coordinator: str
    restart_count: int


class SimulatedProcesses:
    def __init__(self, node: SimulatedNode) -> None:
        self.running: Running | None = None
        self.running_as = ""  # the member id that started them
        self.has_finished = False  # all have exited with success, or one has failed
        self.finished_as: dict[int, str] = {}  # rounds whose processes did so -> the member id they ran under
        self.ended_as: dict[int, tuple[str, int]] = {}  # round -> "succeeded" or "failed", and the exit code
        self.hangs_until = -math.inf  # they cannot be killed before
        self.watchdog_until = math.inf
        self.ports = itertools.count(20_000)
        self._node = node
        self._cluster = node.cluster

    @property
    def may_still_act(self) -> bool:
        """Whether what runs here counts as alive: not when SIGKILL is pending and the kernel holds the process."""
        return self.running is not None and self._cluster.now >= self.hangs_until

    def start(self, start: StartRound, job: str, member_id: str) -> None:
        node, rank = self._node, parse_rank(start.assignment)
        restarts = f" after {start.restart_count} restarts" if start.restart_count else ""
        self._cluster.trace(f"{node.name} starts rank {rank} of {start.world_size} in round {start.round}{restarts}")
        started = Running(job, start.round, rank, start.world_size, start.coordinator, start.restart_count)
        self._cluster.check_start(node, started)
        self.running, self.running_as, self.has_finished = started, member_id, False
        self._cluster.on_start(node)

    def stop(self, stop: StopRound) -> None:
        """End as they were told, within the grace; the agent kills what is left after it."""
        self._cluster.trace(f"{self._node.name} stops round {stop.round} ({stop.mode}): {stop.reason}")
        self._cluster.call_later(self._cluster.draw_stop_time_s(stop.mode), self.kill, self.running)

    def kill_later(self, within_s: float) -> None:
        self._cluster.call_later(within_s, self.kill, self.running)

    def kill(self, which: Running | None) -> None:
        """The processes that ran as `which` are gone now, if they are not already and nothing holds them."""
        if which is not None and self.running is which:
            if self._cluster.now < self.hangs_until:
                self._cluster.call_at(self.hangs_until, self.kill, which)
                return
            self.running = None
            self._node.send(RoundStopped(which.round, next(self.ports)))
            self._cluster.presence.notify_change(self._node)

    def hang(self, duration_s: float) -> None:
        """Let no process be killed for so long: the kernel holds it."""
        self.hangs_until = max(self.hangs_until, self._cluster.now + duration_s)

    def extend_watchdog(self, until: float) -> None:
        self.watchdog_until = until
        self._cluster.call_at(until, self.check_watchdog)

    def check_watchdog(self) -> None:
        """At the end of the watchdog workers are killed; what they have started may live a little longer than they."""
        if self.running is not None and self._cluster.now >= self.watchdog_until:
            self._cluster.trace(f"{self._node.name} reaches the end of its watchdog")
            self._cluster.count("watchdog ended")
            if self._cluster.children_late_s:
                late_s = self._cluster.random.uniform(0.0, self._cluster.children_late_s)
                self._cluster.call_later(late_s, self._end_watchdog, self.running)
            else:
                self._end_watchdog(self.running)

    def _end_watchdog(self, which: Running) -> None:
        if self.running is which:
            self._node.send(WatchdogExpired())
            self.kill(which)

    # --- how they end, or go on ---

    def succeed(self) -> None:
        """All exit with success."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            self.finished_as[self.running.round] = self.running_as
            self.ended_as[self.running.round] = ("succeeded", 0)
            self._node.send(RoundSucceeded(self.running.round))

    def fail(self, exit_code: int = 1, is_peer_loss: bool = False, is_port_taken: bool = False) -> None:
        """One fails."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            round, rank = self.running.round, self.running.rank
            self._cluster.failed_rounds.add(round)
            self.ended_as[round] = ("failed", exit_code)
            failure = f"exit {exit_code} on {self._node.name}"
            self._node.send(RoundFailed(round, exit_code, is_peer_loss, failure, rank, is_port_taken))

    def fail_again(self) -> None:
        """Another one fails, too, when the first failure is known."""
        if self.running is not None and self.has_finished:
            failed = RoundFailed(self.running.round, 121, False, f"exit 121 on {self._node.name}", self.running.rank)
            self._node.send(failed)

    def save(self) -> None:
        """They have saved their state."""
        if self.running is not None and not self.has_finished:
            self._node.send(CheckpointSaved(self.running.round))
