"""A session of several participants over a store: one answer for all, and what happens when some of them end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.extensions.measure import session
from launcher.extensions.measure.procedure import RoundReport, TreeFinding
from launcher.extensions.measure.schedule import LoadRound
from launcher.extensions.measure.session import Answer, Order, Participant, Session, Terms
from launcher.model.errors import TemporaryError
from rendezvous.errors import MeshrunError, StoreError
from rendezvous.records import encode
from rendezvous.stores.contract import Batch
from rendezvous.stores.memory.store import MemoryStore
from tests.support.network.measuring import leaves
from tests.support.network.queues import QueueTree
from tests.support.stores.delivering import DeliveringStore
from tests.support.waiting import wait_until

MBIT = 10**6
TREE = QueueTree(leaves(4, 4), ("leaf",), {"host": 40 * MBIT, "leaf": 40 * MBIT})
LIMIT_S = 60.0
ROOT = "/meshrun/run/measure"
Interfering = Callable[[str, int], None]  # called with a node's name and the number of the round that it is to play


class ModelPlayers:
    """Players on the model of queues. Host number 3 of the tree is the node h3, whatever its number in the session."""

    def __init__(self, interfere: Interfering = lambda name, number: None) -> None:
        self.interfere = interfere
        self.store = DeliveringStore()
        self._rounds: dict[tuple[bytes, int], list[RoundReport]] = {}
        self._lock = threading.Lock()

    def play(self, name: str, token: bytes, serial: int, round: LoadRound, echoes: Any) -> RoundReport:
        """`echoes` are addresses, and an address is the name of a node."""
        self.interfere(name, serial)
        order = [int(host.removeprefix("h")) for host, _ in echoes]
        with self._lock:
            if (token, serial) not in self._rounds:
                tree = TREE._replace(paths=[TREE.paths[number] for number in order])
                self._rounds[token, serial] = tree.play(round, random.Random(serial))
            return self._rounds[token, serial][[host for host, _ in echoes].index(name)]


class ModelPlayer:
    def __init__(self, players: ModelPlayers, name: str) -> None:
        self._players, self._name, self._token = players, name, b""

    def set_token(self, token: bytes) -> None:
        self._token = token

    def play(self, serial: int, round: LoadRound, *, echoes: Any, **_: Any) -> RoundReport:
        return self._players.play(self._name, self._token, serial, round, echoes)


class Sessions:
    """Sessions of nodes, each in a thread; `results`: of each node its answer, or the error that it ended with."""

    def __init__(self, names: list[str], players: ModelPlayers | None = None, **settings: Any) -> None:
        players = players or ModelPlayers()
        self.store = players.store
        self.results: dict[str, Answer | BaseException] = {}
        self.sessions = [self._make(name, players, {"node_count": len(names), **settings}) for name in names]
        threads = [
            threading.Thread(target=self._run, args=(name, one), daemon=True)
            for name, one in zip(names, self.sessions, strict=True)
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()  # the first one coordinates, so it comes first
            wait_until(lambda count=number: len(self._list_members()) >= count or self.results, LIMIT_S, "a member")
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert not self.store.get("/meshrun/run/measure/", prefix=True).items
        self.store.close()

    def _list_members(self) -> tuple[Any, ...]:
        return self.store.get("/meshrun/run/measure/session/members/", prefix=True).items

    def _make(self, name: str, players: ModelPlayers, settings: dict[str, Any]) -> Session:
        settings = {"wait_s": LIMIT_S, **settings}
        own = Participant(name=name, address=name, echo_port=1, bulk_port=2)
        terms = Terms(root="/meshrun/run/measure", secret=b"secret", depth=2, log=lambda line: None, **settings)
        return Session(self.store, terms, ModelPlayer(players, name), own)

    def _run(self, name: str, one: Session) -> None:
        try:
            self.results[name] = one.run()
        except (MeshrunError, KeyboardInterrupt) as error:
            self.results[name] = error


@pytest.fixture(autouse=True)
def _draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "draw_token", lambda: bytes(range(16)))


def list_groups(answer: Answer | BaseException) -> list[set[str]]:
    assert isinstance(answer, Answer), answer
    (groups,) = answer.finding.levels
    return sorted(({answer.participants[member].name for member in group} for group in groups), key=min)


NAMES = [f"h{number}" for number in range(8)]
LEAVES = [{"h0", "h1", "h2", "h3"}, {"h4", "h5", "h6", "h7"}]


def test_all_get_the_same_answer_unless_two_have_one_name() -> None:
    results = Sessions(NAMES).results
    assert set(results) == set(NAMES)
    assert all(result == results["h0"] for result in results.values())
    assert list_groups(results["h0"]) == LEAVES
    played: list[int] = []
    results = Sessions(["h1", "h2", "h2"], ModelPlayers(lambda name, number: played.append(number))).results
    for result in results.values():
        assert isinstance(result, Answer)
        assert result.finding.reason == "2 nodes are called h2; set --node-name to a different name on each"
    assert played == []


def interrupt(victim: str, round_number: int) -> Interfering:
    """Ends one participant, as by Ctrl-C, when it is to play that round."""

    def interfere(name: str, number: int) -> None:
        if (name, number) == (victim, round_number):
            raise KeyboardInterrupt

    return interfere


@pytest.mark.parametrize("round_number", [1, 4, 7])
def test_one_that_is_interrupted_is_not_in_the_answer(round_number: int) -> None:
    results = Sessions(NAMES, ModelPlayers(interrupt("h5", round_number))).results
    assert isinstance(results.pop("h5"), KeyboardInterrupt)
    for result in results.values():
        assert list_groups(result) == [leaf - {"h5"} for leaf in LEAVES]
        assert isinstance(result, Answer)
        assert [result.participants[member].name for member, _ in result.finding.left_out] == ["h5"]


@pytest.mark.parametrize("round_number", [1, 4])
def test_if_the_coordinator_is_interrupted_all_end_in_a_sentence(round_number: int) -> None:
    results = Sessions(NAMES, ModelPlayers(interrupt("h0", round_number))).results
    assert isinstance(results.pop("h0"), KeyboardInterrupt)
    assert {str(result) for result in results.values()} == {"h0 coordinated the measurement and has ended"}
    assert {type(result) for result in results.values()} == {TemporaryError}


def test_one_whose_lease_ends_is_told_and_the_rest_go_on() -> None:
    players, victim = ModelPlayers(), "h5"

    def end_lease(name: str, number: int) -> None:
        if (name, number) == (victim, 4):
            for item in players.store.get("/meshrun/run/measure/session/members/", prefix=True).items:
                if f'"name":"{victim}"'.encode() in item.value:
                    players.store.lease_revoke(item.lease)

    players.interfere = end_lease
    results = Sessions(NAMES, players).results
    assert isinstance(results.pop(victim), TemporaryError)
    for result in results.values():
        assert list_groups(result) == [leaf - {victim} for leaf in LEAVES]


def test_one_that_cannot_keep_its_lease_says_that_the_store_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lease: int) -> float:
        raise StoreError("etcd at h:1 is away")

    players = ModelPlayers()
    monkeypatch.setattr(players.store, "lease_keep_alive", fail)
    monkeypatch.setattr(session, "LEASE_TTL_S", 0.3)
    found = Sessions(["h0"], players, node_count=2, wait_s=10.0).results["h0"]
    assert str(found) == "the measurement has lost its store: etcd at h:1 is away"


def test_no_step_is_ordered_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []
    monkeypatch.setattr(session, "SECONDS_MAX", 0.5)
    found = Sessions(NAMES, ModelPlayers(lambda name, number: played.append(number))).results["h7"]
    assert isinstance(found, Answer)
    assert (found.finding.kind, played) == ("unknown", [])


def make_limit_end(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], None]:
    """Return what ends the time to wait once so many sessions have called it, however long they took to come."""
    past, barrier = [0.0], threading.Barrier(count)

    def end_limit() -> None:
        barrier.wait(LIMIT_S)
        past[0] = LIMIT_S

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + past[0]))
    return end_limit


def end_limit_when_all_are_known(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    end_limit, arrived = make_limit_end(monkeypatch, count), set[str]()
    wait = Session._wait_for_event

    def wait_for_event(self: Session, until: float) -> bool:
        if len(self._members) == count and self._id not in arrived:
            arrived.add(self._id)
            end_limit()
        return wait(self, until)

    monkeypatch.setattr(Session, "_wait_for_event", wait_for_event)


def test_too_few_nodes_are_named_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    end_limit_when_all_are_known(monkeypatch, 2)
    results = Sessions(NAMES[:2], node_count=3).results
    assert all(isinstance(result, TemporaryError) for result in results.values())
    said = sorted(map(str, results.values()), key=len)
    common = "2 of 3 nodes have joined the measurement within 60 s: h0, h1"
    assert said[0] == common
    assert said[1].removeprefix(common) in ("", "; left again: h0", "; left again: h1")


def put_members(players: ModelPlayers, names: dict[str, str]) -> int:
    """Write members that do nothing, id -> name; return their lease."""
    lease = players.store.lease_grant(60).id
    for one, name in names.items():
        key = f"{ROOT}/session/members/{one}"
        own = Participant(name=name, address=name, echo_port=1, bulk_port=2)
        players.store.put(key, encode(own, key, b"secret"), lease=lease)
    return lease


def test_one_that_sees_all_others_before_itself_waits_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from the watch is held back until the session waits for it."""
    players, waits, held = ModelPlayers(), threading.Event(), list[Batch]()
    lease = put_members(players, {"aa": "h1", "bb": "h2"})
    receive, wait = Session._receive, Session._wait_for_event

    def hold(self: Session, batch: Batch) -> None:
        held.append(batch)
        if waits.is_set():
            while held:
                receive(self, held.pop(0))

    def release(self: Session, until: float) -> bool:
        if not waits.is_set():
            waits.set()
            players.store.lease_revoke(lease)
        return wait(self, until)

    monkeypatch.setattr(Session, "_receive", hold)
    monkeypatch.setattr(Session, "_wait_for_event", release)
    found = Sessions(["h0"], players, node_count=2).results["h0"]
    assert str(found) == "h1 coordinated the measurement and has ended"


@pytest.mark.parametrize("late_s", [0.0, 60.0])
def test_a_follower_knows_who_came_late_and_plays_no_late_load(monkeypatch: pytest.MonkeyPatch, late_s: float) -> None:
    players = ModelPlayers()
    lease = put_members(players, {"aa": "h1"})
    follow = Session._follow
    answer = Answer(participants=(), finding=TreeFinding(kind="flat"))

    def coordinate(self: Session, coordinator: str) -> Answer | None:
        late = put_members(players, {"bb": "h2"})
        rounds = (LoadRound(window_s=late_s),) if late_s else ()
        records = {"orders/aa/0": Order(token="", members=("aa", self._id, "bb"), rounds=rounds), "answers/aa": answer}
        for name in list(records)[: 1 if late_s else 2]:
            key = f"{ROOT}/session/{name}"
            players.store.put(key, encode(records[name], key, b"secret"), lease=lease)
        try:
            return follow(self, coordinator)
        finally:
            players.store.lease_revoke(lease)
            players.store.lease_revoke(late)

    monkeypatch.setattr(Session, "_follow", coordinate)
    found = Sessions(["h0"], players, node_count=2).results["h0"]
    assert str(found) == ("h1 orders load for longer than 20 s" if late_s else str(answer))


def test_an_answer_without_this_node_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(participants=(), finding=TreeFinding(kind="flat"))
    monkeypatch.setattr(Session, "run", lambda self: answer)
    terms = Terms(root=ROOT, secret=b"", node_count=2, wait_s=1, depth=2, log=lambda line: None)
    with pytest.raises(TemporaryError, match="the others measured without this node"):
        session.take_part(MemoryStore(), terms, name="h0", address="127.0.0.1", path=(), devices=1)


def test_the_finding_is_kept_if_the_store_is_lost_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Session._put

    def lose(self: Session, key: str, record: Any) -> int:
        revision = put(self, key, record)
        if "/answers/" in key:
            self._events.put(StoreError("the store is away"))
        return revision

    monkeypatch.setattr(Session, "_put", lose)
    assert isinstance(Sessions(NAMES).results["h0"], Answer)


def test_a_record_that_cannot_be_read_harms_no_one() -> None:
    players = ModelPlayers()

    def write_garbage(name: str, serial: int) -> None:
        if name == "h0" and serial == 2:
            members = players.store.get("/meshrun/run/measure/session/members/", prefix=True).items
            players.store.put("/meshrun/run/measure/session/members/ff", b"garbage", lease=members[0].lease)

    players.interfere = write_garbage
    assert list_groups(Sessions(NAMES, players).results["h7"]) == [set(NAMES[:4]), set(NAMES[4:])]
