"""Starting a process: the fork, and the child's steps from there until it runs its program.

A mistake here is silent and lasting: everything that is open, blocked or ignored now stays so in the user's program.
The order matters too: the parent-death signal comes before anything that can take time, and signals are unblocked
last, when a SIGTERM ends the worker as it should.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from errno import EINVAL, ENOENT

from launcher.hardware.linux import kernel
from launcher.supervisor.messages import InternalReport, Report, WorkerSpec
from rendezvous.values import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Worker:
    """One worker, from its fork until it is reaped."""

    __slots__ = ("local_rank", "pid", "poll_start", "round")

    def __init__(self, round: int, local_rank: int) -> None:
        self.round = round
        self.local_rank = local_rank
        self.pid = 0
        self.poll_start: Callable[[], None] | None = None
        """Reads whether it has run, while that is unknown; call it only for a worker that has ended."""

    @property
    def name(self) -> str:
        return f"the worker of local rank {self.local_rank}"


class ProcessHost(Protocol):
    """The interface of the supervisor's loop for code that starts processes: the fork server and its workers."""

    pid: int
    environment: dict[bytes, bytes]
    kept_descriptors: tuple[int, ...]
    workers: dict[int, Worker]

    def watch(self, descriptor: int, callback: Callable[[], object], *, until_writable: bool = False) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def note_descriptors(self, *descriptors: int) -> None: ...
    def report(self, report: Report | InternalReport) -> None: ...
    def start(
        self, spec: WorkerSpec, name: str, on_started: Callable[[list[Any]], None], inherit: tuple[int, ...] = ()
    ) -> tuple[int, Callable[[], None]]: ...
    def spawn_cold(self, round: int, spec: WorkerSpec) -> None: ...
    def report_running(self, worker: Worker) -> None: ...
    def report_spawn_failure(self, worker: Worker, sentence: str, error_number: int) -> None: ...
    def is_killed(self, pid: int) -> bool: ...


def list_signals_to_reset() -> list[int]:
    """Return the signals that a worker resets: it starts with defaults, whatever the agent or its parents had set."""
    fixed = (signal.SIGKILL, signal.SIGSTOP)
    catchable = [signum for signum in signal.valid_signals() if signum not in fixed]
    return [signum for signum in catchable if signal.getsignal(signum) is not signal.SIG_DFL]


def fork(
    spec: WorkerSpec,
    name: str,
    environment: dict[bytes, bytes],
    *,
    keep: tuple[int, ...],
    inherit: tuple[int, ...],
    supervisor_pid: int,
    highest_descriptor: int,
    changed_signals: Iterable[int],
) -> tuple[int, int]:
    """Fork the process and continue at once; return its pid and the read end of the pipe for its answer.

    The pipe closes when the program runs, and carries a sentence and an error number, as JSON, if it cannot be run.
    Raises OSError.
    """
    prefer_nodes: Callable[[Collection[int]], None] | None = None
    if spec.memory:
        from launcher.hardware.linux.memory_policy import prefer_nodes  # before the fork, for all of them
    result, answer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = os.fork()
    except OSError:
        os.close(result)
        os.close(answer)
        raise
    if pid == 0:
        _become(
            spec,
            name,
            environment,
            answer=answer,
            keep=keep,
            inherit=inherit,
            supervisor_pid=supervisor_pid,
            highest_descriptor=max(highest_descriptor, result, answer),
            changed_signals=changed_signals,
            prefer_nodes=prefer_nodes,
        )
    os.close(answer)
    return pid, result


def _become(
    spec: WorkerSpec,
    name: str,
    environment: dict[bytes, bytes],
    *,
    answer: int,
    keep: tuple[int, ...],
    inherit: tuple[int, ...],
    supervisor_pid: int,
    highest_descriptor: int,
    changed_signals: Iterable[int],
    prefer_nodes: Callable[[Collection[int]], None] | None,
) -> NoReturn:
    """Turn this freshly forked process into what the spec says, or write to `answer` why not and exit.

    `environment` is the supervisor's own, changed in place as the spec asks. `keep` stays open, and is open over an
    exec in the supervisor as well; `inherit` are descriptors of the supervisor for this process alone.
    """
    attempt = f"cannot start {name}"
    try:
        os.setsid()
        kernel.signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != supervisor_pid:  # the supervisor died before the line above
            os._exit(127)
        if spec.stdout is not None:
            os.dup2(spec.stdout, 1)
        if spec.stderr is not None:
            os.dup2(spec.stderr, 2)
        # Explicitly: until the exec has succeeded, which may be slow, close-on-exec does nothing, and an open
        # socket here would hide the supervisor's end from the agent, an open pipe another worker's from its reader.
        close_all_but((answer, *keep, *inherit), highest_descriptor)
        for descriptor in inherit:
            os.set_inheritable(descriptor, True)
        if spec.affinity is not None:
            attempt = f"cannot keep {name} to its CPUs"
            os.sched_setaffinity(0, spec.affinity)
        if prefer_nodes is not None:
            with suppress(OSError):  # the agent has tested it; a worker far from its memory is slow, not wrong
                prefer_nodes(spec.memory)
        for name in spec.unset:
            environment.pop(os.fsencode(name), None)
        environment.update((os.fsencode(name), os.fsencode(value)) for name, value in spec.env.items())
        for signum in changed_signals:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        attempt = f"cannot run {spec.argv[0][:200]!r}"  # the answer is one atomic write, at most 4096 bytes
        _execute([os.fsencode(word) for word in spec.argv], environment)
    except OSError as error:
        number = error.errno or EINVAL
        os.write(answer, json.dumps((f"{attempt}: {os.strerror(number)}", number)).encode())
    except Exception as error:  # a zero byte in an argument, "=" in a variable's name, or a bug of ours
        os.write(answer, json.dumps((f"{attempt}: {str(error)[:200]}", EINVAL)).encode())
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


def _execute(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Run a program, searched on the PATH of its environment when it has no slash. Returns only by an OSError."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, environment)
    failure: OSError = FileNotFoundError(ENOENT, "")
    for folder in environment.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(folder or b".", argv[0]), argv, environment)
        except (FileNotFoundError, NotADirectoryError):  # noqa: PERF203 - look in the next folder
            continue
        except PermissionError as error:
            failure = error
    raise failure
