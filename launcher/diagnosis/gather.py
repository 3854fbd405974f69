"""Looks at the workers of this node, all at once and within one limit, and disturbs none of them.

For each worker: the kernel's view of the process, the flight recorder by the socket that the worker has opened, and its
Python stack by py-spy. There are two waves, and in each all answers are awaited together:

    1  every recorder; py-spy for every worker
    2  py-spy once more for those that ran while it read them, and for the program that a shell script wraps; those
       that it cannot read write their stacks themselves (`stacks`)

Both recorder and stack are there while something holds the GIL. Nothing is asked of a stopped worker. What has not
answered in time is missing, with the reason. No thread is started, so that a process of py-spy can be made to die with
this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from launcher.config.scrub import drop_secrets
from launcher.diagnosis import recorder, stacks
from launcher.diagnosis.evidence import STACK_DESCRIPTOR, STACK_FILES, Frame, GroupCalls, RankEvidence, State
from launcher.diagnosis.request import LIMIT_S, Levels, Target
from launcher.hardware.linux import kernel
from launcher.hardware.linux.sysfs import FileTree

ANSWER_LIMIT_S = 1.0
"""For a worker's server: its answers take 0.5 to 6 ms."""
STACK_LIMIT_S = 3.0
"""For py-spy, which takes 10 ms."""
KILL_LIMIT_S = 0.02
OWN_STACK_LIMIT_S = 0.5
"""For a worker that writes its stack itself, which takes a fraction of a millisecond once it runs."""
_OWN_STACK_PAUSE_S = 0.002
_WRAPPERS_MAX = 8
_OWN_STACK_MAX = 1 << 20
_STATES: dict[str, State] = {"R": "runs", "D": "blocked", "T": "stopped", "t": "stopped"}
_FILES = FileTree()
_PIECE = 1 << 20
_MASKS = ("SigPnd:", "SigBlk:", "SigCgt:")
_ANSWER_MAX = recorder.DUMP_MAX + _PIECE
NO_SOCKET = (
    "no flight recorder: the worker has not imported torch.distributed; where it is started by a program or in another "
    "Python, set LAUNCHER_HANG_EVIDENCE=1"
)
NO_RECORDER = (
    "no flight recorder: JAX has none, and LAUNCHER_HANG_EVIDENCE=0 or TORCH_FR_BUFFER_SIZE=0 turns torch's off"
)
_RECORDERS = ("fr_trace_json", "dump_nccl_trace_json")
"""torch has two recorders: one for all backends but NCCL, and NCCL's, which a build without CUDA lacks."""


class Examined(Struct, frozen=True, kw_only=True):
    """What is known about a worker, with the raw data it was read from."""

    evidence: RankEvidence
    dump: bytes = b""
    """The recorder's dump, JSON, b"" without one; a list of two if both of torch's recorders have entries."""
    stack_text: bytes = b""
    """The output of py-spy, b"" without it."""


def gather(targets: Sequence[Target], limit_s: float = LIMIT_S, levels: Levels = "all") -> list[Examined]:
    """Look at these workers; takes at most `limit_s` seconds, and a moment."""
    until = time.monotonic() + limit_s
    subjects = [_Subject(target, _look_at_process(target.pid)) for target in targets]
    alive = [one for one in subjects if one.first.state != "ended"]
    command = stacks.find_command() if levels == "all" else None
    able = [one for one in alive if one.can_answer]
    questions = [[_Question(one.target.socket_path, name, until) for name in _RECORDERS] for one in able]
    spies = [_Spy(command, one.target.pid, until) for one in alive] if command else []
    _wait_for([*chain(*questions), *spies])
    for one, both in zip(able, questions, strict=True):
        one.take_dumps(both, until)
    if levels == "all":
        _take_stacks(alive, spies, until)
    return [one.conclude(has_stacks=levels == "all") for one in subjects]


def _take_stacks(alive: Sequence[_Subject], spies: Sequence[_Spy], until: float) -> None:
    for one, spy in zip(alive, spies, strict=False):
        one.take_stack(spy)
    again = [(one, _Spy(spy.command, spy.pid, until)) for one, spy in zip(alive, spies, strict=False) if one.has_run]
    inner = [
        (one, _Spy(spies[0].command, pid, until))
        for one in alive
        if one.problem == stacks.OTHER_PROGRAM and (pid := _find_wrapped(one.target.pid)) is not None
    ]
    own = [_OwnStack(one) for one in alive if one.stack is None and one.can_answer]
    _wait_for([spy for _, spy in (*again, *inner)])
    for one, spy in again:
        one.compare_stack(spy)
    for one, spy in inner:
        one.take_stack(spy)
    while any(each.is_due() for each in own) and time.monotonic() < until:
        time.sleep(_OWN_STACK_PAUSE_S)
    for each in own:
        each.take()


def _find_wrapped(pid: int) -> int | None:
    """Return the process that a program with one thread and one child, such as a shell script, waits for."""
    found = None
    for _ in range(_WRAPPERS_MAX):
        children = kernel.list_children(pid)
        if len(children) != 1 or len(_FILES.list_names(f"/proc/{pid}/task")) != 1:
            break
        found = pid = children[0]
    return found


class _Look(Struct, frozen=True):
    """One reading of a worker's process."""

    state: State = "ended"
    wait: str = ""
    tracer_pid: int = 0
    switches: tuple[str, ...] = ()
    """How often its main thread has begun to wait, and how often it was interrupted."""
    cpu_s: float = 0.0
    at: float = 0.0

    def is_same_rest(self, other: _Look) -> bool:
        """Whether the main thread has not run between two looks."""
        return self.state == other.state != "runs" and bool(self.switches) and self.switches == other.switches


def _look_at_process(pid: int) -> _Look:
    """Return the state of a process, where it waits in the kernel, and the CPU time it has used."""
    stat = kernel.read_stat(pid)
    if stat is None or stat.is_ending:
        return _Look(at=time.monotonic())
    status = _FILES.read_text(f"/proc/{pid}/status").splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    return _Look(
        state=_STATES.get(stat.state, "sleeps"),
        wait=_FILES.read_text(f"/proc/{pid}/wchan").removeprefix("0"),
        tracer_pid=int(fields.get("TracerPid", 0)),
        switches=tuple(text for name, text in fields.items() if name.endswith("voluntary_ctxt_switches")),
        cpu_s=stat.cpu_ticks / os.sysconf("SC_CLK_TCK"),
        at=time.monotonic(),
    )


class _Subject:
    """One worker while it is examined."""

    def __init__(self, target: Target, first: _Look) -> None:
        self.target = target
        self.first = first
        self.can_answer = first.state not in ("ended", "stopped")
        """Whether its server is asked: what serves a stopped worker is stopped, too."""
        self.dump = self.stack_text = b""
        self.stack: tuple[Frame, ...] | None = None
        self.has_run = False
        self.problem = stacks.NO_COMMAND
        """Why py-spy has no stack, "" if it has."""
        self.missing: list[str] = []
        self._groups: tuple[GroupCalls, ...] | None = None
        self._is_truncated = False

    def take_dumps(self, questions: Sequence[_Question], until: float) -> None:
        """Read what the recorders hold. One that this torch lacks is missed only if no other has answered."""
        dumps: list[bytes] = []
        groups: list[GroupCalls] = []
        problems: list[ValueError] = []
        for one in questions:
            try:
                dumps.append(one.take())
                if time.monotonic() > until:  # large dumps of those before it have used the time
                    raise ValueError("the flight recorder's dump arrived too late to be read")
                found, is_truncated = recorder.read_dump(dumps[-1], time.time_ns())
            except ValueError as error:  # noqa: PERF203
                problems.append(error)
            else:
                groups += found
                self._is_truncated |= is_truncated
        if len(problems) < len(questions):
            self._groups = recorder.keep_newest(groups)
            self._is_truncated |= len(self._groups) < len(groups)
            problems = [problem for problem in problems if not isinstance(problem, _NoHandlerError)]
        self.missing += [str(problem) for problem in problems[:1]]
        used = [dump for dump in dumps if b'"entries"' in dump] or dumps[:1]  # without calls it lacks the key
        self.dump = b"[" + b",".join(used) + b"]" if len(used) > 1 else b"".join(used)

    def take_stack(self, spy: _Spy) -> None:
        try:
            self.stack_text = spy.take()
            self.stack = stacks.read_main_stack(self.stack_text, spy.pid)
        except ValueError as error:
            self.problem = str(error)
        else:
            self.problem = ""
            self.has_run = not self.first.is_same_rest(_look_at_process(spy.pid))

    def compare_stack(self, spy: _Spy) -> None:
        """Keep of the stack what a second look confirms."""
        try:
            self.stack = stacks.keep_agreeing(self.stack or (), stacks.read_main_stack(spy.take(), spy.pid))
        except ValueError as error:
            self.stack = None
            self.problem = str(error)

    def conclude(self, *, has_stacks: bool) -> Examined:
        if has_stacks and self.problem and self.first.state != "ended":
            self.missing.append(stacks.explain_source(self.problem, has_stack=self.stack is not None))
        last = _look_at_process(self.target.pid)
        passed_s = last.at - self.first.at
        is_same = last.state == self.first.state and (last.state != "blocked" or last.is_same_rest(self.first))
        tracer = kernel.read_stat(last.tracer_pid) if last.tracer_pid else None
        evidence = RankEvidence(
            rank=self.target.rank,
            state=last.state if is_same or last.state == "ended" else "runs",
            wait=last.wait,
            tracer=tracer.name if tracer else "",
            cpu=(last.cpu_s - self.first.cpu_s) / passed_s if last.state != "ended" and passed_s > 0 else 0.0,
            stack=self.stack,
            groups=self._groups,
            is_truncated=self._is_truncated,
            missing=tuple(self.missing),
        )
        return Examined(evidence=evidence, dump=self.dump, stack_text=self.stack_text)


class _Answer:
    """Bytes that arrive on a descriptor, -1 if there is none, until its end or until it is too late."""

    def __init__(self, descriptor: int, until: float) -> None:
        self.descriptor = descriptor
        self.until = until
        self.found = bytearray()
        self.is_complete = False

    def read(self) -> bool:
        """Read what is there; return whether that was all."""
        try:
            piece = os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        self.found += piece
        self.is_complete = not piece or len(self.found) > _ANSWER_MAX
        return self.is_complete


def _wait_for(answers: Sequence[_Answer]) -> None:
    """Read all answers, each until its end or its time."""
    poll = select.poll()
    waiting = {one.descriptor: one for one in answers if one.descriptor >= 0}
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        now = time.monotonic()
        over = [descriptor for descriptor, one in waiting.items() if one.until <= now]
        if not over:
            first = min(one.until for one in waiting.values())
            over = [found for found, _ in poll.poll((first - now) * 1000 + 1) if waiting[found].read()]
        for descriptor in over:
            poll.unregister(descriptor)
            del waiting[descriptor]


class _NoHandlerError(ValueError):
    """The worker's server does not know what it was asked for."""


class _Question(_Answer):
    """A question to the server that a worker has opened for its recorder."""

    def __init__(self, path: str, handler: str, until: float) -> None:
        super().__init__(-1, min(until, time.monotonic() + ANSWER_LIMIT_S))
        self._socket: socket.socket | None = None
        self._problem = "the worker's flight recorder does not respond"
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            connection.connect(path)
            connection.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        except OSError as error:
            connection.close()
            if not path or isinstance(error, FileNotFoundError):
                self._problem = NO_SOCKET if path else NO_RECORDER
        else:
            self._socket, self.descriptor = connection, connection.fileno()

    def take(self) -> bytes:
        """Return the answer's content. Raises ValueError."""
        if self._socket is not None:
            self._socket.close()
        if not self.is_complete:
            raise ValueError(self._problem)
        head, _, content = bytes(self.found).partition(b"\r\n\r\n")
        words = head.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise ValueError(f"the worker's flight recorder returned {bytes(self.found[:40])!r}")
        if words[1] != b"200":
            kind = _NoHandlerError if words[1] == b"404" else ValueError
            raise kind(f"the worker's flight recorder returned status {words[1].decode(errors='replace')}")
        return content


class _Spy(_Answer):
    """A process of py-spy that looks at a worker."""

    def __init__(self, command: str, pid: int, until: float) -> None:
        super().__init__(-1, min(until, time.monotonic() + STACK_LIMIT_S))
        self.command = command
        self.pid = pid
        self._problem = ""
        try:
            self._process = subprocess.Popen(
                [command, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=drop_secrets(os.environ),
                preexec_fn=_die_with_parent,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._problem = f"{command} cannot be run: {error}"
        else:
            assert self._process.stdout is not None
            self.descriptor = self._process.stdout.fileno()

    def take(self) -> bytes:
        """Return what it has printed. Raises ValueError."""
        if self._problem:
            raise ValueError(self._problem)
        is_late = not self.is_complete
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            try:
                process.wait(0 if is_late else max(0.1, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                is_late = True
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel, with the worker that it reads
                    process.wait(KILL_LIMIT_S)
            text = b"" if is_late else process.stderr.read1()  # type: ignore[attr-defined]
        if is_late:
            raise ValueError("py-spy has not answered in time")
        if process.returncode:
            scope = _FILES.read_text("/proc/sys/kernel/yama/ptrace_scope")
            raise ValueError(stacks.explain_failure(text.decode(errors="replace"), process.returncode, scope))
        return bytes(self.found)


class _OwnStack:
    """Has a worker write the stack of its main thread, if it handles the signal for that and can take it now."""

    def __init__(self, subject: _Subject) -> None:
        self._subject = subject
        self._pid = subject.target.pid
        self._file = -1
        self._start = 0
        self._until = time.monotonic() + OWN_STACK_LIMIT_S
        pending, blocked, caught = self._read_signals()
        path = f"/proc/{self._pid}/fd/{STACK_DESCRIPTOR}"
        try:
            if caught and not blocked and not pending and os.readlink(path).startswith(STACK_FILES):
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._start = os.fstat(self._file).st_size
                ctypes.CDLL(None).tgkill(self._pid, self._pid, signal.SIGURG)  # to the main thread, and no other
        except (OSError, AttributeError):  # it has just ended, or is hidden; glibc before 2.30
            self._until = 0.0

    def is_due(self) -> bool:
        """Whether the handler may still write: while it runs, its signal is blocked."""
        if self._file < 0 or time.monotonic() >= self._until:
            return False
        return os.fstat(self._file).st_size == self._start or any(self._read_signals()[:2])

    def take(self) -> None:
        if self._file < 0:
            return
        with contextlib.suppress(ValueError, OSError):
            if not any(self._read_signals()[:2]):
                self._subject.stack = stacks.read_traceback(os.pread(self._file, _OWN_STACK_MAX, self._start))
        os.close(self._file)

    def _read_signals(self) -> tuple[bool, bool, bool]:
        """Return whether SIGURG waits for the main thread, is blocked there, and is handled by the process."""
        lines = (line.split() for line in _FILES.read_text(f"/proc/{self._pid}/status").splitlines())
        masks = {words[0]: int(words[1], 16) >> (signal.SIGURG - 1) & 1 for words in lines if words[0] in _MASKS}
        return bool(masks.get("SigPnd:")), bool(masks.get("SigBlk:")), bool(masks.get("SigCgt:"))


def _die_with_parent() -> None:
    kernel.signal_on_parent_death(signal.SIGKILL)
