"""The newest log directory of this user's: what is in it, and the reports of its rounds and failures.

The output of workers is not shown: it is the user's own, and nobody could say what in it is secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

from launcher.model.console import format_time
from launcher.model.text import format_count

_RUN_DIR = re.compile(r".+_[0-9a-f]{8}")  # see launcher.logs.layout
_TEMPORARY_DIR = re.compile(r"meshrun_[0-9a-f]{8}")
# What is shown, and how many of each, the newest first.
_SHOWN = (
    (re.compile(r"events\.jsonl"), 1),
    (re.compile(r"error(_\w+)?\.json"), 4),
    (re.compile(r"crash(_\w+)?\.txt"), 2),
    (re.compile(r"rank_\d+\.json"), 8),
)
_FILES_MAX = 2000
_LISTED_MAX = 200
_BYTES_MAX = 16 << 10
"""Of a file that is shown."""


def describe(log_dir: str, environ: Mapping[str, str]) -> str:
    """Describe the last run. `log_dir`: the user's, "" for the directory of temporary files."""
    found = find_newest(log_dir, environ)
    if found is None:
        return f"no run has left anything in {log_dir or 'a directory for temporary files'}"
    files = sorted(islice(_walk(found), _FILES_MAX), reverse=True)
    lines = [found, f"{format_count(len(files), 'file')}, the newest first", ""]
    lines += [f"{format_time(changed_at)} {size:>12} {path}" for changed_at, path, size in files[:_LISTED_MAX]]
    for pattern, count in _SHOWN:
        matching = [path for _, path, _ in files if pattern.fullmatch(os.path.basename(path))]
        for path in matching[:count]:
            lines += ["", f"--- {path}", "", _read(os.path.join(found, path), of_end=path.endswith("jsonl"))]
    return "\n".join(lines)


def find_newest(log_dir: str, environ: Mapping[str, str]) -> str | None:
    """Return the directory of the newest run, in `log_dir` or, without, among temporary ones of this user's."""
    if log_dir:
        latest = os.path.realpath(os.path.join(log_dir, "latest-run"))
        if os.path.isdir(latest):
            return latest
        return max(_list_directories(log_dir, _RUN_DIR), default=(0.0, None))[1]
    folders = dict.fromkeys(filter(None, (environ.get("TMPDIR"), "/tmp", "/var/tmp")))
    found = (one for folder in folders for one in _list_directories(folder, _TEMPORARY_DIR))
    return max(found, default=(0.0, None))[1]


def _list_directories(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[float, str]]:
    """Yield times and paths of this user's: anybody may make one in /tmp."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.geteuid():
                    yield found.st_mtime, os.path.abspath(entry.path)


def _walk(top: str) -> Iterator[tuple[float, str, int]]:
    """Yield when each file was changed, its path below `top`, and its size."""
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):  # it has been removed meanwhile
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode):
                    yield found.st_mtime, os.path.relpath(path, top), found.st_size


def _read(path: str, *, of_end: bool) -> str:
    """Return the beginning or the end of a regular file, whatever it has become meanwhile."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if of_end and (left_out := os.fstat(file.fileno()).st_size - _BYTES_MAX) > 0:
                file.seek(left_out)
                file.readline()
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        return f"not read: {error.strerror}"
    text = content[:_BYTES_MAX].decode(errors="backslashreplace").rstrip()
    return text + "\n... (the rest is left out)" * (len(content) > _BYTES_MAX)
