"""The communication of agent and workers while a round runs on this node.

The agent asks workers to stop, and sees which of them poll for that; workers send heartbeats, or report a saved
checkpoint, the training step that they have reached, and what they know of their own failure. All of it goes over the
shared page (launcher/hardware/linux/shared_page.py), which wakes no process: the agent reads it when it stops a round,
when a worker has failed, and periodically where missing heartbeats count as a failure, or a saved checkpoint matters.

A worker that polls needs no signal, and without a handler it would die of it before it could poll. So the signal of a
graceful stop goes to it only if its process has a handler, which the kernel shows; SIGINT never, since Python's own
handler would interrupt the step.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from launcher.agent.lifecycle import Round
from launcher.hardware.linux.shared_page import SharedPage
from launcher.model.errors import make_shortage_error
from launcher.supervisor.handle import Supervisor

if TYPE_CHECKING:
    from launcher.supervisor.heartbeats import Heartbeats

ABORT_GRACE_S = 3.0
"""From SIGABRT, on which an unresponsive worker prints its stacks, to SIGKILL; then it has failed, ended or not."""
SAVES_CHECK_S = 1.0
"""Between two looks for saved checkpoints: a restart on more nodes takes longer."""


class WorkerChannel(Struct, eq=False):
    shared_page: SharedPage
    supervisor: Supervisor
    heartbeat_timeout_s: float | None
    reads_saves: bool = False
    """Whether saved checkpoints are reported."""
    watches_progress: bool = False
    """Whether heartbeats are read even without a time-out of theirs."""
    end_reasons: dict[int, str] = field(default_factory=dict)
    """Why the agent has ended workers of the round, by local rank."""
    _saves_at: float = math.inf
    _save_count: int = 0
    _heartbeats: Heartbeats | None = None
    _pids: Mapping[int, int] = field(default_factory=dict)
    _stop_round: int = 0
    _unresponsive: dict[int, float] = field(default_factory=dict)  # local rank -> when it is killed, then infinite

    @property
    def wake_at(self) -> float:
        """When to call `check_heartbeats` and `check_saves`."""
        next_at = self._heartbeats.wake_at if self._heartbeats is not None else math.inf
        return min((next_at, self._saves_at, *self._unresponsive.values()))

    def begin(self, pids: Mapping[int, int], worker_count: int, now: float) -> None:
        """Prepare for a round that is about to start. `pids`: by local rank, of workers whose start is confirmed.

        Raises TemporaryError if the shared page has no room: a ShortageError if that may pass.
        """
        self._pids, self._unresponsive, self.end_reasons = pids, {}, {}
        if self.heartbeat_timeout_s is not None:
            from launcher.supervisor.heartbeats import Heartbeats

            self._heartbeats = Heartbeats(self.heartbeat_timeout_s, now)
        wanted = {"reads_heartbeats": self.watches_progress, "reads_saves": self.reads_saves}
        try:
            self.shared_page.begin(worker_count, self.heartbeat_timeout_s, **wanted)
        except OSError as error:  # it is in /tmp where the kernel has no memory files
            raise make_shortage_error("cannot write to the file that agent and workers share", error) from error
        if self.reads_saves:
            self._saves_at, self._save_count = now + SAVES_CHECK_S, 0

    def end(self) -> None:
        """Note that the round is over: nothing is to be looked at."""
        self._heartbeats, self._saves_at, self._unresponsive = None, math.inf, {}

    def request_stop(self, round_number: int, until: float, reason: str) -> None:
        """Ask the workers of this round to save and end, `until` a time of the agent's clock."""
        self._stop_round = round_number
        with suppress(OSError):  # of a disk that copies what it writes: the signals follow all the same
            self.shared_page.request_stop(round_number, until, reason)

    def signal_workers(self, local_round: Round, signum: int, notice_signum: int = 0) -> None:
        """Send a stop's signal to all workers except those that poll and would not handle it.

        `notice_signum`: goes first to the workers that handle it; they get `signum` only if they handle that, too.

        A Python that handles a signal gets it alone: what it has started, such as the processes of its data loaders,
        would die of it before the worker has saved. Of any other program the whole group gets it, since a shell handles
        a signal only when the command that it runs has ended.
        """
        is_asked = local_round.round == self._stop_round
        pollers = self.shared_page.list_stop_pollers(local_round.round) if is_asked else ()
        handling = {rank for rank in local_round.live if self._has_handler(rank, signum)}
        noticing = {rank for rank in local_round.live if notice_signum and self._has_handler(rank, notice_signum)}
        spared = {rank for rank in pollers if signum == signal.SIGINT or rank not in handling} | (noticing - handling)
        # Every Python handles SIGINT, and what it has started ignores that or expects it, as from a terminal.
        alone = {rank for rank in handling - spared if signum != signal.SIGINT and _is_python(self._pids[rank])}
        for number, ranks in ((notice_signum, noticing), (signum, alone)):
            for rank in sorted(ranks):
                with suppress(OSError):  # it has just ended
                    os.kill(self._pids[rank], number)
        done = spared | alone
        self.supervisor.signal(local_round.round, signum, sorted(local_round.live - done) if done else None)

    def check_heartbeats(self, local_round: Round, now: float) -> list[int]:
        """Send SIGABRT to workers that are unresponsive, and SIGKILL to those that still live `ABORT_GRACE_S` later.

        Returns the local ranks of these. Workers that are stopping are not checked: they save, and their time is
        limited anyway.
        """
        live: Collection[int] = () if local_round.is_stopping else local_round.live
        if self._heartbeats is not None and now >= self._heartbeats.wake_at:
            hung = self._heartbeats.observe(self.shared_page.read_heartbeats(), live, now)
            self.abort(local_round, hung, f"no heartbeat for {self.heartbeat_timeout_s:g} s", now)
        stuck = [rank for rank, at in self._unresponsive.items() if at <= now and rank in live]
        if stuck:
            self.supervisor.signal(local_round.round, signal.SIGKILL, stuck)
        self._unresponsive.update((rank, math.inf) for rank, at in self._unresponsive.items() if at <= now)
        return stuck

    def check_saves(self, now: float) -> bool:
        """Whether the round's workers have reported a saved checkpoint since the last look.

        `now`: infinite at the end of the round.
        """
        if not self.reads_saves or now < self._saves_at:
            return False
        before, self._save_count = self._save_count, self.shared_page.read_save_count()
        self._saves_at = now + SAVES_CHECK_S
        return self._save_count != before

    def abort(self, local_round: Round, local_ranks: Sequence[int], reason: str, now: float) -> None:
        """End these workers: SIGABRT now, SIGKILL by `check_heartbeats` for those that still live later."""
        if local_ranks:
            self._unresponsive.update(dict.fromkeys(local_ranks, now + ABORT_GRACE_S))
            self.end_reasons.update(dict.fromkeys(local_ranks, reason))
            self.supervisor.signal(local_round.round, signal.SIGABRT, local_ranks)

    def _has_handler(self, local_rank: int, signum: int) -> bool:
        """Whether the worker's process catches the signal."""
        try:
            with open(f"/proc/{self._pids[local_rank]}/status", "rb") as file:
                caught = next(line for line in file if line.startswith(b"SigCgt:"))
        except (OSError, KeyError, StopIteration):  # it has just ended
            return False
        return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)


def _is_python(pid: int) -> bool:
    # Of a process that has ended, or runs a setuid program, realpath returns the path itself.
    return os.path.basename(os.path.realpath(f"/proc/{pid}/exe")).startswith("python")
