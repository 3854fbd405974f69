"""What the agent has of its cloud's notices: what is new, when it has to leave, and how long its workers may save."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.extensions.notices.notice import NodeOutlook, NoticeUpdate
from launcher.extensions.notices.watcher import NoticeWatcher, make_watcher
from launcher.model.console import log


class NodeNotices:
    """`outlook`: what is announced now, as of the last `take`."""

    def __init__(self, watcher: NoticeWatcher, outlook: NodeOutlook) -> None:
        self.outlook = outlook
        self._watcher = watcher
        watcher.start()

    def take(self, now: float, *, is_leaving: bool) -> list[NoticeUpdate]:
        """Return what the cloud has announced or withdrawn since the last call, and log what cannot be read."""
        for complaint in self._watcher.take_complaints():
            log(complaint)
        return [self.outlook.take(change, now, is_leaving=is_leaving) for change in self._watcher.take_changes()]


def open_notices(
    mode: str,
    shutdown_timeout_s: float,
    environ: Mapping[str, str],
    wake: Callable[[], None],
    clock: Callable[[], float],
    *,
    is_asked: bool,
) -> NodeNotices | None:
    """Begin to read the notices of this machine's cloud; None if it has none, which is logged if the user `is_asked`.

    `mode`: "leave" or "report". `wake` may be called from any thread. `clock`: of `take`.
    """
    made = make_watcher(environ, wake, clock)
    if isinstance(made, str):
        if is_asked:
            log(f"preemption notices cannot be read: {made}")
        return None
    outlook = NodeOutlook(source=made.label, acts=mode == "leave", shutdown_timeout_s=shutdown_timeout_s)
    return NodeNotices(made, outlook)
