"""An agent whose supervisor has a fork server that can be held at every step (fake_fork_server.py)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes.tree import REPOSITORY, Agent, children, family
from tests.support.waiting import wait_until

STAND_IN = [sys.executable, "-I", "-S", str(REPOSITORY / "tests/support/processes/fake_fork_server.py")]
SLEEP = ["sleep", "1000"]


class WarmAgent(Agent):
    """`held`: steps at which the fork server or what it forks waits from the start, until let_go()."""

    def __init__(
        self,
        folder: Path,
        *held: str,
        standby: int = 0,
        argv: list[str] | None = None,
        env: dict[str, str] | None = None,
        setup: str = "",
    ) -> None:
        self.folder = folder
        self.hold(*held)
        super().__init__(env=env, setup=setup)
        self.do("preload", argv or [*STAND_IN, str(folder)], ["torch", "numpy"], standby, {})
        self.server_pid = 0

    def is_preloading(self) -> int:
        """Wait until a fork server runs; its pid."""
        self.server_pid = self.wait_for("Preloading")[1]
        return self.server_pid

    def is_preloaded(self) -> int:
        """Wait until it has imported everything; its pid."""
        self.is_preloading()
        self.wait_for("Preloaded", self.server_pid)
        return self.server_pid

    def hold(self, *steps: str) -> None:
        for step in steps:
            (self.folder / f"at-{step}").unlink(missing_ok=True)
            (self.folder / step).touch()

    def let_go(self, *steps: str) -> None:
        for step in steps:
            (self.folder / step).unlink()

    def reaches(self, step: str) -> None:
        """Wait until somebody has come to a step that is held."""
        wait_until((self.folder / f"at-{step}").exists, what=f"the step {step}")

    def spawn(self, round: int, *programs: list[str], **options: Any) -> None:
        """Workers that run the same program, forked or by exec; who is started cold has COLD in its environment."""
        specs = [
            {"local_rank": rank, "argv": ["env", "COLD=1", *argv], "warm": ["exec", *argv], **options}
            for rank, argv in enumerate(programs)
        ]
        self.do("spawn", round, specs)

    def aside(self, count: int) -> list[int]:
        """The processes but agent, supervisor and fork server, once there are so many."""
        return wait_until(partial(_so_many, count, self._others), what=f"{count} processes").pids

    def parked(self, count: int) -> list[int]:
        """The workers that have no work, once the supervisor knows so many and the agent has heard of it."""
        return wait_until(partial(_so_many, count, self._parked), what=f"{count} parked workers").pids

    def _others(self) -> list[int]:
        return sorted(set(family(self.token)) - {self.pid, self.keeper_pid, self.supervisor_pid, self.server_pid})

    def _parked(self) -> list[int]:
        there = set(children(self.supervisor_pid)) - {self.server_pid}  # first, or one not born yet is taken for one
        return sorted(there - {int(number) for number in re.findall(r"pid (\d+)", self.ask("describe_remaining"))})

    def wait_until_only_the_server_is_left(self) -> None:
        """But agent and supervisor, zombies included."""
        self.aside(0)
        wait_until(lambda: children(self.supervisor_pid) == [self.server_pid], what="the last zombie to be reaped")


class _Found(NamedTuple):
    pids: list[int]


def _so_many(count: int, find: Callable[[], list[int]]) -> _Found | None:
    found = find()
    return _Found(found) if len(found) == count else None


def becomes_cold(pid: int) -> None:
    """Wait until a worker's command shows that it was started by an exec."""
    wait_until(lambda: is_cold(pid))


def is_cold(pid: int) -> bool:
    """Whether a worker was started by an exec."""
    return b"COLD=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
