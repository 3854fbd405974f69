"""Linux kernel calls of the supervisor that Python's library lacks: prctl, a timer that kills, /proc.

A process that loses its parent becomes the child of the nearest ancestor that declared itself a *subreaper*. Agent and
supervisor both do, so no process that a worker leaves behind escapes: sooner or later it becomes a child of one of
them, and a child's pid cannot be reused before it has been reaped, which makes killing it exact. ctypes is
imported in the functions (1.5 ms): the supervisor pays while the agent is busy elsewhere, the agent after its workers
have been started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from errno import ENOSYS

from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

# include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_CLOCK_BOOTTIME = 7  # include/uapi/linux/time.h: goes on while the machine sleeps, as a lease does
_TIMER_ABSTIME = 1
_MFD_CLOEXEC = 0x1  # include/uapi/linux/memfd.h
_PF_EXITING = 0x4  # include/linux/sched.h: inside do_exit(), never to run user code again
_SIGKILL_PENDING = 1 << (signal.SIGKILL - 1)

_library: ctypes.CDLL | None = None


def load_libc() -> ctypes.CDLL:
    """Load the C library, with errno kept."""
    global _library
    if _library is None:
        import ctypes

        _library = ctypes.CDLL(None, use_errno=True)
        # Variadic in C: every argument has to be as wide as the kernel reads it.
        _library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    return _library


def _check_result(result: int, call: str) -> None:
    if result != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Adopt, from now on, every descendant of this process that loses its parent."""
    _check_result(load_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def signal_on_parent_death(signum: int) -> None:
    """Have the kernel send `signum` to this process when the thread that forked it ends.

    Not inherited by children, kept over exec except of a setuid program. The parent may have ended already: check.
    """
    _check_result(load_libc().prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl")


def set_name(name: str) -> None:
    """Set the name that ps and top show (at most 15 characters)."""
    import ctypes

    text = ctypes.create_string_buffer(name.encode())
    _check_result(load_libc().prctl(_PR_SET_NAME, ctypes.addressof(text), 0, 0, 0), "prctl")


def make_memory_file(name: str) -> int:
    """Create a file in memory, closed by an exec: os.memfd_create, for a Python that was built without it."""
    import ctypes

    try:
        create = load_libc().memfd_create
    except AttributeError:  # the C library is as old
        raise OSError(ENOSYS, os.strerror(ENOSYS)) from None
    descriptor = int(create(name.encode(), _MFD_CLOEXEC))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


class KillTimer:
    """A kernel timer that sends SIGKILL to this process at a point of CLOCK_BOOTTIME, even while it is stopped.

    It belongs to the process that made it: children do not inherit it, exec would end it.
    """

    def __init__(self) -> None:
        import ctypes

        class SignalEvent(ctypes.Structure):  # struct sigevent is 64 bytes
            _fields_ = (
                ("value", ctypes.c_void_p),
                ("signum", ctypes.c_int),
                ("notify", ctypes.c_int),  # 0 is SIGEV_SIGNAL
                ("rest", ctypes.c_char * 48),
            )

        # Before glibc 2.34 (Debian 11, Ubuntu 20.04) the timer functions live in librt.
        self._library = (
            load_libc() if hasattr(load_libc(), "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
        )
        self._timer = ctypes.c_void_p()
        event = SignalEvent(signum=signal.SIGKILL)
        created = self._library.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer))
        _check_result(created, "timer_create")

    def arm(self, at: float) -> None:
        """Kill at `at`, in seconds of CLOCK_BOOTTIME; replaces what was set before."""
        self._set(at)

    def disarm(self) -> None:
        self._set(0.0)

    def _set(self, at: float) -> None:
        import ctypes

        seconds, rest = divmod(at, 1.0)
        # struct itimerspec: interval (none), then the time; both zero means disarmed.
        when = (ctypes.c_long * 4)(0, 0, int(seconds), int(rest * 1e9))
        _check_result(self._library.timer_settime(self._timer, _TIMER_ABSTIME, when, None), "timer_settime")


class _ProcessStat(NamedTuple):
    state: str
    parent_pid: int
    flags: int
    start_ticks: int
    pending_signals: int


def _parse_stat(text: bytes) -> _ProcessStat:
    """Parse /proc/<pid>/stat (proc(5)); the name in brackets may contain spaces and brackets itself."""
    fields = text.rpartition(b")")[2].split()
    return _ProcessStat(fields[0].decode(), int(fields[1]), int(fields[6]), int(fields[19]), int(fields[28]))


def _read_file(path: str) -> bytes:
    """Read a small file of /proc; empty if the process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _list_directory(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []


def list_children(pid: int) -> list[int]:
    """Return the children of a process, adopted ones and zombies included."""
    if os.path.exists("/proc/thread-self/children"):
        files = [_read_file(f"/proc/{pid}/task/{thread}/children") for thread in _list_directory(f"/proc/{pid}/task")]
        return [int(number) for text in files for number in text.split()]
    # A kernel built without CONFIG_PROC_CHILDREN: read the parent of every process.
    stats = ((number, _read_file(f"/proc/{number}/stat")) for number in _list_directory("/proc") if number.isdigit())
    return [int(number) for number, text in stats if text and _parse_stat(text).parent_pid == pid]


def list_descendants(pid: int) -> set[int]:
    """Return the children of a process, their children, and so on."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = set(list_children(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def read_start_time(pid: int) -> int:
    """Return the start time of the process, in the kernel's ticks since boot; 0 if there is none."""
    text = _read_file(f"/proc/{pid}/stat")
    return _parse_stat(text).start_ticks if text else 0


def is_descendant(ancestor: int, pid: int) -> bool:
    """Walk upwards: to list all descendants for each of them takes seconds where workers have hundreds of processes."""
    while pid > 1 and (text := _read_file(f"/proc/{pid}/stat")):
        pid = _parse_stat(text).parent_pid
        if pid == ancestor:
            return True
    return False


def is_stopped(pid: int) -> bool:
    text = _read_file(f"/proc/{pid}/stat")
    return bool(text) and _parse_stat(text).state in "Tt"


def describe_process(pid: int) -> str:
    """Describe a process for a message: "pid 12 (python, state D)"; the letter is that of ps."""
    text = _read_file(f"/proc/{pid}/stat")
    if not text:
        return f"pid {pid}"
    name = text.partition(b"(")[2].rpartition(b")")[0].decode(errors="replace")
    return f"pid {pid} ({name}, state {_parse_stat(text).state})"


def is_past_user_code(pid: int) -> bool:
    """Whether no thread of the process can run an instruction of its own any more, though it is not reaped yet.

    True when each has ended, is inside do_exit(), or is held by the kernel (asleep in a driver, frozen) with SIGKILL
    pending.
    """
    for thread in _list_directory(f"/proc/{pid}/task"):
        text = _read_file(f"/proc/{pid}/task/{thread}/stat")
        if not text:
            continue
        stat = _parse_stat(text)
        if stat.state in "ZX" or stat.flags & _PF_EXITING:
            continue
        if not (stat.pending_signals & _SIGKILL_PENDING and stat.state in "DTt"):
            return False
    return True


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
        try:
            group = os.getpgid(pid)
            if group > 1 and group != own_group and group not in spare:  # 0: in another pid namespace
                os.killpg(group, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # a zombie's group, or a setuid program
            pass
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
        try:
            os.kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        stuck = _is_stuck_family(child) and stuck
    return stuck
