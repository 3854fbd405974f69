"""A newcomer and the nodes that have places, over a store: it finds its leaf, or no place and a sentence why."""

from __future__ import annotations

import contextlib
import queue
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.cluster import measure_locality
from launcher.locality.gather import Locality
from launcher.locality.measure import before_run, newcomer, residents
from launcher.locality.measure.newcomer import NewcomerSession
from launcher.locality.measure.placing import KnownNode, Placement
from launcher.locality.measure.procedure import RoundReport
from launcher.locality.measure.residents import EventQueue, KeyFollower, Presence, Residence, Resident
from launcher.locality.measure.schedule import NOBODY, LoadRound
from launcher.model.errors import TemporaryError
from rendezvous.errors import StoreError
from rendezvous.records import encode
from rendezvous.stores.contract import Lease
from rendezvous.stores.memory.store import MemoryStore
from tests.support.network.measuring import leaves
from tests.support.network.queues import QueueTree
from tests.support.waiting import wait_until

MBIT = 10**6
RATES = (("leaf", 40 * MBIT), ("host", 40 * MBIT))
PATHS = [*leaves(4, 4), ("l1",), ("l0",)]  # the nodes h0 to h7, and two newcomers
TREE = QueueTree(PATHS, ("leaf",), {"host": 40 * MBIT, "leaf": 40 * MBIT})
ROOT = "/meshrun/run/measure"
LIMIT_S = 60.0


class SharedRounds:
    """What players send, on the model of queues: a round is played when all that are expected have begun it."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._flows: dict[tuple[bytes, int], dict[int, tuple[int, int]]] = {}
        self._played: dict[tuple[bytes, int], list[RoundReport]] = {}
        self._changed = threading.Condition()

    def play(self, key: tuple[bytes, int], own: int, to: int, pace_bps: int) -> RoundReport:
        with self._changed:
            flows = self._flows.setdefault(key, {})
            flows[own] = (to, pace_bps)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(flows) == self.expected, LIMIT_S)
            if key not in self._played:
                sent = [flows.get(host, (NOBODY, 0)) for host in range(len(PATHS))]
                round = LoadRound(targets=tuple(to for to, _ in sent), paces_bps=tuple(pace for _, pace in sent))
                self._played[key] = TREE.play(round, random.Random(key[1]), asks_all=True)
            return self._played[key][own]

    def leave(self, token: bytes, own: int) -> None:
        """The others do not wait for this one."""
        with self._changed:
            for serial in (1, 2):
                self._flows.setdefault((token, serial), {})[own] = (NOBODY, 0)
            self._changed.notify_all()


class SharedPlayer:
    """Of the node h3, at the address "h3"."""

    ports = (1, 2)

    def __init__(self, rounds: SharedRounds, name: str, is_ending: bool = False) -> None:
        self._rounds, self._own, self._token = rounds, int(name.removeprefix("h")), b""
        self._is_ending = is_ending

    def set_token(self, token: bytes) -> None:
        self._token = token

    def play(self, serial: int, round: LoadRound, *, own: int, echoes: Any, bulks: Any, asked: Any) -> RoundReport:
        if self._is_ending:
            self._rounds.leave(self._token, self._own)
            raise KeyboardInterrupt
        target = round.targets[own] if round.targets else NOBODY
        to = int(bulks[target][0].removeprefix("h")) if target != NOBODY else NOBODY
        pace_bps = round.paces_bps[own] if round.paces_bps else 0
        seen = self._rounds.play((self._token, min(serial, 2)), self._own, to, pace_bps)
        numbers = [int(echoes[number][0].removeprefix("h")) for number in asked]
        round_trips = (seen.round_trips_us[(one - self._own) % len(PATHS) - 1] for one in numbers)
        return RoundReport(tuple(round_trips), seen.received_bps)

    def close(self) -> None:
        pass


class Run:
    """The nodes that have places, and what they log."""

    def __init__(self, names: list[str], expected: int | None = None) -> None:
        self.store = MemoryStore()
        self.rounds = SharedRounds(len(names) + 1 if expected is None else expected)
        self.lines: list[str] = []
        self.residences = [self.add(name) for name in names]
        wait_until(lambda: len(self.list_keys("residents/")) == len(names), LIMIT_S, "residents")

    def add(self, name: str, make_player: Callable[[str], Any] | None = None) -> Residence:
        node = KnownNode(path=(("leaf", *PATHS[int(name.removeprefix("h"))]),), rates=RATES)  # type: ignore[arg-type]
        make = make_player or (lambda address: SharedPlayer(self.rounds, address))
        resident = Resident(name=name, node=node)
        return Residence(
            self.store, ROOT, resident, name, secret=b"secret", log=self.lines.append, make_player=make,
        )  # fmt: skip

    def list_keys(self, kind: str = "") -> list[str]:
        return [item.key for item in self.store.get(f"{ROOT}/{kind}", prefix=True).items]

    def place(
        self,
        name: str,
        stated: tuple[tuple[str, str], ...] = (),
        events: EventQueue | None = None,
        **how: Any,
    ) -> Placement:
        player: Any = SharedPlayer(self.rounds, name, **how)
        log = self.lines.append
        return NewcomerSession(self.store, ROOT, player, name, stated, secret=b"secret", log=log, events=events).run()

    def close(self) -> None:
        for residence in self.residences:
            residence.close()
        assert self.list_keys() == []
        self.store.close()


NAMES = [f"h{number}" for number in range(8)]


@pytest.fixture
def run() -> Iterator[Run]:
    with contextlib.closing(Run(NAMES)) as run:
        yield run


def test_a_newcomer_finds_its_leaf_and_leaves_nothing_in_the_store(run: Run) -> None:
    found = run.place("h8")
    assert (found.path, found.rates) == ((("leaf", "l1"),), RATES[:1])
    assert {key.split("/")[4] for key in run.list_keys()} == {"residents"}
    assert run.lines.count("h8 comes to the run: the network is loaded for a moment to find its place") == 8


def test_newcomers_at_the_same_time_take_turns(run: Run) -> None:
    found: dict[str, Placement] = {}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: run.place(name)}), daemon=True)
        for name in ("h8", "h9")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert {name: one.path for name, one in found.items()} == {"h8": (("leaf", "l1"),), "h9": (("leaf", "l0"),)}


def test_a_newcomer_does_not_wait_longer_than_a_limit_for_its_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "TURN_LIMIT_S", 0.1)
    run.store.put(f"{ROOT}/newcomer/request", b"another", lease=(lease := run.store.lease_grant(LIMIT_S).id))
    with pytest.raises(TemporaryError, match=r"other newcomers were measured for 0\.1 s"):
        run.place("h8")
    assert len(run.store.list_leases()) == len(NAMES) + 1
    run.store.lease_revoke(lease)


def test_a_signal_ends_the_wait_for_a_turn_at_once(run: Run) -> None:
    run.store.put(f"{ROOT}/newcomer/request", b"another", lease=(lease := run.store.lease_grant(LIMIT_S).id))
    events: EventQueue = queue.SimpleQueue()
    events.put(TemporaryError("this node has to leave"))
    with pytest.raises(TemporaryError, match="this node has to leave"):
        run.place("h8", events=events)
    assert len(run.store.list_leases()) == len(NAMES) + 1
    run.store.lease_revoke(lease)


def test_the_agent_passes_its_signals_on(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    class BusyStore(MemoryStore):
        """The signal comes with the first try to have the turn, which another newcomer has."""

        def lease_grant(self, ttl_s: float, *, id: int = 0) -> Lease:
            signal.raise_signal(signal.SIGTERM)
            return super().lease_grant(ttl_s, id=id)

    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: came.append(signum))
    monkeypatch.setattr(before_run, "is_begun", lambda *_: True)
    startup: Any = SimpleNamespace(
        name="h8", address="127.0.0.1", network=SimpleNamespace(prefix="meshrun"),
        credentials=SimpleNamespace(secret=b""),
    )  # fmt: skip
    unused: Any = None
    with contextlib.closing(BusyStore()) as store:
        for name in ("residents/1", "newcomer/request"):
            store.put(f"{ROOT}/{name}", b"another")
        try:
            found = measure_locality(store, unused, unused, startup, Locality((), (), ()), 1, "run")
        finally:
            signal.signal(signal.SIGTERM, before)
    assert (found, came) == ((Locality((), (), ()), None), [signal.SIGTERM])
    assert "the network was not measured: this node has to leave" in capfd.readouterr().err


@pytest.mark.parametrize("resident", [Resident(name="h", node=KnownNode(path=())), None], ids=["no path", "no record"])
def test_a_resident_that_makes_no_sense_is_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch, resident: Resident | None
) -> None:
    monkeypatch.setattr(newcomer, "PRESENCE_LIMIT_S", 0.5)
    key = f"{ROOT}/residents/bad"
    presence = f"{ROOT}/replies/present/bad"
    lease = run.store.lease_grant(LIMIT_S).id
    run.store.put(key, encode(resident, key, b"secret") if resident else b"garbage", lease=lease)
    run.store.put(presence, encode(Presence(address="h9", echo_port=1, bulk_port=2), presence, b"secret"), lease=lease)
    assert run.place("h8").path == (("leaf", "l1"),)
    run.store.lease_revoke(lease)


def test_one_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "PRESENCE_LIMIT_S", 0.5)

    def fail(address: str) -> Any:
        raise OSError(f"{address} is gone")

    with contextlib.closing(Run(NAMES[:7], 8)) as run:
        run.residences.append(run.add("h7", fail))
        wait_until(lambda: len(run.list_keys("residents/")) == 8, LIMIT_S, "h7")
        assert run.place("h8").path == (("leaf", "l1"),)
        assert "this node could not help to find a newcomer's place: h7 is gone" in run.lines


def test_without_others_who_have_a_place_nothing_is_loaded() -> None:
    with contextlib.closing(Run([])) as run, pytest.raises(TemporaryError, match="no node of the run has a measured"):
        run.place("h8")


def test_one_domain_alone_tells_nothing() -> None:
    with contextlib.closing(Run(NAMES[:4])) as run:
        with pytest.raises(TemporaryError, match="the nodes that answered cannot fill the links of two domains"):
            run.place("h8")
        assert run.lines == []


def test_a_newcomer_that_ends_in_the_middle_leaves_all_as_it_was(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.place("h9", is_ending=True)
    assert run.place("h8").path == (("leaf", "l1"),)


def test_a_store_that_is_lost_is_said(run: Run) -> None:
    lines: list[str] = []
    store = MemoryStore()
    store.put(f"{ROOT}/residents/1", b"somebody")
    player: Any = SharedPlayer(run.rounds, "h8")
    session = NewcomerSession(store, ROOT, player, "h8", (), secret=b"", log=lines.append)
    store.close()
    with pytest.raises(TemporaryError, match="the store was lost meanwhile"):
        session.run()


class LosingStore(MemoryStore):
    def watch(self, key: str, *, on_lost: Callable[[StoreError], None], **how: Any) -> Any:
        self.lose = on_lost
        return super().watch(key, on_lost=on_lost, **how)


def test_a_follower_whose_watch_was_lost_does_not_wait_in_vain() -> None:
    store = LosingStore()
    follower = KeyFollower(store, ROOT)
    store.lose(StoreError("lost"))
    for _ in range(2):
        with pytest.raises(StoreError):
            follower.wait(lambda: False, LIMIT_S)
    store.close()


def test_a_node_whose_lease_has_ended_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "RESIDENT_TTL_S", 1.0)
    with contextlib.closing(Run(["h0"])) as run:
        (key,) = run.list_keys()
        run.store.lease_revoke(int(key.rpartition("/")[2], 16))
        wait_until(lambda: run.list_keys() not in ([], [key]), LIMIT_S, "a new key")
