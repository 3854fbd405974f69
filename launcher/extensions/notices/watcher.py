"""Watches for notices in a thread of its own: asks, waits, and hands over what has changed.

The agent's loop must not wait for a server, so it only looks at what the thread has left for it. One question is asked
at a time, at the cloud's own rate (`providers`); after an answer that is none the pause doubles, up to `PAUSE_MAX_S`,
and what was announced before stays so. The thread ends with the process, within a question if need be.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from launcher.extensions.notices.notice import Notice, NoticeChange, compare_notices
from launcher.extensions.notices.providers import PROVIDERS, NoticeProvider
from launcher.hardware.cloud_firmware import find_cloud
from launcher.hardware.metadata_server import AMAZON_OFF, LINK_LOCAL, NoAnswer, Server, is_amazon_off
from launcher.model.concurrency import NO_THREAD, start_thread
from launcher.model.errors import describe_bug

PAUSE_MAX_S = 20.0
"""Less than the shortest notice, which is 30 s."""
FAILURES_UNTIL_SAID = 3


# docs/internals/decisions/0057-notices-read-by-the-agent.md
class NoticeWatcher(Struct, eq=False):
    """Asks in its thread; all other methods are for the agent's loop."""

    provider: NoticeProvider
    wake: Callable[[], None]
    """May be called from any thread."""
    clock: Callable[[], float]
    """The agent's."""
    address: tuple[str, int] = LINK_LOCAL
    """Of the metadata server, for tests."""
    _changes: deque[NoticeChange] = field(default_factory=deque)
    _complaints: deque[str] = field(default_factory=deque)
    _known: dict[str, Notice] = field(default_factory=dict)
    _failure_count: int = 0
    _has_complained: bool = False

    def start(self) -> None:
        """Begin to ask. Raises OSError where no thread is to be had."""
        if start_thread(self._run, "notices") is None:
            raise OSError(0, NO_THREAD)

    @property
    def has_news(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._changes or self._complaints)

    def take_changes(self) -> list[NoticeChange]:
        """Return what has changed since the last call, in order."""
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def take_complaints(self) -> list[str]:
        """Return sentences about what cannot be read; each is said once."""
        return [self._complaints.popleft() for _ in range(len(self._complaints))]

    def read_once(self) -> float:
        """Ask once, note what has changed, and return the pause until the next time in seconds."""
        try:
            found = self.provider.read(lambda limit_s: Server(self.address, limit_s))
        except NoAnswer as error:
            self._failure_count += 1
            if self._failure_count == FAILURES_UNTIL_SAID:
                self._complain(f"the metadata server {error}; retrying every {PAUSE_MAX_S:g} s")
            doublings = min(self._failure_count - 1, 10)
            return float(min(PAUSE_MAX_S, max(1.0, self.provider.pause_s) * 2**doublings))
        self._failure_count = 0
        changes = compare_notices(self._known, found, self.clock())
        self._known = {notice.key: notice for notice in found}
        self._changes.extend(changes)
        if changes:
            self.wake()
        return self.provider.pause_s

    def _run(self) -> None:
        while True:
            try:
                pause_s = self.read_once()
            except Exception as error:  # a bug here must cost notices, and no job
                self._complain(describe_bug(error))
                return
            time.sleep(pause_s)

    def _complain(self, problem: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complaints.append(f"notices of {self.provider.label} cannot be read: {problem}")
            self.wake()


def make_watcher(
    environ: Mapping[str, str], wake: Callable[[], None], clock: Callable[[], float], root: str = "/"
) -> NoticeWatcher | str:
    """Return a watcher for this machine's cloud, or why there is none. `root`: the directory above /sys, for tests."""
    cloud = find_cloud(root)
    if not cloud:
        return "the firmware names no cloud"
    if cloud not in PROVIDERS:
        return "Oracle's metadata server has none; use --preemption-file with a program that gets the Events service's"
    if cloud == "aws" and is_amazon_off(environ):
        return f"{AMAZON_OFF} is set"
    return NoticeWatcher(PROVIDERS[cloud](), wake, clock)
