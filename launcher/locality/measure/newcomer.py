"""A node that comes to a run that has begun: it finds its place with the help of those that have one (`residents`).

One newcomer at a time has its turn, by a key that only one can create. It has the residents open their sockets, says
who sends to whom, asks all for echoes while the network is idle and while it is loaded, and decides (`placing`). The
job runs meanwhile. It never waits for a newcomer, and a newcomer has no place rather than that it waits long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial

from launcher.locality.measure.placing import (
    KnownNode,
    Path,
    Placement,
    PlaceReports,
    choose_asked,
    decide,
    make_round,
)
from launcher.locality.measure.player import Player
from launcher.locality.measure.residents import (
    EventQueue,
    KeyFollower,
    PlaceOrder,
    PlaceRequest,
    Presence,
    Resident,
    ResidentFlow,
    make_root,
)
from launcher.locality.measure.schedule import NOBODY, SETTLE_S, WARM_S, WINDOW_S, LoadRound
from launcher.locality.measure.session import Report, draw_token
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_count
from rendezvous.errors import RecordError, StoreError
from rendezvous.records import AnyRecord, Record, decode, encode
from rendezvous.stores.contract import Compare, Put, Store

TURN_LIMIT_S = 20.0  # that a newcomer waits for others to be placed; one takes about 1 s
TURN_TTL_S = 10.0  # more than all the waiting of a turn: it is not renewed
PRESENCE_LIMIT_S = 2.0
REPORT_LIMIT_S = 2.0
LOADED_PARTS = 3
"""Of the loaded round: the longest wait counts, for the queue of a full link is empty at times."""


def find_place(
    store: Store,
    prefix: str,
    run_id: str,
    name: str,
    address: str,
    stated: Path,
    *,
    secret: bytes,
    log: Callable[[str], object],
    events: EventQueue | None = None,
) -> Placement:
    """Return the place of this node, which comes to a run that has begun. Raises TemporaryError, UsageError.

    `events`: an error in it ends all waiting.
    """
    try:
        player = Player(address)
    except OSError as error:
        raise UsageError(f"cannot listen at {address}: {error.strerror}", "see --local-addr and --interface") from None
    try:
        root = make_root(prefix, run_id)
        return NewcomerSession(store, root, player, name, stated, secret=secret, log=log, events=events).run()
    finally:
        player.close()


class NewcomerSession:
    """A newcomer's part. `player`: at its address; `stated`: where it says that it stands."""

    def __init__(
        self,
        store: Store,
        root: str,
        player: Player,
        name: str,
        stated: Path,
        *,
        secret: bytes,
        log: Callable[[str], object],
        events: EventQueue | None = None,
    ) -> None:
        self._store = store
        self._root = root
        self._player = player
        self._name = name
        self._stated = stated
        self._secret = secret
        self._log = log
        self._events = events
        self._lease = 0

    def run(self) -> Placement:
        """Return this node's place. Raises TemporaryError, if it cannot be measured."""
        follower = None
        try:
            if not self._store.get(f"{self._root}/residents/", prefix=True).items:
                raise TemporaryError("no node of the run has a measured place")
            follower = KeyFollower(self._store, f"{self._root}/", self._events)
            token = self._take_turn(follower)
            return self._measure(follower, token)
        except StoreError as error:
            raise TemporaryError(f"the store was lost meanwhile: {error}", error.hint) from None
        finally:
            if follower is not None:
                follower.close()
            self._end_turn()

    def _take_turn(self, follower: KeyFollower) -> bytes:
        """Wait until no other newcomer measures, and return the token of this node's measurement."""
        key, until = f"{self._root}/newcomer/request", time.monotonic() + TURN_LIMIT_S
        while True:
            self._lease = self._store.lease_grant(TURN_TTL_S).id
            token = draw_token()
            request = PlaceRequest(name=self._name, token=token.hex(), lease=self._lease)
            value = encode(request, key, self._secret)
            self._player.set_token(token)
            taken = self._store.txn([Compare(key, "create", "=", 0)], [Put(key, value, self._lease)])
            # What others wrote is noted before the turn begins: then only this node's own keys are there.
            if taken.succeeded and follower.wait(partial(_holds, follower, key, value), PRESENCE_LIMIT_S):
                return token
            self._end_turn()
            if not follower.wait(lambda: key not in follower.values, until - time.monotonic()):
                raise TemporaryError(f"other newcomers were measured for {TURN_LIMIT_S:g} s")

    def _end_turn(self) -> None:
        if self._lease:
            with contextlib.suppress(StoreError):
                self._store.lease_revoke(self._lease)
            self._lease = 0

    def _measure(self, follower: KeyFollower, token: bytes) -> Placement:
        values = follower.values
        residents, present, reports = (f"{self._root}/{name}/" for name in _PREFIXES)
        there = {key.removeprefix(residents) for key in values if key.startswith(residents)}
        follower.wait(lambda: all(present + one in values for one in there), PRESENCE_LIMIT_S)
        ids, nodes, sockets = [], [], []
        for one in sorted(there):
            resident = self._read(Resident, values, residents + one)
            presence = self._read(Presence, values, present + one)
            if resident is not None and resident.node.path and presence is not None:
                ids.append(one)
                nodes.append(resident.node)
                sockets.append(presence)
        if not ids:
            raise TemporaryError(f"no node of the run answered within {PRESENCE_LIMIT_S:g} s")
        seed = int.from_bytes(token[:4], "big")
        round = make_round(nodes, seed)
        if set(round.targets) == {NOBODY}:
            raise TemporaryError("the nodes that answered cannot fill the links of two domains")
        flows = {
            one: ResidentFlow(sockets[to].address, sockets[to].bulk_port, pace_bps)
            for one, to, pace_bps in zip(ids, round.targets, round.paces_bps, strict=False)  # all but the newcomer
            if to != NOBODY
        }
        self._put("newcomer/order", PlaceOrder(flows=flows, window_s=round.window_s))
        self._log(
            f"{format_count(len(ids), 'node')} of the run load the network for a moment to find this node's place"
        )
        asked = choose_asked(nodes, seed)
        echoes = [(one.address, one.echo_port) for one in sockets]
        echoes.append(("", 0))  # this node, the last number

        def ask(serial: int, window_s: float) -> dict[int, float]:
            played = self._player.play(
                serial,
                LoadRound(window_s=window_s),
                own=len(ids),
                echoes=echoes,
                bulks=(),
                asked=asked,
            )
            answers = zip(asked, played.round_trips_us, strict=True)
            return {number: micros / 1e6 for number, micros in answers if micros}

        idle_s = ask(1, WINDOW_S)
        time.sleep(WARM_S)
        loaded_s: dict[int, float] = {}
        for part in range(LOADED_PARTS):
            for number, value in ask(2 + part, round.window_s / LOADED_PARTS - SETTLE_S).items():
                loaded_s[number] = max(value, loaded_s.get(number, 0.0))
        follower.wait(lambda: all(reports + one in values for one in ids), REPORT_LIMIT_S)
        received_bps = {
            number: report.rounds[-1].received_bps
            for number, one in enumerate(ids)
            if (report := self._read(Report, values, reports + one)) is not None and report.rounds
        }
        seen = PlaceReports(asked=asked, idle_s=idle_s, loaded_s=loaded_s, received_bps=received_bps)
        return decide(nodes, round, seen, own_domain=self._name_domain(nodes))

    def _read(self, kind: type[AnyRecord], values: Mapping[str, bytes], key: str) -> AnyRecord | None:
        """Return what another node has written; None if there is none, or it makes no sense here."""
        with contextlib.suppress(RecordError, KeyError):
            return decode(kind, values[key], key, self._secret)
        return None

    def _name_domain(self, nodes: list[KnownNode]) -> str:
        """Return the name of a domain of this node's own: as it says, unless others have it; else as the node."""
        level = max(nodes, key=lambda node: len(node.path)).path[-1][0]
        said = dict(self._stated).get(level)
        return said if said and all(said != dict(node.path).get(level) for node in nodes) else self._name

    def _put(self, name: str, record: Record) -> None:
        key = f"{self._root}/{name}"
        self._store.put(key, encode(record, key, self._secret), lease=self._lease)


def _holds(follower: KeyFollower, key: str, value: bytes) -> bool:
    return follower.values.get(key) == value


_PREFIXES = ("residents", "replies/present", "replies/report")
