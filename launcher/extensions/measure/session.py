"""A measurement by several nodes through the store of their job.

Each participant has a key under its lease. The one whose key is oldest coordinates: it waits for all, writes which
rounds to play, collects what everyone reports, and writes the finding; the others play and report.

    session/members/ID        who takes part, and where to reach it
    session/orders/ID/NUMBER  by the coordinator ID: the rounds of a step
    session/answers/ID        the finding, for all
    reports/ID/NUMBER/MEMBER  what a participant saw of a step, for the coordinator ID, who alone watches them

All keys end with their writer's lease, so nothing stays. A participant that ends, or does not report in time, is left
out and named, and the rest go on. If the coordinator ends, all end: it takes seconds to start again. The
first order has no rounds: once all have answered, all are awake and know the token. Starts are not synchronised beyond
the arrival of an order, for clocks of two machines are not compared; a round begins with a pause longer than that.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from launcher.extensions.measure.player import Address, Player, read_speed_mbit
from launcher.extensions.measure.procedure import RoundReport, TreeFinding, find_tree
from launcher.extensions.measure.schedule import LoadRound
from launcher.extensions.measure.udp_echo import TOKEN_BYTES
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_bytes, format_count, format_list
from rendezvous.errors import LeaseNotFound, MeshrunError, RecordError, StoreError
from rendezvous.records import Record, decode, encode
from rendezvous.stores.contract import Batch, KeyEvent, Store, Watch

LEASE_TTL_S = 5.0
REPORT_LIMIT_S = 2.0  # beyond the rounds themselves, for a report to come
ORDER_LIMIT_S = 15.0  # without an order from a coordinator that lives
FAREWELL_LIMIT_S = 2.0  # that the coordinator waits for the others to have read the finding
PARTICIPANTS_MAX = 256  # every pair is measured: grouping 32,000 pairs takes 0.2 s, and 16 times that for 1,024 nodes
SECONDS_MAX = 20.0
"""From the first order of a measurement to the end of its load: no step is ordered that would play longer. The steps of
most networks take 4 to 7 s."""


class Participant(Record, frozen=True, kw_only=True):
    """A node that takes part."""

    name: str
    address: str
    echo_port: int
    bulk_port: int
    path: tuple[tuple[str, str], ...] = ()
    """Where it is according to its own sources, outermost level first."""
    devices: int = 1
    """How many slots it has, for the file."""


class Order(Record, frozen=True, kw_only=True):
    token: str
    members: tuple[str, ...]
    rounds: tuple[LoadRound, ...]
    absent: tuple[int, ...] = ()


class Report(Record, frozen=True, kw_only=True):
    rounds: tuple[RoundReport, ...]


class Answer(Record, frozen=True, kw_only=True):
    """The result of a measurement."""

    participants: tuple[Participant, ...]
    """In the order of the finding's numbers."""
    finding: TreeFinding
    seconds: float = 0.0
    """From the first order to the finding."""


class Terms(Struct, frozen=True, kw_only=True):
    """The conditions of a measurement."""

    root: str
    """Of its keys."""
    secret: bytes
    node_count: int
    """It begins with so many nodes ..."""
    wait_s: float
    depth: int
    """The most levels to look for."""
    log: Callable[[str], object]
    """Called with lines about its progress."""


def take_part(
    store: Store, terms: Terms, *, name: str, address: str, path: tuple[tuple[str, str], ...], devices: int
) -> tuple[Answer, int]:
    """Measure together with the other nodes; return the answer and this node's number in it.

    Raises TemporaryError, and UsageError for a session that this node cannot be in.
    """
    if terms.node_count > PARTICIPANTS_MAX:
        sentence = f"{terms.node_count:,} nodes are too many to measure at once; the limit is {PARTICIPANTS_MAX}"
        raise UsageError(sentence, "measure parts of the network one after the other")
    speed_mbit = read_speed_mbit(address)
    size = f", at most {format_bytes(SECONDS_MAX * speed_mbit * 1e6 / 8)} from this one" if speed_mbit else ""
    terms.log(
        f"the network is loaded for usually 4 to 7 s and at most {SECONDS_MAX:g} s: each of {terms.node_count} nodes "
        f"sends to one other as much as it can{size}"
    )
    try:
        player = Player(address, speed_mbit)
    except OSError as error:
        sentence = f"cannot listen at {address}: {error.strerror}"
        raise UsageError(sentence, "set --local-addr or --interface to an address of this node") from None
    try:
        echo_port, bulk_port = player.ports
        own = Participant(
            name=name, address=address, echo_port=echo_port, bulk_port=bulk_port, path=path, devices=devices
        )
        answer = Session(store, terms, player, own).run()
    finally:
        player.close()
    number = next((index for index, one in enumerate(answer.participants) if one.name == name), None)
    if number is None:
        raise TemporaryError("the others measured without this node")
    return answer, number


class Session:
    """This node's part."""

    def __init__(self, store: Store, terms: Terms, player: Player, own: Participant) -> None:
        self._store = store
        self._terms = terms
        self._root = f"{terms.root}/session"
        self._player = player
        self._own = own
        self._events: queue.SimpleQueue[KeyEvent | MeshrunError] = queue.SimpleQueue()
        self._lease = 0
        self._id = ""
        self._members: dict[str, tuple[int, Participant]] = {}  # id -> create revision of its key, what it says
        self._names: dict[str, None] = {}  # of all that have come, also of those that have left again
        self._values: dict[str, bytes] = {}  # of all other keys
        self._is_over = threading.Event()
        self._serial = 0
        self._watches: list[Watch] = []

    def run(self) -> Answer:
        """Take part until there is a finding. Raises TemporaryError."""
        renewing = threading.Thread(target=self._renew, name="measure lease", daemon=True)
        try:
            self._lease = self._store.lease_grant(LEASE_TTL_S).id
            self._id = f"{self._lease:x}"
            renewing.start()
            found = self._store.get(f"{self._root}/", prefix=True)
            for item in found.items:
                self._note(KeyEvent("put", item))
            if self._has_any("orders"):
                raise TemporaryError("another measurement of this run is under way", "wait until it has ended")
            self._watch(f"{self._root}/", found.revision + 1)
            self._put(f"{self._root}/members/{self._id}", self._own)
            return self._take_part()
        except StoreError as error:
            raise TemporaryError(f"the measurement has lost its store: {error}", error.hint) from None
        finally:
            self._is_over.set()
            for watch in self._watches:
                with contextlib.suppress(StoreError):
                    watch.cancel()
            if self._lease:
                with contextlib.suppress(StoreError):
                    self._store.lease_revoke(self._lease)

    # --- what the store says ---

    def _watch(self, prefix: str, start_revision: int) -> None:
        watch = self._store.watch(
            prefix, prefix=True, start_revision=start_revision, on_batch=self._receive, on_lost=self._events.put
        )
        self._watches.append(watch)

    def _receive(self, batch: Batch) -> None:
        for event in batch.events:
            self._events.put(event)

    def _renew(self) -> None:
        """Keep the lease; put an error into the queue once it must be taken for lost."""
        until = time.monotonic() + LEASE_TTL_S
        while not self._is_over.wait(max(0.0, min(LEASE_TTL_S / 3, until - time.monotonic()))):
            asked_at = time.monotonic()
            try:
                self._store.lease_keep_alive(self._lease)
                until = asked_at + LEASE_TTL_S
            except StoreError as error:  # the watch waits for a store that stays away, without a limit
                if isinstance(error, LeaseNotFound) or time.monotonic() >= until:
                    self._events.put(error)
                    return

    def _wait_for_event(self, until: float) -> bool:
        """Note the next change; False if there is none until then. Raises StoreError."""
        try:
            event = self._events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        if isinstance(event, MeshrunError):
            raise event
        self._note(event)
        return True

    def _note(self, event: KeyEvent) -> None:
        key = event.item.key
        kind, _, rest = key.removeprefix(f"{self._root}/").partition("/")
        if kind == "members" and event.kind == "put":
            try:
                participant = decode(Participant, event.item.value, key, self._terms.secret)
            except RecordError as error:
                self._terms.log(f"a node cannot take part in the measurement: {error}")
                return
            self._members[rest] = (event.item.create_revision, participant)
            self._names[participant.name] = None
        elif kind == "members":
            self._members.pop(rest, None)
        elif event.kind == "put":
            self._values[key] = event.item.value
        # What a coordinator has written may go with its lease before it is read here: it counts all the same.

    def _put(self, key: str, record: Record) -> int:
        return self._store.put(key, encode(record, key, self._terms.secret), lease=self._lease)

    def _list_members(self) -> list[str]:
        """The ids of those that are there, the oldest first."""
        return sorted(self._members, key=lambda one: self._members[one][0])

    # --- both roles ---

    def _take_part(self) -> Answer:
        self._wait_for_all()
        coordinator = self._list_members()[0]
        if coordinator != self._id:
            return self._follow(coordinator)
        if len(self._members) < 2:
            raise TemporaryError("all other nodes have left the measurement")
        return self._coordinate()

    def _wait_for_all(self) -> None:
        """Wait for the others, and for the own key to come back. Raises TemporaryError if too few have come."""
        terms = self._terms
        until = time.monotonic() + terms.wait_s
        while self._id not in self._members or not self._has_begun():
            if not self._wait_for_event(until):
                there = {member.name for _, member in self._members.values()}
                left = [name for name in self._names if name not in there]  # as one does whose limit ended earlier
                raise TemporaryError(
                    f"{len(self._names)} of {format_count(terms.node_count, 'node')} have joined the measurement "
                    f"within {terms.wait_s:g} s: {format_list(list(self._names))}"
                    f"{f'; left again: {format_list(left)}' if left else ''}",
                    "start it on all nodes at once, with the same --nnodes",
                )

    def _has_any(self, kind: str) -> bool:
        return any(key.startswith(f"{self._root}/{kind}/") for key in self._values)

    def _has_begun(self) -> bool:
        """Whether all have come, or an order is there already, for a node that sees the others late."""
        return len(self._members) >= self._terms.node_count or self._has_any("orders")

    def _play(self, order: Order, members: Mapping[str, Participant]) -> tuple[RoundReport, ...]:
        everyone = [members[one] for one in order.members]
        echoes: list[Address] = [(one.address, one.echo_port) for one in everyone]
        bulks: list[Address] = [(one.address, one.bulk_port) for one in everyone]
        own, first = order.members.index(self._id), self._serial
        self._serial += len(order.rounds)
        return tuple(
            self._player.play(first + number, round, own=own, echoes=echoes, bulks=bulks, absent=order.absent)
            for number, round in enumerate(order.rounds, 1)
        )

    def _follow(self, coordinator: str) -> Answer:
        """Play what the coordinator orders, until its answer. Raises TemporaryError if it ends before."""
        number, known = 0, {one: member for one, (_, member) in self._members.items()}
        began = 0.0  # when the first order came
        name = known[coordinator].name
        answer_key = f"{self._root}/answers/{coordinator}"
        while True:
            order_key = f"{self._root}/orders/{coordinator}/{number}"
            until = time.monotonic() + ORDER_LIMIT_S
            while order_key not in self._values and answer_key not in self._values:
                if coordinator not in self._members:
                    raise TemporaryError(f"{name} coordinated the measurement and has ended", "start all nodes again")
                if not self._wait_for_event(until):
                    raise TemporaryError(
                        f"{name} coordinates the measurement and has sent nothing for {ORDER_LIMIT_S:g} s"
                    )
            if answer_key in self._values:
                return decode(Answer, self._values[answer_key], answer_key, self._terms.secret)
            order = decode(Order, self._values[order_key], order_key, self._terms.secret)
            if number == 0:  # some may have come since, and be in the order
                known.update((one, member) for one, (_, member) in self._members.items())
            if self._id not in order.members or set(order.members) - set(known):
                raise TemporaryError(
                    f"{name} measures without this node", "start all nodes together, each with a name of its own"
                )
            if number == 0:
                began = time.monotonic()
                self._terms.log(f"{name} coordinates {format_count(len(order.members), 'node')}")
                self._player.set_token(bytes.fromhex(order.token))
            if order.members.index(self._id) in order.absent:
                raise TemporaryError("this node was left out: it answered late, or could not be reached")
            ends = time.monotonic() + sum(round.duration_s for round in order.rounds)
            if ends > began + SECONDS_MAX + REPORT_LIMIT_S:
                raise TemporaryError(f"{name} orders load for longer than {SECONDS_MAX:g} s")
            reports = self._play(order, known)
            self._put(f"{self._terms.root}/reports/{coordinator}/{number}/{self._id}", Report(rounds=reports))
            number += 1

    def _coordinate(self) -> Answer:
        members = self._list_members()
        known = {one: self._members[one][1] for one in members}
        participants = tuple(known[one] for one in members)
        began = time.monotonic()
        ((name, count),) = Counter(one.name for one in participants).most_common(1)
        if count > 1:
            reason = f"{count} nodes are called {name}; set --node-name to a different name on each"
            finding = TreeFinding(kind="unknown", reason=reason)
        else:
            finding = self._find(members, known)
        answer = Answer(participants=participants, finding=finding, seconds=time.monotonic() - began)
        self._put(f"{self._root}/answers/{self._id}", answer)
        until = time.monotonic() + FAREWELL_LIMIT_S
        with contextlib.suppress(MeshrunError):  # this node has the finding
            while set(self._members) - {self._id} and self._wait_for_event(until):
                pass
        return answer

    def _find(self, members: Sequence[str], known: Mapping[str, Participant]) -> TreeFinding:
        """Have the members play step after step, and return the finding."""
        token = draw_token()
        seed = int.from_bytes(token[:4], "big")
        self._player.set_token(token)
        steps = find_tree(len(members), seed, depth=self._terms.depth)
        began, number = time.monotonic(), 0
        gone: set[int] = set()
        rounds: tuple[LoadRound, ...] = ()
        try:
            seconds = 0.0
            while time.monotonic() - began + seconds < SECONDS_MAX:
                if number:
                    self._terms.log(f"step {number}: {format_count(len(rounds), 'round')} in {seconds:.1f} s")
                order = Order(token=token.hex(), members=tuple(members), rounds=rounds, absent=tuple(sorted(gone)))
                revision = self._put(f"{self._root}/orders/{self._id}/{number}", order)
                if not number:  # no report to this coordinator is older than its first order
                    self._watch(f"{self._terms.root}/reports/{self._id}/", revision)
                reports = {members.index(self._id): self._play(order, known)}
                reports.update(self._collect(number, members, gone))
                gone |= set(range(len(members))) - set(reports)
                rounds = steps.send(reports) if number else next(steps)
                number += 1
                seconds = sum(round.duration_s for round in rounds)
            return TreeFinding(kind="unknown", reason=f"no tree was found within {SECONDS_MAX:g} s")
        except StopIteration as end:
            found: TreeFinding = end.value
            return found

    def _collect(self, number: int, members: Sequence[str], gone: set[int]) -> dict[int, tuple[RoundReport, ...]]:
        """Wait for the reports of those that are there."""
        root = f"{self._terms.root}/reports/{self._id}/{number}/"
        until = time.monotonic() + REPORT_LIMIT_S
        while True:
            missing = [
                one
                for index, one in enumerate(members)
                if one != self._id and index not in gone and one in self._members and root + one not in self._values
            ]
            if not missing or not self._wait_for_event(until):
                break
        found: dict[int, tuple[RoundReport, ...]] = {}
        for index, one in enumerate(members):
            if root + one in self._values:
                with contextlib.suppress(RecordError):  # as if it had not reported
                    found[index] = decode(Report, self._values[root + one], root + one, self._terms.secret).rounds
        return found


def draw_token() -> bytes:
    return os.urandom(TOKEN_BYTES)
