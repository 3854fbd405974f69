"""The file to which a worker writes its traceback: TORCHELASTIC_ERROR_FILE, `error.json` beside its logs.

torch's `record` decorator writes it as {"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}; other
writers put a text under "message", or anything at all. A file that a dying worker wrote can be truncated, huge
or no regular file, so everything that can be shown is used and nothing is raised.
"""

from __future__ import annotations

import os
import stat

READ_LIMIT = 4 * 1024 * 1024
MESSAGE_LIMIT = 16 * 1024  # characters; a failure travels to all nodes through the store


def read_error(path: str) -> tuple[str | None, str]:
    """Return the traceback that a worker left, or what else it wrote there, and the message beside the traceback.

    None if there is nothing to show; "ValueError: bad", or "".
    """
    data = _read(path)
    if data is None:
        return None, ""
    import json  # not on the way of a restart where no worker has written such a file

    text = data.decode(errors="replace")
    exception = ""
    try:
        message = json.loads(text)["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return _shorten(text), ""  # not JSON, truncated, or of another shape: better than nothing
    if isinstance(message, dict):
        extra, said = message.get("extraInfo"), message.get("message")
        traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
        exception = said if isinstance(said, str) else ""
        message = traceback or said
    if message is None:
        return _shorten(text), exception
    return _shorten(message if isinstance(message, str) else json.dumps(message)), exception


def copy_error_file(source: str, target: str, exit_code: int) -> None:
    """Copy the root cause's file to the launcher's own TORCHELASTIC_ERROR_FILE, for the program that started us.

    As with torchrun the exit code is put beside the message, because a worker cannot know that a signal will end
    it. Without a readable source nothing is written. Raises OSError when the target cannot be written.
    """
    data = _read(source)
    if data is None:
        return
    import json

    try:
        content = json.loads(data)
        if exit_code and isinstance(content["message"], dict):
            content["message"]["errorCode"] = exit_code
            data = json.dumps(content).encode()
    except (ValueError, TypeError, LookupError, RecursionError):
        pass  # copied unchanged
    with open(target, "wb") as file:
        file.write(data)


def _read(path: str) -> bytes | None:
    try:
        # O_NONBLOCK: a FIFO under that name must not block the agent.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with open(path, "rb", buffering=0, opener=lambda path, _: os.open(path, flags)) as file:
            return (file.read(READ_LIMIT) or None) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):
        return None


def _shorten(text: str) -> str | None:
    text = text.strip("\n")
    if len(text) > MESSAGE_LIMIT:  # the end of a traceback says most
        start, end = MESSAGE_LIMIT // 4, MESSAGE_LIMIT * 3 // 4
        text = f"{text[:start]}\n... {len(text) - start - end} characters left out ...\n{text[-end:]}"
    return text if text.strip() else None
