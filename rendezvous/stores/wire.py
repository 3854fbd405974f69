"""The messages of etcd's v3 API: what the client sends and the served store reads, and the replies.

A message is a named tuple whose annotations carry the field numbers of etcd's rpc.proto, kv.proto and auth.proto;
`protobuf.encode` and `protobuf.decode` turn it into bytes and back. Only the fields that are used are declared. That
defaults are never written matters: an empty `range_end` on the wire would mean "every key from here on".

The methods are at the end: the path of each, and the types of its request and response.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from rendezvous.values import NamedTuple

EQUAL, GREATER, LESS, NOT_EQUAL = range(4)  # Compare.result
VERSION, CREATE, MOD, VALUE, LEASE = range(5)  # Compare.target
PUT, DELETE = range(2)  # Event.type


class WireKeyValue(NamedTuple):
    key: Annotated[bytes, 1] = b""
    create_revision: Annotated[int, 2] = 0
    mod_revision: Annotated[int, 3] = 0
    version: Annotated[int, 4] = 0
    value: Annotated[bytes, 5] = b""
    lease: Annotated[int, 6] = 0


class WireEvent(NamedTuple):
    type: Annotated[int, 1] = PUT
    kv: Annotated[WireKeyValue, 2] = WireKeyValue()
    prev_kv: Annotated[WireKeyValue | None, 3] = None


class Header(NamedTuple):
    cluster_id: Annotated[int, 1] = 0
    member_id: Annotated[int, 2] = 0
    revision: Annotated[int, 3] = 0
    raft_term: Annotated[int, 4] = 0


# Keys


class RangeRequest(NamedTuple):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    limit: Annotated[int, 3] = 0
    revision: Annotated[int, 4] = 0
    sort_order: Annotated[int, 5] = 0
    sort_target: Annotated[int, 6] = 0
    serializable: Annotated[bool, 7] = False
    keys_only: Annotated[bool, 8] = False
    count_only: Annotated[bool, 9] = False
    min_mod_revision: Annotated[int, 10] = 0
    max_mod_revision: Annotated[int, 11] = 0
    min_create_revision: Annotated[int, 12] = 0
    max_create_revision: Annotated[int, 13] = 0


class RangeResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    kvs: Annotated[tuple[WireKeyValue, ...], 2] = ()
    more: Annotated[bool, 3] = False
    count: Annotated[int, 4] = 0  # type: ignore[assignment]  # etcd's name; hides tuple.count


class PutRequest(NamedTuple):
    key: Annotated[bytes, 1] = b""
    value: Annotated[bytes, 2] = b""
    lease: Annotated[int, 3] = 0
    prev_kv: Annotated[bool, 4] = False
    ignore_value: Annotated[bool, 5] = False
    ignore_lease: Annotated[bool, 6] = False


class PutResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    prev_kv: Annotated[WireKeyValue | None, 2] = None


class DeleteRangeRequest(NamedTuple):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    prev_kv: Annotated[bool, 3] = False


class DeleteRangeResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    deleted: Annotated[int, 2] = 0
    prev_kvs: Annotated[tuple[WireKeyValue, ...], 3] = ()


class WireCompare(NamedTuple):
    result: Annotated[int, 1] = EQUAL
    target: Annotated[int, 2] = VERSION
    key: Annotated[bytes, 3] = b""
    version: Annotated[int | None, 4] = None
    create_revision: Annotated[int | None, 5] = None
    mod_revision: Annotated[int | None, 6] = None
    value: Annotated[bytes | None, 7] = None
    lease: Annotated[int | None, 8] = None
    range_end: Annotated[bytes, 64] = b""


class RequestOp(NamedTuple):
    request_range: Annotated[RangeRequest | None, 1] = None
    request_put: Annotated[PutRequest | None, 2] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, 3] = None


class ResponseOp(NamedTuple):
    response_range: Annotated[RangeResponse | None, 1] = None
    response_put: Annotated[PutResponse | None, 2] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, 3] = None


class TxnRequest(NamedTuple):
    compare: Annotated[tuple[WireCompare, ...], 1] = ()
    success: Annotated[tuple[RequestOp, ...], 2] = ()
    failure: Annotated[tuple[RequestOp, ...], 3] = ()


class TxnResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    succeeded: Annotated[bool, 2] = False
    responses: Annotated[tuple[ResponseOp, ...], 3] = ()


class CompactionRequest(NamedTuple):
    revision: Annotated[int, 1] = 0
    physical: Annotated[bool, 2] = False


class CompactionResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()


# Watches


class WatchCreateRequest(NamedTuple):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    start_revision: Annotated[int, 3] = 0
    progress_notify: Annotated[bool, 4] = False
    prev_kv: Annotated[bool, 6] = False
    watch_id: Annotated[int, 7] = 0
    fragment: Annotated[bool, 8] = False
    filters: Annotated[bytes, 5] = b""  # one byte each: events left out, 0 puts, 1 deletions (a packed enumeration)


class WatchCancelRequest(NamedTuple):
    watch_id: Annotated[int, 1] = 0


class WatchProgressRequest(NamedTuple):
    pass


class WatchRequest(NamedTuple):
    create_request: Annotated[WatchCreateRequest | None, 1] = None
    cancel_request: Annotated[WatchCancelRequest | None, 2] = None
    progress_request: Annotated[WatchProgressRequest | None, 3] = None


class WatchResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    watch_id: Annotated[int, 2] = 0
    created: Annotated[bool, 3] = False
    canceled: Annotated[bool, 4] = False
    compact_revision: Annotated[int, 5] = 0
    cancel_reason: Annotated[str, 6] = ""
    fragment: Annotated[bool, 7] = False
    events: Annotated[tuple[WireEvent, ...], 11] = ()


# Leases; times to live are whole seconds


class LeaseGrantRequest(NamedTuple):
    ttl: Annotated[int, 1] = 0
    id: Annotated[int, 2] = 0


class LeaseGrantResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0
    error: Annotated[str, 4] = ""


class LeaseRevokeRequest(NamedTuple):
    id: Annotated[int, 1] = 0


class LeaseRevokeResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()


class LeaseKeepAliveRequest(NamedTuple):
    id: Annotated[int, 1] = 0


class LeaseKeepAliveResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0  # 0 or less: the lease is gone


class LeaseTimeToLiveRequest(NamedTuple):
    id: Annotated[int, 1] = 0
    keys: Annotated[bool, 2] = False


class LeaseTimeToLiveResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    id: Annotated[int, 2] = 0
    ttl: Annotated[int, 3] = 0  # -1: the lease is gone
    granted_ttl: Annotated[int, 4] = 0
    keys: Annotated[tuple[bytes, ...], 5] = ()


class LeaseLeasesRequest(NamedTuple):
    pass


class LeaseStatus(NamedTuple):
    id: Annotated[int, 1] = 0


class LeaseLeasesResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    leases: Annotated[tuple[LeaseStatus, ...], 2] = ()


# Users and the server itself


class AuthenticateRequest(NamedTuple):
    name: Annotated[str, 1] = ""
    password: Annotated[str, 2] = ""


class AuthenticateResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    token: Annotated[str, 2] = ""


class StatusRequest(NamedTuple):
    pass


class StatusResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    version: Annotated[str, 2] = ""
    db_size: Annotated[int, 3] = 0
    leader: Annotated[int, 4] = 0
    raft_index: Annotated[int, 5] = 0
    raft_term: Annotated[int, 6] = 0


class AlarmRequest(NamedTuple):
    action: Annotated[int, 1] = 0  # 0 lists the alarms


class AlarmResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()


class MemberListRequest(NamedTuple):
    pass


class WireMember(NamedTuple):
    id: Annotated[int, 1] = 0
    name: Annotated[str, 2] = ""
    peer_urls: Annotated[tuple[str, ...], 3] = ()
    client_urls: Annotated[tuple[str, ...], 4] = ()


class MemberListResponse(NamedTuple):
    header: Annotated[Header, 1] = Header()
    members: Annotated[tuple[WireMember, ...], 2] = ()


Request = TypeVar("Request", bound=tuple[Any, ...])
Response = TypeVar("Response", bound=tuple[Any, ...])


class Method(Generic[Request, Response]):
    """One procedure: its path, and the types of its request and response (one of each, or streams of them)."""

    __slots__ = ("path", "request", "response")

    def __init__(self, service: str, name: str, request: type[Request], response: type[Response]) -> None:
        self.path = f"/etcdserverpb.{service}/{name}"
        self.request = request
        self.response = response


RANGE = Method("KV", "Range", RangeRequest, RangeResponse)
PUT_KEY = Method("KV", "Put", PutRequest, PutResponse)
DELETE_RANGE = Method("KV", "DeleteRange", DeleteRangeRequest, DeleteRangeResponse)
TXN = Method("KV", "Txn", TxnRequest, TxnResponse)
COMPACT = Method("KV", "Compact", CompactionRequest, CompactionResponse)
WATCH = Method("Watch", "Watch", WatchRequest, WatchResponse)  # streams of both
LEASE_GRANT = Method("Lease", "LeaseGrant", LeaseGrantRequest, LeaseGrantResponse)
LEASE_REVOKE = Method("Lease", "LeaseRevoke", LeaseRevokeRequest, LeaseRevokeResponse)
LEASE_KEEP_ALIVE = Method("Lease", "LeaseKeepAlive", LeaseKeepAliveRequest, LeaseKeepAliveResponse)  # streams of both
LEASE_TIME_TO_LIVE = Method("Lease", "LeaseTimeToLive", LeaseTimeToLiveRequest, LeaseTimeToLiveResponse)
LEASE_LEASES = Method("Lease", "LeaseLeases", LeaseLeasesRequest, LeaseLeasesResponse)
AUTHENTICATE = Method("Auth", "Authenticate", AuthenticateRequest, AuthenticateResponse)
STATUS = Method("Maintenance", "Status", StatusRequest, StatusResponse)
ALARM = Method("Maintenance", "Alarm", AlarmRequest, AlarmResponse)
MEMBER_LIST = Method("Cluster", "MemberList", MemberListRequest, MemberListResponse)
