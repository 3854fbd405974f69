"""A job whose agent finds no thread, or no descriptor, for a while."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from tests.support.jobs.single_node import Job
from tests.support.processes.tree import REPOSITORY

# An agent needs these before its first workers run; what asks for them later must do without.
_AT_START = ("output", "--metrics-port")
_PATCH = f"""
import os, sys
if sys.orig_argv[1:3] == ["-m", "launcher"]:
    import threading
    begin = threading.Thread.start

    def start(thread):
        if os.path.exists("no-threads") and thread.name not in {_AT_START!r}:
            with open("refused", "a") as file:
                file.write(thread.name + "\\n")
            raise RuntimeError("can't start new thread")
        begin(thread)

    threading.Thread.start = start
"""


class ShortJob(Job):
    """It has no threads from its start until `end_shortage`, but for those that it needs for its first workers."""

    def __init__(self, directory: Path, *options: str, script: str) -> None:
        folder = directory / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_PATCH)
        self._flag = directory / "no-threads"
        self._flag.touch()
        path = os.pathsep.join((str(folder), str(REPOSITORY)))
        super().__init__(directory, *options, script=script, env={"PYTHONPATH": path})

    def end_shortage(self) -> None:
        self._flag.unlink()

    @property
    def refused(self) -> list[str]:
        """The names of the threads that could not be started."""
        path = self.directory / "refused"
        return path.read_text().splitlines() if path.exists() else []


def lower_descriptors(pid: int) -> int:
    """Let a process open no further descriptor; return the limit that it had."""
    taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    return limit_descriptors(pid, min(set(range(len(taken) + 1)) - taken))


def limit_descriptors(pid: int, count: int) -> int:
    """Let a process open no descriptor from this number on; return the limit that it had."""
    before, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, most))
    return before
