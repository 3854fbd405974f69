"""Two clients that are not ours, `etcd3` and `etcdctl`, look at what ours does, and ours at what they do.

Over real etcd of both versions and over the served store: every key and every event is the same for all three, byte
for byte. So neither our client nor our store only understands the other.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rendezvous.stores.contract import Compare, Delete, Get, KeyEvent, KeyValue, Put, Store
from tests.store.real import RealUnderTest
from tests.store.served import ServedUnderTest
from tests.store.under_test import StoreUnderTest
from tests.support.stores import etcd
from tests.support.stores.etcd3_client import Witness, to_bytes, to_text

pytestmark = pytest.mark.server

LIMIT_S = 20.0
NASTY = bytes(range(256))
PASSWORD = "sesame"


class Stage:
    """A store, our client of it, and the two witnesses; `root` begins every key."""

    def __init__(self, under_test: StoreUnderTest, endpoint: str, user: str = "") -> None:
        self.under_test = under_test
        self.endpoint = endpoint
        self.user = user
        self.store: Store = under_test.new_client()
        self.root = under_test.root
        self.witness = Witness(endpoint, user=user, password=PASSWORD if user else "")

    @property
    def login(self) -> str:
        return f"{self.user}:{PASSWORD}" if self.user else ""

    def ctl(self, *words: str) -> Any:
        """What etcdctl says, read from its JSON."""
        return json.loads(etcd.ctl([self.endpoint], *words, "--write-out", "json", user=self.login))

    def check_items(self) -> list[KeyValue]:
        """All three see the same keys, and that is what this gives back."""
        ours = list(self.store.get(self.root, prefix=True).items)
        assert [item(*each) for each in self.witness.ask("items", to_text(self.root.encode()))] == ours
        assert [of_ctl(each) for each in self.ctl("get", "--prefix", self.root).get("kvs", ())] == ours
        return ours

    @contextmanager
    def check_events(self, expected: list[str]) -> Iterator[None]:
        """What is done within is told to a watch of each of the three as the same events, and these are their words."""
        start_revision = self.store.get("any").revision + 1
        watched = self.under_test.watch(self.store, self.root, prefix=True, start_revision=start_revision)
        self.witness.ask("watch", to_text(self.root.encode()), start_revision, 1)
        words = [etcd.ETCDCTL, "--endpoints", self.endpoint, "watch", "--prefix", self.root]
        words += ["--rev", str(start_revision), "--write-out", "json", *(("--user", self.login) if self.user else ())]
        ctl = subprocess.Popen(words, stdout=subprocess.PIPE, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
        try:
            yield
            watched.wait_for(lambda: sum(len(batch.events) for batch in watched.batches) >= len(expected))
            ours = [event for batch in watched.batches for event in batch.events]
            assert [self.words(event) for event in ours] == expected
            told = self.witness.ask("events", 1, len(expected))
            assert [(kind == "DeleteEvent", item(*each)) for kind, *each in told] == plain(ours)
            told = []
            assert ctl.stdout is not None
            while len(told) < len(expected):
                told += json.loads(ctl.stdout.readline())["Events"]
            assert [(each.get("type") == 1, of_ctl(each["kv"])) for each in told] == plain(ours)
        finally:
            ctl.kill()
            ctl.communicate()
            watched.watch.cancel()

    def words(self, event: KeyEvent) -> str:
        name = event.item.key[len(self.root) :]
        return f"put {name}={event.item.value!r}" if event.kind == "put" else f"delete {name}"

    def close(self) -> None:
        self.witness.close()


def item(key: str, value: str, *numbers: int) -> KeyValue:
    return KeyValue(to_bytes(key).decode(), to_bytes(value), *numbers)


def of_ctl(kv: dict[str, Any]) -> KeyValue:
    numbers = (kv.get(name, 0) for name in ("create_revision", "mod_revision", "version", "lease"))
    return KeyValue(base64.b64decode(kv["key"]).decode(), base64.b64decode(kv.get("value", "")), *numbers)


def plain(events: list[KeyEvent]) -> list[tuple[bool, KeyValue]]:
    return [(event.kind == "delete", event.item) for event in events]


@pytest.fixture(params=["served", "served with a token", "etcd-3.4", "etcd-3.5"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    under_test: StoreUnderTest
    if request.param.startswith("served"):
        has_token = request.param != "served"
        served = ServedUnderTest(token=PASSWORD if has_token else "")
        under_test, stage = served, Stage(served, served.endpoint, "meshrun" if has_token else "")
    else:
        real = RealUnderTest(request.param.removeprefix("etcd-"))
        under_test, stage = real, Stage(real, real.server.endpoint)
    yield stage
    stage.close()
    under_test.close()


def test_the_witnesses_see_what_our_client_does(stage: Stage) -> None:
    store, root = stage.store, stage.root
    events = [f"put é={NASTY!r}", "put a=b'1'", "put b=b''", "put a=b'2'", "put l=b'3'", "delete b", "delete l"]
    with stage.check_events([*events, "delete a", "delete é"]):
        lease = store.lease_grant(60)
        store.put(root + "é", NASTY, lease=lease.id)
        created = store.put(root + "a", b"1")
        store.put(root + "b", b"")
        stage.check_items()
        swap = [Put(root + "a", b"2"), Put(root + "l", b"3", lease.id), Delete(root + "b")]
        assert store.txn([Compare(root + "a", "mod", "=", created)], swap, [Get(root + "a")]).succeeded
        assert not store.txn([Compare(root + "a", "mod", "=", created)], swap, [Get(root + "a")]).succeeded
        assert [(each.value, each.version) for each in stage.check_items()] == [(b"2", 2), (b"3", 1), (NASTY, 1)]
        shown_s, keys = stage.witness.ask("lease", lease.id)
        assert (shown_s, sorted(keys)) == (60, sorted(to_text((root + name).encode()) for name in ("l", "é")))
        shown = stage.ctl("lease", "timetolive", f"{lease.id:x}", "--keys")
        assert shown["granted-ttl"] == 60
        assert sorted(map(base64.b64decode, shown["keys"])) == sorted((root + name).encode() for name in ("l", "é"))
        assert store.delete(root + "l") == 1
        assert store.delete(root + "a", prefix=True) == 1
        store.lease_revoke(lease.id)
        assert stage.check_items() == []


def test_our_client_sees_what_the_witnesses_do(stage: Stage) -> None:
    store, root, ask = stage.store, stage.root, stage.witness.ask

    def name(of: str) -> str:
        return to_text((root + of).encode())

    first = [f"put é={NASTY!r}", "put a=b'1'", "put a=b'2'", "put c=b'ctl'", "put d=b''", "put a=b'3'", "delete é"]
    with stage.check_events([*first, "delete c", "delete d", "delete a"]):
        lease, ttl_s = ask("grant", 60)
        ask("put", name("é"), to_text(NASTY), lease)
        revision = ask("put", name("a"), "1", 0)
        stage.ctl("put", root + "a", "2")
        stage.ctl("put", root + "c", "ctl", "--lease", f"{lease:x}")
        stage.ctl("put", root + "d", "")
        stage.check_items()
        assert ask("swap", name("a"), revision, "3", name("é")) is False
        assert ask("swap", name("a"), revision + 1, "3", name("é")) is True
        assert [(each.value, each.version) for each in stage.check_items()] == [(b"3", 3), (b"ctl", 1), (b"", 1)]
        assert (ask("keep alive", lease), store.lease_keep_alive(lease)) == (ttl_s, ttl_s)
        assert 0 < store.lease_remaining(lease) <= 60
        ask("revoke", lease)
        assert ask("delete", name("d"))
        assert stage.ctl("del", "--prefix", root)["deleted"] == 1
        assert stage.check_items() == []


def test_etcdctl_runs_a_transaction_and_asks_for_the_state_of_the_server(stage: Stage) -> None:
    revision = stage.store.put(stage.root + "a", b"1")
    done = subprocess.run(
        [etcd.ETCDCTL, "--endpoints", stage.endpoint, *(("--user", stage.login) if stage.user else ()), "txn"],
        input=f'mod("{stage.root}a") = "{revision}"\n\nput {stage.root}b 2\nget {stage.root}a\n\nget {stage.root}c\n\n',
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stdout.split() == ["SUCCESS", "OK", stage.root + "a", "1"]
    assert [each.value for each in stage.check_items()] == [b"1", b"2"]
    (status,) = stage.ctl("endpoint", "status")
    assert status["Status"]["leader"] == status["Status"]["header"]["member_id"]
    etcd.ctl([stage.endpoint], "endpoint", "health", user=stage.login)  # it fails where that is in doubt
