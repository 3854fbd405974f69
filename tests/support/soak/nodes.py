"""The nodes of a soak: each has had several agents one after another, and something is expected of the end of each."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.jobs.multi_node import NodeJob
from tests.support.network.namespaces import Host
from tests.support.processes.tree import children, family, is_alive
from tests.support.waiting import wait_until

LEASE_TTL_S = 4.0
ENDED_BY_TERM = 128 + signal.SIGTERM
FENCED = 137
# Some workers ignore what asks them to stop, some have a child of their own in a session of its own.
SCRIPT = """
def note(name):
    file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)
    begun = time.monotonic_ns()
    def beat():
        os.pwrite(file, b"%020d %020d" % (begun, time.monotonic_ns()), 0)
    return beat

E = os.environ
mark("world", " ".join((E["WORLD_SIZE"], E["MASTER_ADDR"] + ":" + E["MASTER_PORT"], E["TORCHELASTIC_RESTART_COUNT"])))
if RANK % 5 == 3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK % 4 == 1 and os.fork() == 0:
    os.setsid()
    beat = note(f"kin-{RANK}-{ROUND}-{os.getpid()}")
    while True:
        beat()
        time.sleep(0.02)
while not os.path.exists(E["SOAK_SIGNS"] + "/finish"):
    if os.path.exists(E["SOAK_SIGNS"] + "/fail"):
        sys.exit(7)
    beat()
    time.sleep(0.02)
"""


class Agent:
    """One agent in a directory of its own. `expected`: what it may end with, beside the job's own exit code."""

    def __init__(self, host: Host, directory: Path, *options: str, signs: Path) -> None:
        directory.mkdir(parents=True)
        self.temporary = directory / "temporary"
        self.temporary.mkdir()
        env = {"SOAK_SIGNS": str(signs), "TMPDIR": str(self.temporary), "LAUNCHER_MIN_ROUND_TIME": "0"}
        self.job = NodeJob(host, directory, *options, script=SCRIPT, env=env)
        self.expected: set[int] = set()
        self.is_told = False  # to end
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.frozen: list[int] = []

    @property
    def name(self) -> str:
        return self.job.host.name

    def look(self) -> int | None:
        """The exit code once there is one."""
        if self.exit_code is None and (code := self.job._process.poll()) is not None:
            self.exit_code, self.ended_at = code, time.monotonic()
        return self.exit_code

    @property
    def is_up(self) -> bool:
        return self.look() is None

    @property
    def is_at_work(self) -> bool:
        """Up, nothing of it frozen, and not told to go."""
        return self.is_up and not self.frozen and not self.is_told

    @property
    def has_supervisor(self) -> bool:
        """Not while it looks for the store, nor once it has failed to keep it."""
        return any(map(children, children(self.job.pid)))

    # --- what can be done to it ---

    def tell_to_go(self) -> None:
        self._doom(ENDED_BY_TERM)
        self.job.send(signal.SIGTERM)

    def lose_power(self) -> None:
        self._doom(-signal.SIGKILL)
        self.job.kill()

    def kill(self, *parts: str) -> None:
        """SIGKILL to one or two of agent, keeper and supervisor."""
        self._doom(-signal.SIGKILL if "agent" in parts else FENCED)
        for pid in self.job.parts(*parts):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _doom(self, exit_code: int) -> None:
        self.is_told = True
        self.expected.add(exit_code)

    def freeze(self, *parts: str) -> None:
        self.expected.add(FENCED)  # by the others, or by its supervisor's end
        self.frozen = self.job.freeze(*parts)

    def thaw(self) -> None:
        self.job.thaw(self.frozen)
        self.frozen = []

    def crash_worker(self) -> bool:
        """SIGKILL to one of its workers; whether there was one."""
        for pid in self.job.worker_pids():
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    # --- what is left of it ---

    def broken_rules(self, verdict_code: int) -> Iterator[str]:
        """What should not have been, once it has ended, in sentences."""
        who = f"{self.name} in {self.job.directory}"
        stderr = self.job.stderr
        if "Traceback" in stderr:
            yield f"a traceback of {who}: {stderr[-3000:]}"
        if self.exit_code not in {verdict_code, *self.expected}:
            yield f"S3: {who} ended with {self.exit_code}, not {verdict_code} or {self.expected}: {stderr[-1500:]}"
        for life in (*self.job.lives(), *self.job.lives("kin")):
            if self.ended_at and life.last_s > self.ended_at + LEASE_TTL_S:
                yield f"S6: {life} outlived its agent by {life.last_s - self.ended_at:.1f} s"
        was_killed = self.exit_code == -signal.SIGKILL
        if not was_killed and (left := sorted(path.name for path in self.temporary.rglob("*"))):
            yield f"S6: {who} left {left} behind"

    def root_cause(self) -> str:
        """Which rank on which host failed first, as its report says; empty without a report."""
        found = re.search(r"Root Cause .*: (rank \d+ on \S+)", self.job.stderr)
        return found[1] if found else ""

    def wait_until_nobody_is_left(self) -> None:
        wait_until(lambda: not family(self.job._token), 60, f"the end of all processes of {self.name}")

    def descriptor_count(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.job.pid}/fd")) if is_alive(self.job.pid) else 0
        except OSError:
            return 0
