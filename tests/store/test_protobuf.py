"""The wire format: known bytes, what must be skipped, what must be refused, and the way there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous.stores import wire
from rendezvous.stores.protobuf import Message, WireError, decode, encode


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (wire.PutRequest(b"a", b"", 300), b"\x0a\x01a\x18\xac\x02"),
        (wire.LeaseId(-1), b"\x08" + b"\xff" * 9 + b"\x01"),
        (wire.LeaseId(2**63 - 1), b"\x08" + b"\xff" * 8 + b"\x7f"),
        (wire.WatchCreateRequest(b"k", start_revision=7, progress_notify=True), b"\x0a\x01k\x18\x07\x20\x01"),
        (wire.WireCompare(target=2, key=b"k", mod_revision=0), b"\x10\x02\x1a\x01k\x30\x00"),
        (wire.WireCompare(key=b"k", value=b""), b"\x1a\x01k\x3a\x00"),
        (wire.RequestOp(request_range=wire.RangeRequest()), b"\x0a\x00"),
        (wire.AuthenticateRequest("ä", "p"), b"\x0a\x02\xc3\xa4\x12\x01p"),
        (wire.LeaseTimeToLiveResponse(keys=(b"a", b"")), b"\x2a\x01a\x2a\x00"),
        (wire.RangeResponse(wire.Header(revision=5), (wire.WireKeyValue(b"a"),)), b"\x0a\x02\x18\x05\x12\x03\x0a\x01a"),
        (wire.WatchResponse(watch_id=-1), b"\x10" + b"\xff" * 9 + b"\x01"),
        (wire.RangeRequest(), b""),
    ],
)
def test_a_message_is_these_bytes_and_these_bytes_are_the_message(message: Message, data: bytes) -> None:
    assert encode(message) == data
    assert decode(type(message), data) == message


@pytest.mark.parametrize(
    "unknown",
    [b"\xf8\x07\x01", b"\xf9\x07" + b"x" * 8, b"\xfa\x07\x03abc", b"\xfd\x07xxxx", b"\x08\x01"],
    ids=["a number", "64 bits", "bytes", "32 bits", "a field of another kind"],
)
def test_fields_that_a_newer_server_sends_are_skipped(unknown: bytes) -> None:
    known = encode(wire.PutRequest(b"a", b"b"))
    assert decode(wire.PutRequest, unknown + known + unknown) == wire.PutRequest(b"a", b"b")
    with pytest.raises(WireError, match=r"field \d+ of PutRequest is not supported"):
        decode(wire.PutRequest, known + unknown, is_strict=True)


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05abc", b"\x18", b"\x18\xff", b"\x18" + b"\xff" * 11, b"\x0b", b"\xfd\x07xxx"],
    ids=["no length", "too short", "no number", "half a number", "endless number", "a group", "half of 32 bits"],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(wire.PutRequest, data)


def test_text_that_is_none_is_refused() -> None:
    with pytest.raises(WireError):
        decode(wire.AuthenticateRequest, b"\x0a\x01\xff")


INT64 = st.integers(-(2**63), 2**63 - 1)


def built(kind: Callable[..., Any], *parts: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Any:
    """Messages of that kind; a field that is left out has its default."""
    return st.builds(lambda *values, **more: kind(*values, **more), *parts, **named)


KEY_VALUES = built(wire.WireKeyValue, st.binary(), INT64, INT64, INT64, st.binary(), INT64)
HEADERS = built(wire.Header, INT64, INT64, INT64, INT64)
EVENTS = built(wire.WireEvent, st.sampled_from([wire.PUT, wire.DELETE]), KEY_VALUES)
OPERATIONS = st.one_of(
    built(wire.RequestOp, request_put=built(wire.PutRequest, st.binary(), st.binary(), INT64)),
    built(wire.RequestOp, request_range=built(wire.RangeRequest, st.binary(), st.binary(), INT64)),
    built(wire.RequestOp, request_delete_range=built(wire.DeleteRangeRequest, st.binary(), st.binary())),
)
COMPARES = built(
    wire.WireCompare, st.integers(0, 3), st.integers(0, 3), st.binary(),
    **dict.fromkeys(("version", "create_revision", "mod_revision"), st.none() | INT64), value=st.none() | st.binary(),
)  # fmt: skip


def lists(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    built(wire.TxnRequest, lists(COMPARES), lists(OPERATIONS), lists(OPERATIONS)),
    built(wire.RangeResponse, HEADERS, lists(KEY_VALUES), st.booleans(), INT64),
    built(wire.WatchResponse, HEADERS, INT64, st.booleans(), st.booleans(), INT64, st.text(), lists(EVENTS)),
    built(wire.LeaseTimeToLiveResponse, HEADERS, INT64, INT64, INT64, lists(st.binary())),
)


@settings(max_examples=50)
@given(MESSAGES)
def test_what_is_written_is_read_back(message: Message) -> None:
    assert decode(type(message), encode(message)) == message


@given(st.sampled_from([wire.TxnRequest, wire.WatchResponse, wire.RangeResponse]), st.binary())
def test_any_bytes_are_a_message_or_refused(kind: type[Any], data: bytes) -> None:
    try:
        message = decode(kind, data)
    except WireError:
        return
    assert decode(kind, encode(message)) == message
