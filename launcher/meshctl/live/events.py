"""`meshctl events`: what has happened on all nodes of a run, by time; the same on several nodes at once is one line.

Clocks of nodes differ a little, so their events are ordered by what each node's clock said. With --follow an event
waits a moment for earlier ones of other nodes; one that comes later than that is shown when it comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from launcher.meshctl.live.ended_run import read_lost_events
from launcher.meshctl.live.poller import NodePoller
from launcher.meshctl.table import format_clock
from launcher.model.console import escape
from launcher.model.text import format_count
from launcher.views.event_view import EventView, group_events, read_event
from launcher.views.requests import EventPage, ReadEvents

HOLD_S = 0.5
_WAIT_S = 0.1


def show_events(poller: NodePoller, write: Callable[[Iterable[str]], object], *, follow: bool, as_json: bool) -> None:
    """Print the events of a run until there is nothing more to come. Raises TemporaryError if nothing can be read.

    `write` gets lines for stdout.
    """
    waiting: list[tuple[float, EventView]] = []
    is_last, has_lost = False, False
    while not is_last:
        waiting += [(time.monotonic(), event) for event in poll_events(poller, _WAIT_S)]
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
        poller.warn(poller.ending)


def poll_events(poller: NodePoller, wait_s: float) -> list[EventView]:
    """Return what nodes tell within this time of what they have not told yet; `poller` warns of what is gone."""
    found = []
    for node, page in poller.poll(lambda node: ReadEvents(after=node.last_event), wait_s):
        assert isinstance(page, EventPage), page
        if page.dropped:
            poller.warn(f"{escape(node.name)}: {format_count(page.dropped, 'event')} are no longer available")
        node.last_event = page.next_after
        found += [event for line in page.lines if (event := read_event(line, node.name)) is not None]
    return found


def format_events(events: list[EventView], now: float) -> list[str]:
    """Format events in order, the same of several nodes as one line."""
    return [escape(f"{format_clock(one.at, now)}  {one.node}  {one.sentence}") for one in group_events(events)]
