"""etcd's services on the memory store: requests in, responses or `ServedError` out.

Answered is what this package's client asks, and what people ask with etcdctl (docs/cluster/without-etcd.md has the
list). Anything else is refused: another method, another field of a request, a range that is neither one key nor a
prefix. etcd's keys are bytes, and those of the memory store text, so keys must be UTF-8.

A client authenticates as with an etcd that has one user, `meshrun`, whose password is the token. The key that it gets
for it, and sends with every call, is random for each server, so clients of a restarted server authenticate again.
"""

from __future__ import annotations

import hmac
import itertools
import math
import secrets
import time
from collections.abc import Callable
from typing import Any

from rendezvous.errors import Compacted, LeaseExists, LeaseNotFound, StoreError, StoreFull
from rendezvous.stores import wire
from rendezvous.stores.contract import (
    REQUEST_BYTES_MAX,
    Batch,
    Compare,
    Delete,
    Get,
    GetResult,
    KeyValue,
    Operation,
    Put,
    Watch,
    check_key,
)
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.protobuf import Message, WireError, decode, encode
from rendezvous.stores.server.http2 import Http2Stream, StreamHandler

USER = "meshrun"
VERSION = "3.4.0+meshrun"  # the version of the API, as clients that ask expect it
AWAY_S = 2.0  # a process that has not run for this long was frozen or starved
MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + 512 * 1024  # a request between the two limits is refused with etcd's error
_NO_WATCH = -1  # the id of a watch that was not created

# A gRPC status code, and etcd's message, which clients compare verbatim.
TOO_LARGE = ("INVALID_ARGUMENT", "etcdserver: request is too large")
AUTH_FAILED = ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password")
AUTH_NOT_ENABLED = ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled")
USER_EMPTY = ("INVALID_ARGUMENT", "etcdserver: user name is empty")
BAD_TOKEN = ("UNAUTHENTICATED", "etcdserver: invalid auth token")
_STORE_ERRORS: dict[type[Exception], tuple[str, str]] = {
    LeaseNotFound: ("NOT_FOUND", "etcdserver: requested lease not found"),
    LeaseExists: ("FAILED_PRECONDITION", "etcdserver: lease already exists"),
    Compacted: ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted"),
    StoreFull: ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded"),
}
# Those of this store.
NOT_TEXT = ("INVALID_ARGUMENT", "meshrun: a key in the served store is UTF-8 text")
NO_RANGE = ("INVALID_ARGUMENT", "meshrun: the served store answers for one key or for a prefix, not for other ranges")
NO_COMPARE = ("INVALID_ARGUMENT", "meshrun: the served store compares versions, revisions and values")
NO_OPERATION = ("INVALID_ARGUMENT", "meshrun: the served store takes reads, writes and deletions in a transaction")
ENDED = ("UNAVAILABLE", f"{wire.STORE_ENDED}: the agent that served this store has ended")
TOO_SLOW = ("UNAVAILABLE", "meshrun: the watch did not take its events in time; watch on from the last one")


class ServedError(Exception):
    """The only response to the request is this status; `code` is the name of a gRPC status code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.status = code, message


def make_error(error: StoreError | WireError) -> ServedError:
    """Return etcd's error for one of the memory store, or of a message that cannot be read."""
    return ServedError(*_STORE_ERRORS.get(type(error), ("INVALID_ARGUMENT", f"meshrun: {error}")))


_Handler = Callable[[Any], Message]


class Services:
    """All services but Watch, and what the streams of watches share. `server_id` is the "cluster" and its member.

    `token` is the shared secret, without which every client is served and `Authenticate` is refused as etcd refuses it.
    """

    def __init__(self, store: MemoryStore, server_id: int, token: str) -> None:
        self.store = store
        self._id = server_id
        self._token = token
        self._issued_token = secrets.token_urlsafe(24)
        self._seen_at = time.monotonic()
        self._batch: Batch | None = None
        self._encoded: dict[int, bytes] = {}
        self.watch_streams: set[WatchStream] = set()
        methods: tuple[tuple[wire.Method[Any, Any], _Handler], ...] = (
            (wire.RANGE, self._range),
            (wire.PUT_KEY, self._put),
            (wire.DELETE_RANGE, self._delete_range),
            (wire.TXN, self._txn),
            (wire.LEASE_GRANT, self._grant),
            (wire.LEASE_REVOKE, self._revoke),
            (wire.LEASE_KEEP_ALIVE, self._keep_alive),
            (wire.LEASE_TIME_TO_LIVE, self._time_to_live),
            (wire.LEASE_LEASES, self._list_leases),
            (wire.STATUS, self._describe_server),
            (wire.ALARM, lambda _: wire.HeaderResponse(self.make_header())),
            (wire.AUTHENTICATE, self._authenticate),
        )
        self.methods = {method.path.encode(): (method, handler) for method, handler in methods}
        """The methods with a response to each request, by path."""

    def answer(self, path: bytes, request: bytes) -> bytes:
        """Return the response to a request. Raises ServedError. The caller sends it, then calls `store.deliver`."""
        if len(request) > REQUEST_BYTES_MAX:
            raise ServedError(*TOO_LARGE)
        self.notice_absence()
        method, handler = self.methods[path]
        try:
            return encode(handler(decode(method.request, request, is_strict=True)))
        except (StoreError, WireError) as error:
            raise make_error(error) from None

    def notice_absence(self) -> None:
        """Restart the leases if the process did not run for a while: it cannot know which clients tried to renew."""
        now = time.monotonic()
        if now - self._seen_at > AWAY_S:
            self.store.renew_leases()
        self._seen_at = now

    def make_header(self, revision: int | None = None) -> wire.Header:
        return wire.Header(self._id, self._id, self.store.revision if revision is None else revision, 1)

    def encode_events(self, batch: Batch, watch_id: int) -> bytes:
        """Encode the message that sends this batch to a watch, once for all streams that use the same id."""
        if batch is not self._batch:
            self._batch, self._encoded = batch, {}
        if watch_id not in self._encoded:
            events = tuple(
                wire.WireEvent(wire.PUT if event.kind == "put" else wire.DELETE, _encode_item(event.item))
                for event in batch.events
            )
            self._encoded[watch_id] = encode(
                wire.WatchResponse(self.make_header(batch.revision), watch_id, events=events)
            )
        return self._encoded[watch_id]

    # Who asks

    def admit(self, token: bytes | None) -> None:
        """Raise ServedError for a call without the issued token, or with another."""
        if self._token and token is None:
            raise ServedError(*USER_EMPTY)
        if self._token and not hmac.compare_digest(token or b"", self._issued_token.encode()):
            raise ServedError(*BAD_TOKEN)

    def _authenticate(self, request: wire.AuthenticateRequest) -> wire.AuthenticateResponse:
        if not self._token:
            raise ServedError(*AUTH_NOT_ENABLED)
        is_user = _is_same(request.name, USER)
        if not (_is_same(request.password, self._token) and is_user):
            raise ServedError(*AUTH_FAILED)
        return wire.AuthenticateResponse(self.make_header(), self._issued_token)

    # Keys

    def _range(self, request: wire.RangeRequest) -> wire.RangeResponse:
        key, prefix = decode_range(request.key, request.range_end)
        return self._encode_range(request, self.store.get(key, prefix=prefix))

    def _put(self, request: wire.PutRequest) -> wire.HeaderResponse:
        revision = self.store.put(decode_key(request.key), request.value, lease=request.lease)
        return wire.HeaderResponse(self.make_header(revision))

    def _delete_range(self, request: wire.DeleteRangeRequest) -> wire.DeleteRangeResponse:
        key, prefix = decode_range(request.key, request.range_end)
        deleted = self.store.delete(key, prefix=prefix)
        return wire.DeleteRangeResponse(self.make_header(), deleted)

    def _txn(self, request: wire.TxnRequest) -> wire.TxnResponse:
        compares = [_decode_compare(compare) for compare in request.compare]
        success, failure = (
            [_decode_operation(operation) for operation in branch] for branch in (request.success, request.failure)
        )
        succeeded, revision, results = self.store.apply(compares, success, failure)
        header = self.make_header(revision)
        responses = []
        for operation, result in zip(request.success if succeeded else request.failure, results, strict=True):
            if isinstance(result, GetResult):
                assert operation.request_range is not None
                responses.append(wire.ResponseOp(self._encode_range(operation.request_range, result)))
            elif operation.request_put is not None:
                responses.append(wire.ResponseOp(response_put=wire.HeaderResponse(header)))
            else:
                responses.append(wire.ResponseOp(response_delete_range=wire.DeleteRangeResponse(header, result)))
        return wire.TxnResponse(header, succeeded, tuple(responses))

    def _encode_range(self, request: wire.RangeRequest, found: GetResult) -> wire.RangeResponse:
        count = len(found.items)
        items = found.items[: request.limit] if request.limit > 0 else found.items
        kvs = () if request.count_only else tuple(_encode_item(item, request.keys_only) for item in items)
        return wire.RangeResponse(self.make_header(found.revision), kvs, len(items) < count, count)

    # Leases. TTLs are whole seconds.

    def _grant(self, request: wire.LeaseGrantRequest) -> wire.LeaseTtl:
        lease = self.store.lease_grant(request.ttl, id=request.id)
        return wire.LeaseTtl(self.make_header(), lease.id, math.ceil(lease.ttl_s))

    def _revoke(self, request: wire.LeaseId) -> wire.HeaderResponse:
        self.store.lease_revoke(request.id)
        return wire.HeaderResponse(self.make_header())

    def _keep_alive(self, request: wire.LeaseId) -> wire.LeaseTtl:
        try:
            ttl_s = self.store.lease_keep_alive(request.id)
        except LeaseNotFound:
            ttl_s = 0
        return wire.LeaseTtl(self.make_header(), request.id, math.ceil(ttl_s))

    def _time_to_live(self, request: wire.LeaseTimeToLiveRequest) -> wire.LeaseTimeToLiveResponse:
        try:
            remaining_s, granted_s, keys = self.store.describe_lease(request.id)
        except LeaseNotFound:
            return wire.LeaseTimeToLiveResponse(self.make_header(), request.id, -1)
        listed = tuple(key.encode() for key in keys) if request.keys else ()
        return wire.LeaseTimeToLiveResponse(
            self.make_header(), request.id, int(remaining_s), math.ceil(granted_s), listed
        )

    def _list_leases(self, _: wire.Empty) -> wire.LeaseLeasesResponse:
        return wire.LeaseLeasesResponse(self.make_header(), tuple(map(wire.LeaseId, self.store.list_leases())))

    # The server itself

    def _describe_server(self, _: wire.Empty) -> wire.StatusResponse:
        header = self.make_header()
        return wire.StatusResponse(
            header, VERSION, self.store.measure_size(), leader=self._id, raft_index=header.revision, raft_term=1
        )


class WatchStream(StreamHandler):
    """The Watch service for one stream of a client, with any number of watches on it.

    A client that does not read is not waited for: once it leaves too much unread, the stream drops what is unsent and
    ends. A live client watches on from its last revision.
    """

    bytes_max = MESSAGE_BYTES_MAX

    def __init__(self, services: Services, stream: Http2Stream) -> None:
        self._services = services
        self._stream = stream
        self._ids = itertools.count()
        self._watches: dict[int, Watch] = {}
        self._progress_ids: set[int] = set()  # of the watches that want to know how far the store is
        services.watch_streams.add(self)

    def take(self, message: bytes) -> None:
        try:
            request = decode(wire.WatchRequest, message, is_strict=True)
        except WireError as error:
            self._end(*make_error(error).status)
            return
        if request.create_request is not None:
            self._create(request.create_request)
        elif request.cancel_request is not None:
            self._cancel(request.cancel_request.watch_id)
        self._services.store.deliver()

    def lose(self) -> None:
        self._services.watch_streams.discard(self)
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    def send_progress(self) -> None:
        """Send the store's revision to each watch that requested it; all events up to it have been sent."""
        for watch_id in self._progress_ids & self._watches.keys():
            self._send(wire.WatchResponse(self._services.make_header(), watch_id))

    def _create(self, request: wire.WatchCreateRequest) -> None:
        header, store = self._services.make_header(), self._services.store
        watch_id = next(self._ids)
        try:
            key, prefix = decode_range(request.key, request.range_end)
        except (ServedError, StoreError) as refused:
            reason = str(refused)
            self._send(wire.WatchResponse(header, _NO_WATCH, created=True, canceled=True, cancel_reason=reason))
            return
        self._send(wire.WatchResponse(header, watch_id, created=True))
        self._watches[watch_id] = store.watch(
            key,
            prefix=prefix,
            start_revision=max(1, request.start_revision or header.revision + 1),
            on_batch=lambda batch: self._send_message(self._services.encode_events(batch, watch_id)),
            on_lost=lambda error: self._lose_watch(watch_id, error),
        )
        if request.progress_notify:
            self._progress_ids.add(watch_id)

    def _cancel(self, watch_id: int) -> None:
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            watch.cancel()
            self._send(wire.WatchResponse(self._services.make_header(), watch_id, canceled=True))

    def _lose_watch(self, watch_id: int, error: StoreError) -> None:
        self._watches.pop(watch_id, None)
        oldest = error.revision if isinstance(error, Compacted) else 0
        reason = str(make_error(error))
        header = self._services.make_header()
        self._send(wire.WatchResponse(header, watch_id, canceled=True, compact_revision=oldest, cancel_reason=reason))

    def _send(self, response: wire.WatchResponse) -> None:
        self._send_message(encode(response))

    def _send_message(self, message: bytes) -> None:
        if self._stream.is_full:
            self._end(*TOO_SLOW)
        self._stream.send(message)

    def _end(self, code: str, message: str) -> None:
        self.lose()
        self._stream.end(code, message)


# Between etcd's messages and the store's


def decode_key(key: bytes) -> str:
    """Decode a key. Raises ServedError for one that is not text, StoreError for an empty one."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        raise ServedError(*NOT_TEXT) from None
    check_key(name)
    return name


def decode_range(key: bytes, range_end: bytes) -> tuple[str, bool]:
    """Return the key of a request, and whether it is a prefix. Raises ServedError for another range."""
    name = "" if key == range_end == wire.EVERYTHING else decode_key(key)
    for prefix in (False, True):
        if (key, range_end) == wire.encode_range(name, prefix):
            return name, prefix
    raise ServedError(*NO_RANGE)


def _decode_compare(compare: wire.WireCompare) -> Compare:
    if compare.target not in range(4) or compare.result not in range(4):
        raise ServedError(*NO_COMPARE)
    target: Any = wire.TARGETS[compare.target]
    relation: Any = wire.RELATIONS[compare.result]
    operand = getattr(compare, wire.OPERANDS[compare.target]) or (b"" if target == "value" else 0)
    return Compare(decode_key(compare.key), target, relation, operand)


def _decode_operation(operation: wire.RequestOp) -> Operation:
    match operation:
        case wire.RequestOp(request_put=wire.PutRequest(key, value, lease)):
            return Put(decode_key(key), value, lease)
        case wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key, range_end)):
            return Delete(*decode_range(key, range_end))
        case wire.RequestOp(request_range=wire.RangeRequest() as request):
            return Get(*decode_range(request.key, request.range_end))
    raise ServedError(*NO_OPERATION)


def _encode_item(item: KeyValue, keys_only: bool = False) -> wire.WireKeyValue:
    value = b"" if keys_only else item.value
    return wire.WireKeyValue(
        item.key.encode(), item.create_revision, item.mod_revision, item.version, value, item.lease
    )


def _is_same(text: str, other: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(text.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))
