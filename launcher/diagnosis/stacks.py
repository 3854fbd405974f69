"""Python stacks of a worker, as py-spy prints them, or else as the worker itself writes them.

py-spy reads another process's memory; the worker does nothing for it, and it works while something holds the GIL. It
is asked not to stop the worker (`--nonblocking`), so a stack that changes while it is read may come out torn: a worker
whose main thread has run meanwhile is looked at twice, and only the frames on which both agree count.

Where py-spy may not or cannot, the worker writes the stack of its main thread (launcher/ranks/main_start.py): Python's
faulthandler does that in a signal handler of C, which needs no GIL. It interrupts a system call of that thread, which
Python and most libraries then repeat, so it comes second. Only a process that handles SIGURG, and does not block it,
is asked; any other ignores that signal.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from launcher.diagnosis.evidence import Frame
from launcher.model.console import escape
from rendezvous import codec

FRAMES_MAX = 40
NO_COMMAND = "py-spy is not installed (pip install py-spy)"
OTHER_PROGRAM = "the worker is not a Python process, or one that this version of py-spy does not support"
_OTHER_PROGRAM = ("python version", "python interpreter", "Unsupported version")
_FAULTHANDLER_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder in which this package lies: with `pip install --target` the programs are in its bin."""
_STARTERS = ("/launcher/ranks/as_main.py", "/launcher/ranks/main_start.py")
"""Ours: the first calls every script."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    os_thread_id: int | None = None
    thread_name: str | None = None


def find_command() -> str | None:
    """Return where py-spy is: where pip puts programs, or on the PATH; None if it is not installed."""
    beside, target, user = os.path.dirname(sys.executable), f"{_ROOT}/bin", f"{site.getuserbase()}/bin"
    return shutil.which("py-spy", path=os.pathsep.join((beside, target, user))) or shutil.which("py-spy")


def read_main_stack(output: bytes, pid: int) -> tuple[Frame, ...]:
    """Return the main thread's frames, the innermost first, of `py-spy dump --json`. Raises ValueError."""
    try:
        threads = codec.find_decoder(list[_Thread]).decode(output)
    except msgspec.MsgspecError as error:
        raise ValueError(f"py-spy's answer cannot be read: {error}") from None
    main = next((one for one in threads if one.os_thread_id == pid), None)
    main = main or next((one for one in threads if one.thread_name == "MainThread"), None)
    if main is None:
        raise ValueError("py-spy did not find the main thread")
    return _cut([_make_frame(one.name, one.filename, one.line) for one in main.frames])


def keep_agreeing(one: Sequence[Frame], other: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that two looks have in common, from the outermost inwards; lines as the first look saw them."""
    both = zip(reversed(one), reversed(other), strict=False)
    alike = takewhile(lambda pair: pair[0].function == pair[1].function and pair[0].file == pair[1].file, both)
    return tuple(one[len(one) - sum(1 for _ in alike) :])


def read_traceback(text: bytes) -> tuple[Frame, ...]:
    """Return the frames, the innermost first, of what faulthandler writes of one thread. Raises ValueError."""
    matches = [_FAULTHANDLER_FRAME.fullmatch(line) for line in text.decode(errors="replace").splitlines()]
    frames = [_make_frame(match[3], match[1], int(match[2].replace("?", "") or 0)) for match in matches if match]
    if not frames:
        raise ValueError("its own handler has written nothing")
    return _cut(frames)


def _make_frame(function: str, file: str, line: int) -> Frame:
    """Make a frame whose names can be shown: a file may be called anything, and a line feed would begin a line."""
    return Frame(function=escape(function), file=escape(file), line=line)


def _cut(frames: list[Frame]) -> tuple[Frame, ...]:
    """Leave out what has called the script, and the outermost of too many."""
    while frames and frames[-1].file.endswith(_STARTERS):
        frames.pop()
    return tuple(frames[:FRAMES_MAX])


def explain_failure(text: str, exit_code: int, ptrace_scope: str) -> str:
    """Say why py-spy cannot read a worker. `ptrace_scope`: the kernel's setting of that name, "" without Yama."""
    first = next((line.removeprefix("Error: ") for line in text.splitlines() if line), f"exit code {exit_code}")
    if "ermission" in text or "not permitted" in text:
        if ptrace_scope not in ("", "0"):
            return f"the kernel does not let py-spy read the worker (kernel.yama.ptrace_scope={ptrace_scope})"
        return "the kernel does not let py-spy read the worker (a container may need the capability SYS_PTRACE)"
    if any(words in first for words in _OTHER_PROGRAM):
        return OTHER_PROGRAM
    return f"py-spy cannot read the worker: {first}"


def explain_source(problem: str, *, has_stack: bool) -> str:
    """Say what a problem with py-spy means for the worker's stack."""
    return f"{'the worker wrote the stack itself, of its main thread only' if has_stack else 'no stacks'}: {problem}"
