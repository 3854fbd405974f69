"""The client where etcd asks who it is: passwords, tokens that expire or are lost, keys that are forbidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rendezvous.errors import StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import Compare, Get, Put
from rendezvous.stores.etcd.client import Endpoint, TimeLimit
from rendezvous.stores.etcd.errors import CallFailed
from rendezvous.stores.etcd.store import EtcdStore
from tests.store.under_test import watch
from tests.support.stores.certificates import signing_keys
from tests.support.stores.etcd import VERSIONS, EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

TOKEN_TTL_S = 1
LIMIT_S = 30.0


def with_users(server: EtcdServer) -> Iterator[EtcdServer]:
    with server:
        server.set_up_users(root_password="top", users={"ann": ("secret", "/ann/")})
        yield server


@pytest.fixture(
    scope="module", params=[(version, kind) for version in VERSIONS for kind in ("simple", "jwt")], ids=" ".join
)
def short_tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server whose tokens expire after a second: of no use, or in any case."""
    version, kind = request.param
    tmp_path = tmp_path_factory.mktemp("tokens")
    flags = ["--auth-token-ttl", str(TOKEN_TTL_S)]
    if kind == "jwt":
        public, private = signing_keys(tmp_path / "keys")
        words = f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl={TOKEN_TTL_S}s"
        flags = ["--auth-token", words]
    yield from with_users(EtcdServer(version, tmp_path, flags=flags))


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    yield from with_users(EtcdServer(request.param, tmp_path_factory.mktemp("users")))


def ann(server: EtcdServer, password: str = "secret") -> EtcdStore:
    return EtcdStore([server.endpoint], user="ann", password=password, call_limit_s=10)


def wait_until_refused(endpoint: Endpoint, token: str) -> None:
    """Until etcd no longer takes the token. Asking uses it, which a simple token lives on: so not more than needed."""

    def is_refused() -> bool:
        try:
            endpoint.call(wire.RANGE, wire.RangeRequest(b"/ann/a"), token, TimeLimit(10), is_patient=False)
        except CallFailed:
            return True
        return False

    import time

    for _ in range(10):
        time.sleep(2.2 * TOKEN_TTL_S)  # the only way to leave it unused
        if is_refused():
            return
    raise AssertionError("the token does not expire")


def test_an_expired_token_is_renewed_by_whatever_comes_first(short_tokens: EtcdServer) -> None:
    store = ann(short_tokens)
    first = store.put("/ann/a", b"1")
    endpoint, session = store._endpoints.current, store._client.session
    wait_until_refused(endpoint, session.get_token(endpoint, 10))
    watched = watch(store, "/ann/", first)
    watched.wait_for_revision(first)
    lease = store.lease_grant(60).id
    session._token = "not.good"  # as good as an expired one, without the wait
    assert store.put("/ann/a", b"2", lease=lease) == first + 1
    session._token = "not.good"
    assert store.lease_keep_alive(lease) == 60
    session._token = "not.good"
    assert store.txn([Compare("/ann/a", "mod", "=", first + 1)], [Get("/ann/a")]).succeeded
    session._token = "not.good"
    store.lease_revoke(lease)
    watched.wait_for_revision(first + 2)
    assert watched.losses == []
    store.close()


@pytest.mark.parametrize("short_tokens", [(version, "jwt") for version in VERSIONS], indirect=True, ids=" ".join)
def test_a_watch_denied_or_with_an_expired_token_leaves_the_others_alone(short_tokens: EtcdServer) -> None:
    store = ann(short_tokens)
    first = store.put("/ann/a", b"1")
    running = watch(store, "/ann/", first)
    running.wait_for_revision(first)
    forbidden = watch(store, "/bob/a", first)
    denied = f"the store at {short_tokens.endpoint} denies this user the key '/bob/a'"
    assert str(forbidden.wait_for_loss()) == denied
    stream = store._watch_loop._stream
    assert stream is not None

    def is_old() -> bool:
        try:
            request, limit = wire.RangeRequest(b"/ann/a"), TimeLimit(10)
            stream.endpoint.call(wire.RANGE, request, stream.token, limit, is_patient=False)
        except CallFailed:
            return True
        return False

    wait_until(is_old, LIMIT_S, "the token of the stream to expire")
    late = watch(store, "/ann/b", first)
    last = [store.put("/ann/b", b"1"), store.put("/ann/a", b"2")]
    late.wait_for_revision(last[0])
    running.wait_for_revision(last[1])
    assert [[batch.revision for batch in watched.batches] for watched in (running, late)] == [[first, *last], last[:1]]
    assert (running.losses, late.losses) == ([], [])
    store.close()


def test_tokens_that_a_restart_forgets_are_renewed_and_watches_go_on(server: EtcdServer) -> None:
    store = ann(server)
    first = store.put("/ann/a", b"1")
    watched = watch(store, "/ann/", first)
    watched.wait_for_revision(first)
    server.restart()

    def put() -> int:
        try:
            return store.put("/ann/a", b"2")
        except StoreError:
            return 0

    watched.wait_for_revision(wait_until(put, LIMIT_S, "a put"))
    assert watched.losses == []
    store.close()


def test_a_change_of_rights_outdates_tokens_and_nobody_notices(server: EtcdServer) -> None:
    store = ann(server)
    store.put("/ann/a", b"1")
    server.ctl("user", "add", "bob:b", user="root:top")
    assert store.get("/ann/a").items[0].value == b"1"
    store.close()


def test_what_is_forbidden_is_said_with_the_key(server: EtcdServer) -> None:
    store = ann(server)
    denies = f"the store at {server.endpoint} denies this user"
    calls: dict[str, Callable[[], object]] = {
        "the key '/bob/a'": lambda: store.get("/bob/a"),
        "the keys below '/bob/'": lambda: store.get("/bob/", prefix=True),
        "the key '/bob/b'": lambda: store.put("/bob/b", b"1"),
        "the key '/bob/c'": lambda: store.delete("/bob/c"),
        "one of the keys '/ann/n', '/bob/d'": lambda: store.txn([], [Put("/ann/n", b"1"), Put("/bob/d", b"1")]),
    }
    for what, call in calls.items():
        with pytest.raises(StoreError) as caught:
            call()
        assert str(caught.value) == f"{denies} {what}"
        assert type(caught.value) is StoreError
    for key, what in (("/bob/a", "the key '/bob/a'"), ("/bob/", "the keys below '/bob/'"), ("/", "the keys below '/'")):
        watched = watch(store, key, 1)
        assert str(watched.wait_for_loss()) == f"{denies} {what}"
        assert (watched.batches, len(watched.losses)) == ([], 1)
    assert store.get("/ann/n").items == (), "a transaction is refused as a whole"
    store.close()


def test_a_wrong_password_and_a_missing_one_are_said(server: EtcdServer) -> None:
    at = f"the store at {server.endpoint}"
    for store, sentence in (
        (ann(server, "wrong"), f"{at} does not accept this user and password"),
        (EtcdStore([server.endpoint]), f"{at} wants a user and a password"),
    ):
        for call in (lambda store=store: store.get("/ann/a"), lambda store=store: store.put("/ann/a", b"1")):
            with pytest.raises(StoreError) as caught:
                call()
            assert (str(caught.value), type(caught.value)) == (sentence, StoreError)
        assert str(watch(store, "/ann/a", 1).wait_for_loss()).startswith(at)
        store.close()
    with pytest.raises(StoreError, match="does not accept this user and password"):
        ann(server, "wrong").connect()


def test_a_user_may_be_given_before_the_server_requires_one(tmp_path: Path) -> None:
    with EtcdServer("3.5", tmp_path) as server:
        store = ann(server)
        store.put("/ann/a", b"1")
        server.set_up_users(root_password="top", users={"ann": ("secret", "/ann/")})
        assert store.get("/ann/a").items[0].value == b"1"
        store.close()
