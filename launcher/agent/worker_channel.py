"""What agent and workers have to say to each other while a round runs on this node.

The agent asks workers to stop, and hears which of them ask for that by themselves; workers say that they are alive,
or that they have saved. Most of it goes over the shared page (launcher/hardware/linux/shared_page.py), which wakes
nobody: the agent looks at it when it stops a round, and now and then where silence counts as a failure.

A worker that asks by itself needs no signal, and without a handler it would die of it before it could ask. So the
signal of a graceful stop goes to it only if its process has a handler, which the kernel knows; SIGINT never, for
Python's own handler would break off the step.
"""

from __future__ import annotations

import math
import select
import signal
from collections.abc import Collection

from launcher.agent.lifecycle import Round
from launcher.hardware.linux.shared_page import SharedPage
from launcher.model.errors import UsageError
from launcher.supervisor.handle import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.heartbeats import Heartbeats
    from launcher.ranks.checkpoint_socket import CheckpointSocket

ABORT_GRACE_S = 3.0
"""From SIGABRT, on which a silent worker prints its stacks, to SIGKILL; then it has failed even if it is not gone."""


class WorkerChannel:
    """`shared_page` None: this kernel has none. Raises UsageError if heartbeats were asked for then.

    `checkpoint_socket`: what hears of workers that have saved, if any does.
    """

    def __init__(
        self,
        shared_page: SharedPage | None,
        supervisor: Supervisor,
        heartbeat_timeout_s: float | None,
        *,
        checkpoint_socket: CheckpointSocket | None = None,
    ) -> None:
        if heartbeat_timeout_s is not None and shared_page is None:
            raise UsageError("--heartbeat-timeout: workers cannot be heard here, since memfd_create fails")
        self._shared_page = shared_page
        self._supervisor = supervisor
        self._timeout_s = heartbeat_timeout_s
        self._checkpoint_socket = checkpoint_socket
        self._heartbeats: Heartbeats | None = None
        self._pids: dict[int, int] = {}
        self._stop_round = 0
        self._unresponsive: dict[int, float] = {}  # local rank -> when it is killed, infinite once it has been

    def register(self, poll: select.poll) -> None:
        """Have the agent's loop wake when a worker has something to say."""
        if self._checkpoint_socket is not None:
            poll.register(self._checkpoint_socket, select.POLLIN)

    def take_saved_rounds(self) -> list[int]:
        """The rounds of which workers have said that a checkpoint is saved."""
        return self._checkpoint_socket.take() if self._checkpoint_socket is not None else []

    @property
    def wake_at(self) -> float:
        """When to call `lost`."""
        if self._heartbeats is None:
            return math.inf
        return min((self._heartbeats.wake_at, *self._unresponsive.values()))

    def begin(self, worker_count: int, now: float) -> None:
        """A round is about to start."""
        self._pids, self._unresponsive = {}, {}
        if self._timeout_s is not None:
            from launcher.agent.heartbeats import Heartbeats

            self._heartbeats = Heartbeats(self._timeout_s, now)
        if self._shared_page is not None:
            self._shared_page.begin(worker_count, self._timeout_s)

    def add_worker(self, local_rank: int, pid: int) -> None:
        """A worker runs."""
        self._pids[local_rank] = pid

    def request_stop(self, round: int) -> None:
        """The workers of this round may save, and should end."""
        self._stop_round = round
        if self._shared_page is not None:
            self._shared_page.request_stop(round)

    def signal_workers(self, round: Round, signum: int) -> None:
        """Send the signal of a stop to the workers that it is meant for."""
        is_asked = self._shared_page is not None and round.round == self._stop_round
        askers = self._shared_page.list_stop_pollers(round.round) if self._shared_page is not None and is_asked else ()
        spared = {rank for rank in askers if signum == signal.SIGINT or not self._has_handler(rank, signum)}
        self._supervisor.signal(round.round, signum, sorted(round.live - spared) if spared else None)

    def check_heartbeats(self, round: Round, now: float) -> list[tuple[int, int, str]]:
        """Look for silent workers, and send SIGABRT to them. Who is still there `ABORT_GRACE_S` later is lost: its
        local rank, its pid, and a sentence why.

        Workers that have been told to end may be silent: they save, and their time is limited anyway.
        """
        if self._shared_page is None or self._heartbeats is None:
            return []
        live: Collection[int] = () if round.is_stopping else round.live
        if now >= self._heartbeats.wake_at:
            silent = self._heartbeats.observe(self._shared_page.read_heartbeats(), live, now)
            self._unresponsive.update(dict.fromkeys(silent, now + ABORT_GRACE_S))
            if silent:
                self._supervisor.signal(round.round, signal.SIGABRT, silent)
        stuck = [rank for rank, at in self._unresponsive.items() if at <= now and rank in live]
        if stuck:
            self._supervisor.signal(round.round, signal.SIGKILL, stuck)
        self._unresponsive.update((rank, math.inf) for rank, at in self._unresponsive.items() if at <= now)
        return [(rank, self._pids.get(rank, 0), self.explain_end(rank) or "") for rank in stuck]

    def explain_end(self, local_rank: int) -> str | None:
        """Why we have ended this worker; None if we have not."""
        return f"no heartbeat for {self._timeout_s:g} s" if local_rank in self._unresponsive else None

    def _has_handler(self, local_rank: int, signum: int) -> bool:
        """Whether the worker's process catches the signal."""
        try:
            with open(f"/proc/{self._pids[local_rank]}/status", "rb") as file:
                caught = next(line for line in file if line.startswith(b"SigCgt:"))
        except (OSError, KeyError, StopIteration):  # it has just ended
            return False
        return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
