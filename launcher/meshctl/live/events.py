"""`meshctl events`: what has happened on all nodes of a run, by time; the same on several nodes at once is one line.

Clocks of nodes differ a little, so their events are ordered by what each node's clock said. With --follow an event
waits a moment for earlier ones of other nodes; one that comes later than that is shown when it comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from launcher.meshctl.live.ended_run import read_lost_events
from launcher.meshctl.live.poller import NodeAnswer, NodePoller, PolledNode
from launcher.meshctl.table import format_clock
from launcher.model.console import escape
from launcher.model.text import format_count
from launcher.views.event_view import EventView, group_events, read_event
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.requests import EventPage, ReadEvents

HOLD_S = 0.5
_WAIT_S = 0.1


def show_events(
    source: QuestionSource,
    write: Callable[[Iterable[str]], object],
    warn: Callable[[str], object],
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the events of a run until there is nothing more to come. Raises TemporaryError if nothing can be read.

    `write` gets lines for stdout, `warn` a sentence for stderr.
    """
    collector = EventCollector(warn)
    poller = NodePoller(source, warn)
    waiting: list[tuple[float, EventView]] = []
    is_last, has_lost = False, False
    while not is_last:
        for answer in poller.poll(collector.make_request, _WAIT_S):
            waiting += [(time.monotonic(), event) for event in collector.take(answer)]
        if poller.report is not None and not has_lost:
            waiting += [(-math.inf, event) for event in read_lost_events(poller.report)]
            has_lost = True
        is_last = poller.is_over or (not follow and poller.has_all)
        if is_last or poller.has_all:  # where nothing is due, `write` still finds its reader gone
            until = math.inf if is_last else time.monotonic() - HOLD_S
            due = sorted((event for came, event in waiting if came <= until), key=lambda event: (event.at, event.node))
            waiting = [one for one in waiting if one[0] > until]
            write([event.line for event in due] if as_json else format_events(due, time.time()))
    if poller.ending:
        warn(poller.ending)


class EventCollector(Struct):
    """Asks nodes for the events after those that they have told."""

    warn: Callable[[str], object]
    """Gets a sentence for stderr."""
    _last: dict[str, int] = field(default_factory=dict)  # number of the last event of each node, by member id

    def make_request(self, node: PolledNode) -> ReadEvents:
        return ReadEvents(after=self._last.get(node.member_id, -1))

    def take(self, answer: NodeAnswer) -> list[EventView]:
        """Return the events of a node's page."""
        node, page = answer.node, answer.reply
        assert isinstance(page, EventPage), page
        if page.dropped:
            self.warn(f"{escape(node.name)}: {format_count(page.dropped, 'event')} are no longer available")
        self._last[node.member_id] = page.next_after
        return [event for line in page.lines if (event := read_event(line, node.name)) is not None]


def format_events(events: list[EventView], now: float) -> list[str]:
    """Format events in order, the same of several nodes as one line."""
    return [escape(f"{format_clock(one.at, now)}  {one.node}  {one.sentence}") for one in group_events(events)]
