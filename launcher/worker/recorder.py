"""Opens the socket at which this worker's agent asks torch for its flight recorder.

torch has a small HTTP server for that, which answers from threads of its own, also while the script is stuck or holds
the GIL. It is opened by what a worker begins with (launcher/ranks/main_start.py) when torch.distributed is imported; by
the fork server in a worker with preloaded modules; and elsewhere by the hook of `LAUNCHER_HANG_EVIDENCE=1`, or the
first call of `launcher.worker` that finds torch.distributed loaded. torch is never imported for it.

Only the process that the launcher has started opens it: it leads its session, and takes the variable away from the
children that it will have, whose recorders know nothing of the job's groups. Whatever fails here fails silently: the
agent then sees the worker without its recorder.

All but the last execute this file by its path, so it imports nothing that would leave a trace.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "LAUNCHER_RECORDER_SOCKET"
_LIBRARY = "torch._C._distributed_c10d"
_MESSAGE = b"[c10d] Server listening to "
_THREADS_MIN = 9  # the server's, unless there are more CPUs: then one for each
_CGROUPS = "/sys/fs/cgroup"

is_settled = False
"""Whether there is nothing left to do here."""


def open_recorder() -> None:
    """Open the socket if this process shall and can; cheap while torch.distributed is not loaded."""
    global is_settled
    library = sys.modules.get(_LIBRARY)
    if is_settled or not hasattr(library, "_WorkerServer"):
        return
    is_settled = True
    path = os.environ.get(VARIABLE)
    if not path or os.getsid(0) != os.getpid():
        return
    del os.environ[VARIABLE]
    try:
        if _has_room():
            _serve(library, path)
    except Exception:
        return


def _serve(library: "Any", path: str) -> None:
    import ctypes  # torch has loaded it
    import signal

    # The server's threads inherit this mask: a signal that the script blocks, to wait for it, must not reach them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        server = _make_quietly(lambda: library._WorkerServer(path))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # For ever: its destructor prints, and in a forked child it would wait for threads that are not there.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def _make_quietly(make: "Any") -> "Any":
    """Call `make`, and leave out of stderr the line that the server prints; what other threads print stays.

    Into memory, not into a pipe: that could fill up, and then the server's own line would wait for its reader.
    """
    try:
        stderr, memory = os.dup(2), os.memfd_create("stderr")
    except (OSError, AttributeError):  # closed; or Python was built without
        return make()
    os.dup2(memory, 2)
    try:
        return make()
    finally:
        os.dup2(stderr, 2)
        text = os.pread(memory, os.fstat(memory).st_size, 0)
        rest = b"".join(line for line in text.splitlines(keepends=True) if _MESSAGE not in line)
        if rest:
            os.write(2, rest)
        os.close(memory)
        os.close(stderr)


def _has_room() -> bool:
    """Whether the server's threads of all workers fit: where it cannot start them, torch ends the process."""
    count = max(_THREADS_MIN, os.cpu_count() or 0) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not _has_user_room(2 * count):
        return False
    with open("/proc/self/cgroup") as file:
        names = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, name in names:
        if controllers not in ("", "pids"):
            continue
        root = os.path.join(_CGROUPS, controllers)
        while True:
            try:
                with open(f"{root}{name}/pids.max") as limit, open(f"{root}{name}/pids.current") as used:
                    text = limit.read().strip()
                    if text != "max" and int(text) - int(used.read()) < 2 * count:
                        return False
            except FileNotFoundError:  # at the root, or another namespace's path
                pass
            if name in ("", "/"):
                break
            name = os.path.dirname(name)
    return True


def _has_user_room(count: int) -> bool:
    """Whether the user's limit of processes, `ulimit -u`, leaves room for so many threads."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY:
        return True
    # The user's own are counted only if those of all users do not fit: that takes milliseconds.
    return limit - _count_all_threads() >= count or limit - _count_own_threads() >= count


def _count_all_threads() -> int:
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def _count_own_threads() -> int:
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # noqa: PERF203 - it has just ended
            pass
    return count
