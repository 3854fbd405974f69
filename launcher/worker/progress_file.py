"""LAUNCHER_PROGRESS_FILE: the training step that a script writes where its checkpoints are."""

from __future__ import annotations

from launcher.model.console import log
from launcher.model.errors import sanitize

STEP_LIMIT_S = 1.0
STEP_DIGITS_MAX = 15


def read_progress_file(path: str) -> int:
    """Return the step with which a file begins; -1 without one, which is logged.

    It is read in a thread, with a limit: such a file lies where checkpoints do, and a storage that hangs may be why the
    round has ended.
    """
    from launcher.model.concurrency import NO_THREAD, start_thread  # 0.25 MiB that few jobs need

    found: list[bytes | OSError] = []

    def read() -> None:
        try:
            with open(path, "rb") as file:
                found.append(file.read(STEP_DIGITS_MAX + 1))
        except OSError as error:
            found.append(error)

    thread = start_thread(read, "progress file")
    if thread is None:
        found.append(OSError(0, NO_THREAD))
    else:
        thread.join(STEP_LIMIT_S)
    text = found[0] if found else TimeoutError(0, f"no answer within {STEP_LIMIT_S:g} s")
    if isinstance(text, OSError):
        log(f"LAUNCHER_PROGRESS_FILE={sanitize(path)} cannot be read: {text.strerror}")
        return -1
    step = text.split()[:1]
    if not step or not step[0].isdigit() or len(step[0]) > STEP_DIGITS_MAX:
        log(f"LAUNCHER_PROGRESS_FILE={sanitize(path)} does not begin with a step: {text[:20]!r}")
        return -1
    return int(step[0])
