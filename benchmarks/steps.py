"""The launcher with a notebook, for those who ask where the time of a restart goes: `failover --steps`.

    python benchmarks/steps.py OPTIONS ...

is `python -m launcher OPTIONS ...`, but that each step from an event to the next round is noted in the file that STAMPS
names, one line each: time (CLOCK_MONOTONIC), node, step. Nothing of this is in the launcher: methods are wrapped from
outside, at some microseconds a call. The notebooks of all agents together say when each step was reached:

    noticed   the leader asks the store to stop the round        (reaped, proven gone, lease ended, announced)
    stopped   the last agent that lives says that nothing of the round is left
    sealed    the store has the seal of the next round
    ordered   the last agent knows its ranks, and orders its workers
    started   the last worker runs its program
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

FILE = "STAMPS"
STEPS = ("noticed", "stopped", "sealed", "ordered", "started")


def find_steps(notebook: str, event_s: float, began_s: float, but: str = "") -> Mapping[str, float]:
    """Seconds from the event to each of STEPS; what was not seen is left out. `but`: a node that counts no more.

    An event may lead to more than one new round, where nodes leave one by one: it is the last of the way to `began_s`.
    """
    found: dict[str, float] = {}
    for line in sorted(notebook.splitlines(), key=lambda line: float(line.split()[0])):
        at, node, step = line.split()
        if not event_s <= float(at) <= began_s or (node == but and step in ("stopped", "ordered", "started")):
            continue
        is_late = step == "stopped" and "sealed" in found  # of a round that has ended since
        if not is_late and (step != "noticed" or step not in found):
            found[step] = float(at) - event_s
    return found


def note_steps(path: str) -> None:
    """Wrap what is told and done in this process."""
    from launcher.agent.loop import Agent
    from rendezvous.driver.driver import Driver

    notebook = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    node = os.environ.get("NODE", "-")
    seals: set[int] = set()  # ids of requests

    def note(step: str) -> None:
        os.write(notebook, f"{time.monotonic():.6f} {node} {step}\n".encode())

    def see_request(request: Any) -> None:
        if request.why.startswith("stop round"):
            note("noticed")
        if request.why.startswith("seal round"):
            seals.add(request.id)

    def see(message: Any) -> None:
        """An event of the agreement, an action, or a supervisor's report."""
        name = type(message).__name__
        if name == "StoreReply" and message.id in seals:
            note("sealed")
        elif step := {"RoundStopped": "stopped", "StartRound": "ordered", "Spawned": "started"}.get(name):
            note(step)

    def wrap(owner: Any, name: str, before: Callable[[Any], None]) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def wrapped(self: Any, message: Any) -> Any:
            before(message)
            return method(self, message)

        setattr(owner, name, wrapped)

    wrap(Driver, "_request", see_request)
    wrap(Driver, "submit", see)
    wrap(Agent, "_carry_out", see)
    wrap(Agent, "_take_report", see)


def main() -> int:
    # This file's folder stands where `python -m` would put the working directory.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    note_steps(os.environ[FILE])
    from launcher.cli import main as launch

    return launch()


if __name__ == "__main__":
    sys.exit(main())
