"""The launcher with a notebook: what its agent is told and does, each with the time, for those who ask where it goes.

    python benchmarks/stamped.py OPTIONS ...

is `python -m launcher OPTIONS ...`, but that every order to the store, every answer, and what passes between the
agreement, the agent and the supervisor is noted in the file that STAMPS names, one line each: time (CLOCK_MONOTONIC),
node, pid, what. Nothing of this is in the launcher: the methods are wrapped from outside, at some microseconds a call.

Read together, the notebooks of all agents say in which steps a job comes from an event to its next round:

    noticed   the leader asks the store to stop the round        (reaped, proven gone, lease ended, announced)
    stopped   the last agent that lives says that nothing of the round is left
    sealed    the store has the seal of the next round
    ordered   the last agent knows its ranks, and orders its workers
    started   the last worker runs its program
    began     the last worker's first line, by its own word
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

FILE = "STAMPS"
STEPS = ("noticed", "stopped", "sealed", "ordered", "started")


class Stamp(NamedTuple):
    """One line of the notebook."""

    at_s: float
    node: str
    pid: int
    what: str


def read(text: str) -> list[Stamp]:
    """The notebook, in order of time."""
    found = []
    for line in text.splitlines():
        at, node, pid, what = line.split(" ", 3)
        found.append(Stamp(float(at), node, int(pid), what))
    return sorted(found)


def steps(stamps: Iterable[Stamp], event_s: float, began_s: float, but: str = "") -> Mapping[str, float]:
    """Seconds from the event to each of STEPS; what was not seen is left out. `but`: a node that counts no more.

    An event may lead to more than one new round, where nodes leave one by one: it is the last of the way to `began_s`.
    """
    found: dict[str, float] = {}
    sealed_s = event_s
    for stamp in stamps:
        if not event_s <= stamp.at_s <= began_s:
            continue
        name = _step(stamp.what)
        if name in ("stopped", "ordered", "started") and stamp.node == but:
            continue
        if name == "noticed":
            found.setdefault(name, stamp.at_s - event_s)
        elif name == "stopped" and sealed_s > event_s:
            continue  # of a round that has ended since
        elif name:
            found[name] = stamp.at_s - event_s
        if name == "sealed":
            sealed_s = stamp.at_s
    return found


def _step(what: str) -> str:
    words = what.split()
    match words:
        case ["ask", "stop", "round", *_]:
            return "noticed"
        case ["told", "RoundStopped", *_]:
            return "stopped"
        case ["answered", "seal", "round", *_]:
            return "sealed"
        case ["does", "StartRound", *_]:
            return "ordered"
        case ["hears", "Spawned", *_]:
            return "started"
    return ""


# --- the agent's side ---


def _noted(note: Callable[[str], None], method: Callable[..., Any], words: Callable[..., str]) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        if said := words(*arguments):
            note(said)
        return method(*arguments, **named)

    return noted


def _wrap(path: str) -> None:
    from launcher.agent.loop import Agent
    from rendezvous.driver import driver

    notebook = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    node, asked = os.environ.get("NODE", "-"), dict[int, str]()
    outcomes = {"StoreReply": "answered", "StoreRejected": "refused", "StoreOutcomeUnknown": "unknown"}

    def note(what: str) -> None:
        os.write(notebook, f"{time.monotonic():.6f} {node} {os.getpid()} {what}\n".encode())

    def asks(_: Any, ask: Any) -> str:
        asked[ask.id] = ask.why
        return f"ask {ask.why}"

    def told(_: Any, event: Any) -> str:
        name = type(event).__name__
        if name in outcomes:
            return f"{outcomes[name]} {asked.pop(event.id, '?')}"
        return f"told {name} {' '.join(map(str, event[:2]))}"

    def event_of(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, ask: Any) -> Any:
            event = method(self, ask)
            note(told(self, event))
            return event

        return noted

    changed: Any = driver.Driver
    changed._execute = event_of(changed._execute)
    changed._request = _noted(note, changed._request, asks)
    changed.submit = _noted(note, changed.submit, lambda s, e: "" if type(e).__name__ in outcomes else told(s, e))
    changed._deliver = _noted(note, changed._deliver, lambda s, e, f: f"told {type(e).__name__} {e.key}")
    changed = Agent
    changed._carry_out = _noted(note, changed._carry_out, lambda _, action: f"does {type(action).__name__}")
    changed._take_report = _noted(note, changed._take_report, lambda _, report: f"hears {type(report).__name__}")


def main() -> int:
    # This file's folder stands where `python -m` would put the working directory.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _wrap(os.environ[FILE])
    from launcher.cli import main as launch

    return launch()


if __name__ == "__main__":
    sys.exit(main())
