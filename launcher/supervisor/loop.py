"""The supervisor's main loop: one thread, no network, no subprocess module.

It waits for three things: orders from the agent, children that end, and the pipe through which a freshly forked
worker reports why it could not run its program. Everything else follows. The supervisor blocks nearly all
signals: a Ctrl-C or a SIGTERM to the whole session is the agent's to handle, and a supervisor that died of one would
take the workers' grace with it. What only some runs need is loaded on demand: watchdog.py, and warm.py for workers
that the fork server forks.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from collections.abc import Callable, Collection
from functools import partial

from launcher.model.errors import TemporaryError
from launcher.supervisor import child, messages
from launcher.supervisor.channel import Channel
from launcher.supervisor.child import Worker
from launcher.supervisor.messages import (
    POLL_LIMIT_S,
    Exited,
    InternalReport,
    Report,
    RoundSwept,
    Spawned,
    SpawnFailed,
    SupervisorLost,
    WorkersFenced,
    WorkerSpec,
    decode_worker_spec,
)
from launcher.supervisor.signals import configure_signals
from launcher.supervisor.sweep import ProcessSweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.supervisor.warm import WarmPool
    from launcher.supervisor.watchdog import Watchdog

# The time to wait for a slow agent to read the last reports.
FLUSH_LIMIT_S = 1.0


class SupervisorLoop:
    """The state of the supervisor."""

    def __init__(self, end: socket.socket, keep: tuple[int, ...], keeper_pid: int) -> None:
        self.pid = os.getpid()
        self._keeper_pid = keeper_pid
        self.kept_descriptors = keep
        self.environment = dict(os.environb)
        self.workers: dict[int, Worker] = {}  # by pid, until reaped
        self._channel = Channel(end)
        self._watchdog: Watchdog | None = None
        self._warm_pool: WarmPool | None = None
        self._rounds: set[int] = set()  # started and not yet reported as swept
        self._sweep = ProcessSweep()
        self._is_finished = False
        self._has_lost_keeper = False
        self._highest_descriptor = 2
        self._wakeup_read, self._wakeup_write, self._changed_signals = configure_signals()
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self.watch(self._wakeup_read, lambda: os.read(self._wakeup_read, 4096))
        self.watch(self._channel.fileno(), self._receive_orders)
        self.note_descriptors(self._wakeup_write)
        self.report(messages.SupervisorStarted(self.pid))

    def run(self) -> None:
        while not self._is_finished:
            self._check_keeper()
            self._check_watchdog()
            self._advance_sweep()
            if self._is_finished:
                break
            if self._warm_pool is not None:
                self._warm_pool.advance(has_rounds=bool(self._rounds) and not self._sweep.is_active)
            for descriptor, _ in self._poll.poll(self._compute_timeout_ms()):
                if descriptor in self._callbacks:  # an earlier callback may have closed it
                    self._callbacks[descriptor]()
            self._reap()
        deadline = time.monotonic() + FLUSH_LIMIT_S
        while not self._channel.flush() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _compute_timeout_ms(self) -> int | None:
        wait_s = self._watchdog.wait_s if self._watchdog is not None else math.inf
        if self._sweep.is_active:
            wait_s = min(wait_s, self._sweep.wait_s)
        if self._warm_pool is not None:
            wait_s = min(wait_s, self._warm_pool.wait_s)
        return None if wait_s == math.inf else math.ceil(min(max(0.0, wait_s), POLL_LIMIT_S) * 1000)

    def watch(self, descriptor: int, callback: Callable[[], object], *, until_writable: bool = False) -> None:
        """Call `callback` when the descriptor is readable, or with `until_writable` also when it is writable."""
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, select.POLLIN | select.POLLOUT if until_writable else select.POLLIN)
        self.note_descriptors(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching it; call this before it is closed."""
        del self._callbacks[descriptor]
        self._poll.unregister(descriptor)

    def note_descriptors(self, *descriptors: int) -> None:
        """Have a new process close these, too."""
        self._highest_descriptor = max((self._highest_descriptor, *descriptors))

    # Keeper and agent

    def _check_keeper(self) -> None:
        """End if the keeper has: what workers leave would then survive the loss of agent and supervisor."""
        if not self._has_lost_keeper and os.getppid() != self._keeper_pid:
            self._has_lost_keeper = True  # the workers' end is then no failure of theirs
            self._start_sweep(self._rounds, is_last=True)

    def report(self, report: Report | InternalReport) -> None:
        if self._has_lost_keeper:
            return
        if not self._channel.send((type(report).__name__, *report)) and not self._sweep.is_last:
            self.watch(self._channel.fileno(), self._receive_orders, until_writable=True)

    def _receive_orders(self) -> None:
        if self._channel.flush():
            self.watch(self._channel.fileno(), self._receive_orders)
        for (verb, *fields), descriptors in self._channel.receive():
            if verb == "spawn":
                self.note_descriptors(*descriptors)
                self._spawn(fields[0], decode_worker_spec(fields[1], descriptors))
            elif verb == "begin" and self._warm_pool is not None:
                self._warm_pool.begin()
            elif verb == "signal":
                self._signal(*fields)
            elif verb == "sweep":
                self._start_sweep(fields)
            elif verb == "watchdog":
                self._extend_watchdog(fields[0])
            elif verb == "preload":
                from launcher.supervisor.warm import WarmPool

                self._warm_pool = WarmPool(self, fields[0])
        if self._channel.has_ended:
            self.unwatch(self._channel.fileno())
            self._start_sweep(self._rounds, is_last=True)

    # Workers

    def _spawn(self, round: int, spec: WorkerSpec) -> None:
        self._rounds.add(round)
        if self._watchdog is not None and self._watchdog.is_expired:
            child.close_streams(spec)
            if round not in self._sweep.rounds:
                self.report(WorkersFenced(round))
                self._start_sweep([round])
        elif spec.fork_argv and self._warm_pool is not None:
            self._warm_pool.spawn(round, spec)
        else:
            self.spawn_cold(round, spec)

    def spawn_cold(self, round: int, spec: WorkerSpec) -> None:
        """Start a worker by fork and exec; its streams are closed here."""
        worker = Worker(round, spec.local_rank)
        try:
            worker.pid, worker.poll_start = self.start(spec, worker.name, partial(self._handle_start, worker))
        except OSError as error:
            self.report_spawn_failure(worker, f"cannot start {worker.name}: {error.strerror}", error.errno or 0)
        else:
            self.workers[worker.pid] = worker
        child.close_streams(spec)

    def start(
        self, spec: WorkerSpec, name: str, on_started: Callable[[list[Any]], None], inherit: tuple[int, ...] = ()
    ) -> tuple[int, Callable[[], None]]:
        """Fork a process and continue; return its pid and what to call if it ends before `on_started` was called.

        `on_started` gets an empty list if it runs its program, or else a sentence and an error number. Raises OSError.
        """
        pid, result = child.fork(
            spec,
            name,
            self.environment,
            keep=self.kept_descriptors,
            inherit=inherit,
            supervisor_pid=self.pid,
            highest_descriptor=self._highest_descriptor,
            changed_signals=self._changed_signals,
        )

        def poll_result() -> None:
            """The pipe closes at exec, unless it brings an error first."""
            try:
                text = os.read(result, 65536)
            except BlockingIOError:
                return
            self.unwatch(result)
            os.close(result)
            on_started(json.loads(text or "[]"))

        self.watch(result, poll_result)
        return pid, poll_result

    def _handle_start(self, worker: Worker, failure: list[Any]) -> None:
        if failure:
            self.report_spawn_failure(worker, *failure)
        else:
            self.report_running(worker)

    def report_running(self, worker: Worker) -> None:
        """Report that a worker runs its program, or its script."""
        worker.poll_start = None
        self.report(Spawned(worker.round, worker.local_rank, worker.pid))

    def report_spawn_failure(self, worker: Worker, sentence: str, error_number: int) -> None:
        """Report why a worker cannot run it; its end is not reported."""
        worker.poll_start = None
        self.workers.pop(worker.pid, None)
        self.report(SpawnFailed(worker.round, worker.local_rank, sentence, error_number))

    def _signal(self, round: int, signum: int, only: Collection[int] | None = None) -> None:
        if self._warm_pool is not None:
            self._warm_pool.signal(round, signum, only)
        for worker in self.workers.values():
            if worker.round == round and (only is None or worker.local_rank in only):
                try:
                    os.killpg(worker.pid, signum)
                except ProcessLookupError:  # forked, and not yet the leader of its own group
                    os.kill(worker.pid, signum)
                except PermissionError:  # a setuid program
                    pass

    def _reap(self) -> bool:
        """Reap all children that have ended, adopted ones too; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._sweep.mark_reaped(pid)
            exit_code = os.waitstatus_to_exitcode(status)
            if self._warm_pool is not None and pid not in self.workers:
                self._warm_pool.handle_exit(pid, exit_code)
            worker = self.workers.get(pid)
            if worker is not None and worker.poll_start is not None:
                worker.poll_start()
            if self.workers.pop(pid, None) is not None and worker is not None:  # a failure has removed it already
                self.report(Exited(worker.round, worker.local_rank, pid, exit_code, time.time()))

    # The end of a round

    def _start_sweep(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        self._sweep.begin(rounds, is_last=is_last)
        if self._warm_pool is not None:
            self._warm_pool.sweep(rounds)
            if is_last:
                self._warm_pool.stop()

    def _advance_sweep(self) -> None:
        """One step: kill who is there, or see that nobody is left."""
        if not self._sweep.is_active:
            return
        is_clear = not self._reap() or self._sweep.run_pass(self._list_spared)
        if self._sweep.is_last and self._watchdog is not None:
            self._watchdog.disarm()  # it has expired and must not end us half way
        if is_clear:
            for round in sorted(self._sweep.rounds):
                self.report(RoundSwept(round))
            self._rounds -= self._sweep.rounds
            self._sweep.rounds.clear()
            self._is_finished = self._sweep.is_last

    def is_killed(self, pid: int) -> bool:
        """Whether a sweep has killed this child, which has not been reaped yet."""
        return self._sweep.has_killed(pid)

    def _list_spared(self) -> set[int]:
        spared = {worker.pid for worker in self.workers.values() if worker.round not in self._sweep.rounds}
        return spared if self._warm_pool is None else spared | self._warm_pool.list_spared()

    # The watchdog

    def _extend_watchdog(self, until: float | None) -> None:
        if self._watchdog is None and until is not None:
            from launcher.supervisor.watchdog import make_watchdog

            try:
                self._watchdog = make_watchdog()
            except TemporaryError as error:
                self.report(SupervisorLost(str(error), error.exit_code))
                self._start_sweep(self._rounds, is_last=True)
        if self._watchdog is not None:
            self._watchdog.extend(until)
            if self._warm_pool is not None and not self._watchdog.is_expired:
                self._warm_pool.resume()

    def _check_watchdog(self) -> None:
        if self._watchdog is None or not self._watchdog.take_expiry():
            return
        for round in sorted(self._rounds):
            self.report(WorkersFenced(round))
        if self._warm_pool is not None:
            self._warm_pool.stop("was killed when the watchdog had run out")
        self._start_sweep(self._rounds)
        self._advance_sweep()
        self._watchdog.disarm()  # all have been killed; only reaping is left
