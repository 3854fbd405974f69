"""Words for people: the agent's own lines on stderr, never a reason to stop, and on stdout what was asked for.

stderr may be closed, a terminal that has gone, or a pipe nobody reads. The agent keeps workers alive, so it
waits a moment for room and then does without being heard; while nobody reads, it does not wait again.

Names of files and nodes come from elsewhere. What would steer a terminal is written out in both, \\x1b for escape.
"""

from __future__ import annotations

import contextlib
import os
import select

PROGRAM = "meshrun"
PATIENCE_S = 1.0

_is_unread = False
_WRITTEN_OUT = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def say(text: str, *, patience_s: float = 0.0) -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it.

    `patience_s`: how long it is worth waiting for a reader who has not read before.
    """
    global _is_unread
    data = memoryview(_bytes(f"{text}\n"))
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data:
            if not poll.poll((patience_s if _is_unread else max(PATIENCE_S, patience_s)) * 1000):
                _is_unread = True
                return
            data = data[os.write(2, data[: select.PIPE_BUF]) :]
            _is_unread = False


def tell(sentence: str) -> None:
    """One line in the name of the program; more, from another node perhaps, would be taken for other lines of ours."""
    say(f"{PROGRAM}: " + sentence.replace("\n", "\\n"))


def show(text: str) -> None:
    """Write what was asked for to stdout, all of it. A reader who has gone has what they wanted.

    Raises LauncherError.
    """
    data = memoryview(_bytes(f"{text}\n"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return
    except OSError as error:
        from launcher.errors import LauncherError, shortage_hint

        raise LauncherError(f"cannot write to stdout: {error.strerror}", shortage_hint(error.errno)) from None


def _bytes(text: str) -> bytes:
    return text.translate(_WRITTEN_OUT).encode(errors="backslashreplace")
