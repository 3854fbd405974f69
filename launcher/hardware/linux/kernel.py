"""What Linux offers to processes and Python's library lacks: prctl, a timer that kills, pidfds, /proc.

A process that loses its parent becomes the child of the nearest ancestor that declared itself a *subreaper*. Agent and
supervisor both do, so no process that a worker leaves behind escapes: sooner or later it becomes a child of one of
them, and a child's pid cannot be reused before it has been reaped, which makes killing it exact.
"""

from __future__ import annotations

import _ctypes
import os
import struct
from collections.abc import Callable, Collection
from contextlib import suppress

from launcher.model.value import PlainValue

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    import signal as signal
else:
    import _signal as signal  # without enum, for the modules of keeper and supervisor, too

# include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61

_CLOCK_BOOTTIME = 7  # include/uapi/linux/time.h: goes on while the machine sleeps, as a lease does
_TIMER_ABSTIME = 1
_MFD_CLOEXEC = 0x1  # include/uapi/linux/memfd.h
_PF_EXITING = 0x4  # include/linux/sched.h: inside do_exit(), never to run user code again
_SIGKILL_PENDING = 1 << (signal.SIGKILL - 1)

# include/uapi/asm-generic/unistd.h; the same numbers on every architecture that torch or JAX is built for.
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434


# All that calls with numbers, bytes and a pointer to a number need. `ctypes`, the library's module on top of this one,
# makes forty types more, which cost 0.2 MiB and a fortieth of a start's instructions.


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_LIBC = _ctypes.dlopen(None)  # type: ignore[arg-type]  # this process, with its C library


def _call(name: str, *arguments: object, library: int = _LIBC) -> int:
    """Call a C function and return its result, which is negative for an error. Raises OSError.

    Whole numbers are passed as wide as the kernel reads them: some of these functions are variadic in C.
    """
    function = _Function(_ctypes.dlsym(library, name))
    result = int(function(*[_Long(value) if isinstance(value, int) else value for value in arguments]))
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number) if name == "syscall" else f"{name}: {os.strerror(number)}")
    return result


def become_subreaper() -> None:
    """Adopt, from now on, every descendant of this process that loses its parent."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_on_parent_death(signum: int) -> None:
    """Have the kernel send `signum` to this process when the thread that forked it ends.

    Not inherited by children, kept over exec except of a setuid program. The parent may have ended already: check.
    """
    _call("prctl", _PR_SET_PDEATHSIG, signum, 0, 0, 0)


def allow_tracing_by(pid: int) -> None:
    """Let this process and its descendants trace the calling one, which Yama else allows to ancestors only.

    Kept over exec, not inherited by children. Without Yama there is nothing to allow; where a filter refuses the call,
    `meshctl why` lacks this process's stack.
    """
    with suppress(OSError):
        _call("prctl", _PR_SET_PTRACER, pid, 0, 0, 0)


def flush_c_streams() -> None:
    """Flush what C libraries have printed, lest every fork write it once more."""
    with suppress(OSError):  # closed, or its disk is full
        _call("fflush", None)


def set_name(name: str) -> None:
    """Set the name that ps and top show (at most 15 characters); without /proc the old one stays."""
    with suppress(OSError):
        write_file("/proc/self/comm", name.encode())


def write_file(path: str, data: bytes, at: int = 0) -> None:
    """Write to a file of /proc, in one call. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if at:
            os.lseek(file, at, os.SEEK_SET)
        os.write(file, data)
    finally:
        os.close(file)


def make_memory_file(name: str) -> int:
    """Create a file in memory, closed by an exec.

    Not by os.memfd_create, which a Python lacks that was built for C libraries before glibc 2.27, as uv's and conda's
    are; the library here may be newer. If it is as old, or a sandbox refuses the call, the file is without a name: in
    /dev/shm, or on a disk, which may be full when it is written. Raises OSError.
    """
    try:
        return _call("memfd_create", name.encode(), _MFD_CLOEXEC)
    except OSError:
        from tempfile import TemporaryFile

        with suppress(OSError), TemporaryFile(dir="/dev/shm") as file:
            return os.dup(file.fileno())
        with TemporaryFile() as file:
            return os.dup(file.fileno())


class KillTimer:
    """A kernel timer that sends SIGKILL to this process at a point of CLOCK_BOOTTIME, even while it is stopped.

    It belongs to the process that made it: children do not inherit it, exec would end it.
    """

    def __init__(self) -> None:
        self._library = _LIBC
        try:
            _ctypes.dlsym(_LIBC, "timer_create")
        except OSError:  # before glibc 2.34 (Debian 11, Ubuntu 20.04)
            self._library = _ctypes.dlopen("librt.so.1")
        self._timer = _Long()  # as wide as the pointer that timer_t is
        # struct sigevent: a value, the signal, SIGEV_SIGNAL, the rest of 64 bytes.
        event = struct.pack("Pii48x", 0, signal.SIGKILL, 0)
        _call("timer_create", _CLOCK_BOOTTIME, event, _ctypes.byref(self._timer), library=self._library)

    def arm(self, at: float) -> None:
        """Kill at `at`, in seconds of CLOCK_BOOTTIME; replaces what was set before."""
        seconds, rest = divmod(at, 1.0)
        # struct itimerspec: interval (none), then the time; both zero means disarmed.
        when = struct.pack("4l", 0, 0, int(seconds), int(rest * 1e9))
        _call("timer_settime", self._timer, _TIMER_ABSTIME, when, None, library=self._library)

    def disarm(self) -> None:
        self.arm(0.0)


# --- /proc ---


class ProcessStat(PlainValue):
    """Fields of /proc/<pid>/stat, see proc(5)."""

    name: str
    state: str
    parent_pid: int
    flags: int
    cpu_ticks: int
    """Used by all of its threads."""
    start_ticks: int
    pending_signals: int
    arguments: tuple[int, int]
    """Begin and end of its command line in its memory."""

    @property
    def is_ending(self) -> bool:
        """Whether its main thread has ended, or ends now: a kill need not be waited for."""
        is_killed = bool(self.pending_signals & _SIGKILL_PENDING) and self.state != "D"
        return self.state in "ZX" or bool(self.flags & _PF_EXITING) or is_killed


def read_stat(pid: int, thread: int | None = None) -> ProcessStat | None:
    """Read what the kernel says of a process, or of one of its threads; None if it has ended."""
    text = _read_file(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
    if not text:
        return None
    start, _, rest = text.rpartition(b")")  # the name in brackets may contain spaces and brackets itself
    fields = rest.split()
    return ProcessStat(
        name=start.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        parent_pid=int(fields[1]),
        flags=int(fields[6]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
        pending_signals=int(fields[28]),
        arguments=(int(fields[45]), int(fields[46])),
    )


def _read_file(path: str) -> bytes:
    """Read a small file of /proc; empty if the process has ended, or is another user's and hidden (hidepid)."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def read_text(path: str) -> str:
    """Read a small file; "" if it cannot be read. Bytes that are no text, as in a mount's name, become surrogates."""
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fsdecode(file.readall())
    except OSError:
        return ""


def read_boot_id() -> str:
    """Return the kernel's id of this boot of the machine, "" where it has none."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def _list_numbers(path: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(path) if name.isdigit()]
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []


def list_children(pid: int) -> list[int]:
    """Return the children of a process, adopted ones and zombies included."""
    if os.path.exists("/proc/thread-self/children"):
        files = [_read_file(f"/proc/{pid}/task/{thread}/children") for thread in _list_numbers(f"/proc/{pid}/task")]
        return [int(number) for text in files for number in text.split()]
    # A kernel built without CONFIG_PROC_CHILDREN: read the parent of every process.
    stats = ((number, read_stat(number)) for number in _list_numbers("/proc"))
    return [number for number, stat in stats if stat and stat.parent_pid == pid]


def list_descendants(pid: int) -> set[int]:
    """Return the children of a process, their children, and so on."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(list_children(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def list_ancestors(pid: int) -> list[int]:
    """Return the parent of a process, its parent, and so on, as far as this pid namespace has them."""
    found: list[int] = []
    while (stat := read_stat(pid)) and stat.parent_pid > 0 and stat.parent_pid not in found:
        pid = stat.parent_pid
        found.append(pid)
    return found


def read_start_time(pid: int) -> int:
    """Return the start time of the process, in the kernel's ticks since boot; 0 if there is none."""
    stat = read_stat(pid)
    return stat.start_ticks if stat else 0


def is_stopped(pid: int) -> bool:
    """Whether it is stopped, by a signal or a tracer; False where that cannot be read for lack of descriptors."""
    stat = _read_stat_if_possible(pid)
    return stat is not None and stat.state in "Tt"


def _read_stat_if_possible(pid: int) -> ProcessStat | None:
    try:
        return read_stat(pid)
    except OSError:
        return None


def describe_process(pid: int) -> str:
    """Describe a process for a message: "pid 12 (python, state D)"; the letter is that of ps."""
    stat = _read_stat_if_possible(pid)
    return f"pid {pid} ({stat.name}, state {stat.state})" if stat else f"pid {pid}"


def is_past_user_code(pid: int) -> bool:
    """Whether no thread of the process can run an instruction of its own any more, though it is not reaped yet.

    True when each has ended, is inside do_exit(), or is held by the kernel (asleep in a driver, frozen) with SIGKILL
    pending.
    """
    for thread in _list_numbers(f"/proc/{pid}/task"):
        stat = read_stat(pid, thread)
        if stat is None or stat.state in "ZX" or stat.flags & _PF_EXITING:
            continue
        if not (stat.pending_signals & _SIGKILL_PENDING and stat.state in "DTt"):
            return False
    return True


# --- killing ---


def kill_children(spare: Collection[int], accept_stuck: bool) -> list[int]:
    """SIGKILL every child of this process except `spare`, with its process group; return those that still exist.

    One pass: a process orphaned by it becomes a child of ours and belongs to the next one, so call it, and reap,
    until none is left. Killing by group catches processes that fork faster than they can be listed. A group never
    contains a foreign process: each worker leads a session, and sessions are only inherited. With `accept_stuck`
    those that are past user code (and whose children are) do not count as left.
    """
    own_group = os.getpgrp()
    left = []
    for pid in list_children(os.getpid()):
        if pid in spare:
            continue
        with suppress(ProcessLookupError, PermissionError):  # a zombie's group, or a setuid program
            group = os.getpgid(pid)
            if group > 1 and group != own_group and group not in spare:  # 0: in another pid namespace
                os.killpg(group, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        if not (accept_stuck and _is_stuck_family(pid)):
            left.append(pid)
    return left


def _is_stuck_family(pid: int) -> bool:
    """Whether a killed process that the kernel does not release, and all children it still has, are past user code.

    Its children cannot be adopted while it is stuck, so they are killed under it.
    """
    if not is_past_user_code(pid):
        return False
    stuck = True
    for child in list_children(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
            stuck = _is_stuck_family(child) and stuck
    return stuck


def kill_exactly(pid: int, is_same_process: Callable[[], bool]) -> None:
    """SIGKILL a process that is no child of this one if `is_same_process` confirms it; do nothing if it has ended.

    A pidfd refers to one process permanently: opened first and verified then, it cannot hit another that has got the
    pid since. Linux has them from 5.3 on. Python has them only if the headers that it was built with did, which those
    of conda's and of portable Pythons do not, so the system calls are made by number. An older kernel or seccomp
    profile refuses them: there the start time is compared right before the kill, and the remaining risk is a pid that
    is reused within microseconds. Raises OSError when the process could not be killed: it is a setuid program, or
    something forbids it.
    """
    started = read_start_time(pid)
    with suppress(ProcessLookupError):
        process = _open_pidfd(pid)
        try:
            if started and is_same_process() and read_start_time(pid) == started:
                _kill_by_pidfd(pid, process)
        finally:
            if process is not None:
                os.close(process)


def kill_descendants(pid: int) -> None:
    """SIGKILL all descendants of a process that cannot do so itself, though they are no children of ours.

    Their pids may be reused at any time, so the descent of each is checked once more after its pidfd is open: upwards,
    since to list all descendants for each of them takes seconds where workers have hundreds of processes.
    """
    for found in list_descendants(pid):
        with suppress(OSError):
            kill_exactly(found, lambda: pid in list_ancestors(found))  # noqa: B023  (called at once)


def _open_pidfd(pid: int) -> int | None:
    """Open a pidfd; None where the system cannot. Raises ProcessLookupError when the process has ended."""
    try:
        return _call("syscall", _PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS, EPERM: the kernel or a filter is older; EMFILE
        return None


def _kill_by_pidfd(pid: int, process: int | None) -> None:
    try:
        if process is not None:
            _call("syscall", _PIDFD_SEND_SIGNAL, process, signal.SIGKILL, 0, 0)
            return
    except ProcessLookupError:
        raise
    except OSError:  # a filter may refuse this call and not the other; kill() tells whether it is that
        pass
    os.kill(pid, signal.SIGKILL)
