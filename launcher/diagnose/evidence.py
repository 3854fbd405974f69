"""What is known of one worker at a moment: what its agent saw, at most some two kilobytes of it.

Every level may be missing, and `missing` says why. What is here is facts; `verdict` concludes from them. All of it is
in the incident folder of the node; what travels to the node that concludes is cut by `fit`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from rendezvous.codec import encode
from rendezvous.records import Record

FIT_MAX = 2048
"""Bytes of one rank's evidence that travel."""
_CUTS = ((40, 8, 8, 200), (12, 3, 8, 200), (8, 2, 8, 100), (6, 0, 4, 80), (3, 0, 1, 40))
"""How much stays, the more of it the better: frames, groups with times, groups, letters of a text."""

State = Literal["runs", "sleeps", "blocked", "stopped", "ended", "unknown"]
"""Of the process: `blocked` in the kernel without interruption, on a disk or a device; `stopped` or traced; `unknown`
if its agent has not answered.
"""


class Frame(Record, frozen=True, kw_only=True):
    function: str
    file: str
    line: int


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
    recorder. `is_truncated`: the recorder has forgotten groups that it had. `silent_s`: since its last output.
    `tracer`: the process that traces it, a debugger: "gdb".
    """

    rank: int
    state: State
    exit_code: int | None = None
    wait: str = ""
    tracer: str = ""
    cpu: float = 0.0
    silent_s: float | None = None
    stack: tuple[Frame, ...] | None = None
    groups: tuple[GroupCalls, ...] | None = None
    is_truncated: bool = False
    missing: tuple[str, ...] = ()


def fit(one: RankEvidence) -> RankEvidence:
    """Cut a rank's evidence to FIT_MAX bytes: first the stack's outer frames, then times, then groups."""
    for frames, timed, groups, letters in _CUTS:
        kept = one.groups and tuple(
            group if at < timed else replace(group, entered_ms=(), lengths_ms=(), calls=_cut_calls(group))
            for at, group in enumerate(one.groups[:groups])
        )
        cut = replace(
            one,
            stack=one.stack and one.stack[:frames],
            groups=kept,
            is_truncated=one.is_truncated or len(one.groups or ()) > groups,
            missing=tuple(text[:letters] for text in one.missing[:4]),
        )
        if len(encode(cut)) <= FIT_MAX:
            break
    return cut


def _cut_calls(group: GroupCalls) -> tuple[Call, ...]:
    """Return the oldest call that is open and the last."""
    return tuple({call.number: call for call in (group.oldest_open, group.calls[-1]) if call}.values())
