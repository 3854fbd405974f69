"""Detects what an import leaves behind that a fork would lose or share: threads, children, accelerators, open files.

Only the thread that forks exists in a child. A library whose threads are missing waits for them for ever, so a module
that starts some cannot be preloaded. Except where the library handles forks: OpenBLAS, behind numpy, stops its threads
when a process forks, and starts them again where they are needed. A trial fork shows it. An accelerator's context does
not survive a fork at all, and CUDA refuses to work in a process whose parent has only queried it for its devices.
"""

from __future__ import annotations

import os
import re
import sys
import time

from launcher.hardware.linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SETTLE_LIMIT_S = 1.0  # for a thread or process that is about to end when its import does
_POLL_INTERVAL_S = 0.005
# Nodes of accelerators: NVIDIA, AMD and Intel, TPU, Trainium, Gaudi, Ascend.
_ACCELERATOR_PATH = re.compile(
    r"/dev/(?:nvidia[^/]*|nvidia-caps/.+|kfd|dri/.+|accel[^/]*|accel/.+|apex_\d+|vfio/.+|neuron\d+|hl\w*\d+|davinci\w+"
    r"|dxg)$"
)
# They report it when a fork of theirs cannot use its devices: in a process that has queried these, none can.
_TORCH_BACKENDS = ("torch.cuda", "torch.xpu")
# What several processes may have open in common: no position, or nothing that is read by position.
_SHAREABLE_FILES = re.compile(r"/dev/(?!shm/)|/proc/|/sys/|/memfd:|anon_inode:\[pidfd\]")


class PreloadError(Exception):
    """These modules cannot be preloaded: a sentence, without the option's name, and a hint."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


def check_before_import(fork: Callable[[], int]) -> None:
    """Raise PreloadError for what exists before the first import: a .pth file or `sitecustomize` may start threads."""
    _try_fork(fork)
    found = [
        ("thread", _wait_until_empty(_list_threads)),
        ("process", _wait_until_empty(lambda: _list_processes(frozenset()))),
    ]
    for noun, left in found:
        if left:
            raise PreloadError(
                f"{sys.executable} has started {_format_names(noun, left)} before anything was imported",
                "check the .pth files and sitecustomize in its site-packages, or leave out --preload",
            )


def check_import(module: str, children_before: frozenset[int], fork: Callable[[], int]) -> None:
    """Raise PreloadError if the import of `module` left a thread, a process or an open accelerator.

    `children_before`: this process's children before the import.
    """
    hint = f"leave {module} out of --preload"
    if used := _find_initialized_backend():
        raise PreloadError(f"importing {module} began to use {used}, which forked processes cannot use", hint)
    if device := _find_open_accelerator():
        raise PreloadError(f"importing {module} opened {device}, which forked processes cannot use", hint)
    if asked := _try_fork(fork):
        raise PreloadError(
            f"importing {module} asked {asked} for its devices, which forked processes then cannot use", hint
        )
    if left := _wait_until_empty(_list_threads):
        raise PreloadError(f"importing {module} started {_format_names('thread', left)}, which a fork would lose", hint)
    if left := _wait_until_empty(lambda: _list_processes(children_before)):
        raise PreloadError(
            f"importing {module} started {_format_names('process', left)}, which workers would share", hint
        )


def _find_initialized_backend() -> str:
    """Return the part of torch that has a context on a device; empty if none has."""
    return next((name for name in _TORCH_BACKENDS if _call_predicate(name, "is_initialized")), "")


def _call_predicate(name: str, predicate: str) -> bool:
    return bool(getattr(sys.modules.get(name), predicate, bool)())


def _try_fork(fork: Callable[[], int]) -> str:
    """Fork once, if that may show something. Returns the part of torch that reports there that it will not work."""
    questioned = [name for name in _TORCH_BACKENDS if name in sys.modules]
    if not questioned and not _list_threads():
        return ""
    pid = fork()
    if pid == 0:
        os._exit(
            next((place for place, name in enumerate(questioned, 1) if _call_predicate(name, "_is_in_bad_fork")), 0)
        )
    try:
        place = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # an import ignores SIGCHLD
        return ""
    return questioned[place - 1] if 0 < place <= len(questioned) else ""


def _find_open_accelerator() -> str:
    return next((path for path in list_open_files().values() if _ACCELERATOR_PATH.match(path)), "")


def _list_threads() -> list[str]:
    """Return the names of all threads but the first."""
    threading = sys.modules.get("threading")
    known = {thread.native_id: thread.name for thread in threading.enumerate()} if threading else {}
    others = [number for number in map(int, os.listdir("/proc/self/task")) if number != os.getpid()]
    names = [known.get(number) or kernel.read_text(f"/proc/self/task/{number}/comm").strip() for number in others]
    return [name for name in names if name]


def list_children() -> frozenset[int]:
    """Return the children of this process that have not ended."""
    found = ((pid, kernel.read_stat(pid)) for pid in kernel.list_children(os.getpid()))
    return frozenset(pid for pid, stat in found if stat is not None and stat.state not in "ZX")


def _list_processes(children_before: frozenset[int]) -> list[str]:
    names = []
    for pid in sorted(list_children() - children_before):
        words = kernel.read_text(f"/proc/{pid}/cmdline").replace("\0", " ")
        command = words.strip() or kernel.read_text(f"/proc/{pid}/comm").strip()
        names.append(command if len(command) <= 80 else f"{command[:77]}...")
    return names


def _wait_until_empty(list_remaining: Callable[[], list[str]]) -> list[str]:
    """Return what still exists after at most SETTLE_LIMIT_S."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while (found := list_remaining()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    return found


def _format_names(noun: str, names: list[str]) -> str:
    """Format the threads "a" and "b", or three of many."""
    different = list(dict.fromkeys(names))
    shown = " and ".join(f'"{name}"' for name in different[:2])
    more = len(names) - min(len(different), 2)
    plural = noun if len(names) == 1 else "threads" if noun == "thread" else "processes"
    return f"the {plural} {shown}" + (f" and {more} more" if more else "")


def list_open_files() -> dict[int, str]:
    """Return this process's open files: number and what /proc says."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # noqa: PERF203 - the directory itself
            continue
    return found


def list_opened_files(descriptors_before: Iterable[int]) -> list[str]:
    """Return files, sockets and the like that have been opened since and that all workers would share."""
    return [
        "a socket" if path.startswith("socket:") else "a pipe" if path.startswith("pipe:") else path
        for number, path in sorted(list_open_files().items())
        if number not in descriptors_before and not _SHAREABLE_FILES.match(path)
    ]
