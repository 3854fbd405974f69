"""Python stacks of a worker, as py-spy prints them.

py-spy reads another process's memory; the worker does nothing for it, and it works while something holds the GIL. It
is asked not to stop the worker (`--nonblocking`), so a stack that changes while it is read may come out torn: each
worker is looked at twice, and only the frames on which both agree count.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

import msgspec

from launcher.diagnose.evidence import Frame

FRAMES_MAX = 40
_STARTER = "/launcher/ranks/as_main.py"
"""Ours, in which every script is called."""


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    os_thread_id: int | None = None
    thread_name: str | None = None


def find_command() -> str | None:
    """Return where py-spy is: beside this Python, or on the PATH; None if it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read_main_stack(output: bytes, pid: int) -> tuple[Frame, ...]:
    """Return the main thread's frames, the innermost first, of `py-spy dump --json`. Raises ValueError."""
    try:
        threads = msgspec.json.decode(output, type=list[_Thread])
    except msgspec.MsgspecError as error:
        raise ValueError(f"py-spy's answer cannot be read: {error}") from None
    main = next((one for one in threads if one.os_thread_id == pid), None)
    main = main or next((one for one in threads if one.thread_name == "MainThread"), None)
    if main is None:
        raise ValueError("py-spy has not found the main thread")
    frames = [Frame(function=one.name, file=one.filename, line=one.line) for one in main.frames[:FRAMES_MAX]]
    while frames and frames[-1].file.endswith(_STARTER):
        frames.pop()
    return tuple(frames)


def keep_agreeing(one: Sequence[Frame], other: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that two looks have in common, from the outermost inwards; lines as the first look saw them."""
    count = 0
    for mine, its in zip(reversed(one), reversed(other), strict=False):
        if (mine.function, mine.file) != (its.function, its.file):
            break
        count += 1
    return tuple(one[len(one) - count :])
