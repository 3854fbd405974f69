"""Decides when a node's part of a job makes no progress: arithmetic on what its agent has seen, without a clock.

The agent looks at signs of progress several times within a limit. A sign is a kind, such as "output", and a value that
changes when there is progress of that kind: bytes written, heartbeats counted. It is enough that one sign of one worker
changes: a hang of one rank soon stops all, and the question here is whether, not who.

    start --first sign--> first step --a step was seen--> step
                                                            ^ a phase that the script has entered counts instead

Each of these has a limit. Nothing outside can tell the load of a checkpoint from a hang, so the limits before the first
step are long, and a step counts as seen only by what a step alone does: the first heartbeat. Without one, once signs
have been found for ten minutes, and by as many looks as a limit holds: the bar of a load that takes five minutes is not
taken for training, and neither are imports and compilations, which take no less where --hang-timeout is short.

Time does not count as silence while no worker ran freely or while nobody looked: when a worker is stopped or debugged,
and beyond two intervals between looks, because this machine slept or the agent was stopped. Since a stopped worker may
be why all others wait, it is said once it has been stopped for as long as a step may take.

The flight recorder's counters are a sign, too, but to read them asks something of the workers. They are asked for
(`needs_counters`) only after half a limit of silence, and again at the limit: in a job whose other signs go on, never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from launcher.config.options.readers import HangLimits
from launcher.supervisor.heartbeats import CHECKS_PER_TIMEOUT

HEARTBEAT = "heartbeat"
OUTPUT = "output"
PHASE = "phase"
COLLECTIVE = "collective"
_WORDS = {PHASE: "change of phase"}
"""Kinds of signs that are called otherwise in a sentence."""
START_UP_S = 600.0
"""For how long signs have to go on until they count as those of steps, if they are none that a step alone gives."""
INTERVAL_MIN_S = 0.05
"""Between two looks, however short the limit of a phase is: a look costs some 50 microseconds a worker."""
_NAMES = (OUTPUT, HEARTBEAT)  # those that a sentence lists, in its order


class RankPhase(Struct, frozen=True, kw_only=True):
    """A phase in which a rank is, by `launcher.worker.phase`."""

    rank: int
    name: str
    limit_s: float


class ProgressSigns(Struct, frozen=True, kw_only=True):
    """What a look at the workers found."""

    signs: Mapping[str, int]
    """Kind of sign to its value, 0 when the round began."""
    phases: tuple[RankPhase, ...] = ()
    is_paused: bool = False
    """Time does not count at present."""
    halted: tuple[int, ...] = ()
    """Ranks that are stopped or traced."""


class ProgressNews(NamedTuple):
    """What is to be said: a limit without progress was reached, there is progress again, or ranks stay stopped."""

    kind: Literal["silent", "active", "halted"]
    sentence: str


class ProgressWatch:
    """One node in one round, which begins at `now`."""

    def __init__(self, limits: HangLimits, now: float) -> None:
        self._limits = limits
        self._stage = "start"
        self._active_looks = 0
        self._active_s = 0.0  # since the first sign
        self._signs: Mapping[str, int] = {}
        self._phases: tuple[RankPhase, ...] = ()
        self._looked_at = now
        self._was_paused = False
        self._silence_s = 0.0
        self._halted_s = 0.0
        self._is_halt_told = False
        self._asks_at_s = 0.0  # after how much silence to ask for counters next
        self._counters: Mapping[int, object] = {}
        self._is_compared = False  # in this silence, and the counters were equal
        self._is_reported = False
        self._resumption = ""  # the sentence of the end of a silence
        self.needs_counters = False
        """Whether to call `take_counters`. The agent may leave it: then what is concluded says nothing of collectives.
        """
        self._restart()

    @property
    def wake_at(self) -> float:
        """When to look next."""
        if self._resumption or (self._is_due and not self.needs_counters):
            return self._looked_at
        return self._looked_at + self._interval_s

    def check(self, now: float, found: ProgressSigns) -> ProgressNews | None:
        """Take a look's results. Return what is news, once."""
        passed_s = min(now - self._looked_at, 2 * self._interval_s)
        if not (found.is_paused or self._was_paused):
            self._silence_s += passed_s
            self._active_s += passed_s if self._stage != "start" else 0.0
        self._looked_at, self._was_paused = now, found.is_paused
        changed = [kind for kind, value in found.signs.items() if value != self._signs.get(kind, 0)]
        self._signs, self._phases = found.signs, found.phases
        if changed:
            self._counters = {}
            self._note_progress(changed[0], has_stepped=HEARTBEAT in changed)
        if self._resumption:
            sentence, self._resumption = self._resumption, ""
            return ProgressNews("active", sentence)
        if halt := self._note_halt(found.halted, passed_s):
            return halt
        if self._silence_s >= self._asks_at_s:
            self.needs_counters = True
            self._asks_at_s = self._silence_s + self._limit_s / 2 - self._interval_s / 2  # looks come a little late
        return self._report() if self._is_due and not self._awaits_counters else None

    def take_counters(self, counters: Mapping[int, object]) -> None:
        """Take the recorder's counters by rank, of those that have answered; a change is progress."""
        self.needs_counters = False
        before, self._counters = self._counters, counters
        common = before.keys() & counters.keys()
        if any(before[rank] != counters[rank] for rank in common):
            self._note_progress(COLLECTIVE)
        elif common:
            self._is_compared = True

    @property
    def _limit_s(self) -> float:
        """The limit that holds now: that of the longest phase of any rank, else of the stage."""
        if self._phases:
            return max(phase.limit_s for phase in self._phases)
        limits = self._limits
        return {"start": limits.start_s, "first step": limits.first_step_s, "step": limits.step_s}[self._stage]

    @property
    def _interval_s(self) -> float:
        return max(INTERVAL_MIN_S, min(self._limit_s, self._limits.step_s) / CHECKS_PER_TIMEOUT)

    @property
    def _is_due(self) -> bool:
        return self._silence_s >= self._limit_s and not self._is_reported and not self._was_paused

    @property
    def _awaits_counters(self) -> bool:
        """Whether counters may still show progress. An answer is awaited until the next look."""
        is_late = self._silence_s >= self._limit_s + self._interval_s / 2
        return self.needs_counters and bool(self._counters) and not is_late

    def _note_progress(self, kind: str, *, has_stepped: bool = False) -> None:
        if self._is_reported:
            self._resumption = f"progress again after {self._silence_s:.0f} s: {_WORDS.get(kind, kind)}"
        self._active_looks += 1
        if has_stepped or (self._active_looks > CHECKS_PER_TIMEOUT and self._active_s >= START_UP_S):
            self._stage = "step"
        elif self._stage == "start":
            self._stage = "first step"
        self._restart()

    def _note_halt(self, halted: tuple[int, ...], passed_s: float) -> ProgressNews | None:
        """Return what is said of ranks that have been stopped or traced for long: then nothing is known of progress."""
        self._halted_s = self._halted_s + passed_s if halted else 0.0
        self._is_halt_told &= bool(halted)
        if self._halted_s < self._limits.step_s or self._is_halt_told:
            return None
        self._is_halt_told = True
        who = f"rank {halted[0]} is" if len(halted) == 1 else f"{len(halted)} ranks are"
        sentence = f"{who} stopped by a signal or a debugger for {self._halted_s:.0f} s now"
        return ProgressNews("halted", f"{sentence}: until it continues (kill -CONT), no hang is detected")

    def _restart(self) -> None:
        self._silence_s, self._asks_at_s = 0.0, self._limit_s / 2
        self.needs_counters = self._is_compared = self._is_reported = False

    def _report(self) -> ProgressNews:
        self._is_reported = True
        signs = [kind for kind in _NAMES if kind in self._signs] + [COLLECTIVE] * self._is_compared
        *others, last = [_WORDS.get(kind, kind) for kind in signs]
        kinds = f"{', '.join(others)} or {last}" if others else last
        sentence = f"no progress for {self._silence_s:.0f} s: no {kinds} on this node"
        where = {"start": " since the start", "first step": " in the first step"}.get(self._stage, "")
        if self._phases:
            one = min(self._phases, key=lambda phase: (-phase.limit_s, phase.rank))
            where = f"; rank {one.rank} is in phase {one.name}"
        if where:
            sentence += f"{where}, {self._silence_s:.0f} s of {self._limit_s:g} s"
        return ProgressNews("silent", sentence)
