"""What a worker has left in the shared page at its end: how its script has ended, or Python's stacks of a crash.

`main_start` writes a line as the script begins, `main_exit` a short traceback when an exception or `sys.exit` ends
it, and faulthandler what every thread did when a signal of native code came. It is all text of a dying process, or of
one that it has forked: what does not look like that is not shown. Functions of texts, loaded when a worker has failed.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import suppress

from launcher.logs.reports.report import FATAL, LastWords

_HEAD = "Traceback (most recent call last):\n"
_FILE = "  File "
_CURRENT = re.compile(r"^Current thread 0x.*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
FRAMES_MAX = 20  # of a text that any process of the worker's can write
FRAME_MAX = 200
EXCEPTION_MAX = 4_000
_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_OWN_FILES = ("/launcher/ranks/as_main.py", "/launcher/ranks/main_start.py")
# What is between `as_main` and a script.
_RUNNER = re.compile(r'(?:<frozen runpy>|/runpy\.py|/launcher/ranks/main_(?:forms|start)\.py)", line ')
_NO_SCRIPT_CODES = (0, 120)  # the latter: Python could not flush stdout at its end, where no script runs any more


def parse(text: str, exit_code: int, tail: str = "") -> LastWords:
    """Read last words. `tail`: of stderr, where faulthandler has written if the user has asked for it."""
    dump = next((each for each in (text, tail if exit_code < 0 else "") if FATAL in each), "")
    stacks = dump[dump.rfind(FATAL) :] if dump else ""  # the last: a process that it has forked may have crashed before
    kept = stacks if FATAL in text else ""
    if exit_code < 0:
        name = stacks.removeprefix(FATAL).partition("\n")[0]
        if exit_code != -_SIGNALS.get(name, signal.SIGABRT):  # of a process that it has forked, and outlived
            stacks = kept = ""
        found = _CURRENT.search(stacks)
        called = [match.groups() for line in (found[1] if found else "").split("\n") if (match := _FRAME.match(line))]
        shown = [f'"{file}", line {line}, in {name}' for file, line, name in called if not file.endswith(_OWN_FILES)]
        frames = tuple(frame[-FRAME_MAX:] for frame in reversed(shown[:FRAMES_MAX]))
        return LastWords(frames, stacks=kept, has_begun=bool(text))
    _, head, record = text.rpartition(_HEAD)
    if not head:
        return LastWords(stacks=kept, has_begun=bool(text), is_abrupt=bool(text) and exit_code not in _NO_SCRIPT_CODES)
    lines = record.strip("\n").split("\n")
    count = next((number for number, line in enumerate(lines) if not line.startswith(_FILE)), len(lines))
    passed = [line[len(_FILE) :] for line in lines[:count] if not _RUNNER.search(line)]
    frames = tuple(frame[-FRAME_MAX:] for frame in passed[-FRAMES_MAX:])
    return LastWords(frames, "\n".join(lines[count:])[:EXCEPTION_MAX], kept, has_begun=True)


def keep_stacks(stacks: str, error_file: str) -> str:
    """Write what all threads did beside the error file; return the path, "" if that is not possible."""
    if not stacks or not error_file:
        return ""
    folder, name = os.path.split(error_file)
    path = os.path.join(folder, name.replace("error", "crash", 1).removesuffix(".json") + ".txt")
    with suppress(OSError), open(path, "w", errors="replace", opener=_open_at_once) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.write(stacks)
            return path
    return ""


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o666)  # a pipe in its place would wait for a reader
