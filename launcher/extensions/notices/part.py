"""The part that reads a cloud's notices: this node leaves for one, and its workers save before the machine goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from launcher.config.config import ShutdownOptions
from launcher.extensions.notices.notice import NodeOutlook
from launcher.extensions.notices.watcher import NoticeWatcher, make_watcher
from launcher.model.console import log
from launcher.parts.part import Effect, Fact, LimitGrace, Publish, RoundStarting
from rendezvous.events import LeaveRequest

TERMINATED = 128 + 15
"""The exit code after a SIGTERM, which is what workers get."""


class NoticePart:
    """Acts on what the watcher's thread has left."""

    def __init__(self, watcher: NoticeWatcher, outlook: NodeOutlook) -> None:
        self._watcher = watcher
        self._outlook = outlook
        self._is_leaving = False
        self._is_unsaid = False
        watcher.start()

    @property
    def wake_at(self) -> float:
        if self._watcher.has_news or self._is_unsaid:
            return -math.inf
        return min(math.inf if self._is_leaving else self._outlook.leave_at, self._outlook.renew_at)

    def take(self, fact: Fact) -> None:
        self._is_leaving |= isinstance(fact.what, LeaveRequest)
        # What was said before there was an agent, while this node was not fit, has reached nobody.
        self._is_unsaid |= isinstance(fact.what, RoundStarting) and bool(self._outlook.notices)

    def advance(self, now: float) -> Iterable[Effect]:
        for complaint in self._watcher.take_complaints():
            log(complaint)
        for change in self._watcher.take_changes():
            update = self._outlook.take(change, now, is_leaving=self._is_leaving)
            log(update.sentence)
            yield Publish(update)
        self._is_unsaid = False
        yield LimitGrace(*self._outlook.limit_grace(now))
        if not self._is_leaving and now >= self._outlook.leave_at:
            self._is_leaving = True
            yield LeaveRequest(self._outlook.reason, TERMINATED)

    def close(self) -> None:
        """Nothing to do: the thread ends with the process."""


def make_notice_part(
    options: ShutdownOptions, environ: Mapping[str, str], wake: Callable[[], None], clock: Callable[[], float]
) -> NoticePart | None:
    """Begin to read the notices of this machine's cloud; None if it has none, which is logged if --notices was given.

    `wake` may be called from any thread. `clock`: the loop's. Raises OSError where no thread is to be had.
    """
    made = make_watcher(environ, wake, clock)
    if isinstance(made, str):
        if options.origins["notices"] != "default":
            log(f"preemption notices cannot be read: {made}")
        return None
    timeout_s, acts = options.shutdown_timeout_s, options.notices == "leave"
    return NoticePart(made, NodeOutlook(source=made.provider.label, acts=acts, shutdown_timeout_s=timeout_s))
