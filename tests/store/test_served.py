"""The served store: what people ask with etcdctl beyond our own client, and how it refuses the rest.

What our client asks of it is in the suite that all stores share.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from rendezvous.errors import StoreEnded, StoreError, Unreachable
from rendezvous.records import STORE_OWNER_KEY, StoreOwner, decode
from rendezvous.stores import wire
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.protobuf import Message
from rendezvous.stores.server import http2
from rendezvous.stores.server import server as server_module
from rendezvous.stores.wire import Method
from tests.store.served import ServedUnderTest, serve
from tests.support.stores.raw_etcd import COMPACT, CompactionRequest, RawClient, create, watch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 20.0
EVERYTHING = (b"\0", b"\0")


def put(client: RawClient, key: bytes, value: bytes = b"1", lease: int = 0) -> wire.HeaderResponse:
    return client.ask(wire.PUT_KEY, wire.PutRequest(key, value, lease))


def found(client: RawClient, key: bytes, range_end: bytes = b"", **more: int) -> wire.RangeResponse:
    return client.ask(wire.RANGE, wire.RangeRequest(key, range_end, **more))  # type: ignore[arg-type]


def keys(answer: wire.RangeResponse) -> list[bytes]:
    return [item.key for item in answer.kvs]


# Keys


@pytest.mark.parametrize(
    ("key", "range_end", "expected"),
    [
        (b"a", b"", ["a"]),
        (b"a", b"b", ["a", "a/", "aé"]),
        (*EVERYTHING, ["a", "a/", "aé", "b", "é", "ê", "\U0010ffff"]),
        ("é".encode(), "ê".encode(), ["é"]),
        ("ê".encode(), b"\xc3\xab", ["ê"]),
        ("\U0010ffff".encode(), b"\xf4\x8f\xbf\xc0", ["\U0010ffff"]),  # an end that is not text
    ],
)
def test_a_key_a_prefix_and_all_are_found(client: RawClient, key: bytes, range_end: bytes, expected: list[str]) -> None:
    for name in ("a", "a/", "aé", "b", "é", "ê", "\U0010ffff"):
        put(client, name.encode())
    names = [name.encode() for name in expected]
    assert keys(found(client, key, range_end)) == names
    counted = found(client, key, range_end, count_only=True)
    assert (counted.count, counted.kvs) == (len(names), ())
    assert client.ask(wire.DELETE_RANGE, wire.DeleteRangeRequest(key, range_end)).deleted == len(names)


def test_a_range_is_limited_and_stripped_as_asked(client: RawClient) -> None:
    for name in (b"b", b"a", b"c"):
        put(client, name, b"3")
    limited = found(client, *EVERYTHING, limit=2)
    assert (keys(limited), limited.more, limited.count) == ([b"a", b"b"], True, 3)
    whole = found(client, *EVERYTHING, limit=3, serializable=True)
    assert (len(whole.kvs), whole.more) == (3, False)
    assert [item.value for item in found(client, *EVERYTHING, keys_only=True).kvs] == [b"", b"", b""]


def test_a_transaction_answers_each_operation(client: RawClient) -> None:
    for name in (b"r/1", b"r/2"):
        put(client, name)
    operations = (
        wire.RequestOp(request_put=wire.PutRequest(b"r/3", b"2")),
        wire.RequestOp(request_range=wire.RangeRequest(b"r/", b"r0", count_only=True)),
        wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(b"r/", b"r0")),
    )
    twice = client.refusal(wire.TXN, wire.TxnRequest((), operations))
    assert twice == ("INVALID_ARGUMENT", "meshrun: a transaction writes the key 'r/3' twice")
    other = wire.WireCompare(wire.RELATIONS.index("!="), wire.TARGETS.index("value"), b"r/1", value=b"1")
    refused = client.ask(wire.TXN, wire.TxnRequest((other,), operations[1:]))
    assert (refused.succeeded, refused.responses) == (False, ())
    done = client.ask(wire.TXN, wire.TxnRequest((), operations[1:], operations[:1]))
    counted, gone = done.responses
    assert done.succeeded
    assert counted.response_range is not None
    assert (counted.response_range.count, counted.response_range.kvs) == (2, ())
    assert gone.response_delete_range is not None
    assert gone.response_delete_range == wire.DeleteRangeResponse(done.header, 2)


# What is refused


def field(number: int, content: bytes | int) -> bytes:
    """A field of a message: a number, or bytes."""
    if isinstance(content, int):
        return bytes((number << 3, content))
    return bytes((number << 3 & 0x7F | 0x82, number >> 4)) + bytes((len(content),)) + content


KEY = b"\x0a\x01a"
UNKNOWN_FIELDS = [
    *((wire.RANGE, KEY + field(number, 1), f"{number} of RangeRequest") for number in (4, 5, 6, 10, 11, 12, 13)),
    *((wire.PUT_KEY, KEY + field(number, 1), f"{number} of PutRequest") for number in (4, 5, 6)),
    (wire.DELETE_RANGE, KEY + field(3, 1), "3 of DeleteRangeRequest"),
    (wire.TXN, field(1, b"\x1a\x01a" + field(8, 7)), "8 of WireCompare"),
    (wire.TXN, field(1, b"\x1a\x01a" + field(64, b"b")), "64 of WireCompare"),
    (wire.TXN, field(2, field(4, b"")), "4 of RequestOp"),
    (wire.ALARM, field(1, 2), "1 of Empty"),
]


@pytest.mark.parametrize(("method", "request_bytes", "name"), UNKNOWN_FIELDS)
def test_a_request_with_a_field_that_is_not_supported_is_refused(
    client: RawClient, method: Method[Message, Message], request_bytes: bytes, name: str
) -> None:
    """Or a read of the past would be answered with the present, and a write that keeps the value with an empty one."""
    before = put(client, b"a").header.revision
    assert client.refusal(method, request_bytes) == ("INVALID_ARGUMENT", f"meshrun: field {name} is not supported")
    assert found(client, b"a").header.revision == before


NO_RANGE = "meshrun: the served store answers for one key or for a prefix, not for other ranges"
NOT_TEXT = "meshrun: a key in the served store is UTF-8 text"


def test_a_request_without_an_answer_is_refused_before_anything_is_written(client: RawClient) -> None:
    def op(key: bytes, lease: int = 0) -> wire.RequestOp:
        return wire.RequestOp(request_put=wire.PutRequest(key, b"1", lease))

    before = put(client, b"a").header.revision
    gone = wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(b"a", b"b"))
    elsewhere = wire.RequestOp(request_range=wire.RangeRequest(b"a", b"c"))
    for branch, sentence in (
        ((op(b"a"), op(b"a")), "meshrun: a transaction writes the key 'a' twice"),
        ((op(b"aa"), gone), "meshrun: a transaction writes the key 'aa' twice"),
        (tuple(op(b"%d" % number) for number in range(129)), "meshrun: a transaction has 129 operations, at most 128"),
        ((op(b"b"), op(b"c", 987)), "etcdserver: requested lease not found"),
        ((op(b"b"), op(b"")), "meshrun: a key cannot be empty"),
        ((op(b"b"), op(b"\xff")), NOT_TEXT),
        ((op(b"b"), elsewhere), NO_RANGE),
        ((op(b"b"), wire.RequestOp()), "meshrun: the served store takes reads, writes and deletions in a transaction"),
    ):
        assert client.refusal(wire.TXN, wire.TxnRequest((), branch))[1].startswith(sentence)
    for compare in (wire.WireCompare(target=4, key=b"a"), wire.WireCompare(4, key=b"a")):
        refused = client.refusal(wire.TXN, wire.TxnRequest((compare,), (op(b"b"),)))
        assert refused == ("INVALID_ARGUMENT", "meshrun: the served store compares versions, revisions and values")
    for key, range_end in ((b"a", b"c"), (b"a", b"\0"), (b"b", b"a"), (b"a", b"a")):
        assert client.refusal(wire.RANGE, wire.RangeRequest(key, range_end)) == ("INVALID_ARGUMENT", NO_RANGE)
        assert client.refusal(wire.DELETE_RANGE, wire.DeleteRangeRequest(key, range_end))[1] == NO_RANGE
    assert client.refusal(wire.PUT_KEY, wire.PutRequest(b"\xff", b"1")) == ("INVALID_ARGUMENT", NOT_TEXT)
    assert keys(found(client, *EVERYTHING)) == [b"a"]
    assert found(client, b"a").header.revision == before


def test_an_invalid_message_is_rejected_and_the_next_request_answered(client: RawClient) -> None:
    assert client.refusal(wire.RANGE, b"\x0a\xff")[0] == "INVALID_ARGUMENT"
    for message in (b"\x0a\xff", field(3, b"")):  # of the latter kind are requests for progress
        stream = client.stream(wire.WATCH)
        stream.questions.put(message)
        assert stream.ending()[0] == "INVALID_ARGUMENT"
    assert put(client, b"a").header.revision


def test_methods_that_only_an_etcd_has_are_refused(client: RawClient) -> None:
    assert client.refusal(COMPACT, CompactionRequest(1)) == (
        "UNIMPLEMENTED",
        "meshrun: the served store has no such method",
    )


# Leases


def test_a_lease_may_be_given_its_number_once(client: RawClient) -> None:
    granted = client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(7, 4711))
    assert (granted.id, granted.ttl) == (4711, 7)
    again = client.refusal(wire.LEASE_GRANT, wire.LeaseGrantRequest(7, 4711))
    assert again == ("FAILED_PRECONDITION", "etcdserver: lease already exists")
    put(client, b"a", lease=4711)
    shown = client.ask(wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(4711, True))
    assert (shown.id, shown.ttl, shown.granted_ttl, shown.keys) == (4711, 7, 7, (b"a",))
    assert client.ask(wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(1)).ttl == -1
    assert [lease.id for lease in client.ask(wire.LEASE_LEASES, wire.Empty()).leases] == [4711]


def test_one_stream_keeps_several_leases_alive_and_tells_which_are_gone(client: RawClient) -> None:
    for lease in (11, 12):
        client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(5, lease))
    stream = client.stream(wire.LEASE_KEEP_ALIVE)
    for lease, ttl in ((11, 5), (12, 5), (13, 0)):
        stream.say(wire.LeaseId(lease))
        answer = stream.hear()
        assert (answer.id, answer.ttl) == (lease, ttl)
    stream.cancel()


# Watches


def test_one_stream_carries_several_watches(client: RawClient) -> None:
    put(client, b"a", b"0")
    stream = watch(client, b"a")
    for request in (create(b"a"), create(b"b", b"c"), create(b"a", b"c")):
        stream.say(request)
    answers = [stream.hear() for _ in range(3)]
    assert [(each.watch_id, each.created, each.canceled, each.cancel_reason) for each in answers] == [
        (1, True, False, ""),
        (2, True, False, ""),
        (-1, True, True, NO_RANGE),
    ]
    client.ask(wire.DELETE_RANGE, wire.DeleteRangeRequest(b"a"))
    told = [stream.hear(), stream.hear()]
    assert {(each.watch_id, each.events[0].type) for each in told} == {(0, wire.DELETE), (1, wire.DELETE)}
    for watch_id in (1, 99):  # there is no 99: no answer
        stream.say(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(watch_id)))
    cancelled = stream.hear()
    assert (cancelled.watch_id, cancelled.canceled) == (1, True)
    last = put(client, b"b").header.revision
    told_last = stream.hear()
    assert (told_last.watch_id, told_last.events[0].kv.mod_revision, told_last.header.revision) == (2, last, last)
    stream.cancel()


def test_quiet_watches_that_want_to_know_are_told_how_far_the_store_is(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, served: ServedUnderTest
) -> None:
    monkeypatch.setattr(server_module, "PROGRESS_S", 0.0)
    with RawClient(served.endpoint) as other:
        stream = watch(other, b"a", progress_notify=True)
        revision = put(client, b"b").header.revision
        while (told := stream.hear()).header.revision < revision:
            pass
        assert (told.watch_id, told.events, told.header.revision) == (0, (), revision)
        stream.cancel()


def test_a_client_that_takes_no_events_delays_nobody(served: ServedUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "OWED_BYTES_MAX", 1_000_000)
    value = b"x" * 200_000
    streams = served.server._services.watch_streams
    with RawClient(served.endpoint) as slow, RawClient(served.endpoint) as writer:
        stream = watch(slow, b"a")
        quick = watch(writer, b"a")
        for _ in range(40):
            put(writer, b"a", value)
            assert quick.hear().events
        assert len(streams) == 1
        assert stream.ending() == (
            "UNAVAILABLE",
            "meshrun: the watch did not take its events in time; watch on from the last one",
        )
        quick.cancel()
    wait_until(lambda: not streams, LIMIT_S, "the streams to be forgotten")


# Whose it is


def test_the_store_names_its_run_before_any_client_can_read() -> None:
    owner = StoreOwner(prefix="p", run_id="r", node_name="h1", presence_address="10.0.0.1:7000")
    with serve(owner=owner) as server, closing(EtcdStore([f"127.0.0.1:{server.port}"])) as client:
        first = client.get(STORE_OWNER_KEY).first
        assert first is not None
        assert decode(StoreOwner, first.value, first.key) == owner


def test_the_end_of_the_serving_agent_is_said_to_watches_and_ends_them() -> None:
    lost: list[StoreError] = []
    with serve() as server, closing(EtcdStore([f"127.0.0.1:{server.port}"])) as client:
        revision = client.put("a", b"1")
        client.watch("a", start_revision=revision, on_batch=lambda batch: None, on_lost=lost.append)
        wait_until(lambda: bool(server._services.watch_streams), LIMIT_S, "the watch")
        server.close()
        wait_until(lambda: bool(lost), LIMIT_S, "the goodbye")
        assert isinstance(lost[0], StoreEnded)
        assert str(lost[0]) == f"the store at 127.0.0.1:{server.port} has ended with the agent that served it"
        with pytest.raises(Unreachable):  # a later call finds nothing there
            client.get("a")
