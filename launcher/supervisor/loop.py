"""The supervisor's main loop: one thread, no network, no subprocess module.

It waits for three things: orders from the agent, children that end, and the pipe through which a freshly forked
worker reports why it could not run its program. Everything else follows. The supervisor blocks nearly all
signals: a Ctrl-C or a SIGTERM to the whole session is the agent's to handle, and a supervisor that died of one would
take the workers' grace with it. What only some runs need is loaded on demand: watchdog.py, and warm.py for workers
that the fork server forks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from launcher.hardware.linux import kernel
from launcher.hardware.linux.kernel import signal
from launcher.model.errors import TemporaryError
from launcher.supervisor import messages
from launcher.supervisor.channel import Channel
from launcher.supervisor.child import ProcessHost, Worker, close_streams
from launcher.supervisor.messages import Report, WorkerSpec

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from launcher.supervisor.warm import WarmPool
    from launcher.supervisor.watchdog import Watchdog

FLUSH_LIMIT_S = 1.0  # for a slow agent to read the last reports


class SupervisorLoop:
    """The state of the supervisor. `warm_pool`: to begin with, in place of one that the agent orders.

    Made by the keeper before it forks: what both have at the fork is in memory once, until one of them changes it.
    """

    def __init__(self, channel: Channel, host: ProcessHost, keeper_pid: int, warm_pool: WarmPool | None = None) -> None:
        self._keeper_pid = keeper_pid
        self._has_lost_keeper = False
        self._channel = channel
        self._host = host
        self._watchdog: Watchdog | None = None
        self._warm_pool = warm_pool
        self._rounds: set[int] = set()  # started and not yet reported as swept
        self._sweep = ProcessSweep(host)
        self._is_finished = False
        host.report = self._report
        host.watch(self._channel.fileno(), self._receive_orders)

    def begin(self) -> None:
        """Be the supervisor from now on, in the process that was forked for it. Raises OSError."""
        self._host.begin()
        self._report(messages.SupervisorStarted(self._host.pid))

    def run(self) -> None:
        while self.advance():
            pass
        deadline = self._host.read_clock() + FLUSH_LIMIT_S
        while not self._channel.flush() and self._host.read_clock() < deadline:
            self._host.pause(0.01)

    def advance(self) -> bool:
        """Do what is due, wait for an event, and handle it; return False once the last process has ended."""
        self._check_keeper()
        self._check_watchdog()
        self._advance_sweep()
        if self._is_finished:
            return False
        if self._warm_pool is not None:
            self._warm_pool.advance(has_rounds=bool(self._rounds) and not self._sweep.is_active)
        self._host.wait(self._compute_timeout_ms())
        self._reap()
        return True

    def _compute_timeout_ms(self) -> int | None:
        parts = (self._sweep, self._watchdog, self._warm_pool)
        wait_s = min(part.wait_s for part in parts if part is not None)
        return None if wait_s == math.inf else math.ceil(min(max(0.0, wait_s), messages.POLL_LIMIT_S) * 1000)

    # Keeper and agent

    def _check_keeper(self) -> None:
        """End if the keeper has: what workers leave would then survive the loss of agent and supervisor."""
        if not self._has_lost_keeper and self._host.read_parent_pid() != self._keeper_pid:
            self._has_lost_keeper = True  # the workers' end is then no failure of theirs
            self._start_sweep(self._rounds, is_last=True)

    def _report(self, report: Report) -> None:
        if self._has_lost_keeper:
            return
        if not self._channel.send((type(report).__name__, *report.as_tuple())) and not self._sweep.is_last:
            self._host.watch(self._channel.fileno(), self._receive_orders, until_writable=True)

    def _receive_orders(self) -> None:
        if self._channel.flush():
            self._host.watch(self._channel.fileno(), self._receive_orders)
        for (verb, *fields), descriptors in self._channel.receive():
            if verb == "spawn":
                self._host.note_descriptors(*descriptors)
                self._spawn(Worker(fields[0], messages.decode_worker_spec(fields[1], descriptors)))
            elif verb == "examine":
                self._examine(messages.decode_worker_spec(fields[0], descriptors))
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

                self._warm_pool = WarmPool(self._host, fields[0], self._sweep.has_killed)
        if self._channel.has_ended:
            self._host.unwatch(self._channel.fileno())
            self._start_sweep(self._rounds, is_last=True)

    # Workers

    def _spawn(self, worker: Worker) -> None:
        self._rounds.add(worker.round)
        if self._watchdog is not None and self._watchdog.is_expired:
            close_streams(worker.spec)
            if worker.round not in self._sweep.rounds:  # once for all of its workers
                self._report(messages.WorkersFenced(worker.round))
                self._start_sweep([worker.round])
        elif worker.spec.fork_argv and self._warm_pool is not None:
            self._warm_pool.spawn(worker)
        else:
            self._host.spawn_cold(worker)

    def _examine(self, spec: WorkerSpec) -> None:
        """Fork a process that looks at the workers: as a child of theirs' parent it may, where siblings may not.

        Without an exec: a restart may wait for it, and a Python takes longer to start than most looks do.
        """
        self._host.note_descriptors(*(stream for stream in (spec.stdout,) if stream is not None))
        with suppress(OSError):  # no process: its output ends at once
            self._host.start(spec, "the examiner", lambda failure: None, run=_run_module)
        close_streams(spec)

    def _signal(self, round: int, signum: int, only: Collection[int] | None = None) -> None:
        if self._warm_pool is not None:
            self._warm_pool.signal(round, signum, only)
        for worker in self._host.workers.values():
            if worker.round == round and (only is None or worker.local_rank in only):
                self._host.send_signal(worker, signum)

    def _reap(self) -> bool:
        """Reap all children that have ended, adopted ones too; whether any child is left."""
        while True:
            try:
                pid, exit_code = self._host.reap()
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._sweep.mark_reaped(pid)
            workers = self._host.workers
            if self._warm_pool is not None and pid not in workers:
                self._warm_pool.handle_exit(pid, exit_code)
            worker = workers.get(pid)
            if worker is not None and worker.poll_start is not None:
                worker.poll_start()
            if workers.pop(pid, None) is not None and worker is not None:  # a failure has removed it already
                self._report(messages.Exited(worker.round, worker.local_rank, pid, exit_code, time.time()))

    # The end of a round

    def _start_sweep(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        self._sweep.begin(rounds, is_last=is_last)
        if self._warm_pool is not None:
            self._warm_pool.sweep(rounds)
            if is_last:
                self._warm_pool.stop(is_reported=False)

    def _advance_sweep(self) -> None:
        """One step: kill who is there, or see that nobody is left."""
        if not self._sweep.is_active:
            return
        is_clear = not self._reap() or self._sweep.run_pass(self._list_spared)
        if self._sweep.is_last and self._watchdog is not None:
            self._watchdog.disarm()  # it has expired and must not end us half way
        if is_clear:
            for round in sorted(self._sweep.rounds):
                self._report(messages.RoundSwept(round))
            self._rounds -= self._sweep.rounds
            self._sweep.rounds.clear()
            self._is_finished = self._sweep.is_last

    def _list_spared(self) -> set[int]:
        spared = {worker.pid for worker in self._host.workers.values() if worker.round not in self._sweep.rounds}
        return spared if self._warm_pool is None else spared | self._warm_pool.list_spared()

    # The watchdog

    def _extend_watchdog(self, until: float | None) -> None:
        if self._watchdog is None and until is not None:
            from launcher.supervisor.watchdog import Watchdog

            try:
                self._watchdog = Watchdog(self._host)
            except TemporaryError as error:
                self._report(messages.SupervisorLost(str(error), error.exit_code))
                self._start_sweep(self._rounds, is_last=True)
        if self._watchdog is not None:
            self._watchdog.extend(until)
            if self._warm_pool is not None and not self._watchdog.is_expired:
                self._warm_pool.resume()

    def _check_watchdog(self) -> None:
        if self._watchdog is None or not self._watchdog.take_expiry():
            return
        for round in sorted(self._rounds):
            self._report(messages.WorkersFenced(round))
        if self._warm_pool is not None:
            self._warm_pool.stop(is_reported=True)
        self._start_sweep(self._rounds)
        self._advance_sweep()
        self._watchdog.disarm()  # all have been killed; only reaping is left


def _run_module(argv: Sequence[str]) -> None:
    """Call `main` of the module that the agent names, in a process of its own; what fails ends its output.

    This process must not import it: it stays for as long as the job.
    """
    signal.set_wakeup_fd(-1)
    kernel.set_name(messages.EXAMINER_NAME)
    os.dup2(1, 2)
    try:
        from importlib import import_module

        from launcher.model.lean_import import import_msgspec

        import_msgspec()
        import_module(argv[0]).main(argv[1:])
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode(errors="replace"))


class ProcessSweep:
    """The end of rounds: every process that is left is killed, pass after pass, until none is.

    One pass is not enough, since killing a parent makes its orphans the supervisor's children; the next pass kills
    them. `rounds` are to be swept, and with `is_last` all processes.
    """

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self.rounds: set[int] = set()
        self.is_last = False
        self._began_at = 0.0
        self._next_pass_at = 0.0
        self._killed: set[int] = set()  # by the last pass, not reaped yet

    @property
    def is_active(self) -> bool:
        return self.is_last or bool(self.rounds)

    @property
    def wait_s(self) -> float:
        """The seconds until the next pass."""
        return self._next_pass_at - self._host.read_clock() if self.is_active else math.inf

    def begin(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        """Sweep these rounds as well."""
        if not self.is_active:
            self._began_at = self._host.read_clock()
        self._next_pass_at = 0.0
        self.rounds.update(rounds)
        self.is_last = self.is_last or is_last

    def has_killed(self, pid: int) -> bool:
        """Whether a pass has killed it and it has not been reaped."""
        return pid in self._killed

    def mark_reaped(self, pid: int) -> None:
        self._killed.discard(pid)

    def run_pass(self, list_spared: Callable[[], Collection[int]]) -> bool:
        """Kill all but the spared processes, if it is time to; whether there were none."""
        now = self._host.read_clock()
        if self._killed and now < self._next_pass_at:
            return False
        accept_stuck = now - self._began_at > messages.STUCK_LIMIT_S
        found = self._host.kill_children(() if self.is_last else list_spared(), accept_stuck)
        self._killed = set(found)
        self._next_pass_at = now + messages.SWEEP_INTERVAL_S
        return not found
