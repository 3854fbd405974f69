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


STACK_DESCRIPTOR = 112
"""Of the file in memory to which a worker writes its stack, as in launcher/ranks/main_start.py."""
STACK_FILES = ("/memfd:meshrun-stack", "/dev/shm/#")
"""What the names of such files begin with."""


class Frame(Struct, frozen=True, kw_only=True, array_like=True):
    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str]:
        """What frames of two nodes are compared by: a script may lie in another directory on each.

        py-spy names a function with its class, and a worker that writes its stack itself without.
        """
        return self.function.rpartition(".")[2], self.file.rpartition("/")[2]


class Call(Struct, frozen=True, kw_only=True, array_like=True):
    """A collective that a rank has entered."""

    number: int
    """Its number among the calls of its group, from 1."""
    operation: str
    shape: str = ""
    """Sizes and types of its input."""
    is_open: bool = False
    """The rank has not returned from it."""
    age_s: float = 0.0
    """Time since the rank entered it."""


class GroupCalls(Record, frozen=True, kw_only=True):
    """A rank's calls in one process group."""

    name: str
    """The same on all ranks."""
    description: str
    """As the script gave it, or torch: "mesh_tp", "default_pg"."""
    calls: tuple[Call, ...]
    """By number: the oldest open call and the last one."""
    entered_ms: tuple[int, ...] = ()
    """When the last calls were entered, the very last included, by the clock of the node: each but the first as the
    time since the one before.
    """
    lengths_ms: tuple[int, ...] = ()
    """How long these calls took, -1 if unknown; empty under gloo."""

    @property
    def last(self) -> int:
        return self.calls[-1].number

    @property
    def oldest_open(self) -> Call | None:
        return next((call for call in self.calls if call.is_open), None)


class RankEvidence(Record, frozen=True, kw_only=True):
    """What an examination found about one rank."""

    rank: int
    state: State
    exit_code: int | None = None
    has_given_up: bool = False
    """It has ended as one that may have waited for another: it is not the one for which the others wait."""
    wait: str = ""
    """The kernel function in which it waits, "" if it runs."""
    tracer: str = ""
    """The process that traces it, for example "gdb"."""
    cpu: float = 0.0
    """Cores that it used during the examination."""
    stack: tuple[Frame, ...] | None = None
    """Of the main thread, the innermost frame first; None if it could not be read."""
    groups: tuple[GroupCalls, ...] | None = None
    """None without a flight recorder."""
    is_truncated: bool = False
    """The recorder no longer has groups that it once had."""
    missing: tuple[str, ...] = ()
