"""What an import leaves behind that a fork would lose or share: threads, child processes, accelerators, open files.

Only the thread that forks goes on in a child. A library whose threads have gone waits for them for ever, so a module
that starts some cannot be preloaded. Except where the library knows: OpenBLAS, behind numpy, takes its threads down as
a process forks, and starts them again where they are needed. A trial fork shows it. An accelerator's context does not
survive a fork at all, and CUDA refuses to work in a process whose parent has as much as asked it for its devices.
"""

from __future__ import annotations

import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATIENCE_S = 1.0  # for a thread or process that is about to end when its import does
_LOOK_S = 0.005
# Nodes of accelerators; the names are those of launcher/devices: NVIDIA, AMD and Intel, TPU, Trainium, Gaudi, Ascend.
_ACCELERATOR = re.compile(
    r"/dev/(?:nvidia[^/]*|nvidia-caps/.+|kfd|dri/.+|accel[^/]*|accel/.+|apex_\d+|vfio/.+|neuron\d+|hl\w*\d+|davinci\w+"
    r"|dxg)$"
)
# They say so when a fork of theirs cannot use its devices, and forks of a process that has asked for these cannot.
_PARTS_FOR_DEVICES = ("torch.cuda", "torch.xpu")
# What many processes may have open in common: no position, or nothing that is read by position.
_HARMLESS = re.compile(r"/dev/(?!shm/)|/proc/|/sys/|/memfd:|anon_inode:\[pidfd\]")


class Refused(Exception):
    """These modules cannot be preloaded: a sentence, without the option's name, and a hint."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


def look_before(fork: Callable[[], int]) -> None:
    """Raise Refused for what is there before the first import: a .pth file or `sitecustomize` may start threads."""
    _try(fork)
    found = [("thread", _settled(_threads)), ("process", _settled(lambda: _processes(frozenset())))]
    for noun, left in found:
        if left:
            raise Refused(
                f"{sys.executable} has started {_listed(noun, left)} before anything was imported",
                "see the .pth files and sitecustomize in its site-packages, or leave out --preload",
            )


def look(module: str, before: frozenset[int], fork: Callable[[], int]) -> None:
    """Raise Refused if the import of `module` left a thread, a process or an open accelerator.

    `before`: this process's children before.
    """
    hint = f"leave {module} out of --preload"
    if used := _begun():
        raise Refused(f"importing {module} began to use {used}, which a forked process could not use", hint)
    if device := _accelerator():
        raise Refused(f"importing {module} opened {device}, which a forked process could not use", hint)
    if asked := _try(fork):
        raise Refused(f"importing {module} asked {asked} for its devices: a forked process could not use them", hint)
    if left := _settled(_threads):
        raise Refused(f"importing {module} started {_listed('thread', left)}, which a fork would lose", hint)
    if left := _settled(lambda: _processes(before)):
        raise Refused(f"importing {module} started {_listed('process', left)}, which workers would share", hint)


def _begun() -> str:
    """The part of torch that has a context on a device; empty if none has."""
    return next((name for name in _PARTS_FOR_DEVICES if _answer(name, "is_initialized")), "")


def _answer(name: str, question: str) -> bool:
    return bool(getattr(sys.modules.get(name), question, bool)())


def _try(fork: Callable[[], int]) -> str:
    """Fork once, if that may show something. Gives back the part of torch that says there that it will not work."""
    questioned = [name for name in _PARTS_FOR_DEVICES if name in sys.modules]
    if not questioned and not _threads():
        return ""
    pid = fork()
    if pid == 0:
        os._exit(next((place for place, name in enumerate(questioned, 1) if _answer(name, "_is_in_bad_fork")), 0))
    try:
        place = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # an import ignores SIGCHLD
        return ""
    return questioned[place - 1] if 0 < place <= len(questioned) else ""


def _accelerator() -> str:
    return next((path for path in open_files().values() if _ACCELERATOR.match(path)), "")


def _threads() -> list[str]:
    """The names of all threads but the first."""
    threading = sys.modules.get("threading")
    known = {thread.native_id: thread.name for thread in threading.enumerate()} if threading else {}
    others = [number for number in map(int, os.listdir("/proc/self/task")) if number != os.getpid()]
    names = [known.get(number) or _read(f"/proc/self/task/{number}/comm").strip() for number in others]
    return [name for name in names if name]


def children() -> frozenset[int]:
    """The processes whose parent this one is and that have not ended."""
    own = str(os.getpid())
    path = f"/proc/{own}/task/{own}/children"
    if os.path.exists(path):
        found = [number for task in os.listdir("/proc/self/task") for number in _children_of(task)]
    else:  # a kernel built without CONFIG_PROC_CHILDREN
        found = [number for number in os.listdir("/proc") if number.isdigit() and _stat(number)[1:2] == [own]]
    return frozenset(int(number) for number in found if _stat(number)[:1] not in ([], ["Z"], ["X"]))


def _children_of(task: str) -> list[str]:
    return _read(f"/proc/self/task/{task}/children").split()


def _processes(before: frozenset[int]) -> list[str]:
    names = []
    for pid in sorted(children() - before):
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or _read(f"/proc/{pid}/comm").strip()
        names.append(command if len(command) <= 80 else f"{command[:77]}...")
    return names


def _settled(look: Callable[[], list[str]]) -> list[str]:
    """What is still there after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _listed(noun: str, names: list[str]) -> str:
    """The threads "a" and "b", or three of many."""
    different = list(dict.fromkeys(names))
    shown = " and ".join(f'"{name}"' for name in different[:2])
    more = len(names) - min(len(different), 2)
    plural = noun if len(names) == 1 else "threads" if noun == "thread" else "processes"
    return f"the {plural} {shown}" + (f" and {more} more" if more else "")


def open_files() -> dict[int, str]:
    """What this process has open: number and what /proc says."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # noqa: PERF203 - the directory itself
            continue
    return found


def left_open(before: Iterable[int]) -> list[str]:
    """Files, sockets and the like that have been opened since and that all workers would share."""
    return [
        "a socket" if path.startswith("socket:") else "a pipe" if path.startswith("pipe:") else path
        for number, path in sorted(open_files().items())
        if number not in before and not _HARMLESS.match(path)
    ]


def _stat(pid: str) -> list[str]:
    """State, parent and so on, behind the name in /proc/<pid>/stat; empty when there is no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
