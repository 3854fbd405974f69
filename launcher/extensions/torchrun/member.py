"""This node's part in the agreement, in a thread of torchrun's agent.

torchrun calls from its main thread, at any time: for this node's state, for waiting nodes, at its end. The agreement
has events of its own. Between the two is one round at a time, which begins when the leader seals it, and is over on
this node when torchrun has stopped its workers and asks for the next. torchrun reports by the methods here, and reads
the agreement's state from them; all of them are for torchrun's thread.

There is no supervisor beside torchrun's agent. If the lease cannot be renewed, this node's workers are stopped by
torchrun's own means, which take it up to half a minute, and not by the kernel.
"""

from __future__ import annotations

import _socket
import math
import socket
import threading
import time

from launcher.agent.cluster import open_membership
from launcher.agent.membership import make_settings, read_clock
from launcher.agent.startup.startup import Startup
from launcher.config.config import Config
from launcher.extensions.torchrun.options import adjust_settings, get_worker_count
from launcher.logs.reports.round_log import RoundLog
from launcher.model.console import log
from launcher.model.errors import TemporaryError, describe
from launcher.placement.adapter.description import NodeAssignment, decode_assignment
from launcher.ranks.ports import bind_first, order_candidates
from rendezvous import events
from rendezvous.errors import EXIT_STOPPED
from rendezvous.events import Exit, StartRound
from rendezvous.reasons import Reason

SLEEP_LIMIT_S = 3600.0  # the longest sleep of the thread; nothing depends on it
ENDED = Reason.of("torchrun/ended")


class TorchrunMember:
    """Raises UsageError and TemporaryError, when the store does not admit this node."""

    def __init__(self, config: Config, startup: Startup) -> None:
        limits = (config.workers.max_restarts, config.shutdown.shutdown_timeout_s)
        self._settings = adjust_settings(make_settings(config.rendezvous, *limits))
        self._worker_count = get_worker_count(config)
        self._round_log = RoundLog(is_standalone=False, settings=self._settings)
        self.port = OfferedPort(startup.address, config.rendezvous.worker_port_range)
        self._wakeup = threading.Event()
        self._changed = threading.Condition()  # signalled to torchrun's thread; its lock guards the other fields
        self._start: StartRound | None = None  # of the round on this node, until torchrun's workers of it have ended
        self._is_begun = False  # torchrun has, or had, workers of it
        self._stop_reason: Reason | None = None  # why it ends, once it does
        self.has_succeeded = False  # the workers of the last round on this node
        self._is_leaving = False
        self._watchdog_at = math.inf
        self.end: Exit | None = None  # how this node's part in the job ended, None while it has not
        self._thread_error: Exception | None = None  # ours, raised in the thread
        self._listener = startup.listener
        self._membership = open_membership(
            config,
            self._settings,
            startup,
            slot_count=self._worker_count or 1,
            run_id=config.rendezvous.run_id or "",
            worker_port=self.port.number,
            wake=self._wakeup.set,
        )
        self._driver = self._membership.driver
        self._thread = threading.Thread(target=self._run, name="meshrun", daemon=True)

    # --- queries of torchrun's thread ---

    @property
    def has_workers(self) -> bool:
        """Whether torchrun has begun a round, and has not asked for the next."""
        return self._is_begun and not self._has_ended

    def wait_for_round(self) -> tuple[StartRound, NodeAssignment] | None:
        """Wait for a round with ranks for this node; None once there will be none.

        Raises the thread's error.
        """
        if not self._thread.is_alive() and self.end is None and self._thread_error is None:
            self._driver.submit(events.Start(time.time() - read_clock()))
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._start is not None or self._has_ended)
            self._raise_thread_error()
            start = self._start
            return None if start is None else (start, decode_assignment(start.assignment, start.coordinator))

    def is_over(self) -> bool:
        """Whether the round on this node ends, or has ended. Raises the thread's error."""
        self._raise_thread_error()
        return self._stop_reason is not None or self._start is None or self.end is not None

    def explain_end(self) -> Reason:
        """Return the reason for that."""
        return self._stop_reason or (self.end.reason if self.end is not None else ENDED)

    def wait_for_end(self, limit_s: float) -> Exit | None:
        """Wait until this node's part has ended; None if it has not within the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended, limit_s)
        return self.end

    def wait_until_over(self, limit_s: float) -> bool:
        """Wait until the round on this node ends; whether it does within the limit."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stop_reason is not None or self._has_ended, limit_s)

    # --- reports of torchrun's thread ---

    def begin(self) -> None:
        """Note that torchrun starts its workers of the round."""
        self._is_begun = True

    def report_stopped(self) -> None:
        """Report that torchrun has stopped its workers of the round. If no other node wanted that, they have failed.

        Raises TemporaryError when there is no other port.
        """
        with self._changed:
            start, stop, is_begun = self._start, self._stop_reason, self._is_begun
            self._start, self._stop_reason, self._is_begun, self.has_succeeded = None, None, False, False
            self._round_log.end_round()
        if start is None:
            return
        if stop is None and is_begun:
            self._driver.submit(events.RoundFailed(start.round, 1, False, ""))
        try:
            self.port.renew()
        except TemporaryError as error:  # no agent could connect here
            self.leave(Reason.of("torchrun/no-port", error=str(error)))
            raise
        finally:
            self._driver.submit(events.RoundStopped(start.round, self.port.number))

    def report_succeeded(self) -> None:
        """Report that all workers of the round on this node have succeeded."""
        if self._start is not None:
            self.has_succeeded = True
            self._driver.submit(events.RoundSucceeded(self._start.round))

    def give_up(self, exit_code: int, failure: str, rank: int) -> None:
        """Report that torchrun has stopped its workers for good after a failure: the job fails, and this node waits.

        Also where the round ends already, perhaps for the same reason: with this node it cannot begin again.
        """
        if not self.has_workers or self._start is None:
            self.leave(ENDED, exit_code)
            return
        round = self._start.round
        # docs/internals/decisions/0021-restart-count-under-torchrun.md
        self._driver.submit(events.RoundFailed(round, exit_code, False, failure, rank, is_final=True))
        self._drop_workers()

    def leave(self, reason: Reason, exit_code: int = EXIT_STOPPED) -> None:
        """Leave the job: torchrun has stopped its workers, and ends."""
        if self._thread.ident is None:  # it never asked for a round, so there is no member
            self.end = self.end or Exit(exit_code, reason, None)
            return
        self._driver.submit(events.LeaveRequest(reason, exit_code))
        self._drop_workers()

    def close(self) -> None:
        """Release everything, after the end."""
        if self._thread.ident is None:
            self.end = self.end or Exit(0, ENDED, None)
            self._release_membership()
        self.port.close()

    # --- the thread ---

    @property
    def _has_ended(self) -> bool:
        return self.end is not None or self._thread_error is not None

    def _raise_thread_error(self) -> None:
        if self._thread_error is not None:
            raise self._thread_error

    def _drop_workers(self) -> None:
        """End every later round as soon as the others want it to end."""
        with self._changed:
            self._is_leaving = True
            start = self._start if self._stop_reason is not None else None
        if start is not None:
            self._driver.submit(events.RoundStopped(start.round, 0))
        self._wakeup.set()

    def _run(self) -> None:
        try:
            while self.end is None:
                self._wakeup.clear()
                self._run_once()
                if self.end is None:
                    self._wakeup.wait(max(0.0, min(self._choose_wake_at() - read_clock(), SLEEP_LIMIT_S)))
        except Exception as error:  # the reader of the message need not know which thread this is
            self._thread_error = error
        finally:
            self._release_membership()
            with self._changed:
                self._changed.notify_all()

    def _release_membership(self) -> None:
        self._membership.close()
        self._listener.close()

    def _run_once(self) -> None:
        if self._start is not None and read_clock() >= self._watchdog_at:
            self._watchdog_at = math.inf
            self._driver.submit(events.WatchdogExpired())
        while actions := self._driver.run():
            for action in actions:
                self._carry_out(action)
        self._membership.log_remarks()
        if (self._start is not None or not self._is_leaving) and self._round_log.advance(read_clock()):
            from launcher.views.sentences import describe_wait

            leader = self._driver.machine.leader
            log(describe_wait(leader.node_name if leader is not None else "", None))

    def _choose_wake_at(self) -> float:
        if self._start is not None:
            return min(self._driver.wake_at, self._watchdog_at, self._round_log.wake_at)
        return min(self._driver.wake_at, math.inf if self._is_leaving else self._round_log.wake_at)

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case StartRound():
                self._begin_round(action)
            case events.StopRound(round, _, reason):
                self._end_round(round, reason)
            case events.ExtendWatchdog(until):
                self._watchdog_at = until
            case events.Log():
                self._round_log.note(action, read_clock())
            case Exit():
                with self._changed:
                    self.end = action
                    self._changed.notify_all()

    def _begin_round(self, start: StartRound) -> None:
        share = decode_assignment(start.assignment)
        with self._changed:
            self._start, self._stop_reason = start, None
            self._changed.notify_all()
        if self._is_leaving:
            self._driver.submit(events.LeaveRequest(ENDED, EXIT_STOPPED))
        else:
            self._round_log.begin_round()
            log(f"round {start.round}: {self._summarize(share)}; this is node {share.group_rank}")

    def _end_round(self, round: int, reason: Reason) -> None:
        with self._changed:
            if self._start is None or self._start.round != round:
                return
            self._stop_reason = self._stop_reason or reason
            self._changed.notify_all()
        if not self.has_succeeded:
            self._round_log.log_end(round, reason)
        if self._is_leaving:
            self._driver.submit(events.RoundStopped(round, 0))

    def _summarize(self, assignment: NodeAssignment) -> str:
        """Summarize the round. Where the number of workers of a node is unknown, the plan's ranks are nodes."""
        count = assignment.group_world_size
        return describe(assignment.summary) if self._worker_count else f"{count} node{'s' * (count > 1)}"


class OfferedPort:
    """A port for the store of the next round, in case this node has rank 0; from `ports`, FIRST and LAST, if given.

    torch's server takes over the bound socket itself, so no other process can take the port, and it is bound to the one
    `address` that the others get. Raises TemporaryError when there is none.
    """

    def __init__(self, address: str, ports: tuple[int, int] | None) -> None:
        self._address, self._ports = address, ports
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket: _socket.socket | None = None
        self.number = 0
        self.renew()

    def renew(self) -> None:
        """Offer another port from now on. Raises TemporaryError."""
        self.close()
        try:
            self._socket = bind_first(self._family, self._address, order_candidates(self._ports, self.number))
        except OSError as error:
            where = "" if self._ports is None else f" from {self._ports[0]} to {self._ports[1]}"
            raise TemporaryError(
                f"cannot open a port of {self._address}{where} for the store of a round: {error}",
                "set LAUNCHER_WORKER_PORT_RANGE to other ports" if where else None,
            ) from None
        self.number = self._socket.getsockname()[1]

    def hand_over(self) -> int:
        """Return the descriptor, which the caller owns from now on."""
        assert self._socket is not None
        descriptor: int = self._socket.detach()
        self._socket = None
        return descriptor

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
