"""What is known of one worker at a moment: what its agent saw, at most some two kilobytes of it.

Every level may be missing, and `missing` says why. What is here is facts; `verdict` concludes from them.
"""

from __future__ import annotations

from typing import Literal

from rendezvous.records import Record

State = Literal["runs", "sleeps", "blocked", "stopped", "ended", "unknown"]
"""Of the process: `blocked` in the kernel without interruption, on a disk or a device; `stopped` or traced; `unknown`
if its agent has not answered.
"""


class Frame(Record, frozen=True, kw_only=True):
    function: str
    file: str
    line: int


class Call(Record, frozen=True, kw_only=True):
    """A collective that a rank has entered. `number`: of its group's, from 1. `shape`: sizes and types of its input.

    `is_open`: it has not come out. `age_s`: since it was entered.
    """

    number: int
    operation: str
    shape: str = ""
    is_open: bool = False
    age_s: float = 0.0


class GroupCalls(Record, frozen=True, kw_only=True):
    """A rank's calls in a process group: the oldest that is open and the last, or only the last.

    `name`: the same on all ranks. `description`: as the script gave it, or torch: "mesh_tp", "default_pg".
    """

    name: str
    description: str
    calls: tuple[Call, ...]

    @property
    def last(self) -> int:
        return self.calls[-1].number


class RankEvidence(Record, frozen=True, kw_only=True):
    """`wait`: the kernel's function in which it waits, if any. `cpu`: cores that it used while it was looked at.

    `stack`: of the main thread, the innermost frame first; None if it could not be read. `groups`: None without a
    recorder. `is_truncated`: the recorder has forgotten groups that it had. `silent_s`: since its last output.
    """

    rank: int
    state: State
    exit_code: int | None = None
    wait: str = ""
    cpu: float = 0.0
    silent_s: float | None = None
    stack: tuple[Frame, ...] | None = None
    groups: tuple[GroupCalls, ...] | None = None
    is_truncated: bool = False
    missing: tuple[str, ...] = ()
