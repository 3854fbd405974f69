"""The parts of one agent: told what happens, advanced when they are due, and closed without harm if they fail.

The loop has workers and a lease to look after, so whatever a part does wrong costs that part: one that raises is closed
and said once; one that takes long is said once, and stays, since a frozen machine is no fault of its.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence

from launcher.model.errors import describe_bug
from launcher.parts.part import RETRY_S, Effect, Fact, LatePart, Part, Ready
from rendezvous.errors import is_shortage

PASSES_MAX = 8
"""Passes over the parts in one turn: what they publish may make others due at once, but not without end."""
LONG_S = 1.0
"""A call of a part that takes longer is said. Where others use the cores as well, less says nothing about the part."""


class Watcher:
    """The descriptors of one part in the loop's poll."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self.descriptors: set[int] = set()
        self._paused: set[int] = set()

    def register(self, descriptor: int) -> None:
        """Have `Ready` told when it can be read."""
        self._poll.register(descriptor, select.POLLIN)
        self.descriptors.add(descriptor)

    def unregister(self, descriptor: int) -> None:
        if descriptor in self.descriptors:
            self.descriptors.discard(descriptor)
            self._poll.unregister(descriptor)
        self._paused.discard(descriptor)

    def pause(self) -> None:
        """Let the loop sleep though something can be read, until `resume`."""
        for descriptor in self.descriptors:
            self._poll.unregister(descriptor)
        self._paused, self.descriptors = self._paused | self.descriptors, set()

    def resume(self) -> None:
        while self._paused:
            self.register(self._paused.pop())

    def clear(self) -> None:
        """Watch nothing any more."""
        self.pause()
        self._paused.clear()


class _Hosted:
    """A part, and what the host knows of it."""

    def __init__(self, part: Part, watcher: Watcher) -> None:
        self.part = part
        self.watcher = watcher
        self.name = part.name if isinstance(part, LatePart) else type(part).__name__
        self.retry_at = -math.inf
        self.is_long = self.is_short = False


class PartHost:
    """Has the parts in the order in which they are told. `poll`: the loop's; `log` gets what is said of them."""

    def __init__(self, poll: select.poll, clock: Callable[[], float], log: Callable[[str], None]) -> None:
        self.poll = poll
        self._clock = clock
        self._log = log
        self._places: list[_Hosted] = []
        self.off: list[str] = []
        """Names of the parts that have failed."""

    def add(self, part: Part) -> Watcher:
        """Add a part after those that are there; return what it watches descriptors with, if it has any."""
        watcher = Watcher(self.poll)
        self._places.append(_Hosted(part, watcher))
        return watcher

    def list_parts(self) -> list[Part]:
        return [place.part for place in self._places]

    @property
    def wake_at(self) -> float:
        """When to call `run`."""
        return min(map(self._read_wake, [*self._places]), default=math.inf)

    def tell(self, fact: Fact) -> None:
        """Tell all parts a fact."""
        for place in [*self._places]:
            self._take(place, fact)

    def tell_ready(self, descriptors: Sequence[int], fact: Fact) -> None:
        """Tell each of these descriptors to the part that watches it. `fact`: has the times and the round."""
        for place in [*self._places]:
            for descriptor in place.watcher.descriptors.intersection(descriptors):
                self._take(place, Fact(Ready(descriptor), fact.round, fact.at, fact.wall))

    def run(self, carry_out: Callable[[Effect], object]) -> None:
        """Advance the parts that are due, and have their effects carried out, until none is."""
        for _ in range(PASSES_MAX):
            now = self._clock()
            due = [place for place in [*self._places] if self._read_wake(place) <= now]
            for place in due:
                if place not in self._places:  # closed meanwhile
                    continue
                for effect in self._advance(place, now):
                    carry_out(effect)
            if not due:
                break

    def close(self) -> None:
        """Close all parts, the last first."""
        while self._places:
            self._close(self._places[-1])

    def _read_wake(self, place: _Hosted) -> float:
        try:
            return max(place.part.wake_at, place.retry_at)
        except Exception as error:
            self._handle(place, error)
            return place.retry_at if place in self._places else math.inf

    def _take(self, place: _Hosted, fact: Fact) -> None:
        try:
            place.part.take(fact)
        except Exception as error:
            self._handle(place, error)

    def _advance(self, place: _Hosted, now: float) -> list[Effect]:
        """Advance a part; return its effects, none if it fails."""
        place.watcher.resume()
        began_at = self._clock()
        try:
            effects = [*place.part.advance(now)]
        except Exception as error:
            self._handle(place, error)
            return []
        if place.is_short:
            place.is_short = False
            self._log(f"{place.name}: working again")
        if (took_s := self._clock() - began_at) > LONG_S and not place.is_long:
            place.is_long = True
            self._log(f"{place.name}: the agent, which has workers to look after, waited {took_s:.1f} s for this")
        return effects

    def _handle(self, place: _Hosted, error: Exception) -> None:
        """Call the part again in a moment if it lacks resources, else close it."""
        if not is_shortage(error):
            self._log(f"{place.name}: off from here on, the job continues: {describe_bug(error)}")
            self.off.append(place.name)
            self._close(place)
            return
        place.retry_at = self._clock() + RETRY_S
        place.watcher.pause()  # what can be read would wake the loop in vain
        if not place.is_short:
            place.is_short = True
            self._log(f"{place.name}: {describe_bug(error)}; the job continues, retrying every {RETRY_S:g} s")

    def _close(self, place: _Hosted) -> None:
        """Close a part; its descriptors go first, or they would wake the loop for nobody."""
        if place not in self._places:
            return
        self._places.remove(place)
        place.watcher.clear()
        try:
            place.part.close()
        except Exception as error:
            self._log(f"{place.name}: {describe_bug(error)}")
