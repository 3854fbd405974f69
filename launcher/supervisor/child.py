"""Starting a process: the fork, and the child's steps from there until it runs its program.

A mistake here is silent and lasting: everything that is open, blocked or ignored now stays so in the user's program.
The order matters too: the parent-death signal comes before anything that can take time, and signals are unblocked
last, when a SIGTERM ends the worker as it should.
"""

from __future__ import annotations

import marshal
import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from errno import EINVAL
from functools import partial

from launcher.hardware.linux import kernel
from launcher.hardware.linux.kernel import signal
from launcher.supervisor.messages import Report, Spawned, SpawnFailed, WorkerSpec

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from typing import Any, NoReturn

_WAKEUP_SIGNALS = (signal.SIGCHLD, signal.SIGCONT)  # ends of children; the latter comes with the keeper's end
_FAULT_SIGNALS = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
)  # fmt: skip


class Worker:
    """One worker, from its order until it is reaped. Its streams are open here until it has them."""

    __slots__ = ("local_rank", "pid", "poll_start", "round", "spec")

    def __init__(self, round: int, spec: WorkerSpec) -> None:
        self.round = round
        self.spec = spec
        self.local_rank = spec.local_rank
        self.pid = 0
        self.poll_start: Callable[[], None] | None = None
        """Reads whether it has run, while that is unknown; call it only for a worker that has ended."""

    @property
    def name(self) -> str:
        return f"the worker of local rank {self.local_rank}"


class ProcessHost:
    """The process that all others are started from: its descriptors and environment, the events it waits for, and its
    workers. The supervisor's loop reaches the kernel through it. `keep`: descriptors that every child inherits.

    It may be made before the fork of that process, which calls `begin`.
    """

    report: Callable[[Report], None]
    """Tells the agent."""
    make_timer = staticmethod(kernel.KillTimer)
    kill_children = staticmethod(kernel.kill_children)
    pause = staticmethod(time.sleep)
    read_parent_pid = staticmethod(os.getppid)
    read_clock = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))

    def __init__(self, keep: tuple[int, ...]) -> None:
        for signum in _WAKEUP_SIGNALS:
            signal.signal(signum, lambda signum, frame: None)  # its byte in the pipe is what counts
        self.pid = 0
        self.kept_descriptors = keep
        self.environment = dict(os.environb)
        self.workers: dict[int, Worker] = {}  # by pid, until reaped
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._highest_descriptor = 2
        fixed = (signal.SIGKILL, signal.SIGSTOP)
        catchable = [signum for signum in signal.valid_signals() if signum not in fixed]
        self._changed_signals = [signum for signum in catchable if signal.getsignal(signum) is not signal.SIG_DFL]

    def begin(self) -> None:
        """Be this process from now on. Raises OSError."""
        self.pid = os.getpid()
        wakeup, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        # The agent forked us with all signals blocked. A blocked signal does nothing to us, while one sent to a
        # worker between its fork and its exec waits for it instead of being lost, as an ignored one would be.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_WAKEUP_SIGNALS, *_FAULT_SIGNALS))
        self.watch(wakeup, lambda: os.read(wakeup, 4096))
        self.note_descriptors(alarm)

    # Events

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

    def wait(self, timeout_ms: int | None) -> None:
        """Wait for an event, and call the callbacks."""
        for descriptor, _ in self._poll.poll(timeout_ms):
            if descriptor in self._callbacks:  # an earlier callback may have closed it
                self._callbacks[descriptor]()

    # Processes

    def send_signal(self, worker: Worker, signum: int) -> None:
        """Send a signal to a worker and its process group."""
        try:
            os.killpg(worker.pid, signum)
        except ProcessLookupError:  # forked, and not yet the leader of its own group
            os.kill(worker.pid, signum)
        except PermissionError:  # a setuid program
            pass

    def reap(self) -> tuple[int, int]:
        """Reap a child that has ended, adopted ones too; return its pid and exit code, pid 0 if none has ended.

        Raises ChildProcessError if there is no child.
        """
        pid, status = os.waitpid(-1, os.WNOHANG)
        return pid, os.waitstatus_to_exitcode(status)

    def spawn_cold(self, worker: Worker) -> None:
        """Start a worker by fork and exec; its streams are closed here."""

        def handle_start(failure: list[Any]) -> None:
            if failure:
                self.report_spawn_failure(worker, *failure)
            else:
                self.report_running(worker)

        try:
            worker.pid, worker.poll_start = self.start(worker.spec, worker.name, handle_start)
        except OSError as error:
            self.report_unstarted(worker, str(error.strerror), error.errno or 0)
        else:
            self.workers[worker.pid] = worker
            close_streams(worker.spec)

    def report_running(self, worker: Worker) -> None:
        """Report that a worker runs its program, or its script."""
        worker.poll_start = None
        self.report(Spawned(worker.round, worker.local_rank, worker.pid))

    def report_spawn_failure(self, worker: Worker, sentence: str, error_number: int) -> None:
        """Report why a worker cannot run it; its end is not reported."""
        worker.poll_start = None
        self.workers.pop(worker.pid, None)
        self.report(SpawnFailed(worker.round, worker.local_rank, sentence, error_number))

    def report_unstarted(self, worker: Worker, reason: str, error_number: int) -> None:
        """Report why there is no process for a worker; its streams are closed here."""
        close_streams(worker.spec)
        self.report_spawn_failure(worker, f"cannot start {worker.name}: {reason}", error_number)

    def start(
        self,
        spec: WorkerSpec,
        name: str,
        on_started: Callable[[list[Any]], None],
        inherit: tuple[int, ...] = (),
        run: Callable[[Sequence[str]], object] | None = None,
    ) -> tuple[int, Callable[[], None]]:
        """Fork a process and continue; return its pid and what to call if it ends before `on_started` was called.

        `on_started` gets an empty list if it runs its program, or else a sentence and an error number. `inherit`:
        descriptors for this process alone. `run`: what it calls with `argv` before it ends, in place of an exec.
        Raises OSError.
        """
        result, answer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.note_descriptors(result, answer)
        try:
            pid = os.fork()
        except OSError:
            os.close(result)
            os.close(answer)
            raise
        if pid == 0:
            self._become(spec, name, answer, inherit, run)
        os.close(answer)

        def poll_result() -> None:
            """The pipe closes at exec, unless it brings an error first."""
            try:
                text = os.read(result, 65536)
            except BlockingIOError:
                return
            self.unwatch(result)
            os.close(result)
            on_started(marshal.loads(text) if text else [])

        self.watch(result, poll_result)
        return pid, poll_result

    def _become(
        self,
        spec: WorkerSpec,
        name: str,
        answer: int,
        inherit: tuple[int, ...],
        run: Callable[[Sequence[str]], object] | None,
    ) -> NoReturn:
        """Turn this freshly forked process into what the spec says, or write to `answer` why not and exit."""
        environment = self.environment
        attempt = f"cannot start {name}"
        try:
            os.setsid()
            kernel.signal_on_parent_death(signal.SIGKILL)
            if os.getppid() != self.pid:  # the supervisor died before the line above
                os._exit(127)
            kernel.allow_tracing_by(self.pid)
            if spec.stdout is not None:
                os.dup2(spec.stdout, 1)
            if spec.stderr is not None:
                os.dup2(spec.stderr, 2)
            # Explicitly: until the exec has succeeded, which may be slow, close-on-exec does nothing, and an open
            # socket here would hide the supervisor's end from the agent, an open pipe another worker's from its reader.
            close_all_but((answer, *self.kept_descriptors, *inherit), self._highest_descriptor)
            for descriptor in inherit:
                os.set_inheritable(descriptor, True)
            if spec.affinity is not None:
                attempt = f"cannot bind {name} to its CPUs"
                os.sched_setaffinity(0, spec.affinity)
            for variable in spec.unset:
                environment.pop(os.fsencode(variable), None)
            environment.update((os.fsencode(key), os.fsencode(value)) for key, value in spec.env.items())
            for signum in self._changed_signals:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            attempt = f"cannot run {spec.argv[0][:200]!r}"  # the answer is one atomic write, at most 4096 bytes
            if run is not None:
                run(spec.argv)
            else:
                argv = [os.fsencode(word) for word in spec.argv]
                os.execvpe(argv[0], argv, environment)
        except OSError as error:
            number = error.errno or EINVAL
            os.write(answer, marshal.dumps([f"{attempt}: {os.strerror(number)}", number]))
        except Exception as error:  # a zero byte in an argument, "=" in a variable's name, or a bug of ours
            os.write(answer, marshal.dumps([f"{attempt}: {str(error)[:200]}", EINVAL]))
        finally:
            os._exit(127)


def close_streams(spec: WorkerSpec) -> None:
    """Close the descriptors that came with a spec."""
    for descriptor in (spec.stdout, spec.stderr):
        if descriptor is not None:
            os.close(descriptor)


def close_all_but(keep: Iterable[int], highest: int) -> None:
    """Close every descriptor from 3 to `highest` but these."""
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, highest + 1)
