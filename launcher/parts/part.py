"""The seam: how everything in an agent that is not needed to run workers is told of the run, and acts on it.

The kernel (agreement, supervision, output) knows no feature by name. A feature is a `Part`. It is told facts, which are
the kernel's own messages, and asks for effects:

    kernel --- Fact --->  Part.take      in the order of adding; the part keeps what it needs, and sets `wake_at`
    kernel --- now ---->  Part.advance   once `wake_at` has come; the part does its work, and yields effects
    kernel <-- Effect --                 carried out at once, and dropped if it names a round that is over

Two facts come before the kernel acts on them: `RoundStarting` before the workers are spawned, and StopRound before the
first signal. The parts that are due are advanced in between.

What a part may not do, and what holds it to that, is a table in docs/internals/parts.md: it does not wait, and changes
nothing but by effects. One that raises is closed and said once; the job goes on without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from rendezvous.errors import is_shortage
from rendezvous.events import AnswerCommand, LeaveRequest, SendNote

if TYPE_CHECKING:
    from launcher.logs.reports.report import Finding
    from launcher.placement.adapter.description import NodeAssignment
    from rendezvous import events

KEPT_MAX = 1000
"""Facts that a part which is not made yet has waiting: then it is made, since it takes less memory than they do."""
LATER_S = 1.0
"""From a round's start, or the agent's, until what takes long to import is made: by then workers run, or others are
waited for.
"""
RETRY_S = 1.0
"""Until a part is called again that lacked a descriptor, memory or a thread."""


FILES_MAX = 8
"""Rounds of which the log files are remembered."""


class Fact(Struct, frozen=True):
    """Something that has happened on this node."""

    what: object
    """A message of the agreement (rendezvous.events: StopRound, RoundFailed, RoundStopped, CheckpointSaved, Log,
    LeaveRequest, NoteReceived, PassOn, Exit ...), of the supervisor (launcher.supervisor.messages: Spawned,
    SpawnFailed, Exited ...), one of those below, or what another part has published.
    """
    round: int
    """The round that runs here, or the last one; 0 before the first."""
    at: float
    """On the loop's clock."""
    wall: float
    """Seconds since 1970."""


# --- facts of the kernel's own ---


class RoundStarting(Struct, frozen=True):
    """This node's workers of a round are about to be started."""

    start: events.StartRound
    share: NodeAssignment


class LeadershipChanged(Struct, frozen=True):
    """This agent leads its job from now on, or leads it no more."""

    is_leader: bool


class VictimSuspected(Struct, frozen=True):
    """A worker has failed, perhaps since another that still lives left it waiting: its report waits for a moment."""

    local_rank: int


class WaitUnexplained(Struct, frozen=True):
    """No round runs here for some time, and this node does not know why: the one that leads does."""


class QuitSignalled(Struct, frozen=True):
    """SIGQUIT has come while workers run. A part that has something to show first holds it."""


class Ready(Struct, frozen=True):
    """A descriptor that the part watches is ready; told to that part alone."""

    descriptor: int


# --- effects; SendNote, AnswerCommand and LeaveRequest of rendezvous.events are effects, too ---


class HoldQuit(Struct, frozen=True):
    """Let SIGQUIT wait until what the workers do has been shown. Nothing else can be held."""

    until: float
    """On the loop's clock; the kernel cuts it to its own limit. 0 ends the hold."""


class Explained(Struct, frozen=True):
    """It is known what a possible victim has waited for: its report need not wait any more."""

    round: int


class Diagnosed(Struct, frozen=True):
    """It is known what all ranks do: for the report, should the round fail, and for `meshctl status`."""

    round: int
    finding: Finding


class EndWorkers(Struct, frozen=True):
    """End these workers, so that the round fails: SIGABRT first, which leaves their stacks."""

    round: int
    local_ranks: tuple[int, ...]
    why: str
    """A clause for the report."""


class LimitGrace(Struct, frozen=True):
    """What is known of this machine's end, on the loop's clock. The newest counts, for all rounds to come."""

    kill_at: float
    """Workers must not live longer than this, unless it has passed."""
    save_by: float
    """Workers are told to have saved by then."""


class Publish(Struct, frozen=True):
    """Tell all parts a fact of this part's own."""

    what: object


Effect = HoldQuit | Explained | Diagnosed | EndWorkers | LimitGrace | Publish | SendNote | AnswerCommand | LeaveRequest


# --- what parts may look at ---


class RunningRound(Struct, kw_only=True, eq=False):
    """The round that runs here, is being stopped, or was the last one."""

    number: int = 0
    """0 before the first."""
    share: NodeAssignment | None = None
    """Of this round or the last one."""
    pids: dict[int, int] = field(default_factory=dict)
    """By local rank, of the workers whose start was confirmed, ended ones too."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    """By local rank."""
    has_workers: bool = False
    """From the order to start them, which may have to wait for descriptors, until nothing of the round is left."""
    is_stopping: bool = False
    files: dict[int, dict[tuple[int, str], str]] = field(default_factory=dict)
    """The log files of the last rounds, by round: (rank, stream) -> path."""
    progress_at: dict[int, float] = field(default_factory=dict)
    """When a worker was last seen to make progress."""

    def begin(self, number: int, share: NodeAssignment) -> None:
        self.number, self.share = number, share
        self.pids, self.exit_codes, self.has_workers, self.is_stopping = {}, {}, False, False

    def note_start(self, files: dict[tuple[int, str], str]) -> None:
        """Note that the workers are ordered, and which files keep their output."""
        self.has_workers = True
        self.files[self.number] = files
        for old in sorted(self.files)[:-FILES_MAX]:
            del self.files[old]

    @property
    def has_ended(self) -> bool:
        """Whether all workers have."""
        return self.share is not None and len(self.exit_codes) == len(self.share.ranks)

    def list_live(self) -> dict[int, int]:
        """Return the pids of the workers that live."""
        return {rank: pid for rank, pid in self.pids.items() if rank not in self.exit_codes}


# --- parts ---


# docs/internals/decisions/0061-features-are-parts.md
class Part(Protocol):
    """A feature in the agent's loop."""

    @property
    def wake_at(self) -> float:
        """On the loop's clock, when `advance` is to be called: -inf for now, inf for never."""
        ...

    def take(self, fact: Fact) -> None:
        """Keep what concerns this part. No I/O; it must not raise."""
        ...

    def advance(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        ...

    def close(self) -> None:
        """Let go of everything. The agent is about to end."""
        ...


class LatePart(Struct, eq=False):
    """A part that is imported and made when it is needed: no worker waits for what takes milliseconds to import."""

    name: str
    """As in what is said of it."""
    make: Callable[[], Part | None]
    """Makes it, or returns None if it has nothing to do here after all."""
    wants: Mapping[type, float] | float
    """The kinds of facts that are kept for it, and how many seconds after one of a kind has come the part is made;
    infinite for kinds that do not need it. A number is for facts of all kinds.
    """
    make_at: float = math.inf
    """When it is made in any case."""
    is_written: bool = False
    """Facts that are kept when the agent ends make it, too."""
    discard: Callable[[], object] | None = None
    """Called at the end if it was never made."""
    _kept: list[Fact] = field(default_factory=list)
    _part: Part | None = None

    @property
    def wake_at(self) -> float:
        return self.make_at if self._part is None else self._part.wake_at

    def take(self, fact: Fact) -> None:
        delay_s = self.wants if isinstance(self.wants, float) else self.wants.get(type(fact.what))
        if self._part is not None:
            self._part.take(fact)
        elif delay_s is not None:
            self._kept.append(fact)
            self.make_at = min(self.make_at, fact.at if len(self._kept) >= KEPT_MAX else fact.at + delay_s)

    def open(self) -> Part | None:
        """Return the part, which has taken all that was kept. Raises what making it does."""
        if self._part is None:
            kept, self._kept = self._kept, []
            try:
                self._part = self.make()
            except Exception as error:
                if is_shortage(error):  # else it is off, and nothing is kept for it
                    self._kept = kept
                raise
            self.make_at = math.inf
            if self._part is None:
                self.wants = {}
            else:
                for fact in kept:
                    self._part.take(fact)
        return self._part

    def advance(self, now: float) -> Iterable[Effect]:
        part = self.open()
        return part.advance(now) if part is not None and part.wake_at <= now else ()

    def close(self) -> None:
        if self._part is None and self._kept and self.is_written:
            self.open()
        if self._part is not None:
            self._part.close()
        elif self.discard is not None:
            self.discard()
