"""The output of a command of the user's: run by a shell, within a limit of time and of length.

A site's topology may be in a database, a tool of its own or a line of `scontrol`. The command runs once on every node.
It may hang, fail, or print something else, and then the start ends with a sentence that names it, because ranks on the
wrong nodes would only be noticed by their slowness.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from launcher.model.errors import TemporaryError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

LIMIT_S = 10.0  # scontrol and kubectl answer within one, a busy controller within several
_OUTPUT_MAX = 4096  # bytes; the longest path is no longer
_NOT_RUN_CODES = (126, 127)  # the shell's codes for what it cannot run or find
_SHOWN_MAX = 60


def read_output(command: str, environ: Mapping[str, str], asked_by: str, limit_s: float = LIMIT_S) -> str:
    """Return the one line that the command prints, or "" if it prints nothing. `asked_by`: the option that set it.

    Raises UsageError for a command that cannot be run or has other output, TemporaryError for a failure or a time-out.
    """
    import subprocess

    what = f"{asked_by} {_shorten(command)}"
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        start_new_session=True,  # so that all of its processes can be killed together
    )
    try:
        printed, said = _read(process, limit_s)
        if printed is None:
            raise TemporaryError(f"{what} has not ended within {limit_s:g} s", "it is run once on each node")
        if len(printed) > _OUTPUT_MAX:
            raise UsageError(f"{what} prints more than {_OUTPUT_MAX} bytes", "one line like zone=a,spine=s1,leaf=l3")
        exit_code = process.wait()
    finally:
        _kill_process(process)
    if exit_code in _NOT_RUN_CODES:
        raise UsageError(f"{what} cannot be run{_format_last_line(said)}")
    if exit_code:
        code = f"exit code {exit_code}" if exit_code > 0 else f"signal {_format_signal(-exit_code)}"
        raise TemporaryError(f"{what} has failed with {code}{_format_last_line(said)}")
    return _decode_line(printed, what)


def _read(process: Popen[bytes], limit_s: float) -> tuple[bytes | None, bytes]:
    """Return the output until it closes both streams, or more than is allowed; None if it hangs."""
    import select
    from subprocess import TimeoutExpired

    deadline = time.monotonic() + limit_s
    found = {process.stdout: b"", process.stderr: b""}
    poll = select.poll()
    pipes = {stream.fileno(): stream for stream in found if stream is not None}
    for descriptor in pipes:
        poll.register(descriptor, select.POLLIN)
    while pipes:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            return None, found[process.stderr]
        for descriptor, _ in ready:
            stream = pipes[descriptor]
            piece = os.read(descriptor, 65536)
            if not piece:
                poll.unregister(descriptor)
                del pipes[descriptor]
            found[stream] = (found[stream] + piece)[-_OUTPUT_MAX - 1 :]
            if stream is process.stdout and len(found[stream]) > _OUTPUT_MAX:
                return found[stream], found[process.stderr]
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except TimeoutExpired:  # its outputs are closed, and it continues
        return None, found[process.stderr]
    return found[process.stdout], found[process.stderr]


def _kill_process(process: Popen[bytes]) -> None:
    """Kill the command and all that it has started."""
    from contextlib import suppress

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _decode_line(printed: bytes, what: str) -> str:
    try:
        text = printed.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{what} prints bytes that are no text") from None
    if "\n" in text:
        raise UsageError(f"{what} prints {len(text.splitlines())} lines, one is expected")
    if not text.isprintable():
        raise UsageError(f"{what} prints {_shorten(ascii(text))}, which is no text to read")
    return text


def _format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _format_last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {_shorten(''.join(letter for letter in last if letter.isprintable()), 200)}" if last else ""


def _shorten(text: str, most: int = _SHOWN_MAX) -> str:
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
