"""The part that watches whether this node's workers make progress, from a moment after each round's start on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from launcher.config.options.readers import HangLimits
from launcher.diagnosis.part.facts import CountersRead, CountersWanted, SilenceChanged
from launcher.diagnosis.part.node_progress import NodeProgress
from launcher.diagnosis.progress import ProgressWatch
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

    _node: NodeProgress | None = None
    _begin_at: float = math.inf

    @property
    def wake_at(self) -> float:
        running, share = self.running, self.running.share
        if not running.has_workers or running.is_stopping or share is None:
            return math.inf
        if share.group_world_size == 1 and running.has_ended:  # on other nodes some may wait for those that ended
            return math.inf
        return self._begin_at if self._node is None else self._node.wake_at

    def take(self, fact: Fact) -> None:
        match fact.what:
            case RoundStarting():
                self._node, self._begin_at = None, fact.at + LATER_S
                self.running.progress_at.clear()
            case CountersRead(counters) if self._node is not None:
                self._node.watch.take_counters(counters)

    def advance(self, now: float) -> Iterable[Effect]:
        share = self.running.share
        if self._node is None and share is not None:
            unpumped, progress_at = self.list_unpumped(len(share.ranks)), self.running.progress_at
            watch = ProgressWatch(self.limits, now)
            self._node = NodeProgress(watch, self.shared_page, self.pump, share.ranks, unpumped, progress_at, now)
            return
        assert self._node is not None
        news = self._node.check(self.running.list_live(), now)
        if news is not None:
            is_silent = news.kind == "silent"
            has_ended = is_silent and self.running.has_ended
            where = "; the workers here have ended, others of the round have not" if has_ended else ""
            yield Publish(SilenceChanged(is_silent, f"{news.sentence}{where}"))
        if self._node.watch.needs_counters:
            yield Publish(CountersWanted())

    def close(self) -> None:
        """Nothing is open."""
