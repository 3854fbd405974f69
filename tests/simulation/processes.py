"""The processes that one simulated node runs for a round, and the watchdog that kills them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from rendezvous import events
from rendezvous.events import Event
from tests.simulation.config import ClusterConfig, parse_rank
from tests.simulation.network import Timeline

SUPERVISOR_LATE_S = 0.05  # a supervisor kills its workers within this after the agent's end


class Running(NamedTuple):
    """What the processes of one node were started with."""

    job: str
    round: int
    rank: int
    world_size: int
    coordinator: str
    restart_count: int


class SimulatedProcesses:
    """`send` gives events to the agent; `on_exit` is called when no process is left."""

    def __init__(
        self,
        name: str,
        *,
        timeline: Timeline,
        config: ClusterConfig,
        send: Callable[[Event], None],
        on_exit: Callable[[], None],
    ) -> None:
        self.name = name  # of the node
        self.running: Running | None = None
        self.running_as = ""  # the member id under which they were started
        self.has_finished = False  # all have exited with success, or one has failed
        self.step = -1  # the highest training step that they have reported
        self.finished_as: dict[int, str] = {}  # round that has finished -> the member id under which it ran
        self.ended_as: dict[int, tuple[str, int]] = {}  # round -> "succeeded" or "failed", and the exit code
        self.hangs_until = -math.inf  # until then the kernel does not let them die
        self.watchdog_until = math.inf
        self.ports = itertools.count(20_000)
        self._last_job = ""
        self._timeline = timeline
        self._config = config
        self._send = send
        self._on_exit = on_exit

    @property
    def may_still_act(self) -> bool:
        """Whether processes are alive; not if SIGKILL is pending and the kernel holds them."""
        return self.running is not None and self._timeline.now >= self.hangs_until

    def prepare(self, start: events.StartRound, job: str) -> Running:
        """The processes that this action describes; they do not run yet."""
        rank = parse_rank(start.assignment)
        restarts = f" after {start.restart_count} restarts" if start.restart_count else ""
        self._timeline.trace(f"{self.name} starts rank {rank} of {start.world_size} in round {start.round}{restarts}")
        return Running(job, start.round, rank, start.world_size, start.coordinator, start.restart_count)

    def start(self, running: Running, member_id: str) -> None:
        if running.job != self._last_job:  # whose rounds are counted anew
            self._last_job, self.finished_as, self.ended_as = running.job, {}, {}
        self.running, self.running_as, self.has_finished, self.step = running, member_id, False, -1

    def stop(self, stop: events.StopRound) -> None:
        """Have the processes end within the grace; the agent kills those that are left after it."""
        self._timeline.trace(f"{self.name} stops round {stop.round} ({stop.mode}): {stop.reason}")
        self.kill_later(self._draw_stop_time_s(stop.mode))

    def _draw_stop_time_s(self, mode: str) -> float:
        if self._config.stop_s is not None:
            return self._config.stop_s
        if mode == "fence":
            return 0.005
        return self._timeline.random.uniform(0.01, self._config.settings.get_grace_s(mode))

    def kill_later(self, within_s: float) -> None:
        self._timeline.call_later(within_s, self.kill, self.running)

    def kill(self, which: Running | None) -> None:
        """End the processes that were started as `which`, if they still run, once the kernel lets them die."""
        if which is not None and self.running is which:
            if self._timeline.now < self.hangs_until:
                self._timeline.call_at(self.hangs_until, self.kill, which)
                return
            self.running = None
            self._send(events.RoundStopped(which.round, next(self.ports), self.step))
            self._on_exit()

    def hang(self, duration_s: float) -> None:
        """Let no process die for this long, as if the kernel held it in an uninterruptible call."""
        self.hangs_until = max(self.hangs_until, self._timeline.now + duration_s)

    def extend_watchdog(self, until: float) -> None:
        self.watchdog_until = until
        self._timeline.call_at(until, self.check_watchdog)

    def check_watchdog(self) -> None:
        """Kill the workers if the watchdog has expired; processes that they have started may live a little longer."""
        if self.running is not None and self._timeline.now >= self.watchdog_until:
            self._timeline.trace(f"{self.name} reaches the end of its watchdog")
            self._timeline.count("watchdog ended")
            if self._config.children_late_s:
                late_s = self._timeline.random.uniform(0.0, self._config.children_late_s)
                self._timeline.call_later(late_s, self._end_watchdog, self.running)
            else:
                self._end_watchdog(self.running)

    def _end_watchdog(self, which: Running) -> None:
        if self.running is which:
            self._send(events.WatchdogExpired())
            self.kill(which)

    # --- what the processes do ---

    def succeed(self) -> None:
        """All exit with success."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            self.finished_as[self.running.round] = self.running_as
            self.ended_as[self.running.round] = ("succeeded", 0)
            self._send(events.RoundSucceeded(self.running.round))

    def fail(self, exit_code: int = 1, is_peer_loss: bool = False, is_port_taken: bool = False, **claim: Any) -> None:
        """One process fails. `claim`: what it says of the failure itself, and how it failed, as in RoundFailed."""
        if self.running is not None and not self.has_finished:
            self.has_finished = True
            round, rank = self.running.round, self.running.rank
            self.ended_as[round] = ("failed", exit_code)
            failure = f"exit {exit_code} on {self.name}"
            self._send(events.RoundFailed(round, exit_code, is_peer_loss, failure, rank, is_port_taken, **claim))

    def fail_again(self) -> None:
        """Another process fails after the first failure was reported."""
        if self.running is not None and self.has_finished:
            round, rank = self.running.round, self.running.rank
            self._send(events.RoundFailed(round, 121, False, f"exit 121 on {self.name}", rank))

    def save(self) -> None:
        """The processes save a checkpoint."""
        if self.running is not None and not self.has_finished:
            self._send(events.CheckpointSaved(self.running.round))
