"""The warden's own life: one thread, one loop, no network, no subprocess module.

It waits for three things: orders from the agent, children that end, and the pipe through which a freshly forked
worker says why it could not run its program. Everything else is a consequence. The warden blocks nearly all
signals: a Ctrl-C or a SIGTERM to the whole session is the agent's to handle, and a warden that died of one would
take the workers' grace with it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Collection

from launcher.warden import STUCK_PATIENCE_S, child, kernel
from launcher.warden.channel import Channel
from launcher.warden.words import Exited, Gone, LeashExpired, Report, Spawned, SpawnFailed, WorkerSpec, received

# How often a sweep looks again while the processes it killed have not ended yet; each end wakes it as well.
SWEEP_INTERVAL_S = 0.02
# The kernel's timer fires so long after the warden should have killed by itself: only a warden that is stopped
# or starved meets it.
TIMER_MARGIN_S = 0.5
POLL_LIMIT_S = 86400.0  # poll() counts milliseconds in 31 bits
# The reports of the last moments are worth this long a wait for an agent that reads slowly.
FAREWELL_S = 1.0

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)


def run(end: socket.socket, keep: Collection[int]) -> None:
    """Be the warden until the agent's end of the socket closes and no process is left."""
    os.setsid()
    child.close_all_but((end.fileno(), *keep), max(map(int, os.listdir("/proc/self/fd"))))
    for descriptor in keep:
        os.set_inheritable(descriptor, True)  # here alone: what the agent starts by itself holds nothing of them
    kernel.set_name("meshrun-warden")
    kernel.become_subreaper()
    # If the agent dies while we are stopped, wake up and see to its workers.
    kernel.signal_on_parent_death(signal.SIGCONT)
    gc.freeze()  # what we share with the agent stays shared: the collector never touches it
    gc.enable()  # the agent starts without
    _Loop(end, tuple(keep)).run()


class _Worker:
    __slots__ = ("local_rank", "pid", "result", "round")

    def __init__(self, round: int, local_rank: int, pid: int, result: int) -> None:
        self.round = round
        self.local_rank = local_rank
        self.pid = pid
        self.result = result  # read end of the pipe for an exec that failed; -1 once it has been read


class _Loop:
    """All that the warden knows."""

    def __init__(self, end: socket.socket, keep: tuple[int, ...]) -> None:
        self._pid = os.getpid()
        self._keep = keep
        self._environment = dict(os.environb)
        self._channel = Channel(end)
        self._timer: kernel.KillTimer | None = None  # made for the first leash; most runs on one machine have none
        self._workers: dict[int, _Worker] = {}  # by pid, until reaped
        self._starting: dict[int, _Worker] = {}  # by result pipe, until read
        self._rounds: set[int] = set()  # started and not yet reported gone
        self._leash: float | None = None
        self._is_leash_handled = False
        self._sweeping: set[int] = set()
        self._sweep_start = 0.0
        self._next_pass = 0.0
        self._killed: set[int] = set()  # by the last pass of the sweep, not reaped yet
        self._is_ending = False  # the agent's end has closed: sweep everything and leave
        self._is_alone = False
        self._highest_descriptor = 2
        self._settle_signals()
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._poll.register(self._channel, select.POLLIN)
        self._note_descriptors(self._wakeup, self._alarm, self._channel.fileno())

    def _settle_signals(self) -> None:
        self._wakeup, self._alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)  # its byte in the pipe is what counts
        # A worker starts with default dispositions, whatever the agent or its parents had installed or ignored.
        fixed = (signal.SIGKILL, signal.SIGSTOP)
        catchable = [signum for signum in signal.valid_signals() if signum not in fixed]
        self._changed_signals = [signum for signum in catchable if signal.getsignal(signum) is not signal.SIG_DFL]
        # The agent forked us with all signals blocked. A blocked signal does nothing to us, while one sent to a
        # worker between its fork and its exec waits for it instead of being lost, as an ignored one would be.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, *_FAULTS))

    def run(self) -> None:
        while not self._is_alone:
            self._mind_leash()
            self._sweep()
            if self._is_alone:
                break
            for descriptor, _ in self._poll.poll(self._timeout_ms()):
                if descriptor == self._wakeup:
                    os.read(self._wakeup, 4096)
                elif descriptor in self._starting:
                    self._read_result(self._starting[descriptor])
                else:
                    self._listen()
            self._reap()
        deadline = time.monotonic() + FAREWELL_S
        while not self._channel.flush() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _timeout_ms(self) -> int | None:
        waits = []
        if self._is_sweeping():
            waits.append(self._next_pass - time.monotonic())
        if self._leash is not None and not self._is_leash_handled:
            waits.append(self._leash - _boottime())
        return math.ceil(min(max(0.0, min(waits)), POLL_LIMIT_S) * 1000) if waits else None

    # The agent

    def _report(self, report: Report) -> None:
        if not self._channel.send((type(report).__name__, *report)) and not self._is_ending:
            self._poll.modify(self._channel, select.POLLIN | select.POLLOUT)

    def _listen(self) -> None:
        if self._channel.flush():
            self._poll.modify(self._channel, select.POLLIN)
        for (verb, *words), descriptors in self._channel.receive():
            if verb == "spawn":
                self._note_descriptors(*descriptors)
                self._spawn(words[0], received(words[1], descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)
            elif verb == "signal":
                self._signal(*words)
            elif verb == "sweep":
                self._start_sweep(words[0])
            elif verb == "leash":
                self._extend_leash(words[0])
        if self._channel.ended:
            self._poll.unregister(self._channel)
            self._start_sweep(*self._rounds)
            self._is_ending = True

    # Workers

    def _spawn(self, round: int, spec: WorkerSpec) -> None:
        self._rounds.add(round)
        if not self._is_leash_over():
            self._fork(round, spec)
        elif round not in self._sweeping:
            self._report(LeashExpired(round))
            self._start_sweep(round)

    def _fork(self, round: int, spec: WorkerSpec) -> None:
        """Fork a worker and go on at once; whether its program could be run comes through the result pipe."""
        if spec.memory:
            from launcher.warden import memory  # noqa: F401 - before the fork, for all of them
        try:
            result, answer = os.pipe2(os.O_CLOEXEC)
            self._note_descriptors(result, answer)
            try:
                pid = os.fork()
            except OSError:
                os.close(result)
                os.close(answer)
                raise
        except OSError as error:
            sentence = f"cannot start the worker of local rank {spec.local_rank}: {error.strerror}"
            self._report(SpawnFailed(round, spec.local_rank, sentence, error.errno or 0))
            return
        if pid == 0:
            child.become(
                spec,
                self._environment,
                answer=answer,
                keep=self._keep,
                warden_pid=self._pid,
                highest_descriptor=self._highest_descriptor,
                changed_signals=self._changed_signals,
            )
        os.close(answer)
        self._workers[pid] = self._starting[result] = _Worker(round, spec.local_rank, pid, result)
        self._poll.register(result, select.POLLIN)

    def _read_result(self, worker: _Worker) -> None:
        """Learn whether the worker runs its program: the pipe closes at exec, unless it brings an error first."""
        text = os.read(worker.result, 65536)
        self._poll.unregister(worker.result)
        os.close(worker.result)
        del self._starting[worker.result]
        worker.result = -1
        if text:
            del self._workers[worker.pid]
            self._report(SpawnFailed(worker.round, worker.local_rank, *json.loads(text)))
        else:
            self._report(Spawned(worker.round, worker.local_rank, worker.pid))

    def _signal(self, round: int, signum: int, only: Collection[int] | None = None) -> None:
        for worker in self._workers.values():
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
            self._killed.discard(pid)
            worker = self._workers.get(pid)
            if worker is not None and worker.result != -1:
                self._read_result(worker)
            worker = self._workers.pop(pid, None)  # a failed exec has taken it out already
            if worker is not None:
                exit_code = os.waitstatus_to_exitcode(status)
                self._report(Exited(worker.round, worker.local_rank, pid, exit_code, time.time()))

    # The end of a round

    def _is_sweeping(self) -> bool:
        return self._is_ending or bool(self._sweeping)

    def _start_sweep(self, *rounds: int) -> None:
        if not self._is_sweeping():
            self._sweep_start = time.monotonic()
        self._next_pass = 0.0
        self._sweeping.update(rounds)

    def _sweep(self) -> None:
        """One step: kill who is there, or see that nobody is left."""
        if not self._is_sweeping():
            return
        now = time.monotonic()
        if self._reap():
            if self._killed and now < self._next_pass:
                return
            spare = () if self._is_ending else self._spared()
            found = kernel.kill_children(spare, now - self._sweep_start > STUCK_PATIENCE_S)
            self._killed = set(found)
            self._next_pass = now + SWEEP_INTERVAL_S
            if self._is_ending:
                self._disarm()  # it has done its duty and must not end us half way
            if found:
                return
        for round in sorted(self._sweeping):
            self._report(Gone(round))
        self._rounds -= self._sweeping
        self._sweeping.clear()
        self._is_alone = self._is_ending

    def _spared(self) -> set[int]:
        return {worker.pid for worker in self._workers.values() if worker.round not in self._sweeping}

    # The leash

    def _is_leash_over(self) -> bool:
        return self._leash is not None and _boottime() >= self._leash

    def _extend_leash(self, until: float | None) -> None:
        self._leash = until
        self._is_leash_handled = False
        if until is None or self._is_leash_over():
            self._disarm()
            return
        if self._timer is None:
            self._timer = kernel.KillTimer()
        self._timer.arm(until + TIMER_MARGIN_S)

    def _mind_leash(self) -> None:
        if self._is_leash_handled or not self._is_leash_over():
            return
        self._is_leash_handled = True
        for round in sorted(self._rounds):
            self._report(LeashExpired(round))
        self._start_sweep(*self._rounds)
        self._sweep()
        self._disarm()  # all have been killed; what is left to do is to reap

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.disarm()

    def _note_descriptors(self, *descriptors: int) -> None:
        self._highest_descriptor = max((self._highest_descriptor, *descriptors))


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
