"""What the workers of a job that has succeeded leave behind: an upload, an asynchronous save, a forgotten daemon.

The end of a round sweeps all of it. After a success there is no hurry, and torchrun would let such processes finish. So
they get some time, less than what the agreement waits for a node that ends a round; one that holds an accelerator gets
none, since the next job may wait for that. Whatever is ended is named. This is loaded only if there is such a process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct, field

from launcher.hardware.linux import kernel
from launcher.model.console import log
from launcher.parts.part import RunningRound
from launcher.supervisor.handle import Supervisor
from launcher.supervisor.messages import EXAMINER_NAME

SAID_AFTER_S = 1.0
_PAUSE_MAX_S = 0.1
_LOOK_S = 1.0  # a process may have thousands of descriptors
_NAMED_MAX = 4
_RANK_DIGITS_MAX = 10
_DEVICES = (
    "/dev/nvidia",
    "/dev/kfd",
    "/dev/dri/",
    "/dev/accel",
    "/dev/vfio/",
    "/dev/neuron",
    "/dev/davinci",
    "/dev/hl",
)


class Leftovers(Struct, eq=False):
    """Waits for them, step by step."""

    supervisor_pid: int
    list_left: Callable[[], set[int]]
    """Lists the supervisor's children that no round of later may need."""
    ranks: Mapping[int, int]
    """By the pid of each worker."""
    began_at: float
    limit_s: float
    log: Callable[[str], object]
    proc_dir: str = "/proc"

    _is_said: bool = False
    _ended: set[int] = field(default_factory=set)
    _look_at: dict[int, float] = field(default_factory=dict)  # when each is due, by pid

    def advance(self, now: float, *, is_hurried: bool) -> float:
        """Return after how many seconds to call this again; 0 if nothing is left, or what is left has to end now."""
        left = self._list_processes()
        running = [pid for pid in left if pid not in self._ended]
        due = [pid for pid in running if now >= self._look_at.get(pid, -math.inf)]
        self._look_at.update(dict.fromkeys(due, now + _LOOK_S))
        holders = [pid for pid in due if self._holds_device(pid)]
        waited_s = now - self.began_at
        is_over = is_hurried or waited_s >= self.limit_s
        if to_end := running if is_over else holders:
            which = "" if is_over else " and holds an accelerator"
            after = f", after {self.limit_s:g} s" if is_over and not is_hurried and self.limit_s else ""
            self.log(f"ending what the workers have left{which}{after}: {self._name(left, to_end)}")
        if is_over or not left:
            return 0.0
        for pid in holders:
            self._ended.add(pid)
            with suppress(OSError):
                kernel.kill_exactly(pid, lambda pid=pid: self.supervisor_pid in kernel.list_ancestors(pid))  # type: ignore[misc]
        waiting = [pid for pid in running if pid not in holders]
        if waited_s >= SAID_AFTER_S and not self._is_said and waiting:
            self._is_said = True
            self.log(f"waiting up to {self.limit_s:g} s for what the workers have left: {self._name(left, waiting)}")
        return min(_PAUSE_MAX_S, 0.005 + waited_s / 4)

    def _list_processes(self) -> dict[int, kernel.ProcessStat]:
        """List what runs below the supervisor, the oldest first: a pid says nothing of that once pids start over."""
        found: set[int] = set()
        for child in self.list_left():
            if (stat := kernel.read_stat(child)) is not None and stat.name != EXAMINER_NAME:
                found |= {child, *kernel.list_descendants(child)}
        stats = [(pid, stat) for pid in found if (stat := kernel.read_stat(pid)) is not None and not stat.is_ending]
        return dict(sorted(stats, key=lambda one: (one[1].start_ticks, one[0])))

    def _holds_device(self, pid: int) -> bool:
        folder = f"{self.proc_dir}/{pid}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith(_DEVICES):
                        return True
        return False

    def _name(self, left: Mapping[int, kernel.ProcessStat], pids: list[int]) -> str:
        more = f" and {len(pids) - _NAMED_MAX} more" if len(pids) > _NAMED_MAX else ""
        return ", ".join(self._name_one(pid, left[pid].name) for pid in pids[:_NAMED_MAX]) + more

    def _name_one(self, pid: int, short_name: str) -> str:
        words = [os.path.basename(word) for word in kernel.read_text(f"{self.proc_dir}/{pid}/cmdline").split("\0")]
        # Without a command line: it executes a program just now, has ended since, or has written over it.
        name = " ".join(words[: 2 if len(words) > 1 and not words[1].startswith("-") else 1]).strip() or short_name
        rank = self._find_rank(pid)
        return f"{name[:40]!r} (pid {pid}{'' if rank is None else f', rank {rank}'})"

    def _find_rank(self, pid: int) -> int | None:
        """Return the rank of the worker whose session it is in; of one in its own session by its environment."""
        with suppress(OSError):
            if (session := os.getsid(pid)) in self.ranks:
                return self.ranks[session]
        for entry in kernel.read_text(f"{self.proc_dir}/{pid}/environ").split("\0"):
            name, _, value = entry.partition("=")
            if name == "RANK" and value.isdecimal() and len(value) < _RANK_DIGITS_MAX:
                return int(value)
        return None


def find_leftovers(supervisor: Supervisor, running: RunningRound, now: float, limit_s: float) -> Leftovers:
    """Return what is to be advanced until nothing is left of this round, which has succeeded."""
    ranks = running.share.ranks if running.share is not None else ()
    by_pid = {pid: ranks[local_rank] for local_rank, pid in running.pids.items()}
    return Leftovers(supervisor.pid, supervisor.list_left, by_pid, now, limit_s, log)
