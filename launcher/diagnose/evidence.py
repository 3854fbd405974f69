"""What is known of one worker at a moment: what its agent saw, at most some two kilobytes of it.

Every level may be missing, and `missing` says why. What is here is facts; `verdict` concludes from them. All of it is
in the incident folder of the node; what travels to the node that concludes is less (`request.shorten_evidence`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from rendezvous.records import Record

State = Literal["runs", "sleeps", "blocked", "stopped", "ended", "unknown"]
"""Of the process: `blocked` in the kernel without interruption, on a disk or a device; `stopped` or traced; `unknown`
if its agent has not answered.
"""


class Frame(Struct, frozen=True, kw_only=True, array_like=True):
    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str]:
        """What frames of two nodes are compared by: a script may lie in another directory on each."""
        return self.function, self.file.rpartition("/")[2]


class Call(Struct, frozen=True, kw_only=True, array_like=True):
    """A collective that a rank has entered. `number`: of its group's, from 1. `shape`: sizes and types of its input.

    `is_open`: it has not come out. `age_s`: since it was entered.
    """

    number: int
    operation: str
    shape: str = ""
    is_open: bool = False
    age_s: float = 0.0


class GroupCalls(Record, frozen=True, kw_only=True):
    """A rank's calls in a process group, by number: the oldest that is open, and the last.

    `name`: the same on all ranks. `description`: as the script gave it, or torch: "mesh_tp", "default_pg". Of its last
    calls, the last one included: `entered_ms`, when they were entered, by its node's clock, each but the first as the
    time since the one before; `lengths_ms`, how long they took, -1 where that is not known, and empty under gloo.
    """

    name: str
    description: str
    calls: tuple[Call, ...]
    entered_ms: tuple[int, ...] = ()
    lengths_ms: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        return self.calls[-1].number

    @property
    def oldest_open(self) -> Call | None:
        return next((call for call in self.calls if call.is_open), None)


class RankEvidence(Record, frozen=True, kw_only=True):
    """`wait`: the kernel's function in which it waits, if any. `cpu`: cores that it used while it was looked at.

    `stack`: of the main thread, the innermost frame first; None if it could not be read. `groups`: None without a
    recorder. `is_truncated`: the recorder has forgotten groups that it had. `tracer`: the process that traces it, a
    debugger: "gdb". `silent_s`: since its last output; in the incident folder alone, since that output's disk may hang.
    """

    rank: int
    state: State
    exit_code: int | None = None
    has_given_up: bool = False
    """It has ended as one that may have waited for another: it is not the one for which the others wait."""
    wait: str = ""
    tracer: str = ""
    cpu: float = 0.0
    silent_s: float | None = None
    stack: tuple[Frame, ...] | None = None
    groups: tuple[GroupCalls, ...] | None = None
    is_truncated: bool = False
    missing: tuple[str, ...] = ()
