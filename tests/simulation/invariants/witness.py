"""What one simulated agent has received, requested and sent, recorded from its events and actions.

It is an independent model: nothing here reads the state of the agent, so an error in that state shows as a difference.
All times are those of the timeline. Each agent has a witness of its own, also the next one on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from rendezvous import events
from rendezvous.errors import LeaseNotFound
from rendezvous.events import Action, Event
from rendezvous.stores.contract import Delete, Get, GetResult, KeyValue, Lease, Put, Renewal, TxnResult


class KnownKeys:
    """The keys that one agent knows, from answers and watched events; older revisions never replace newer ones."""

    def __init__(self) -> None:
        self.items: dict[str, KeyValue] = {}
        self.seen_at: dict[str, float] = {}  # when it first learned of this revision of the key
        self.gone_at: dict[str, float] = {}  # when it learned that the key was deleted
        self._gone: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def put(self, item: KeyValue, now: float) -> None:
        known = self.items.get(item.key)
        read = max((revision for prefix, revision in self._read.items() if item.key.startswith(prefix)), default=0)
        if item.mod_revision > max(known.mod_revision if known else 0, self._gone.get(item.key, 0), read):
            self.items[item.key], self.seen_at[item.key] = item, now
            self.gone_at.pop(item.key, None)

    def remove(self, key: str, revision: int, now: float) -> None:
        self._gone[key] = max(revision, self._gone.get(key, 0))
        known = self.items.get(key)
        if known is not None and known.mod_revision <= revision:
            del self.items[key], self.seen_at[key]
            self.gone_at[key] = now

    def load(self, get: Get, found: GetResult, now: float) -> None:
        there = {item.key for item in found.items}
        known = [key for key in self.items if key.startswith(get.key)] if get.prefix else [get.key]
        for key in known:
            if key not in there:
                self.remove(key, found.revision, now)
        for item in found.items:
            self.put(item, now)
        if get.prefix:
            self._read[get.key] = max(found.revision, self._read.get(get.key, 0))


class _SentRequest(NamedTuple):
    asked: events.StoreRequest
    at: float
    member_id: str  # under which it was made
    revision: int  # the highest that the agent had been shown


class Witness:
    def __init__(self) -> None:
        self.known = KnownKeys()
        self.member_id = ""  # after the last step
        self.was_member = False
        self.lease: int | None = None
        self.renewed_at = -math.inf  # when the last lease or renewal that was answered was asked for
        self.read_at: dict[str, float] = {}  # key -> when the last read of it and all control keys was sent
        self.held_until = -math.inf  # by acknowledgements of the whole roster
        self.acknowledged_at = -math.inf  # when it last acknowledged that it cannot reach the store either
        self.up: dict[str, events.PeerUp] = {}
        self.down_since: dict[str, float] = {}
        self.gone_since: dict[str, float] = {}
        self.fenced: set[int] = set()  # rounds whose processes it has ordered to be killed at once
        self.left_at = math.inf  # when it was asked to leave
        self.ordered: set[int] = set()  # rounds that it has ordered to stop
        self.failed: set[int] = set()  # rounds in which a worker here has failed
        self.failed_late: set[int] = set()  # rounds in which one has failed after the order to stop
        self.unwatched: dict[str, float] = {}  # watched key whose watch has ended -> since when
        self.resynced_at: dict[str, float] = {}  # watched key -> when the last read to confirm it was sent
        self.has_resynced = False  # in the present step
        self.is_lease_gone = False  # reported in the present step
        self.just_read: list[str] = []  # keys read by the answers of the present step
        self.watchdog_until = math.inf
        self.revision = 0  # the highest that it has been shown
        self.is_shown_less = False  # an answer was of a lower revision than had been shown when it was asked for
        self.revisions: dict[str, int] = {}  # the highest revisions that it has known of control keys
        self.planned: tuple[int, events.PlanReady | None] = (0, None)  # the last request for a plan, and its answer
        self._followed: set[str] = set()
        self._requests: dict[int, _SentRequest] = {}
        self._just_sent: set[int] = set()  # requests of the present step

    def forget(self, now: float) -> None:
        """The agent has become another member, which starts without knowledge and without requests."""
        self.known = KnownKeys()
        self._requests = {id: sent for id, sent in self._requests.items() if id in self._just_sent}
        self.unwatched.clear()
        self.resynced_at.clear()
        self.revisions.clear()
        self.acknowledged_at = self.held_until = -math.inf
        self.watchdog_until = math.inf

    def is_asking(self, kind: type) -> bool:
        return any(isinstance(sent.asked.request, kind) for sent in self._requests.values())

    def is_asking_for(self, *kinds: str) -> bool:
        return any(sent.asked.kind in kinds for sent in self._requests.values())

    @property
    def followed(self) -> frozenset[str]:
        return frozenset(self._followed)

    def take(self, new_events: Iterable[Event], now: float) -> None:
        self.has_resynced = self.is_lease_gone = False
        self.just_read = []
        self._just_sent.clear()
        for event in new_events:
            match event:
                case events.StoreReply(id, answer):
                    if sent := self._requests.pop(id, None):
                        if isinstance(answer, (TxnResult, Renewal)):
                            self.is_shown_less |= answer.revision < sent.revision
                            self.revision = max(self.revision, answer.revision)
                        self._take_answer(sent.asked, sent.at, answer, now)
                case events.StoreRejected(id, error):
                    sent = self._requests.pop(id, None)
                    if sent and sent.member_id == self.member_id:  # else it concerns a former lease
                        is_end = sent.asked.kind == "end job"
                        self.is_lease_gone |= isinstance(error, LeaseNotFound) and not is_end
                case events.StoreOutcomeUnknown(id):
                    self._requests.pop(id, None)
                case events.WatchUpdate(key, batch) if key in self._followed:
                    self.revision = max(self.revision, batch.revision)
                    for each in batch.events:
                        if each.kind == "put":
                            self.known.put(each.item, now)
                        else:
                            self.known.remove(each.item.key, each.item.mod_revision, now)
                case events.WatchLost(key) if key in self._followed:
                    self.unwatched.setdefault(key, now)
                case events.LeaveRequest():
                    self.left_at = min(self.left_at, now)
                case events.RoundFailed(round):
                    (self.failed_late if round in self.ordered - self.failed else self.failed).add(round)
                case events.PlanReady(id) if id == self.planned[0]:
                    self.planned = (id, event)
                case events.PeerUp(member_id):
                    self.up[member_id] = event
                    self.down_since.pop(member_id, None)
                    self.gone_since.pop(member_id, None)
                case events.PeerDown(member_id):
                    self.down_since[member_id] = now
                case events.PeerGone(member_id):
                    self.gone_since.setdefault(member_id, now)

    def note(self, actions: Iterable[Action], now: float) -> None:
        for action in actions:
            match action:
                case events.StartWatch(key):
                    self._followed.add(key)
                    self.unwatched.pop(key, None)
                case events.StopWatch(key):
                    self._followed.discard(key)
                    self.unwatched.pop(key, None)
                case events.MakePlan(id):
                    self.planned = (id, None)
                case events.StoreRequest(id):
                    self._requests[id] = _SentRequest(action, now, self.member_id, self.revision)
                    self._just_sent.add(id)
                case events.StopRound(round, mode):
                    self.ordered.add(round)
                    if mode == "fence":
                        self.fenced.add(round)

    def _take_answer(self, asked: events.StoreRequest, sent_at: float, answer: events.Answer, now: float) -> None:
        request = asked.request
        if isinstance(answer, Lease) or (isinstance(answer, Renewal) and answer.is_confirmed):
            self.renewed_at = max(self.renewed_at, sent_at)
        if isinstance(answer, Renewal) and isinstance(request, events.KeepAlive) and not answer.create_revision:
            self.known.remove(request.key, answer.revision, now)
        if not isinstance(answer, TxnResult) or not isinstance(request, events.Txn):
            return
        branch = request.success if answer.succeeded else request.failure
        found = iter(answer.found)
        names: list[str] = []
        for operation in branch:
            match operation:
                case Put(key, value, lease):
                    self.known.put(KeyValue(key, value, 0, answer.revision, 0, lease), now)
                case Delete(key, False):
                    self.known.remove(key, answer.revision, now)
                case Get():
                    self.known.load(operation, next(found), now)
                    names.append(operation.key)
        self.just_read += names
        if asked.kind in ("resync", "read again"):
            self.has_resynced = asked.kind == "resync"
            self.resynced_at.update(dict.fromkeys(names, sent_at))
        if any(name.endswith("/ctl/") for name in names):
            for name in names:
                self.read_at[name] = max(sent_at, self.read_at.get(name, -math.inf))
