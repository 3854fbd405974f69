"""What the kernel's log says: processes that were killed for memory, and NVIDIA's Xid messages, errors of a GPU.

The log is read when a worker has failed, and only what is new is read again. Many systems show it to root alone, and a
container has process ids of its own, which the log does not use: then nothing is known of a process, and nothing is
concluded.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

DEVICE = "/dev/kmsg"
_RECORDS_MAX = 20_000  # in one reading; a log has some thousand
_RECORD_BYTES = 8192  # the kernel's own limit
_HOST_PIDS = "pid:[4026531836]"  # the first namespace of process ids: PROC_PID_INIT_INO of the kernel's proc_ns.h
_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+), pid='?(\d+)")


class KernelLog:
    """`path`: another file in its place, for tests."""

    def __init__(self, path: str = DEVICE) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_refused = False
        self.killed: set[int] = set()
        """The processes that were killed for memory."""
        self.xids: dict[int, int] = {}
        """The last error of a GPU that was reported for a process, by process id."""

    def skip(self) -> None:
        """Leave out what is there now: a log of many records takes milliseconds, for which a restart would wait."""
        if (descriptor := self._open()) is not None:
            os.lseek(descriptor, 0, os.SEEK_END)

    def read(self) -> None:
        """Read what is new, if the log can be read here."""
        descriptor = self._open()
        for text in () if descriptor is None else read_records(descriptor):
            self.killed.update(int(pid) for pid in _KILLED.findall(text))
            self.xids.update((int(pid), int(xid)) for xid, pid in _XID.findall(text))

    def _open(self) -> int | None:
        if self._descriptor is not None or self._is_refused:
            return self._descriptor
        try:
            if self._path != DEVICE or os.readlink("/proc/self/ns/pid") == _HOST_PIDS:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_refused = self._descriptor is None
        except OSError as error:
            self._is_refused = error.errno not in (errno.EMFILE, errno.ENFILE)  # none is left for the moment
        return self._descriptor


def read_records(descriptor: int) -> Iterator[str]:
    """Yield what is there and was not read yet."""
    for _ in range(_RECORDS_MAX):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BrokenPipeError:  # records were overwritten before they were read
            continue
        except OSError:
            return
        if not record:
            return
        yield record.decode(errors="replace")
