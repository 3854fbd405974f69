"""How each cloud announces that it will take this machine away, and how often it may be asked.

A class for each cloud reads all notices that hold now. A notice that is not among them any more was withdrawn, or is
over. Everything that a server sends is foreign: what is not understood raises NoAnswer, and its texts are cut and
cleaned before they are shown.

Oracle has no such class: its metadata server says nothing of a preemption, only the Events service of the tenancy does,
two minutes before ("Tracking Instance Preemption Events" in Oracle's documentation of preemptible instances). What gets
that event can make the file of --preemption-file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec.structs import replace

from launcher.extensions.notices.notice import LEAD_S, Notice
from launcher.hardware import metadata_server
from launcher.hardware.metadata_server import LIMIT_S, HttpResponse, NoAnswer, Server, strip_text
from launcher.model.errors import sanitize
from rendezvous.reasons import Reason

OpenServer = Callable[[float], Server]
"""Makes the connection for queries that together take no longer than these seconds."""

NOTICES_MAX = 50
"""Of one answer; an event of Azure's concerns one machine or a few, and no machine has many."""
_TEXT_MAX = 80
_LEFT_MAX_S = 400 * 86400.0  # further away is a typing error


class NoticeProvider(Protocol):
    """`label`: the cloud's name in sentences. `pause_s`: between the end of one reading and the next."""

    label: str
    pause_s: float

    def read(self, open_server: OpenServer) -> list[Notice]:
        """Return all notices that hold now. Raises NoAnswer."""


class AmazonNotices:
    """Amazon's IMDSv2. A spot interruption is announced two minutes before, and hibernation as it begins.

    Amazon recommends to look every 5 seconds, for interruptions and for rebalance recommendations alike ("Spot Instance
    interruption notices" and "EC2 instance rebalance recommendations" in the EC2 user guide). A recommendation to
    rebalance says that an interruption is more likely than usual: it has no time, and often nothing follows. Scheduled
    events, such as a retirement, are announced days before, so once a minute is often enough. Without any of them the
    answer is 404. What cannot be read of these does not hide an interruption.
    """

    label = "AWS"
    pause_s = 5.0
    SCHEDULED_EVERY_S = 60.0
    TOKEN_TTL_S = 3600

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token = ""
        self._others: list[Notice] = []
        self._scheduled: list[Notice] = []
        self._ahead: set[str] = set()
        self._scheduled_at = -self.SCHEDULED_EVERY_S

    def read(self, open_server: OpenServer) -> list[Notice]:
        server = open_server(LIMIT_S)
        found = self._read_interruption(server)
        try:
            self._others = self._read_others(server)
        except NoAnswer:
            if not found:
                raise
        return [*found, *self._others]

    def _read_interruption(self, server: Server) -> list[Notice]:
        answer = self._ask(server, "spot/instance-action")
        if answer is None:
            return []
        action = metadata_server.parse_object(answer.text)
        when = _read_text(action, "time")
        left_s = measure_left_s(when, answer)
        notice = Notice(
            key="spot/instance-action",
            what=Reason.of("hardware/spot-interruption", action=_read_text(action, "action") or "of no kind"),
            ends_node=True,
            when=when,
            left_s=None if left_s is not None and left_s > LEAD_S else left_s,  # none is that early: a clock is wrong
            least_s=120.0,
        )
        return [notice]

    def _read_others(self, server: Server) -> list[Notice]:
        found = []
        if self._ask(server, "events/recommendations/rebalance") is not None:
            what = Reason.of("hardware/rebalance")
            found.append(Notice(key="events/recommendations/rebalance", what=what, ends_node=False))
        if self._clock() >= self._scheduled_at + self.SCHEDULED_EVERY_S:
            self._scheduled = self._read_scheduled(server)
            self._scheduled_at = self._clock()
        return [*found, *self._scheduled]

    def _read_scheduled(self, server: Server) -> list[Notice]:
        answer = self._ask(server, "events/maintenance/scheduled")
        if answer is None:
            return []
        found = []
        for event in _list_objects(metadata_server.parse_json(answer.text)):
            if _read_text(event, "State") != "active":
                continue
            code, when = _read_text(event, "Code"), _read_text(event, "NotBefore")
            notice = Notice(
                key=f"events/maintenance/scheduled {_read_text(event, 'EventId')}",
                what=Reason.of("hardware/maintenance", code=code),
                # That of the system is of its network or power, which may be away for a while.
                ends_node=code != "system-maintenance",
                when=when,
                left_s=measure_left_s(when, answer),
            )
            found.append(_note_end(notice, self._ahead))
        return found

    def _ask(self, server: Server, key: str) -> HttpResponse | None:
        """Return the answer; None where there is nothing under the key."""
        if not self._token:
            self._token = metadata_server.fetch_amazon_token(server, self.TOKEN_TTL_S)
        answer = server.ask(f"/latest/meta-data/{key}", {metadata_server.AMAZON_TOKEN: self._token})
        if answer.status == 401:  # it has expired: the next reading gets another
            self._token = ""
        return answer if answer.get_text(key) is not None else None


class GoogleNotices:
    """Google's metadata server, which can hold an answer back until a value changes (`wait_for_change`).

    `instance/preempted` becomes TRUE when a spot machine is preempted; the operating system is then shut down at once,
    for 30 s at most, or after 120 s more if the machine was created with `preemptionNoticeDuration`, which the server
    does not tell ("Spot VMs: preemption process"). So no time is known, and 30 s are the least.

    `instance/maintenance-event` names a maintenance that is about to begin: 60 s before, an hour before on machines
    with GPUs, and only if it has been asked for within the last hour ("Query metadata server for maintenance event
    notices"). Machines that are migrated go on. NONE is the usual value. Google asks clients to wait for changes and to
    try again after 503; each wait here ends after `WAIT_S`, because two keys are read in turn.
    """

    label = "Google Cloud"
    WAIT_S = 5.0
    PREEMPTED_LEAST_S = 30.0
    MAINTENANCE_LEAST_S = 60.0

    def __init__(self) -> None:
        self.pause_s = self.WAIT_S
        self._etag = ""
        self._maintenance = ""

    def read(self, open_server: OpenServer) -> list[Notice]:
        asked_at = time.monotonic()
        wait = f"?wait_for_change=true&timeout_sec={self.WAIT_S:g}&last_etag={self._etag}" if self._etag else ""
        preempted = self._ask(open_server(self.WAIT_S + LIMIT_S), "instance/preempted", wait)
        try:
            self._maintenance = self._ask(open_server(LIMIT_S), "instance/maintenance-event")
        except NoAnswer:  # which does not hide a preemption
            if preempted != "TRUE":
                raise
        # A server that does not wait, as GKE's may not, is asked as seldom as one that does.
        self.pause_s = 0.1 if time.monotonic() - asked_at > self.WAIT_S / 2 else self.WAIT_S
        found = []
        if preempted == "TRUE":
            what = Reason.of("hardware/preemption")
            found.append(Notice(key="instance/preempted", what=what, ends_node=True, least_s=self.PREEMPTED_LEAST_S))
        elif preempted not in ("", "FALSE"):
            raise NoAnswer(f"returned instance/preempted = {sanitize(preempted[:_TEXT_MAX])}")
        if self._maintenance not in ("", "NONE"):
            event = sanitize(self._maintenance[:_TEXT_MAX])
            key, what = f"instance/maintenance-event {event}", Reason.of("hardware/host-maintenance", event=event)
            ends_node = self._maintenance == "TERMINATE_ON_HOST_MAINTENANCE"
            found.append(Notice(key=key, what=what, ends_node=ends_node, least_s=self.MAINTENANCE_LEAST_S))
        return found

    def _ask(self, server: Server, key: str, query: str = "") -> str:
        answer = metadata_server.query_google(server, key + query)
        if key == "instance/preempted":
            etag = strip_text(answer.headers.get("etag"))
            self._etag = etag if etag.isascii() and etag.isalnum() else ""
        return strip_text(answer.get_text(key))


class AzureNotices:
    """Azure's Scheduled Events, for machines of a whole set: an event counts if it names this one.

    Microsoft recommends to poll once per second ("Scheduled Events for Linux VMs", where all of this is from). The
    first answer may take two minutes, as the service is turned on by it. Notice is 30 s for a preemption, 5 to 15
    minutes for the rest, sometimes days; a failing host's machines reboot without any. NotBefore is empty once the
    event has begun. What is cancelled disappears from the list.

    Events are never approved (StartRequests): that would let them begin earlier for every machine and program that they
    concern, which is their owner's to decide. `DocumentIncarnation` is not needed, as events are compared themselves.
    """

    label = "Azure"
    pause_s = 1.0
    FIRST_LIMIT_S = 125.0
    VERSION = "2020-07-01"
    NAME_VERSION = "2021-02-01"
    LEAST_S: Mapping[str, float] = {"Preempt": 30.0}
    EVENTS: Mapping[str, Reason] = {
        "Preempt": Reason.of("hardware/eviction"),
        "Terminate": Reason.of("hardware/deletion"),
        "Reboot": Reason.of("hardware/reboot"),
        "Redeploy": Reason.of("hardware/move"),
        "Freeze": Reason.of("hardware/pause"),
    }

    def __init__(self) -> None:
        self._name = ""
        self._has_answered = False
        self._ahead: set[str] = set()

    def read(self, open_server: OpenServer) -> list[Notice]:
        if not self._name:
            path = f"/metadata/instance/compute/name?api-version={self.NAME_VERSION}&format=text"
            self._name = strip_text(self._ask(open_server(LIMIT_S), path).text)
            if not self._name:
                raise NoAnswer("does not give the name of this machine")
        limit_s = LIMIT_S if self._has_answered else self.FIRST_LIMIT_S
        answer = self._ask(open_server(limit_s), f"/metadata/scheduledevents?api-version={self.VERSION}")
        events = _list_objects(metadata_server.parse_object(answer.text).get("Events"))
        self._has_answered = True
        return [self._make_notice(event, answer) for event in events if self._is_mine(event)]

    def _ask(self, server: Server, path: str) -> HttpResponse:
        answer = server.ask(path, {"Metadata": "true"})
        if answer.status != 200:
            raise NoAnswer(f"answers {answer.status}")
        return answer

    def _is_mine(self, event: Mapping[str, Any]) -> bool:
        resources = event.get("Resources")
        names = resources if isinstance(resources, list) else ()
        return any(isinstance(name, str) and name.lower() == self._name.lower() for name in names)

    def _make_notice(self, event: Mapping[str, Any], answer: HttpResponse) -> Notice:
        kind, status, when = (_read_text(event, name) for name in ("EventType", "EventStatus", "NotBefore"))
        has_begun = status == "Started"
        notice = Notice(
            key=_read_text(event, "EventId"),
            what=self.EVENTS.get(kind) or Reason.of("hardware/event", event=kind),
            ends_node=kind in self.EVENTS and kind != "Freeze",
            when=status if has_begun else when,
            left_s=0.0 if has_begun else measure_left_s(when, answer),
            least_s=self.LEAST_S.get(kind, 0.0),
        )
        return _note_end(notice, self._ahead) if kind in ("Reboot", "Redeploy") else notice


PROVIDERS: Mapping[str, Callable[[], NoticeProvider]] = {
    "aws": AmazonNotices,
    "gce": GoogleNotices,
    "azure": AzureNotices,
}


def _note_end(notice: Notice, ahead: set[str]) -> Notice:
    """Return the notice, as one that is over if it was due before this agent read of it.

    `ahead`: the keys of those announced in time. A reboot stays in the list for some minutes after it. The agent that
    is started then must not leave because of the reboot that it was started by.
    """
    if notice.left_s is None or notice.left_s > 0:
        ahead.add(notice.key)
    if notice.key in ahead:
        return notice
    return replace(notice, what=Reason.of("hardware/over", what=notice.what), ends_node=False)


def measure_left_s(when: str, answer: HttpResponse) -> float | None:
    """Return the seconds from the answer's own date until `when`, negative if that is past; None for no known time.

    An answer without a readable date was given now, by this machine's clock.
    """
    at, sent_at = _parse_time(when), _parse_time(answer.headers.get("date", ""))
    if at is None:
        return None
    left_s = at - (time.time() if sent_at is None else sent_at)
    return left_s if abs(left_s) < _LEFT_MAX_S else None


def _parse_time(text: str) -> float | None:
    """Return seconds since 1970 of 2026-01-05T18:02:00Z, 21 Jan 2026 09:00:43 GMT, or one with a weekday in front."""
    try:
        if text[10:11] == "T":  # not that of "Tue" or "Thu"
            at = datetime.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
        else:
            from email.utils import parsedate_to_datetime  # 1 MiB, for a notice with such a date

            at = parsedate_to_datetime(text[:_TEXT_MAX])
        return at.replace(tzinfo=timezone.utc).timestamp()  # all clouds give UTC, whatever they call it
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _read_text(found: Mapping[str, Any], key: str) -> str:
    """Return a text of a server's object as a sentence may have it; empty if it is none."""
    return sanitize(strip_text(found.get(key))[:_TEXT_MAX])


def _list_objects(found: object) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list. Raises NoAnswer."""
    if not isinstance(found, list):
        raise NoAnswer("returned no list of events")
    return [one for one in found if isinstance(one, dict)][:NOTICES_MAX]
