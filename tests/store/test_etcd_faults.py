"""The client against servers that die, freeze, lose their majority or their answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rendezvous.errors import Compacted, OutcomeUnknown, StoreError, StoreReplaced, Unreachable
from rendezvous.stores.contract import Compare, Put
from rendezvous.stores.etcd.store import EtcdStore
from tests.store.under_test import watch
from tests.support.network.proxy import Proxy
from tests.support.stores.etcd import VERSIONS, EtcdCluster, EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 30.0


def put_when_possible(store: EtcdStore, key: str, value: bytes) -> int:
    """The revision of a put, once one has succeeded."""

    def put() -> int:
        try:
            return store.put(key, value)
        except StoreError:
            return 0

    return wait_until(put, LIMIT_S, f"a put of {key}")


def test_a_watch_and_a_lease_go_on_after_their_server_was_killed_and_have_lost_nothing(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint])
    lease = store.lease_grant(60).id
    first = store.put("w/a", b"0", lease=lease)
    watched = watch(store, "w/", first)
    told = [first]
    for number in range(2):
        told.append(store.put("w/a", b"%d" % number))
        if number:  # once the server may die before it has told
            watched.wait_for_revision(told[-1])
        server.kill()
        with pytest.raises(StoreError):
            store.put("w/a", b"nobody is there")
        server.start()
        told += [put_when_possible(store, "w/b", b"1"), store.put("w/c", b"2")]
    assert [batch.revision for batch in watched.wait_for_revision(told[-1])] == told
    assert watched.losses == []
    assert store.lease_keep_alive(lease) == 60
    assert 0 < store.lease_remaining(lease) <= 60
    store.close()


def test_calls_to_a_frozen_server_end_and_say_what_is_known(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint], call_limit_s=0.3)
    first = store.put("a", b"1")
    lease = store.lease_grant(60).id
    watched = watch(store, "a", first)
    watched.wait_for_revision(first)
    server.stop()
    silence = f"the store at {server.endpoint} did not answer within 0.3 s"
    for write in (
        lambda: store.put("a", b"2"),
        lambda: store.delete("a"),
        lambda: store.txn([Compare("a", "version", ">", 0)], [Put("b", b"1")]),
        lambda: store.lease_grant(60),
        lambda: store.lease_keep_alive(lease),
        lambda: store.lease_revoke(lease),
    ):
        with pytest.raises(OutcomeUnknown) as caught:
            write()
        assert str(caught.value) == silence
    for read in (
        lambda: store.get("a"),
        lambda: store.txn([Compare("a", "version", ">", 0)], []),
        lambda: store.lease_remaining(lease),
    ):
        with pytest.raises(StoreError) as refused:
            read()
        assert (str(refused.value), type(refused.value)) == (silence, Unreachable)
    server.cont()
    last = put_when_possible(store, "a", b"3")
    watched.wait_for_revision(last)
    assert watched.losses == []
    store.close()


def test_a_watch_of_a_frozen_server_begins_when_the_server_goes_on(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint], call_limit_s=0.3)
    first = store.put("a", b"1")
    server.stop()
    watched = watch(store, "a", first)
    with pytest.raises(StoreError):
        store.get("a")
    server.cont()
    watched.wait_for_revision(first)
    watched.watch.cancel()
    store.close()


def test_a_write_whose_answer_is_lost_has_an_unknown_outcome(etcd: EtcdServer) -> None:
    observer = EtcdStore([etcd.endpoint])
    with Proxy(etcd.client_port) as proxy:
        store = EtcdStore([proxy.endpoint], call_limit_s=0.5)
        observer.delete("lost")
        store.put("lost", b"1")
        proxy.is_mute = True
        with pytest.raises(OutcomeUnknown):
            store.put("lost", b"2")
        assert observer.get("lost").items[0].value == b"2"
        proxy.cut()
        with pytest.raises(StoreError):
            store.put("lost", b"3")
        proxy.join()
        put_when_possible(store, "lost", b"4")
        assert observer.get("lost").items[0].version in (3, 4), "what was refused was not written"
        store.close()
    observer.close()


def test_a_write_to_nobody_is_known_not_to_have_happened(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint])
    store.put("a", b"1")
    server.kill()

    def refusal() -> StoreError | None:
        try:
            store.put("a", b"2")
        except OutcomeUnknown:
            return None  # the connection may have broken under the question
        except StoreError as error:
            return error
        raise AssertionError("nobody can have answered")

    error = wait_until(refusal, LIMIT_S, "a refusal")
    assert str(error) == f"the store at {server.endpoint} cannot be reached: connection refused"
    store.close()


def test_a_watch_that_was_cut_off_is_told_when_its_history_is_gone(etcd: EtcdServer) -> None:
    observer = EtcdStore([etcd.endpoint])
    with Proxy(etcd.client_port) as proxy:
        store = EtcdStore([proxy.endpoint])
        first = observer.put("a", b"1")
        watched = watch(store, "a", first)
        watched.wait_for_revision(first)
        proxy.cut()
        for number in range(2, 6):
            last = observer.put("a", b"%d" % number)
        etcd.compact(last)
        proxy.join()
        error = watched.wait_for_loss()
        assert isinstance(error, Compacted)
        assert error.revision == last
        assert [batch.revision for batch in watched.batches] == [first]
        watched = watch(store, "a", error.revision)
        watched.wait_for_revision(last)
        store.close()
    observer.close()


def test_a_dead_endpoint_costs_nothing_where_another_lives(etcd: EtcdServer) -> None:
    with Proxy(1) as closing:
        for dead in ("127.0.0.1:1", closing.endpoint, "no-such-host.invalid:2379"):
            for endpoints in ([dead, etcd.endpoint], [etcd.endpoint, dead]):
                store = EtcdStore(endpoints, call_limit_s=5)
                revision = store.put("a", b"1")
                assert store.get("a").revision == revision
                watch(store, "a", revision).wait_for_revision(revision)
                store.close()


# Three members


@pytest.fixture(scope="module", params=VERSIONS)
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    # Slower elections than elsewhere: a leader shall not step down before a question that is on its way.
    flags = ("--heartbeat-interval", "50", "--election-timeout", "1000")
    with EtcdCluster(request.param, tmp_path_factory.mktemp("cluster"), flags=flags) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    """Every member is there and well, whatever the test before did to it."""
    yield shared_cluster
    for member in shared_cluster.members:
        if member.process is None:
            member.start(wait=False)
        member.cont()
    for member in shared_cluster.members:
        member.wait_healthy()


def current(store: EtcdStore, cluster: EtcdCluster) -> EtcdServer:
    address = store._endpoints.current.address
    return next(member for member in cluster.members if member.endpoint == address)


def test_calls_and_watches_move_away_from_a_frozen_and_from_a_dead_member(cluster: EtcdCluster) -> None:
    store = EtcdStore(cluster.endpoints)
    lease = store.lease_grant(60).id
    first = store.put("a", b"1", lease=lease)
    watched = watch(store, "a", first)
    watched.wait_for_revision(first)
    frozen = current(store, cluster)
    frozen.stop()
    last = put_when_possible(store, "a", b"2")  # the call notices
    watched.wait_for_revision(last)
    # While the others elect a leader they refuse too, and the client may have come round to the frozen one again.
    wait_until(lambda: current(store, cluster) is not frozen, LIMIT_S, "the client to move")
    frozen.cont()
    frozen.wait_healthy()
    dead = current(store, cluster)
    dead.kill()
    last = put_when_possible(store, "a", b"3")
    watched.wait_for_revision(last)
    assert store.lease_keep_alive(lease) == 60
    assert watched.losses == []
    store.close()


def test_calls_leave_a_frozen_member_after_one_of_them_has_failed(cluster: EtcdCluster) -> None:
    store = EtcdStore(cluster.endpoints)
    store.put("a", b"1")
    frozen = current(store, cluster)
    frozen.stop()
    with suppress(StoreError):  # answered by another member if the client has moved already
        store.get("a")
    wait_until(lambda: current(store, cluster) is not frozen, LIMIT_S, "the client to move")
    put_when_possible(store, "a", b"2")
    store.close()


def test_a_write_is_not_waited_for_at_a_member_that_is_frozen(cluster: EtcdCluster) -> None:
    store = EtcdStore(cluster.endpoints, call_limit_s=1.0, write_limit_s=600.0)
    revision = store.put("/a", b"1")
    watched = watch(store, "/a", revision)
    watched.wait_for_revision(revision)
    frozen = next(member for member in cluster.members if member.endpoint == store._endpoints.current.address)
    frozen.stop()
    failures: list[StoreError] = []

    def write() -> None:
        try:
            store.put("/a", b"2")
        except StoreError as error:
            failures.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    writing.join(LIMIT_S)
    assert isinstance(failures[0], OutcomeUnknown)
    assert str(failures[0]) == f"the store at {frozen.endpoint} was given up before it answered"
    watched.watch.cancel()
    frozen.cont()
    store.close()


def test_an_idle_watch_leaves_a_frozen_member_though_nobody_calls(cluster: EtcdCluster) -> None:
    store = EtcdStore(cluster.endpoints)
    first = store.put("a", b"1")
    watched = watch(store, "a", first)
    watched.wait_for_revision(first)
    frozen = current(store, cluster)
    observer = EtcdStore([member.endpoint for member in cluster.members if member is not frozen])
    frozen.stop()
    last = put_when_possible(observer, "a", b"2")
    watched.wait_for_revision(last)
    observer.close()
    store.close()


def test_without_a_majority_a_write_has_an_unknown_outcome(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    others = [member for member in cluster.members if member is not leader]
    store = EtcdStore([leader.endpoint])
    store.put("a", b"1")
    for member in others:
        member.stop()

    def is_lost() -> bool:  # the first may still be written by members that are about to stop
        try:
            store.put("a", b"2")
        except OutcomeUnknown:
            return True
        return False

    wait_until(is_lost, LIMIT_S, "a write without an answer")

    def sentence() -> str:
        with pytest.raises(StoreError) as caught:
            store.get("a")
        return str(caught.value)

    cut_off = f"the store at {leader.endpoint} has no leader: it is cut off from most of its cluster"
    wait_until(lambda: sentence() == cut_off, LIMIT_S, "the leader to step down")
    with pytest.raises(StoreError) as refused:
        store.put("a", b"3")
    assert (str(refused.value), type(refused.value)) == (cut_off, Unreachable)
    for member in others:
        member.cont()
    put_when_possible(store, "b", b"1")
    item = store.get("a").items[0]
    assert item.value in (b"1", b"2"), "what was refused was not written, what is unknown may have been"
    store.close()


# The end


def test_close_ends_calls_under_way_and_frees_threads(server: EtcdServer) -> None:
    before = set(threading.enumerate())
    store = EtcdStore([server.endpoint], call_limit_s=60)
    first = store.put("a", b"1")
    watched = watch(store, "a", first)
    watched.wait_for_revision(first)
    with_one_watch = set(threading.enumerate())
    other = watch(store, "a", first)
    other.wait_for_revision(first)
    other.watch.cancel()
    wait_until(lambda: set(threading.enumerate()) <= with_one_watch, LIMIT_S, "the threads of a watch to end")
    server.stop()
    errors: list[StoreError] = []
    calling = threading.Event()

    def put() -> None:
        calling.set()
        try:
            store.put("a", b"2")
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    calling.wait(LIMIT_S)
    store.close()
    store.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert len(errors) == 1
    wait_until(lambda: set(threading.enumerate()) <= before, LIMIT_S, "the threads to end")
    assert watched.losses == []
    with pytest.raises(StoreError, match="the store is closed"):
        store.get("a")
    with pytest.raises(StoreError, match="the store is closed"):
        watch(store, "a", 1)
    server.cont()


# Another cluster


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("other")) as server:
        yield server


def test_an_address_that_leads_to_another_cluster_fails_calls_and_watches(etcd: EtcdServer, other: EtcdServer) -> None:
    with Proxy(etcd.client_port) as proxy:
        store = EtcdStore([proxy.endpoint], call_limit_s=5.0)
        revision = store.put("a", b"1")
        watched = watch(store, "a", revision)
        watched.wait_for_revision(revision)
        proxy.lead_to(other.client_port)
        said = rf"the store at {proxy.endpoint} belongs to cluster [0-9a-f]+, and before it was cluster [0-9a-f]+"
        (loss,) = wait_until(lambda: watched.losses, LIMIT_S, "the end of the watch")
        for call in (lambda: store.get("a"), lambda: store.put("a", b"2"), lambda: store.lease_keep_alive(1)):
            with pytest.raises(StoreReplaced, match=said):
                call()
        assert type(loss) is StoreReplaced
        proxy.lead_to(etcd.client_port)
        assert put_when_possible(store, "b", b"1") == revision + 1, "nothing of it was carried out here"
        store.close()


def test_a_server_of_another_cluster_among_the_endpoints_is_passed_over(etcd: EtcdServer, other: EtcdServer) -> None:
    with Proxy(etcd.client_port) as proxy:
        store = EtcdStore([proxy.endpoint, etcd.endpoint], call_limit_s=5.0)
        for _ in range(2):  # at the endpoint that is current now, then at the other
            revision = put_when_possible(store, "a", b"1")
            watched = watch(store, "a", revision)
            watched.wait_for_revision(revision)
            proxy.lead_to(other.client_port)
            for _ in range(3):
                watched.wait_for_revision(put_when_possible(store, "a", b"2"))
            assert watched.losses == []
            proxy.lead_to(etcd.client_port)
        store.close()


def test_the_store_is_another_one_only_if_every_endpoint_is(etcd: EtcdServer, other: EtcdServer) -> None:
    with Proxy(etcd.client_port) as first, Proxy(etcd.client_port) as second:
        store = EtcdStore([first.endpoint, second.endpoint], call_limit_s=2.0)
        revision = store.put("a", b"1")
        watched = watch(store, "a", revision)
        watched.wait_for_revision(revision)
        first.cut()
        second.lead_to(other.client_port)

        def fail() -> str:
            with pytest.raises(StoreError) as caught:
                store.get("a")
            return type(caught.value).__name__ if "belongs to cluster" in str(caught.value) else ""

        assert wait_until(fail, LIMIT_S, "an answer of the other cluster") == "Unreachable"
        assert watched.losses == []
        first.lead_to(other.client_port)
        wait_until(lambda: fail() == "StoreReplaced", LIMIT_S, "the other cluster at both endpoints")
        (loss,) = wait_until(lambda: watched.losses, LIMIT_S, "the end of the watch")
        assert type(loss) is StoreReplaced
        store.close()
