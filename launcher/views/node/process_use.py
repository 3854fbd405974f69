"""What workers use of the machine: CPU time, memory, bytes read and written, of each and of all that it has started.

A worker may be a shell script around the program, or have processes that load its data, so a worker is the tree below
its process. One pass over the machine's processes finds the children of all workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import psutil
from msgspec import Struct


class ProcessUse(Struct, frozen=True, kw_only=True):
    """What a tree of processes uses; 0 where the kernel does not say."""

    cpu_s: float
    """User and system time, also of children that have ended."""
    rss_bytes: int
    """Memory in use; shared pages are counted in each process."""
    read_bytes: int = 0
    """From storage."""
    written_bytes: int = 0
    """To storage."""
    output_bytes: int = 0
    """All that was written, also to pipes and terminals."""
    state: str = ""
    """Of the first process: "stopped", "blocked" or ""."""


_SUMMED = ("cpu_s", "rss_bytes", "read_bytes", "written_bytes", "output_bytes")
_STATES = {psutil.STATUS_STOPPED: "stopped", psutil.STATUS_TRACING_STOP: "stopped", psutil.STATUS_DISK_SLEEP: "blocked"}


def measure_use(pids: Collection[int]) -> dict[int, ProcessUse]:
    """Return what each of these processes uses with all below it; without those that have ended."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        children[process.info["ppid"] or 0].append(process.pid)
    found = {}
    for pid in pids:
        parts = [use for one in _list_tree(pid, children) if (use := measure_process(one)) is not None]
        if parts:
            sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
            found[pid] = ProcessUse(**sums, state=parts[0].state)
    return found


def _list_tree(pid: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    tree = [pid]
    for one in tree:
        tree += [child for child in children.get(one, ()) if child not in tree]
    return tree


def measure_process(pid: int) -> ProcessUse | None:
    """Return what this process uses, without what it has started and still runs; None if it has ended.

    The kernel adds what an ended child has read and written to its parent; its CPU time is added here. Otherwise the
    sum over a tree would fall with every data loader that ends.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory, status = process.cpu_times(), process.memory_info(), process.status()
            try:
                counts = process.io_counters()
            except (psutil.AccessDenied, NotImplementedError, OSError):
                counts = None
    except (psutil.Error, OSError):
        return None
    return ProcessUse(
        cpu_s=times.user + times.system + times.children_user + times.children_system,
        rss_bytes=memory.rss,
        read_bytes=counts.read_bytes if counts is not None else 0,
        written_bytes=counts.write_bytes if counts is not None else 0,
        output_bytes=counts.write_chars if counts is not None else 0,
        state=_STATES.get(status, ""),
    )
