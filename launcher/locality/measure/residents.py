"""What nodes of a run with measured places do for those that come later: each helps to find where a newcomer stands.

At rest this costs a watch, and a lease that is renewed every ten seconds: there is no socket. When a newcomer asks, a
node opens its sockets, says where they are, sends for half a second what the newcomer's order says, and reports what it
received. Every wait has a limit, and nothing here can hold up the agent: it runs on a thread of its own.

    residents/ID        who has a place, and which, as long as its agent runs
    newcomer/request    by the newcomer whose turn it is
    replies/present/ID  a resident's sockets, for this newcomer
    newcomer/order      who sends to whom
    replies/report/ID   what a resident received

All but the first end with the newcomer's lease, so nothing stays of it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from launcher.locality.measure.placing import KnownNode
from launcher.locality.measure.player import Player
from launcher.locality.measure.schedule import NOBODY, LoadRound
from launcher.locality.measure.session import Report
from rendezvous.errors import MeshrunError, StoreError
from rendezvous.records import Record, decode, encode
from rendezvous.stores.contract import Batch, KeyEvent, Store

RESIDENT_TTL_S = 30.0
ORDER_LIMIT_S = 5.0  # that a resident waits for the newcomer's order
CLOSE_LIMIT_S = 1.0  # that the agent's end waits for the thread
EventQueue = queue.SimpleQueue[KeyEvent | MeshrunError | None]
MakePlayer = Callable[[str], Player]  # from an address


def make_root(prefix: str, run_id: str) -> str:
    return f"/{prefix}/{run_id}/measure"


class Resident(Record, frozen=True, kw_only=True):
    name: str
    node: KnownNode


class PlaceRequest(Record, frozen=True, kw_only=True):
    """`lease`: of the newcomer, for what is written in reply."""

    name: str
    token: str
    lease: int


class Presence(Record, frozen=True, kw_only=True):
    address: str
    echo_port: int
    bulk_port: int


class ResidentFlow(Struct, frozen=True):
    """What one resident sends: to this address of bulk data, no faster than this."""

    address: str
    port: int
    pace_bps: int


class PlaceOrder(Record, frozen=True, kw_only=True):
    """`flows`: of each resident that sends; the others only answer. `window_s`: of the loaded round."""

    flows: Mapping[str, ResidentFlow]
    window_s: float


class KeyFollower:
    """The keys below a prefix, as a watch tells of them."""

    def __init__(self, store: Store, root: str, events: EventQueue | None = None) -> None:
        """Raises StoreError. `events`: an error in it ends `wait`, from a signal handler for example."""
        self._events: EventQueue = queue.SimpleQueue() if events is None else events
        self._error: MeshrunError | None = None
        found = store.get(root, prefix=True)
        self.values = {item.key: item.value for item in found.items}
        self._watch = store.watch(
            root, prefix=True, start_revision=found.revision + 1, on_batch=self._receive, on_lost=self._events.put
        )

    def wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Wait until this holds for the keys; False if it does not in that time. Raises MeshrunError."""
        until = time.monotonic() + limit_s
        while not holds():
            if self._error is not None:  # the watch has ended, this follower sees nothing any more; or it has to end
                raise self._error
            try:
                event = self._events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return False
            if isinstance(event, MeshrunError):
                self._error = event
            elif event is not None:
                self._note(event)
        return True

    def wake(self) -> None:
        """Have `wait` look again."""
        self._events.put(None)

    def close(self) -> None:
        with contextlib.suppress(StoreError):
            self._watch.cancel()

    def _receive(self, batch: Batch) -> None:
        for event in batch.events:
            self._events.put(event)

    def _note(self, event: KeyEvent) -> None:
        if event.kind == "put":
            self.values[event.item.key] = event.item.value
        else:
            self.values.pop(event.item.key, None)


class Residence:
    """This node's part, from its creation to `close`."""

    def __init__(
        self,
        store: Store,
        root: str,
        resident: Resident,
        address: str,
        *,
        secret: bytes,
        log: Callable[[str], object],
        make_player: MakePlayer = Player,
    ) -> None:
        self._store = store
        self._root = root
        self._resident = resident
        self._address = address
        self._secret = secret
        self._log = log
        self._make_player = make_player
        self._is_over = threading.Event()
        self._follower: KeyFollower | None = None
        self._thread = threading.Thread(target=self._run, name="measure resident", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._follower is not None:
            self._follower.wake()
        self._thread.join(CLOSE_LIMIT_S)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(MeshrunError):  # the agent itself reports a store that is away
                self._reside()
            self._is_over.wait(RESIDENT_TTL_S / 3)

    def _reside(self) -> None:
        """Be there for newcomers until the end. Raises StoreError."""
        lease = self._store.lease_grant(RESIDENT_TTL_S).id
        follower = None
        try:
            follower = self._follower = KeyFollower(self._store, f"{self._root}/newcomer/")
            self._put(f"residents/{lease:x}", self._resident, lease)
            key = f"{self._root}/newcomer/request"
            served = follower.values.get(key)
            while not self._is_over.is_set():
                if follower.wait(partial(self._is_asked, follower, served), RESIDENT_TTL_S / 3):
                    served = follower.values.get(key)
                    if served is not None and not self._is_over.is_set():
                        self._try_to_help(follower, f"{lease:x}", served)
                self._store.lease_keep_alive(lease)
        finally:
            if follower is not None:
                follower.close()
            with contextlib.suppress(StoreError):
                self._store.lease_revoke(lease)

    def _is_asked(self, follower: KeyFollower, served: bytes | None) -> bool:
        """Whether there is another request than the last one, or this node's part is over."""
        return self._is_over.is_set() or follower.values.get(f"{self._root}/newcomer/request", served) != served

    def _try_to_help(self, follower: KeyFollower, own: str, value: bytes) -> None:
        try:
            self._help(follower, own, decode(PlaceRequest, value, f"{self._root}/newcomer/request", self._secret))
        except (MeshrunError, OSError) as error:
            self._log(f"this node could not help to find a newcomer's place: {error}")

    def _help(self, follower: KeyFollower, own: str, request: PlaceRequest) -> None:
        """Take part in one newcomer's round. Raises MeshrunError and OSError."""
        keys = [f"{self._root}/newcomer/{name}" for name in ("order", "request")]
        player = self._make_player(self._address)
        try:
            player.set_token(bytes.fromhex(request.token))
            echo_port, bulk_port = player.ports
            presence = Presence(address=self._address, echo_port=echo_port, bulk_port=bulk_port)
            self._put(f"replies/present/{own}", presence, request.lease)
            follower.wait(
                lambda: self._is_over.is_set() or keys[0] in follower.values or keys[1] not in follower.values,
                ORDER_LIMIT_S,
            )
            if self._is_over.is_set() or keys[0] not in follower.values:
                return
            order = decode(PlaceOrder, follower.values[keys[0]], keys[0], self._secret)
            flow = order.flows.get(own)
            self._log(f"{request.name} comes to the run: the network is loaded for a moment to find its place")
            # Of the round this node plays its own flow only, to number 0 of a list of one.
            round = LoadRound(
                window_s=order.window_s,
                targets=(NOBODY if flow is None else 0,),
                paces_bps=() if flow is None else (flow.pace_bps,),
            )
            bulks = [] if flow is None else [(flow.address, flow.port)]
            reports = tuple(
                player.play(serial, one, own=0, echoes=(), bulks=bulks, asked=())
                for serial, one in enumerate((LoadRound(), round), 1)
            )
            self._put(f"replies/report/{own}", Report(rounds=reports), request.lease)
        finally:
            player.close()

    def _put(self, name: str, record: Record, lease: int) -> None:
        key = f"{self._root}/{name}"
        self._store.put(key, encode(record, key, self._secret), lease=lease)
