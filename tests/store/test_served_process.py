"""The served store as a process: its token, its port, how it ends, and what its clients see when it dies or freezes."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rendezvous.errors import LeaseNotFound, StoreError, StoreReplaced
from rendezvous.stores import wire
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.listeners import PortTaken
from rendezvous.stores.server.server import StoreServer
from rendezvous.stores.server.services import ENDED
from tests.store.served import ServedUnderTest, ServingProcess, serve
from tests.support.processes.tree import freeze
from tests.support.stores.raw_etcd import RawClient, watch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 20.0
REPEATS = 20


# The token


def test_with_a_token_only_its_holders_are_answered() -> None:
    served = ServedUnderTest(token="sesame")
    try:
        served.new_client().put("a", b"1")
        status = wire.Empty()
        with RawClient(served.endpoint) as nobody, RawClient(served.endpoint, token="guess") as guesser:
            for method, question in ((wire.RANGE, wire.RangeRequest(b"a")), (wire.STATUS, status)):
                assert nobody.refusal(method, question) == ("INVALID_ARGUMENT", "etcdserver: user name is empty")
                assert guesser.refusal(method, question) == ("UNAUTHENTICATED", "etcdserver: invalid auth token")
            for method in (wire.WATCH, wire.LEASE_KEEP_ALIVE):
                assert guesser.stream(method).ending() == ("UNAUTHENTICATED", "etcdserver: invalid auth token")
            for name, password in (("meshrun", "guess"), ("root", "sesame"), ("meshrun", "")):
                assert nobody.refusal(wire.AUTHENTICATE, wire.AuthenticateRequest(name, password)) == (
                    "INVALID_ARGUMENT",
                    "etcdserver: authentication failed, invalid user ID or password",
                )
        for user, password in (("", ""), ("meshrun", "guess")):
            stranger = EtcdStore([served.endpoint], user=user, password=password, call_limit_s=LIMIT_S)
            with pytest.raises(StoreError) as caught:
                stranger.get("a")
            assert "sesame" not in str(caught.value)
            stranger.close()
    finally:
        served.close()


def test_without_a_token_a_client_with_a_password_goes_without(client: RawClient) -> None:
    assert client.refusal(wire.AUTHENTICATE, wire.AuthenticateRequest("meshrun", "sesame")) == (
        "FAILED_PRECONDITION",
        "etcdserver: authentication is not enabled",
    )


# Start, end, and what lies between


def test_a_port_that_is_taken_is_a_sentence_that_names_who_has_it(served: ServedUnderTest) -> None:
    with open("/proc/self/comm") as name:
        me = f"pid {os.getpid()} ({name.read().strip()})"
    with pytest.raises(PortTaken) as caught:
        StoreServer("127.0.0.1", served.server.port).start()
    where = f"the store cannot listen on 127.0.0.1:{served.server.port}"
    assert str(caught.value) == f"{where}: the port is taken by {me}"
    assert caught.value.hint == "set another port, or 0 for any free port"
    with pytest.raises(StoreError, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign requested address"):
        StoreServer("192.0.2.1", 0).start()


def test_it_listens_on_its_address_alone(served: ServedUnderTest) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", served.server.port), timeout=LIMIT_S)


def test_the_store_listens_on_several_addresses_with_one_content() -> None:
    with serve(also=("127.0.0.2",)) as server:
        one, other = (EtcdStore([f"{host}:{server.port}"]) for host in ("127.0.0.1", "127.0.0.2"))
        one.put("a", b"1")
        item = other.get("a").first
        assert item is not None
        assert item.value == b"1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", server.port), timeout=LIMIT_S)
        one.close()
        other.close()


def threads_and_descriptors() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def test_close_ends_running_streams_and_leaves_no_thread_or_descriptor() -> None:
    def once() -> None:
        server = StoreServer("127.0.0.1", 0)
        server.start()
        client = RawClient(f"127.0.0.1:{server.port}")
        lease = client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(10)).id
        watches = [watch(client, b"a") for _ in range(3)]
        keeper = client.stream(wire.LEASE_KEEP_ALIVE)
        keeper.say(wire.LeaseId(lease))
        assert keeper.hear().ttl == 10
        server.close(grace_s=5.0)
        server.close()  # a second time is no matter
        assert [stream.ending() for stream in (*watches, keeper)] == [ENDED] * 4
        for stream in (*watches, keeper):
            stream.cancel()
        client.close()

    once()  # what grpc keeps for good is there from now on
    threads, descriptors = threads_and_descriptors()
    for _ in range(REPEATS):
        once()

    def is_rest() -> bool:
        """gRPC ends threads of its own and begins others when it likes; what leaks does so every time."""
        now = threads_and_descriptors()
        return now[0] < threads + REPEATS and now[1] < descriptors + REPEATS

    wait_until(is_rest, LIMIT_S, "threads and descriptors to go")


def test_two_jobs_on_one_store_do_not_meet(served: ServedUnderTest) -> None:
    one, other = served.new_client(), served.new_client()
    told = served.watch(one, "/meshrun/one/", prefix=True, start_revision=one.get("/").revision + 1)
    lease = other.lease_grant(5).id
    other.put("/meshrun/other/current", b"2", lease=lease)
    revision = one.put("/meshrun/one/current", b"1")
    other.lease_revoke(lease)
    assert [batch.revision for batch in told.wait_for_revision(revision)] == [revision]
    assert [item.key for item in one.get("/meshrun/", prefix=True).items] == ["/meshrun/one/current"]


@pytest.fixture
def serving() -> Iterator[Callable[..., ServingProcess]]:
    started: list[ServingProcess] = []

    def begin(port: int = 0) -> ServingProcess:
        started.append(ServingProcess(port))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def test_calls_fail_when_the_store_dies_and_its_successor_misleads_none(serving: Callable[..., ServingProcess]) -> None:
    first = serving()
    store = EtcdStore([f"127.0.0.1:{first.port}"], call_limit_s=2.0)
    lost: list[StoreError] = []
    lease = store.lease_grant(60).id
    revision = store.put("a", b"1", lease=lease)
    store.watch("a", start_revision=revision + 1, on_batch=lambda _: None, on_lost=lost.append)
    first.kill()
    with pytest.raises(StoreError):
        store.put("a", b"2")
    assert lost == [], "a store that is away does not end a watch"
    serving(first.port)

    def is_replaced() -> bool:
        try:
            store.get("a")
        except StoreError as error:
            return isinstance(error, StoreReplaced)
        return False

    wait_until(is_replaced, LIMIT_S, "the successor to answer")
    wait_until(lambda: lost, LIMIT_S, "the watch to be lost")
    assert isinstance(lost[0], StoreReplaced)
    store.close()
    store = EtcdStore([f"127.0.0.1:{first.port}"], call_limit_s=2.0)
    assert store.get("a").items == ()
    with pytest.raises(LeaseNotFound):
        store.lease_keep_alive(lease)
    assert store.put("a", b"3") > revision
    store.close()


def test_a_store_frozen_longer_than_its_leases_begins_them_anew(serving: Callable[..., ServingProcess]) -> None:
    process = serving()
    store = EtcdStore([f"127.0.0.1:{process.port}"], call_limit_s=2.0)
    lease = store.lease_grant(2).id
    store.put("a", b"1", lease=lease)
    freeze(process.process.pid)
    frozen_at = time.monotonic()
    with pytest.raises(StoreError):
        store.put("b", b"1")
    wait_until(lambda: time.monotonic() > frozen_at + 3, what="more than the lease's time")
    os.kill(process.process.pid, signal.SIGCONT)

    def is_kept() -> bool:
        try:
            return store.lease_keep_alive(lease) == 2
        except LeaseNotFound:
            raise
        except StoreError:
            return False

    wait_until(is_kept, LIMIT_S, "the store to answer again")
    assert store.get("a").first is not None
    wait_until(lambda: store.get("a").first is None, LIMIT_S, "the lease to end for want of renewals")
    store.close()
