"""The agent's own words: lines on stderr, and never a reason to stop.

stderr may be closed, a terminal that has gone, or a pipe nobody reads. The agent keeps workers alive, so it
waits a moment for room and then does without being heard; while nobody reads, it does not wait again.
"""

from __future__ import annotations

import contextlib
import os
import select

PROGRAM = "meshrun"
PATIENCE_S = 1.0

_is_unread = False


def say(text: str, *, patience_s: float = 0.0) -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it.

    `patience_s`: how long it is worth waiting for a reader who has not read before.
    """
    global _is_unread
    data = memoryview(f"{text}\n".encode(errors="backslashreplace"))
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
    """One line in the name of the program."""
    say(f"{PROGRAM}: {sentence}")
