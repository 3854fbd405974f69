"""The agent's own words: lines on stderr, and never a reason to stop.

stderr may be closed, a terminal that has gone, or a pipe nobody reads. The agent keeps workers alive, so it
waits a moment for room and then does without being heard.
"""

from __future__ import annotations

import contextlib
import os
import select

PROGRAM = "meshrun"
PATIENCE_S = 1.0


def say(text: str, *, end: str = "\n") -> None:
    """Write `text`, of one line or several, to stderr in one piece if there is room for it."""
    data = memoryview((text + end).encode(errors="backslashreplace"))
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data and poll.poll(PATIENCE_S * 1000):
            data = data[os.write(2, data[: select.PIPE_BUF]) :]


def tell(sentence: str) -> None:
    """One line in the name of the program."""
    say(f"{PROGRAM}: {sentence}")
