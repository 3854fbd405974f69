"""The warden's own life: one thread, one loop, no network, no subprocess module.

It waits for three things: orders from the agent, children that end, and the pipe through which a freshly forked
worker says why it could not run its program. Everything else is a consequence. The warden blocks nearly all
signals: a Ctrl-C or a SIGTERM to the whole session is the agent's to handle, and a warden that died of one would
take the workers' grace with it. What only some runs need is loaded when it is: leash.py, and warm.py for workers
that are forked by somebody else.
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

from launcher.errors import TemporaryError
from launcher.warden import child, words
from launcher.warden.channel import Channel
from launcher.warden.child import Worker
from launcher.warden.signals import settle_signals
from launcher.warden.sweep import Sweep
from launcher.warden.words import Exited, Gone, LeashExpired, Spawned, SpawnFailed, WardenLost, received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from launcher.warden.leash import Leash
    from launcher.warden.warm import Warm
    from launcher.warden.words import Internal, Report, WorkerSpec

POLL_LIMIT_S = 86400.0  # poll() counts milliseconds in 31 bits
# The reports of the last moments are worth this long a wait for an agent that reads slowly.
FAREWELL_S = 1.0


class Loop:
    """All that the warden knows."""

    def __init__(self, end: socket.socket, keep: tuple[int, ...], keeper_pid: int) -> None:
        self.pid = os.getpid()
        self._keeper_pid = keeper_pid
        self.keep = keep
        self.environment = dict(os.environb)
        self.workers: dict[int, Worker] = {}  # by pid, until reaped
        self._channel = Channel(end)
        self._leash: Leash | None = None
        self._warm: Warm | None = None
        self._rounds: set[int] = set()  # started and not yet reported gone
        self._sweep = Sweep()
        self._is_alone = False
        self._is_silent = False
        self._highest_descriptor = 2
        self._wakeup, self._alarm, self._changed_signals = settle_signals()
        self._poll = select.poll()
        self._hear: dict[int, Callable[[], object]] = {}
        self.watch(self._wakeup, lambda: os.read(self._wakeup, 4096))
        self.watch(self._channel.fileno(), self._listen)
        self.note_descriptors(self._alarm)
        self.report(words.Supervising(self.pid))

    def run(self) -> None:
        while not self._is_alone:
            self._mind_keeper()
            self._mind_leash()
            self._mind_sweep()
            if self._is_alone:
                break
            if self._warm is not None:
                self._warm.settle(has_rounds=bool(self._rounds) and not self._sweep.is_on)
            for descriptor, _ in self._poll.poll(self._timeout_ms()):
                if descriptor in self._hear:  # what was heard before may have closed it
                    self._hear[descriptor]()
            self._reap()
        deadline = time.monotonic() + FAREWELL_S
        while not self._channel.flush() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _timeout_ms(self) -> int | None:
        wait_s = self._leash.wait_s if self._leash is not None else math.inf
        if self._sweep.is_on:
            wait_s = min(wait_s, self._sweep.wait_s)
        if self._warm is not None:
            wait_s = min(wait_s, self._warm.wait_s)
        return None if wait_s == math.inf else math.ceil(min(max(0.0, wait_s), POLL_LIMIT_S) * 1000)

    def watch(self, descriptor: int, hear: Callable[[], object], *, until_writable: bool = False) -> None:
        """Call `hear` when something can be read there, or, if so wished, written."""
        self._hear[descriptor] = hear
        self._poll.register(descriptor, select.POLLIN | select.POLLOUT if until_writable else select.POLLIN)
        self.note_descriptors(descriptor)

    def forget(self, descriptor: int) -> None:
        """Watch it no more; call this before it is closed."""
        del self._hear[descriptor]
        self._poll.unregister(descriptor)

    def note_descriptors(self, *descriptors: int) -> None:
        """Have a new process close these, too."""
        self._highest_descriptor = max((self._highest_descriptor, *descriptors))

    # Keeper and agent

    def _mind_keeper(self) -> None:
        """Without one nobody would kill what workers leave if agent and warden were lost: end, as if the agent had."""
        if not self._is_silent and os.getppid() != self._keeper_pid:
            self._is_silent = True  # that workers end now is no failure of theirs
            self._start_sweep(self._rounds, is_last=True)

    def report(self, report: Report | Internal) -> None:
        if self._is_silent:
            return
        if not self._channel.send((type(report).__name__, *report)) and not self._sweep.is_last:
            self.watch(self._channel.fileno(), self._listen, until_writable=True)

    def _listen(self) -> None:
        if self._channel.flush():
            self.watch(self._channel.fileno(), self._listen)
        for (verb, *fields), descriptors in self._channel.receive():
            if verb == "spawn":
                self.note_descriptors(*descriptors)
                self._spawn(fields[0], received(fields[1], descriptors))
            elif verb == "begin" and self._warm is not None:
                self._warm.begin()
            elif verb == "signal":
                self._signal(*fields)
            elif verb == "sweep":
                self._start_sweep(fields)
            elif verb == "leash":
                self._extend_leash(fields[0])
            elif verb == "preload":
                from launcher.warden.warm import Warm

                self._warm = Warm(self, fields[0])
        if self._channel.ended:
            self.forget(self._channel.fileno())
            self._start_sweep(self._rounds, is_last=True)

    # Workers

    def _spawn(self, round: int, spec: WorkerSpec) -> None:
        self._rounds.add(round)
        if self._leash is not None and self._leash.is_over:
            child.close_streams(spec)
            if round not in self._sweep.rounds:
                self.report(LeashExpired(round))
                self._start_sweep([round])
        elif spec.warm and self._warm is not None:
            self._warm.spawn(round, spec)
        else:
            self.spawn_cold(round, spec)

    def spawn_cold(self, round: int, spec: WorkerSpec) -> None:
        """Start a worker by fork and exec; its streams are closed here."""
        worker = Worker(round, spec.local_rank)
        try:
            worker.pid, worker.hear = self.start(spec, worker.name, partial(self._told, worker))
        except OSError as error:
            self.failed(worker, f"cannot start {worker.name}: {error.strerror}", error.errno or 0)
        else:
            self.workers[worker.pid] = worker
        child.close_streams(spec)

    def start(
        self, spec: WorkerSpec, name: str, told: Callable[[list[Any]], None], inherit: tuple[int, ...] = ()
    ) -> tuple[int, Callable[[], None]]:
        """Fork a process and go on at once; give back its pid and what to call if it ends before `told` was called.

        `told` gets an empty list if it runs its program, or else a sentence and an error number. Raises OSError.
        """
        pid, result = child.fork(
            spec,
            name,
            self.environment,
            keep=self.keep,
            inherit=inherit,
            warden_pid=self.pid,
            highest_descriptor=self._highest_descriptor,
            changed_signals=self._changed_signals,
        )

        def hear() -> None:
            """The pipe closes at exec, unless it brings an error first."""
            try:
                text = os.read(result, 65536)
            except BlockingIOError:
                return
            self.forget(result)
            os.close(result)
            told(json.loads(text or "[]"))

        self.watch(result, hear)
        return pid, hear

    def _told(self, worker: Worker, failure: list[Any]) -> None:
        if failure:
            self.failed(worker, *failure)
        else:
            self.runs(worker)

    def runs(self, worker: Worker) -> None:
        """A worker runs its program, or its script."""
        worker.hear = None
        self.report(Spawned(worker.round, worker.local_rank, worker.pid))

    def failed(self, worker: Worker, sentence: str, error_number: int) -> None:
        """A worker has said why it cannot run it; its end is not worth a report."""
        worker.hear = None
        self.workers.pop(worker.pid, None)
        self.report(SpawnFailed(worker.round, worker.local_rank, sentence, error_number))

    def _signal(self, round: int, signum: int, only: Collection[int] | None = None) -> None:
        if self._warm is not None:
            self._warm.signal(round, signum, only)
        for worker in self.workers.values():
            if worker.round == round and (only is None or worker.local_rank in only):
                try:
                    os.killpg(worker.pid, signum)
                except ProcessLookupError:  # forked, and not yet the leader of its own group
                    os.kill(worker.pid, signum)
                except PermissionError:  # a setuid program
                    pass

    def _reap(self) -> bool:
        """Reap all who have ended, adopted ones too; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._sweep.reaped(pid)
            exit_code = os.waitstatus_to_exitcode(status)
            if self._warm is not None and pid not in self.workers:
                self._warm.ended(pid, exit_code)
            worker = self.workers.get(pid)
            if worker is not None and worker.hear is not None:
                worker.hear()
            if self.workers.pop(pid, None) is not None and worker is not None:  # a failure has taken it out already
                self.report(Exited(worker.round, worker.local_rank, pid, exit_code, time.time()))

    # The end of a round

    def _start_sweep(self, rounds: Collection[int], *, is_last: bool = False) -> None:
        self._sweep.begin(rounds, is_last=is_last)
        if self._warm is not None:
            self._warm.sweep(rounds)
            if is_last:
                self._warm.end()

    def _mind_sweep(self) -> None:
        """One step: kill who is there, or see that nobody is left."""
        if not self._sweep.is_on:
            return
        is_clear = not self._reap() or self._sweep.is_clear(self._spared)
        if self._sweep.is_last and self._leash is not None:
            self._leash.disarm()  # it has done its duty and must not end us half way
        if is_clear:
            for round in sorted(self._sweep.rounds):
                self.report(Gone(round))
            self._rounds -= self._sweep.rounds
            self._sweep.rounds.clear()
            self._is_alone = self._sweep.is_last

    def is_killed(self, pid: int) -> bool:
        """Whether a sweep has killed this child, which has not been reaped yet."""
        return self._sweep.has_killed(pid)

    def _spared(self) -> set[int]:
        spared = {worker.pid for worker in self.workers.values() if worker.round not in self._sweep.rounds}
        return spared if self._warm is None else spared | self._warm.spared()

    # The leash

    def _extend_leash(self, until: float | None) -> None:
        if self._leash is None and until is not None:
            from launcher.warden.leash import make

            try:
                self._leash = make()
            except TemporaryError as error:
                self.report(WardenLost(str(error), error.exit_code))
                self._start_sweep(self._rounds, is_last=True)
        if self._leash is not None:
            self._leash.extend(until)
            if self._warm is not None and not self._leash.is_over:
                self._warm.resume()

    def _mind_leash(self) -> None:
        if self._leash is None or not self._leash.takes_effect():
            return
        for round in sorted(self._rounds):
            self.report(LeashExpired(round))
        if self._warm is not None:
            self._warm.end("was killed when the leash had run out")
        self._start_sweep(self._rounds)
        self._mind_sweep()
        self._leash.disarm()  # all have been killed; what is left to do is to reap
