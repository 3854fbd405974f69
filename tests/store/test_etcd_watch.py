"""All watches of a client over one stream: what concerns one of them leaves the others alone, what breaks it none."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rendezvous.errors import StoreError, Unreachable
from rendezvous.stores import wire
from rendezvous.stores.contract import Batch, Watch
from rendezvous.stores.etcd import watch as watching
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.etcd.watch import EtcdWatch
from tests.store.under_test import Recorder, watch
from tests.support.network.proxy import Proxy
from tests.support.stores.etcd import VERSIONS, EtcdServer, Port, Version, binary
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 30.0


def revisions(watched: Recorder) -> list[int]:
    return [batch.revision for batch in watched.batches]


def streams_begun(server: EtcdServer) -> int:
    """How many streams of watches this server has been asked for."""
    with urllib.request.urlopen(f"http://{server.endpoint}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return sum(
        int(line.split()[-1]) for line in lines if "grpc_server_started_total" in line and 'method="Watch"' in line
    )


def test_watches_share_a_stream_and_its_threads_and_the_last_one_ends_them(server: EtcdServer) -> None:
    before = set(threading.enumerate())
    store = EtcdStore([server.endpoint])
    first = store.put("a", b"1")
    one = watch(store, "a", first)
    one.wait_for_revision(first)
    with_one_watch = set(threading.enumerate())
    others = [watch(store, name, first) for name in ("b", "c/", "a")]
    others[2].wait_for_revision(first)
    assert set(threading.enumerate()) <= with_one_watch
    assert streams_begun(server) == 1
    for watched in (one, *others):
        watched.watch.cancel()
    wait_until(lambda: set(threading.enumerate()) <= before, LIMIT_S, "the threads to end")
    again = watch(store, "a", first)
    again.wait_for_revision(first)
    assert streams_begun(server) == 2
    store.close()


def test_every_watch_of_a_stream_that_breaks_goes_on_and_misses_nothing(etcd: EtcdServer) -> None:
    observer = EtcdStore([etcd.endpoint])
    with Proxy(etcd.client_port) as proxy:
        store = EtcdStore([proxy.endpoint])
        first = observer.put("a", b"1")
        one, other, silent = (watch(store, name, first) for name in ("a", "b/", "c"))
        told = {"a": [first], "b/1": [observer.put("b/1", b"1")]}
        one.wait_for_revision(first)
        other.wait_for_revision(told["b/1"][0])
        for number in range(2):
            proxy.cut()
            for key in ("b/1", "a", "a", "b/1"):
                told[key].append(observer.put(key, b"%d" % number))
            proxy.join()
            one.wait_for_revision(told["a"][-1])
            other.wait_for_revision(told["b/1"][-1])
        last = observer.put("c", b"1")
        silent.wait_for_revision(last)
        assert (revisions(one), revisions(other), revisions(silent)) == (told["a"], told["b/1"], [last])
        assert [one.losses, other.losses, silent.losses] == [[], [], []]
        store.close()
    observer.close()


def test_a_watch_cancelled_on_a_running_stream_is_cancelled_at_the_server(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint])
    first = store.put("a", b"1")
    one, other = watch(store, "a", first), watch(store, "b", first)
    one.wait_for_revision(first)
    other.watch.cancel()
    unanswered = watch(store, "c", first)
    unanswered.watch.cancel()  # perhaps before the server has answered

    def watchers() -> bool:
        with urllib.request.urlopen(f"http://{server.endpoint}/metrics") as answer:
            return "\netcd_debugging_mvcc_watcher_total 1\n" in answer.read().decode()

    wait_until(watchers, LIMIT_S, "one watch to be left at the server")
    store.put("b", b"1")
    one.wait_for_revision(store.put("a", b"2"))
    assert (other.batches, unanswered.batches, streams_begun(server)) == ([], [], 1)
    store.close()


def test_a_watch_on_the_stream_of_a_frozen_server_is_requested_again(server: EtcdServer) -> None:
    store = EtcdStore([server.endpoint])
    first = store.put("a", b"1")
    one = watch(store, "a", first)
    one.wait_for_revision(first)
    stream = store._watch_loop._stream
    server.stop()
    other = watch(store, "b", first)
    wait_until(lambda: store._watch_loop._stream is not stream, LIMIT_S, "the stream to be given up")
    server.cont()
    observer = EtcdStore([server.endpoint], call_limit_s=10)
    one.wait_for_revision(observer.put("a", b"2"))
    other.wait_for_revision(observer.put("b", b"1"))
    assert len(one.batches) == 2
    assert (one.losses, other.losses) == ([], [])
    observer.close()
    store.close()


class OneOfTwo:
    """A client's calls and its current endpoint in one, as far as a stream looks at them. It is never asked."""

    def __init__(self) -> None:
        self.endpoints, self.all = self, (self, self)
        self.heard_at = 0.0
        self.given_up: list[float] = []

    def open_stream(self, *words: object) -> OneOfTwo:
        return self

    def cancel(self) -> None:
        pass

    def give_up(self, endpoint: object, since: float) -> None:
        self.given_up.append(since)


def test_a_check_during_a_new_request_does_not_take_it_for_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Any = OneOfTwo()
    stream = watching._WatchStream(calls, calls, "", [a_watch()])
    stream.find_watch(wire.WatchResponse(watch_id=0, created=True))
    begun_at = time.monotonic()
    hour_later = calls.heard_at = begun_at + 3600.0
    looks = [begun_at]  # what was taken last left then

    def clock() -> float:
        while looks:  # gRPC's thread looks just now
            stream._check(looks.pop())
        return hour_later

    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=clock))
    stream.add(a_watch())
    assert (calls.given_up, stream.is_cut) == ([], False)


def a_watch() -> EtcdWatch:
    return EtcdWatch("the key 'a'", wire.WatchCreateRequest(b"a", b"", 1), ignore, ignore, ignore)


def test_a_watch_that_gets_no_thread_does_not_hinder_the_next(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    first = store.put("a", b"1")
    with no_threads(), pytest.raises(Unreachable, match="no thread can be started"):
        watch(store, "a", first)
    watch(store, "a", first).wait_for_revision(first)
    store.close()


def test_a_stream_that_gets_no_thread_is_opened_again(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RETRY_PAUSES_S", (0.01,))
    store = EtcdStore([etcd.endpoint])
    first = store.put("a", b"1")
    begin, refused = threading.Thread.start, threading.Event()

    def start(thread: threading.Thread) -> None:
        if thread.name != "store watches" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    watched = watch(store, "a", first)
    watched.wait_for_revision(first)
    assert refused.is_set()
    assert watched.losses == []
    store.close()


def test_a_write_that_gets_no_thread_fails_and_hinders_no_later_one(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    for _ in range(2):
        with no_threads(), pytest.raises(Unreachable, match="cannot be asked: no thread can be started"):
            store.put("a", b"1")
        assert store.put("a", b"2") > 0
    watch(store, "a", 1).watch.cancel()
    store.close()


def test_beside_a_watch_a_write_needs_no_thread(etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    watched = watch(store, "a", store.put("a", b"1"))
    watched.wait_for_revision(1)
    with no_threads() as wanted:
        store.put("a", b"2")
    assert wanted == []
    store.close()


# Callbacks


def ignore(_: object) -> None:
    pass


def test_a_callback_may_cancel_another_watch_and_close_the_client(etcd: EtcdServer) -> None:
    before = set(threading.enumerate())
    store = EtcdStore([etcd.endpoint])
    first = store.put("a", b"1")
    other = watch(store, "b", first)
    told: list[Batch] = []
    watches: list[Watch] = [other.watch]

    def end(batch: Batch) -> None:
        told.append(batch)
        for each in watches:
            each.cancel()
        store.close()

    store.watch("a", start_revision=first, on_batch=end, on_lost=ignore)
    wait_until(lambda: set(threading.enumerate()) <= before, LIMIT_S, "the threads to end")
    assert (len(told), other.batches, other.losses) == (1, [], [])


# A proxy of etcd's own


@pytest.mark.parametrize("version", VERSIONS)
def test_watches_over_the_proxy_of_etcd_are_told_and_cancelled_one_by_one(version: Version, tmp_path: Path) -> None:
    port = Port("127.0.0.1")
    with EtcdServer(version, tmp_path) as server, (tmp_path / "proxy.log").open("wb") as log:
        endpoint = f"127.0.0.1:{port.number}"
        command = [binary(version), "grpc-proxy", "start", "--endpoints", server.endpoint, "--listen-addr", endpoint]
        proxy = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
        )
        try:
            store = EtcdStore([endpoint], call_limit_s=10)
            wait_until(lambda: _answers(store), LIMIT_S, "the proxy")
            first = store.put("a", b"1")
            one, other, third = (watch(store, name, first) for name in ("a", "b/", "a"))
            one.wait_for_revision(first)
            third.wait_for_revision(first)
            third.watch.cancel()
            last = [store.put("b/1", b"1"), store.put("a", b"2")]
            other.wait_for_revision(last[0])
            one.wait_for_revision(last[1])
            assert (revisions(one), revisions(other), revisions(third)) == ([first, last[1]], last[:1], [first])
            assert (one.losses, other.losses, third.losses) == ([], [], [])
            store.close()
        finally:
            proxy.kill()
            proxy.wait()
            port.socket.close()


def _answers(store: EtcdStore) -> bool:
    try:
        store.get("a")
    except StoreError:
        return False
    return True
