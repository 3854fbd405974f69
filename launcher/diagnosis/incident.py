"""The incident folder: all that was seen of this node's workers, for people.

    rank_<r>.json           what is known of it
    rank_<r>.stacks.json    the stacks of all its threads, as py-spy printed them
    rank_<r>.tail.txt       the last lines of each of its output files
    rank_<r>.recorder.json  the flight recorder's dump; with .gz if it is large

A folder is new or it is not written, so nothing is ever overwritten. It is bounded, and what is small and tells most
is written first. A full disk is a remark. Whoever may read the job's memory may read what lies here, so it is the
user's alone.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence

from launcher.diagnosis.gather import Examined
from launcher.diagnosis.request import Target
from launcher.hardware.linux.files import replacing
from launcher.model.text import format_list
from rendezvous import codec

FOLDER_MAX = 64 * 2**20
TAIL_MAX = 64 * 2**10
TAIL_LINES = 100
_GZIP_FROM = 2**20


def write_incident(
    path: str, targets: Sequence[Target], examined: Sequence[Examined], until: float
) -> tuple[bool, str]:
    """Create the folder and fill it until this time of time.monotonic().

    Returns whether there is one now, and a sentence on what is not there.
    """
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        return False, f"the incident folder {path} cannot be created: {error.strerror}"
    size, left_out, problem = 0, [], ""
    for name, content in _list_files(targets, examined):
        if problem or time.monotonic() > until or size + len(content) > FOLDER_MAX:
            left_out.append(name)
            continue
        try:
            with replacing(os.path.join(path, name), 0o600) as file:
                file.write(content)
        except OSError as error:
            problem = f": {error.strerror}"
            left_out.append(name)
        else:
            size += len(content)
    if not left_out:
        return True, ""
    return True, f"the incident folder {path} lacks {format_list(left_out, 3)}{problem or ': too large, or too late'}"


def _list_files(targets: Sequence[Target], examined: Sequence[Examined]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents."""
    for one in examined:
        yield f"rank_{one.evidence.rank}.json", codec.encode(one.evidence)
    for one in examined:
        if one.stack_text:
            yield f"rank_{one.evidence.rank}.stacks.json", one.stack_text
    for target in targets:
        if tail := b"".join(_read_tail(output) for output in target.outputs):
            yield f"rank_{target.rank}.tail.txt", tail
    for one in examined:
        if len(one.dump) > _GZIP_FROM:
            import gzip  # of few incidents

            yield f"rank_{one.evidence.rank}.recorder.json.gz", gzip.compress(one.dump, 1)
        elif one.dump:
            yield f"rank_{one.evidence.rank}.recorder.json", one.dump


def _read_tail(path: str) -> bytes:
    """Return the last lines of a file, below its name; b"" of what is no file, a pipe for example."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return b""
            file.seek(max(0, found.st_size - TAIL_MAX))
            lines = (file.read(TAIL_MAX) or b"").splitlines(keepends=True)[-TAIL_LINES:]
    except OSError:
        return b""
    return b"".join((f"==> {path} <==\n".encode(errors="surrogateescape"), *lines, b"\n"))
