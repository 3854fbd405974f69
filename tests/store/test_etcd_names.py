"""The name of a store: resolved by the system, not by gRPC, and again when its server cannot be reached."""

from __future__ import annotations

import socket
from contextlib import closing, suppress

import pytest

from rendezvous.errors import StoreError, Unreachable
from rendezvous.stores.etcd import client
from rendezvous.stores.etcd.client import resolve
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.server import server
from rendezvous.stores.server.server import StoreServer
from tests.store.served import serve
from tests.support.network.namespaces import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names stand for; it may change."""
    known: dict[str, list[str]] = {}
    usual = socket.getaddrinfo

    def look_up(host: str, port: int, *more: object, **options: object) -> list[tuple[object, ...]]:
        if not host.endswith(".test"):
            return usual(host, port, *more, **options)  # type: ignore[arg-type,return-value]
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(V6 if ":" in found else V4, socket.SOCK_STREAM, 6, "", (found, port)) for found in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(client, "RESOLVE_PAUSE_S", 0.0)
    return known


@pytest.mark.parametrize(
    ("found", "numbers"),
    [
        (["10.0.0.1"], ("10.0.0.1:2379",)),
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ("10.0.0.2:2379", "10.0.0.1:2379")),
        (["fd00::1"], ("[fd00::1]:2379",)),
        (["fe80::1%eth0"], ("[fe80::1%25eth0]:2379",)),
        (["::1", "127.0.0.1"], ("[::1]:2379", "[::ffff:127.0.0.1]:2379")),
        ([], ()),
    ],
)
def test_a_name_is_numbers_of_one_family(
    names: dict[str, list[str]], found: list[str], numbers: tuple[str, ...]
) -> None:
    if found:
        names["store.test"] = found
    assert resolve("store.test:2379") == numbers


@pytest.mark.parametrize("address", ["10.0.0.1:2379", "[fd00::1]:2379", "[fe80::1%eth0]:2379"])
def test_a_number_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert resolve(address) == (address,)


@pytest.mark.parametrize("found", [["127.0.0.1"], ["::1", "127.0.0.1"], ["127.0.0.9", "127.0.0.1"]])
def test_a_server_at_any_of_the_addresses_is_reached(names: dict[str, list[str]], found: list[str]) -> None:
    names["store.test"] = found
    with serve() as server, closing(EtcdStore([f"store.test:{server.port}"], call_limit_s=20.0)) as store:
        store.put("a", b"1")
        assert store.get("a").items[0].value == b"1"


def test_a_name_that_is_not_known_is_said_and_looked_up_again(names: dict[str, list[str]]) -> None:
    with serve() as server, closing(EtcdStore([f"store.test:{server.port}"], call_limit_s=20.0)) as store:
        with pytest.raises(Unreachable, match=r"the store at store\.test:\d+ cannot be reached: its name is not known"):
            store.get("a")
        names["store.test"] = ["127.0.0.1"]

        def answers() -> bool:
            with suppress(StoreError):
                return store.get("a").revision > 0
            return False

        wait_until(answers, 20, "an answer under the name")


def test_calls_and_watches_follow_a_moved_store(names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.secrets, "randbits", lambda count: 7)  # one cluster, at another address
    port, seen = free_port("127.0.0.2"), []
    names["store.test"] = ["127.0.0.2"]
    with closing(EtcdStore([f"store.test:{port}"], call_limit_s=20.0)) as store:
        with serve_at("127.0.0.2", port):
            store.put("a", b"1")
        names["store.test"] = ["127.0.0.3"]
        with serve_at("127.0.0.3", port):

            def write() -> bool:
                with suppress(StoreError):
                    return store.put("a", b"2") > 0
                return False

            wait_until(write, 20, "the store at its new address")
            revision = store.put("a", b"3")
            store.watch("a", start_revision=revision, on_batch=seen.append, on_lost=lambda error: None)
            wait_until(lambda: bool(seen), 20, "what the watch brings")


def serve_at(host: str, port: int) -> closing[StoreServer]:
    server = StoreServer(host, port)
    server.start()
    return closing(server)


def test_what_precedes_the_send_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(token="secret") as server:
        address = f"127.0.0.1:{server.port}"
        with closing(EtcdStore([address], user="meshrun", password="secret", call_limit_s=20.0)) as store:
            clock = [1000.0]
            monkeypatch.setattr(client.time, "monotonic", lambda: clock[0])
            log_in = client.EtcdSession.get_token

            def log_in_slowly(*words: object) -> str:
                clock[0] += 5.0
                return log_in(*words)  # type: ignore[arg-type]

            monkeypatch.setattr(client.EtcdSession, "get_token", log_in_slowly)
            store.put("a", b"1")
            assert store.measure_last() == 0.0
            clock[0] += 2.0
            assert store.measure_last() == 2.0
