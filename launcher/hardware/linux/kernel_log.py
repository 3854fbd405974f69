"""What the kernel's log says: processes that were killed for memory, and NVIDIA's Xid messages, errors of a GPU.

The log is read when a worker has failed, and only what is new is read again. Many systems show it to root alone, and a
container has process ids of its own, which the log does not use: then nothing is known of a process, and nothing is
concluded. An Xid tells a device's fault before any library does, so an examination shows the last ones.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator

_DEVICE = "/dev/kmsg"
_RECORDS_MAX = 20_000  # in one reading; a log has some thousand
_RECORD_BYTES = 8192  # the kernel's own limit
_FAULT_AGE_MAX_S, _FAULTS_SHOWN = 3600.0, 4
_HOST_PIDS = "pid:[4026531836]"  # the first namespace of process ids: PROC_PID_INIT_INO of the kernel's proc_ns.h
_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+), pid='?(\d+)")


class KernelLog:
    """`path`: another file in its place, for tests."""

    def __init__(self, path: str = _DEVICE) -> None:
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
        for text in () if descriptor is None else _read_records(descriptor):
            self.killed.update(int(pid) for pid in _KILLED.findall(text))
            self.xids.update((int(pid), int(xid)) for xid, pid in _XID.findall(text))

    def _open(self) -> int | None:
        if self._descriptor is not None or self._is_refused:
            return self._descriptor
        try:
            if self._path != _DEVICE or os.readlink("/proc/self/ns/pid") == _HOST_PIDS:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._is_refused = self._descriptor is None
        except OSError as error:
            self._is_refused = error.errno not in (errno.EMFILE, errno.ENFILE)  # none is left for the moment
        return self._descriptor


def _read_records(descriptor: int) -> Iterator[str]:
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


def list_device_faults(path: str = _DEVICE) -> list[str]:
    """Return the last Xid messages of the last hour; none where the log cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        # "6,1234,5678901234,-;NVRM: Xid (PCI:0000:3b:00): 79, ...": the third are microseconds since boot.
        lines = [line.partition(";") for text in _read_records(descriptor) for line in text.split("\n")]
    finally:
        os.close(descriptor)
    oldest = (time.monotonic() - _FAULT_AGE_MAX_S) * 1e6
    faults = [text for head, _, text in lines if text.startswith("NVRM: Xid") and int(head.split(",")[2]) > oldest]
    return [f"the kernel says: {text[:160]}" for text in faults[-_FAULTS_SHOWN:]]
