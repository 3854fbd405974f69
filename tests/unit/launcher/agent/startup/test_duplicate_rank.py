"""A node finds its number taken before it joins: told at once, waited for, or nothing to speak of."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from launcher.agent.cluster import serve_store
from launcher.agent.signals import Wakeup
from launcher.agent.startup import duplicate_rank
from launcher.agent.startup.duplicate_rank import require_unique_rank
from launcher.agent.startup.probe import ProbeResult
from launcher.agent.startup.stale_agents import NodeLock
from launcher.agent.startup.startup import Startup
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.model.errors import TemporaryError, UsageError
from launcher.placement.adapter.description import Description, encode_description
from rendezvous import records
from rendezvous.records import Member, StoreOwner
from rendezvous.stores.listeners import PortTaken
from rendezvous.stores.memory.store import MemoryStore

JOB = records.make_job_keys("meshrun", "run7", "abc")
OWNER = StoreOwner(prefix="meshrun", run_id="run7", node_name="h4", presence_address="")


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(clock=lambda: 0.0)
    made.put(records.make_current_key("meshrun", "run7"), b"abc")
    return made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(duplicate_rank, "log", lines.append)
    monkeypatch.setattr(duplicate_rank, "PAUSE_S", 0.0)
    return lines


def arrival(name: str) -> Startup:
    return Startup(
        network=StoreConfig(backend="served", endpoints=("h:1",)), credentials=Credentials(), name=name, boot_id="b",
        address="", node_lock=NodeLock("", -1, {}), listener=socket.socket(), serves_at=(),
    )  # fmt: skip


def joins(store: MemoryStore, name: str, number: int, boot_id: str = "b") -> str:
    text = encode_description(Description(slot_count=1, address="a", role="r", name=name, node_rank=number))
    member = Member(member_id=name, node_name=name, boot_id=boot_id, description=text)
    key = JOB.make_member_key(name)
    store.put(key, records.encode(member, key))
    return key


def look(
    store: MemoryStore,
    name: str,
    number: int,
    lease_ttl_s: float = -1.0,
    is_leaving: Callable[[], bool] = lambda: False,
    attempt: int = 0,
) -> None:
    """A TTL of -1 is no patience at all."""
    place = replace(arrival(name), attempt=attempt)
    with place.listener:
        require_unique_rank(store, place, "run7", number, lease_ttl_s, is_leaving)


def test_a_number_that_another_keeps_is_refused_with_both_names(store: MemoryStore, said: list[str]) -> None:
    joins(store, "h2", 1)
    with pytest.raises(UsageError, match=r"^h3 and h2 both have --node-rank 1$"):
        look(store, "h3", 1)


def test_nodes_of_an_earlier_attempt_have_no_number(store: MemoryStore, said: list[str]) -> None:
    joins(store, "h2", 1)
    look(store, "h3", 1, attempt=1)
    assert said == []


def test_of_two_that_come_in_the_same_moment_the_second_is_refused(store: MemoryStore, said: list[str]) -> None:
    look(store, "h3", 1)  # it is no member yet
    with pytest.raises(UsageError, match=r"^h4 and h3 both have --node-rank 1$"):
        look(store, "h4", 1)
    look(store, "h3", 1)  # again: it came before the other
    look(store, "h4", 2)


@pytest.mark.parametrize("has_joined", [True, False], ids=["on its way out", "said that it comes and has died"])
def test_one_that_will_be_gone_is_waited_for(
    store: MemoryStore, said: list[str], monkeypatch: pytest.MonkeyPatch, has_joined: bool
) -> None:
    if has_joined:
        left = joins(store, "h2", 1)
    else:
        look(store, "h2", 1)
        left = records.make_node_number_prefix("meshrun", "run7", 1)
    monkeypatch.setattr("launcher.agent.startup.duplicate_rank.time.sleep", lambda _: store.delete(left, prefix=True))
    look(store, "h3", 1, lease_ttl_s=59)
    assert said == ["h3 and h2 both have --node-rank 1: waiting up to 60 s for h2 to leave"]


def test_once_a_round_is_sealed_the_second_joins_and_stands_by(store: MemoryStore, said: list[str]) -> None:
    joins(store, "h2", 1)
    store.put(JOB.round, b"any")
    look(store, "h3", 1)
    assert said == ["h3 and h2 both have --node-rank 1: h3 waits as a spare until h2 has left"]


def test_another_number_or_what_this_node_was_before_stands_in_nobodys_way(store: MemoryStore, said: list[str]) -> None:
    joins(store, "h2", 1)
    store.put(JOB.make_member_key("rubbish"), b"rubbish")
    look(store, "h3", 2)
    look(store, "h2", 1)
    look(MemoryStore(clock=lambda: 0.0), "h1", 0)  # there is no job yet
    assert said == []


def test_a_signal_ends_the_wait_and_is_left_to_whoever_takes_it(
    store: MemoryStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    joins(store, "h2", 1)
    coming = iter((signal.SIGCHLD, signal.SIGTERM))  # the first is of a child, and ends nothing
    monkeypatch.setattr("launcher.agent.startup.duplicate_rank.time.sleep", lambda _: signal.raise_signal(next(coming)))
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGCHLD, signal.SIGTERM)}
    wakeup = Wakeup(before)
    try:
        look(store, "h3", 1, lease_ttl_s=59, is_leaving=wakeup.has_signal)
        assert wakeup.take() == [signal.SIGCHLD, signal.SIGTERM]
        assert not wakeup.has_signal()
    finally:
        signal.set_wakeup_fd(-1)
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize(("is_numbered", "raises"), [(True, False), (False, True)])
def test_the_second_of_two_store_hosts_joins_the_first_if_nodes_have_ranks(
    monkeypatch: pytest.MonkeyPatch, is_numbered: bool, raises: bool
) -> None:
    place = arrival("h4")
    place = replace(place, network=replace(place.network, is_host=True), serves_at=("127.0.0.1",))
    taken = PortTaken("the port is taken")
    with place.listener:
        monkeypatch.setattr("launcher.agent.cluster.stores.serve", Mock(side_effect=taken))
        monkeypatch.setattr("launcher.agent.cluster.probe", lambda _: ProbeResult("good"))
        with pytest.raises(TemporaryError) if raises else nullcontext():
            assert serve_store(place, OWNER, 30.0, is_numbered=is_numbered) is None


@pytest.mark.parametrize(
    ("looks", "outcome"),
    [
        (["absent", "absent", "good"], None),  # the winner has bound the port and answers a little later
        (["absent", "wrong"], "the port is taken"),
        (["absent"] * 9, "the port is taken"),
        (["absent", "free"], "served"),  # who took the port has died
    ],
)
def test_who_finds_the_port_taken_looks_again_until_a_store_answers(
    monkeypatch: pytest.MonkeyPatch, looks: list[str], outcome: str | None
) -> None:
    place, now, seen = arrival("h4"), [0.0], iter(looks)
    place = replace(place, serves_at=("127.0.0.1",))

    def serve(*_: object) -> str:
        if now[0] and looks[-1] == "free":
            return "served"
        raise PortTaken("the port is taken")

    def sleep(_: float) -> None:
        now[0] += 2.0

    monkeypatch.setattr("launcher.agent.cluster.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr("launcher.agent.cluster.stores.serve", serve)
    monkeypatch.setattr("launcher.agent.cluster.probe", lambda _: ProbeResult(next(seen)))  # type: ignore[arg-type]
    with place.listener:
        ends_badly = outcome == "the port is taken"
        with pytest.raises(TemporaryError, match=outcome) if ends_badly else nullcontext():
            assert serve_store(place, OWNER, 30.0, is_numbered=False) == outcome
