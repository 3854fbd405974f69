"""The served store: what etcd's API asks beyond our own client.

What our client asks of it is in the suite that all stores share.
"""

from __future__ import annotations

from typing import Any

import pytest

from rendezvous.stores import wire
from rendezvous.stores.server import server as server_module
from rendezvous.stores.server import watches as serving_watches
from tests.store.served import ServedUnderTest
from tests.support.stores.raw_etcd import RawClient, create, watch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 20.0


def put(client: RawClient, key: bytes, value: bytes = b"1", **more: Any) -> wire.PutResponse:
    return client.ask(wire.PUT_KEY, wire.PutRequest(key, value, **more))


def found(client: RawClient, key: bytes, range_end: bytes = b"", **more: Any) -> wire.RangeResponse:
    return client.ask(wire.RANGE, wire.RangeRequest(key, range_end, **more))


def keys(answer: wire.RangeResponse) -> list[bytes]:
    return [item.key for item in answer.kvs]


# Ranges


@pytest.mark.parametrize(
    ("key", "range_end", "expected"),
    [
        (b"a", b"", [b"a"]),
        (b"a", b"b", [b"a", b"a/", "aé".encode()]),
        (b"\0", b"\0", [b"a", b"a/", "aé".encode(), b"b", "é".encode(), "ê".encode(), "\U0010ffff".encode()]),
        (b"b", b"\0", [b"b", "é".encode(), "ê".encode(), "\U0010ffff".encode()]),
        ("é".encode(), "ê".encode(), ["é".encode()]),  # the end of the prefix "é", whose last byte is raised by one
        ("ê".encode(), b"\xc3\xab", ["ê".encode()]),
        (b"\xc3", b"\xc4", ["é".encode(), "ê".encode()]),  # ends that are no text
        (b"\xc3\xa9\xff", b"\xff", ["ê".encode(), "\U0010ffff".encode()]),
        (b"\xff", b"\0", []),
        (b"b", b"a", []),
    ],
)
def test_a_range_is_taken_by_its_bytes(client: RawClient, key: bytes, range_end: bytes, expected: list[bytes]) -> None:
    for name in ("a", "a/", "aé", "b", "é", "ê", "\U0010ffff"):
        put(client, name.encode())
    assert keys(found(client, key, range_end)) == expected
    assert found(client, key, range_end, count_only=True).count == len(expected)


def test_a_range_is_sorted_limited_and_stripped_as_asked(client: RawClient) -> None:
    for name, value in ((b"b", b"3"), (b"a", b"2"), (b"c", b"1"), (b"a", b"4")):
        put(client, name, value)
    everything = (b"\0", b"\0")
    limited = found(client, *everything, limit=2)
    assert (keys(limited), limited.more, limited.count) == ([b"a", b"b"], True, 3)
    whole = found(client, *everything, limit=3)
    assert (len(whole.kvs), whole.more) == (3, False)
    for target, ascending in enumerate(([b"a", b"b", b"c"], [b"b", b"c", b"a"], [b"b", b"a", b"c"])):
        assert keys(found(client, *everything, sort_target=target, sort_order=1)) == ascending
    assert keys(found(client, *everything, sort_target=3)) == [b"b", b"c", b"a"]  # by mod revision
    assert keys(found(client, *everything, sort_target=4, sort_order=2)) == [b"a", b"b", b"c"]  # by value
    assert [item.value for item in found(client, *everything, keys_only=True).kvs] == [b"", b"", b""]
    last = found(client, b"a").kvs[0].mod_revision
    assert keys(found(client, *everything, min_mod_revision=last - 1)) == [b"a", b"c"]
    assert keys(found(client, *everything, max_create_revision=last - 3)) == [b"b"]
    assert client.refusal(wire.RANGE, wire.RangeRequest(b"a", sort_target=5))[1] == "etcdserver: invalid sort option"


def test_a_range_of_the_past_is_as_it_was_until_that_is_compacted(client: RawClient) -> None:
    first = put(client, b"a", b"1").header.revision
    put(client, b"b", b"1")
    put(client, b"a", b"2")
    client.ask(wire.DELETE_RANGE, wire.DeleteRangeRequest(b"a", b"c"))
    put(client, b"b", b"3")

    def then(revision: int) -> dict[bytes, tuple[bytes, int]]:
        answer = found(client, b"a", b"z", revision=revision)
        return {item.key: (item.value, item.version) for item in answer.kvs}

    assert [then(first + number) for number in range(5)] == [
        {b"a": (b"1", 1)},
        {b"a": (b"1", 1), b"b": (b"1", 1)},
        {b"a": (b"2", 2), b"b": (b"1", 1)},
        {},
        {b"b": (b"3", 1)},
    ]
    client.ask(wire.COMPACT, wire.CompactionRequest(first + 2))
    assert then(first + 2) == {b"a": (b"2", 2), b"b": (b"1", 1)}
    for revision, words in ((first + 1, "has been compacted"), (first + 5, "is a future revision")):
        code, said = client.refusal(wire.RANGE, wire.RangeRequest(b"a", revision=revision))
        assert (code, said) == ("OUT_OF_RANGE", f"etcdserver: mvcc: required revision {words}")
        assert client.refusal(wire.COMPACT, wire.CompactionRequest(revision))[0] == "OUT_OF_RANGE"


# Writes


def test_a_write_shows_what_was_there_before_if_asked(client: RawClient) -> None:
    assert put(client, b"a", b"1", prev_kv=True).prev_kv is None
    assert put(client, b"a", b"2").prev_kv is None
    before = put(client, b"a", b"3", prev_kv=True).prev_kv
    assert before is not None
    assert (before.value, before.version) == (b"2", 2)
    gone = client.ask(wire.DELETE_RANGE, wire.DeleteRangeRequest(b"a", b"b", prev_kv=True))
    assert (gone.deleted, [item.value for item in gone.prev_kvs]) == (1, [b"3"])


def test_a_put_may_keep_the_value_or_the_lease(client: RawClient) -> None:
    lease = client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(10)).id
    put(client, b"a", b"1", lease=lease)
    put(client, b"a", b"2", ignore_lease=True)
    assert found(client, b"a").kvs[0][4:] == (b"2", lease)
    put(client, b"a", b"", ignore_value=True)
    assert found(client, b"a").kvs[0][4:] == (b"2", 0)
    for request, words in (
        (wire.PutRequest(b"absent", ignore_value=True), "key not found"),
        (wire.PutRequest(b"a", b"1", ignore_value=True), "value is provided"),
        (wire.PutRequest(b"a", b"1", lease, ignore_lease=True), "lease is provided"),
        (wire.PutRequest(b"", b"1"), "key is not provided"),
    ):
        assert client.refusal(wire.PUT_KEY, request) == ("INVALID_ARGUMENT", f"etcdserver: {words}")


def test_a_key_that_is_no_text_is_refused_in_a_sentence(client: RawClient) -> None:
    code, words = client.refusal(wire.PUT_KEY, wire.PutRequest(b"\xff", b"1"))
    assert (code, words) == ("INVALID_ARGUMENT", "meshrun: a key in the served store is UTF-8 text")


def test_an_invalid_message_is_rejected_and_the_next_request_answered(client: RawClient) -> None:
    import grpc

    with pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary(wire.RANGE.path)(b"\x0a\xff", timeout=LIMIT_S)
    assert caught.value.code().name == "INVALID_ARGUMENT"
    stream = client.stream(wire.WATCH)
    stream.questions.put(b"\x0a\xff")
    assert stream.ending()[0] == "INVALID_ARGUMENT"
    assert put(client, b"a").header.revision


def test_an_invalid_transaction_is_rejected_before_anything_is_written(client: RawClient) -> None:
    def op(key: bytes, lease: int = 0) -> wire.RequestOp:
        return wire.RequestOp(request_put=wire.PutRequest(key, b"1", lease))

    before = put(client, b"a").header.revision
    gone = wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(b"a", b"c"))
    late = wire.RequestOp(request_range=wire.RangeRequest(b"a", revision=before + 5))
    for branch, words in (
        ((op(b"a"), op(b"a")), "etcdserver: duplicate key given in txn request"),
        ((op(b"b"), gone), "etcdserver: duplicate key given in txn request"),
        (tuple(op(b"%d" % number) for number in range(129)), "etcdserver: too many operations in txn request"),
        ((op(b"b"), op(b"c", 987)), "etcdserver: requested lease not found"),
        ((op(b"b"), op(b"")), "etcdserver: key is not provided"),
        ((op(b"b"), late), "etcdserver: mvcc: required revision is a future revision"),
        ((op(b"b"), wire.RequestOp()), "meshrun: the served store takes no transaction within a transaction"),
    ):
        assert client.refusal(wire.TXN, wire.TxnRequest((), branch))[1] == words
    assert found(client, b"a", b"z").header.revision == before
    assert keys(found(client, b"a", b"z")) == [b"a"]


def test_a_transaction_answers_each_operation_and_compares_ranges(client: RawClient) -> None:
    lease = client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(10)).id
    put(client, b"r/1", b"1", lease=lease)
    put(client, b"r/2", b"1", lease=lease)
    same_lease = wire.WireCompare(wire.EQUAL, wire.LEASE, b"r/", lease=lease, range_end=b"r0")
    other_value = wire.WireCompare(wire.NOT_EQUAL, wire.VALUE, b"r/", value=b"1", range_end=b"r0")
    operations = (
        wire.RequestOp(request_put=wire.PutRequest(b"r/3", b"2")),
        wire.RequestOp(request_range=wire.RangeRequest(b"r/", b"r0", count_only=True)),
        wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(b"r/1", prev_kv=True)),
    )
    refused = client.ask(wire.TXN, wire.TxnRequest((same_lease, other_value), operations))
    assert (refused.succeeded, refused.responses) == (False, ())
    done = client.ask(wire.TXN, wire.TxnRequest((same_lease,), operations))
    written, counted, gone = done.responses
    assert done.succeeded
    assert written.response_put is not None
    assert counted.response_range is not None
    assert counted.response_range.count == 3
    assert gone.response_delete_range is not None
    assert [item.value for item in gone.response_delete_range.prev_kvs] == [b"1"]
    assert {answer.header.revision for answer in (done, written.response_put)} == {done.header.revision}
    assert not client.ask(wire.TXN, wire.TxnRequest((same_lease,))).succeeded  # r/3 has no lease


# Leases


def test_a_lease_may_be_given_its_number_once(client: RawClient) -> None:
    granted = client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(7, 4711))
    assert (granted.id, granted.ttl) == (4711, 7)
    assert client.refusal(wire.LEASE_GRANT, wire.LeaseGrantRequest(7, 4711)) == (
        "FAILED_PRECONDITION",
        "etcdserver: lease already exists",
    )
    assert client.refusal(wire.LEASE_GRANT, wire.LeaseGrantRequest(10**10))[1] == "etcdserver: too large lease TTL"
    put(client, b"a", lease=4711)
    shown = client.ask(wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(4711, True))
    assert (shown.id, shown.ttl, shown.granted_ttl, shown.keys) == (4711, 7, 7, (b"a",))
    assert client.ask(wire.LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(1)).ttl == -1
    assert [lease.id for lease in client.ask(wire.LEASE_LEASES, wire.LeaseLeasesRequest()).leases] == [4711]


def test_one_stream_keeps_several_leases_alive_and_tells_which_are_gone(client: RawClient) -> None:
    for lease in (11, 12):
        client.ask(wire.LEASE_GRANT, wire.LeaseGrantRequest(5, lease))
    stream = client.stream(wire.LEASE_KEEP_ALIVE)
    for lease, ttl in ((11, 5), (12, 5), (13, 0)):
        stream.say(wire.LeaseKeepAliveRequest(lease))
        answer = stream.hear()
        assert (answer.id, answer.ttl) == (lease, ttl)
    stream.cancel()


# Watches


def test_one_stream_carries_several_watches_each_with_its_own_wishes(client: RawClient) -> None:
    put(client, b"a", b"0")
    stream = watch(client, b"a", prev_kv=True)
    stream.say(create(b"a", filters=b"\0"))  # no puts
    stream.say(create(b"b", b"c", watch_id=7))
    stream.say(create(b"b", watch_id=7))
    answers = [stream.hear() for _ in range(3)]
    assert [(each.watch_id, each.created, each.canceled) for each in answers] == [
        (1, True, False),
        (7, True, False),
        (-1, True, True),
    ]
    put(client, b"a", b"1")
    told = stream.hear()
    assert told.watch_id == 0
    assert told.events[0].prev_kv.value == b"0"
    client.ask(wire.DELETE_RANGE, wire.DeleteRangeRequest(b"a"))
    told = [stream.hear(), stream.hear()]
    assert {(each.watch_id, each.events[0].type) for each in told} == {(0, wire.DELETE), (1, wire.DELETE)}
    stream.say(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(1)))
    stream.say(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(99)))  # there is none: no answer
    stream.say(wire.WatchRequest(progress_request=wire.WatchProgressRequest()))
    cancelled, progress = stream.hear(), stream.hear()
    assert (cancelled.watch_id, cancelled.canceled) == (1, True)
    assert (progress.watch_id, progress.events) == (-1, ())
    last = put(client, b"b").header.revision
    told = stream.hear()
    assert (told.watch_id, told.events[0].kv.mod_revision, told.header.revision) == (7, last, last)
    stream.cancel()


def test_large_events_come_in_fragments_if_the_watch_accepts_them(client: RawClient) -> None:
    stream = watch(client, b"f/", b"f0", fragment=True, prev_kv=True)
    value = b"x" * 700_000
    puts = tuple(wire.RequestOp(request_put=wire.PutRequest(b"f/%d" % number, value)) for number in range(2))
    for _ in range(2):
        client.ask(wire.TXN, wire.TxnRequest((), puts))
    parts = [stream.hear() for _ in range(3)]
    assert [(part.fragment, len(part.events)) for part in parts] == [(False, 2), (True, 1), (False, 1)]
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


def test_a_client_that_does_not_take_its_events_is_not_waited_for(
    served: ServedUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_watches, "QUEUE_BYTES_MAX", 1_000_000)
    value = b"x" * 200_000
    with RawClient(served.endpoint) as slow, RawClient(served.endpoint) as writer:
        stream = watch(slow, b"a")
        quick = watch(writer, b"a")
        for _ in range(40):
            put(writer, b"a", value)
            assert quick.hear().events
        assert [stream.end_reason for stream in served.server._streams].count(None) == 1
        assert stream.ending() == (
            "UNAVAILABLE",
            "meshrun: the watch did not take its events in time; watch on from the last one",
        )
        quick.cancel()
    wait_until(lambda: not served.server._streams, LIMIT_S, "the streams to be forgotten")
