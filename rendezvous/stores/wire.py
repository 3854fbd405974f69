"""The messages of etcd's v3 API: what the client sends and the served store reads, and the replies.

A message is a class whose annotations carry the field numbers of etcd's rpc.proto, kv.proto and auth.proto;
`protobuf.encode` and `protobuf.decode` turn it into bytes and back. Only the fields that are used are declared. That
defaults are never written matters: an empty `range_end` on the wire would mean "every key from here on". The served
store refuses requests with any other field: docs/cluster/without-etcd.md says what it answers.

The methods are at the end: the path of each, and the types of its request and response.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Struct

from rendezvous.stores.protobuf import Message

RELATIONS = ("=", ">", "<", "!=")  # Compare.result, by number
TARGETS = ("version", "create", "mod", "value")  # Compare.target, by number
OPERANDS = ("version", "create_revision", "mod_revision", "value")  # the field that has the operand for a target
PUT, DELETE = range(2)  # Event.type
EVERYTHING = b"\0"  # as key and end of a range
STORE_ENDED = "meshrun/store-ended"  # in the status of all streams when the agent that served a store has ended


def encode_range(key: str, prefix: bool) -> tuple[bytes, bytes]:
    """Return key and range end on the wire: no end is the one key; a prefix ends at its last byte raised by one."""
    start = key.encode()
    if not prefix:
        return start, b""
    if not start:
        return EVERYTHING, EVERYTHING
    return start, start[:-1] + bytes((start[-1] + 1,))  # the last byte of text in UTF-8 is never 255


class WireKeyValue(Message, frozen=True):
    key: Annotated[bytes, 1] = b""
    create_revision: Annotated[int, 2] = 0
    mod_revision: Annotated[int, 3] = 0
    version: Annotated[int, 4] = 0
    value: Annotated[bytes, 5] = b""
    lease: Annotated[int, 6] = 0


class WireEvent(Message, frozen=True):
    type: Annotated[int, 1] = PUT
    kv: Annotated[WireKeyValue, 2] = WireKeyValue()


class Header(Message, frozen=True):
    cluster_id: Annotated[int, 1] = 0
    member_id: Annotated[int, 2] = 0
    revision: Annotated[int, 3] = 0
    raft_term: Annotated[int, 4] = 0


class Empty(Message, frozen=True):
    """Of requests that say no more than their method."""


class HeaderResponse(Message, frozen=True):
    """What every response begins with; of some it is all that is read or written."""

    header: Annotated[Header, 1] = Header()


# Keys


class RangeRequest(Message, frozen=True):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    limit: Annotated[int, 3] = 0
    serializable: Annotated[bool, 7] = False
    keys_only: Annotated[bool, 8] = False
    count_only: Annotated[bool, 9] = False


class RangeResponse(HeaderResponse, frozen=True):
    kvs: Annotated[tuple[WireKeyValue, ...], 2] = ()
    more: Annotated[bool, 3] = False
    count: Annotated[int, 4] = 0


class PutRequest(Message, frozen=True):
    key: Annotated[bytes, 1] = b""
    value: Annotated[bytes, 2] = b""
    lease: Annotated[int, 3] = 0


class DeleteRangeRequest(Message, frozen=True):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""


class DeleteRangeResponse(HeaderResponse, frozen=True):
    deleted: Annotated[int, 2] = 0


class WireCompare(Message, frozen=True):
    result: Annotated[int, 1] = 0
    target: Annotated[int, 2] = 0
    key: Annotated[bytes, 3] = b""
    version: Annotated[int | None, 4] = None
    create_revision: Annotated[int | None, 5] = None
    mod_revision: Annotated[int | None, 6] = None
    value: Annotated[bytes | None, 7] = None


class RequestOp(Message, frozen=True):
    request_range: Annotated[RangeRequest | None, 1] = None
    request_put: Annotated[PutRequest | None, 2] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, 3] = None


class ResponseOp(Message, frozen=True):
    response_range: Annotated[RangeResponse | None, 1] = None
    response_put: Annotated[HeaderResponse | None, 2] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, 3] = None


class TxnRequest(Message, frozen=True):
    compare: Annotated[tuple[WireCompare, ...], 1] = ()
    success: Annotated[tuple[RequestOp, ...], 2] = ()
    failure: Annotated[tuple[RequestOp, ...], 3] = ()


class TxnResponse(HeaderResponse, frozen=True):
    succeeded: Annotated[bool, 2] = False
    responses: Annotated[tuple[ResponseOp, ...], 3] = ()


# Watches


class WatchCreateRequest(Message, frozen=True):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    start_revision: Annotated[int, 3] = 0
    progress_notify: Annotated[bool, 4] = False


class WatchCancelRequest(Message, frozen=True):
    watch_id: Annotated[int, 1] = 0


class WatchRequest(Message, frozen=True):
    create_request: Annotated[WatchCreateRequest | None, 1] = None
    cancel_request: Annotated[WatchCancelRequest | None, 2] = None


class WatchResponse(HeaderResponse, frozen=True):
    watch_id: Annotated[int, 2] = 0
    created: Annotated[bool, 3] = False
    canceled: Annotated[bool, 4] = False
    compact_revision: Annotated[int, 5] = 0
    cancel_reason: Annotated[str, 6] = ""
    events: Annotated[tuple[WireEvent, ...], 11] = ()


# Leases; times to live are whole seconds


class LeaseGrantRequest(Message, frozen=True):
    ttl: Annotated[int, 1] = 0
    id: Annotated[int, 2] = 0


class LeaseId(Message, frozen=True):
    """The request of a revocation and of a renewal, and an entry in the list of leases."""

    id: Annotated[int, 1] = 0


class LeaseTtl(HeaderResponse, frozen=True):
    """The response to a grant and to a renewal; `ttl` 0 or less: the lease is gone."""

    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0


class LeaseTimeToLiveRequest(Message, frozen=True):
    id: Annotated[int, 1] = 0
    keys: Annotated[bool, 2] = False


class LeaseTimeToLiveResponse(HeaderResponse, frozen=True):
    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0  # -1: the lease is gone
    granted_ttl: Annotated[int, 4] = 0
    keys: Annotated[tuple[bytes, ...], 5] = ()


class LeaseLeasesResponse(HeaderResponse, frozen=True):
    leases: Annotated[tuple[LeaseId, ...], 2] = ()


# Users and the server itself


class AuthenticateRequest(Message, frozen=True):
    name: Annotated[str, 1] = ""
    password: Annotated[str, 2] = ""


class AuthenticateResponse(HeaderResponse, frozen=True):
    token: Annotated[str, 2] = ""


class StatusResponse(HeaderResponse, frozen=True):
    version: Annotated[str, 2] = ""
    db_size: Annotated[int, 3] = 0
    leader: Annotated[int, 4] = 0
    raft_index: Annotated[int, 5] = 0
    raft_term: Annotated[int, 6] = 0


Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Method(Struct, Generic[Request, Response], frozen=True):
    """One procedure: its path, and the types of its request and response (one of each, or streams of them)."""

    path: str
    request: type[Request]
    response: type[Response]


RANGE = Method("/etcdserverpb.KV/Range", RangeRequest, RangeResponse)
PUT_KEY = Method("/etcdserverpb.KV/Put", PutRequest, HeaderResponse)
DELETE_RANGE = Method("/etcdserverpb.KV/DeleteRange", DeleteRangeRequest, DeleteRangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", TxnRequest, TxnResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", WatchRequest, WatchResponse)  # streams of both
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest, LeaseTtl)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", LeaseId, HeaderResponse)
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", LeaseId, LeaseTtl)  # streams of both
LEASE_TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", LeaseTimeToLiveRequest, LeaseTimeToLiveResponse)
LEASE_LEASES = Method("/etcdserverpb.Lease/LeaseLeases", Empty, LeaseLeasesResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", AuthenticateRequest, AuthenticateResponse)
STATUS = Method("/etcdserverpb.Maintenance/Status", Empty, StatusResponse)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", Empty, HeaderResponse)  # lists the alarms
