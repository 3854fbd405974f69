"""The agent's process in the caller: starts it, forwards its output, stops it.

It is a process group of its own, so that Ctrl-C in a terminal reaches only the caller, which forwards it once.
Where the caller's sys.stdout and sys.stderr are files of the operating system the workers write directly to them.
Where they are something else (the cell of a notebook, a test that captures) the agent's output comes here
through pipes and is written to them, in the caller's own thread, while it waits.

A caller without a handler for SIGTERM would die of it, or as the first process of a container ignore it. While it
waits in its main thread SIGTERM is therefore an exit like any other: the workers get their grace, then SystemExit.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TextIO

_CHUNK_SIZE = 64 * 1024
_POLL_INTERVAL_S = 0.1  # between two checks that the agent still lives, if another process keeps its pipes open


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command and return its exit code.

    If the wait is interrupted, by Ctrl-C or another exception, it is stopped with all its workers first.
    """
    outputs = _OutputForwarder("stdout"), _OutputForwarder("stderr")
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0].target,
        stderr=outputs[1].target,
        start_new_session=True,
    )
    with process, _exit_on_termination():
        outputs[0].source, outputs[1].source = process.stdout, process.stderr
        try:
            return _wait(process, outputs)
        except BaseException as error:
            _stop(process, outputs, signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise


@contextlib.contextmanager
def _exit_on_termination() -> Iterator[None]:
    """Make SIGTERM raise SystemExit, once, unless the program handles it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def exit_process(signum: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, exit_process)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _OutputForwarder:
    """One stream of the agent: `target` for the process, `source` to read from, `stream` to write to."""

    def __init__(self, name: str) -> None:
        self.stream: TextIO | None = getattr(sys, name)
        self.source: IO[bytes] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.target: int | None = None
        if self.stream is not None:
            with contextlib.suppress(OSError, ValueError):  # earlier output comes first
                self.stream.flush()
            self.target = _find_descriptor(self.stream)

    def forward(self) -> bool:
        """Forward the available output; False at the end."""
        assert self.source is not None
        data = os.read(self.source.fileno(), _CHUNK_SIZE)
        text = self._decoder.decode(data, final=not data)
        if text and (stream := self.stream) is not None:
            self.stream = None  # in case of an exception: later output is dropped
            stream.write(text)
            stream.flush()
            self.stream = stream
        return bool(data)


def _find_descriptor(stream: TextIO) -> int:
    """Return the stream's file, or PIPE for one that is no file or, as in some notebooks, reports another's."""
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError, ValueError):
            return stream.fileno()
    return subprocess.PIPE


def _wait(process: subprocess.Popen[bytes], outputs: Sequence[_OutputForwarder]) -> int:
    open_outputs = {output.source.fileno(): output for output in outputs if output.source is not None}
    poll = select.poll()
    for descriptor in open_outputs:
        poll.register(descriptor, select.POLLIN)
    while open_outputs:
        ready = poll.poll(_POLL_INTERVAL_S * 1000)
        if not ready and process.poll() is not None:
            break
        for descriptor, _ in ready:
            if not open_outputs[descriptor].forward():
                poll.unregister(descriptor)
                del open_outputs[descriptor]
    return process.wait()


def _stop(process: subprocess.Popen[bytes], outputs: Sequence[_OutputForwarder], first: signal.Signals) -> None:
    """Wait until all processes have ended; each further Ctrl-C shortens the wait."""
    for signum in (first, signal.SIGINT, signal.SIGKILL):  # with grace, without, and without the agent's help
        process.send_signal(signum)
        with contextlib.suppress(KeyboardInterrupt):
            _wait(process, outputs)
            return
    process.wait()
