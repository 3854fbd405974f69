"""The part that watches whether this node's workers make progress, from a moment after each round's start on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from launcher.config.options.readers import HangLimits
from launcher.diagnosis.part.facts import CountersRead, CountersWanted, SilenceChanged
from launcher.diagnosis.part.node_progress import NodeProgress
from launcher.hardware.linux.shared_page import SharedPage
from launcher.parts.part import LATER_S, Effect, Fact, Publish, RoundStarting, RunningRound

if TYPE_CHECKING:
    from launcher.logs.pump import OutputPump  # of few jobs


class ProgressPart(Struct, eq=False):
    """Watches one round after another."""

    limits: HangLimits
    running: RunningRound
    shared_page: SharedPage
    pump: OutputPump | None
    list_unpumped: Callable[[int], frozenset[int]]
    """Returns the local ranks, of so many, whose output does not all go through the pump."""

    _watch: NodeProgress | None = None
    _begin_at: float = math.inf

    @property
    def wake_at(self) -> float:
        running, share = self.running, self.running.share
        if not running.has_workers or running.is_stopping or share is None:
            return math.inf
        if share.group_world_size == 1 and running.has_ended:  # on other nodes some may wait for those that ended
            return math.inf
        return self._begin_at if self._watch is None else self._watch.wake_at

    def take(self, fact: Fact) -> None:
        match fact.what:
            case RoundStarting():
                self._watch, self._begin_at = None, fact.at + LATER_S
                self.running.progress_at.clear()
            case CountersRead(counters) if self._watch is not None:
                self._watch.take_counters(counters)

    def advance(self, now: float) -> Iterable[Effect]:
        share = self.running.share
        if self._watch is None and share is not None:
            unpumped = self.list_unpumped(len(share.ranks))
            self._watch = NodeProgress(
                self.limits, self.shared_page, self.pump, ranks=share.ranks, unpumped=unpumped, now=now,
                progress_at=self.running.progress_at,
            )  # fmt: skip
            return
        assert self._watch is not None
        news = self._watch.check(self.running.list_live(), now)
        if isinstance(news, str):
            yield Publish(SilenceChanged(False, news))
        elif news is not None:
            where = "; the workers here have ended, others of the round have not" if self.running.has_ended else ""
            yield Publish(SilenceChanged(True, f"{news}{where}"))
        if self._watch.needs_counters:
            yield Publish(CountersWanted())

    def close(self) -> None:
        """Nothing is open."""
