"""etcd's Watch service on the memory store: one stream of a client, with any number of watches on it.

Responses wait in a queue until the client has received the ones before. A client that does not read is not waited for:
once its queue is full the stream drops everything and ends. A live client watches on from its last revision.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores import wire
from rendezvous.stores.contract import REQUEST_BYTES_MAX
from rendezvous.stores.memory.keyspace import Change, Page
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.stores.memory.watch import MemoryWatch
from rendezvous.stores.protobuf import encode
from rendezvous.stores.server import errors
from rendezvous.stores.server.encoding import decode_range, encode_item
from rendezvous.stores.server.errors import ServedFailure, make_error

QUEUE_BYTES_MAX = 16 * 1024 * 1024  # of unsent responses of a stream; the whole history of a large job is less
FRAGMENT_BYTES = REQUEST_BYTES_MAX  # above this a watch that allows fragments gets them, as in etcd
_NO_WATCH = -1  # the id of a watch that was not created, and of the response to a progress request
_NO_PUTS, _NO_DELETIONS = 0, 1  # WatchCreateRequest.filters


class _ServedWatch:
    """One watch of a stream."""

    __slots__ = ("id", "is_quiet", "request", "watch")

    def __init__(self, watch_id: int, request: wire.WatchCreateRequest) -> None:
        self.id = watch_id
        self.request = request
        self.watch: MemoryWatch | None = None
        self.is_quiet = True  # no event was sent since the last progress notification


class WatchService:
    """What all streams share: the store, and the encoded form of the page that is being sent.

    A thousand members that watch the same keys get the same bytes, encoded once.
    """

    def __init__(self, store: MemoryStore, header: Callable[[int], wire.Header]) -> None:
        self.store = store
        self.make_header = header
        self._page: Page | None = None
        self._encoded: dict[wire.WatchCreateRequest, list[bytes]] = {}

    def encode(self, page: Page, watch_id: int, request: wire.WatchCreateRequest) -> list[bytes]:
        """Encode the messages that send this page to a watch; none if all of it is filtered out."""
        if page is not self._page:
            self._page, self._encoded = page, {}
        variant = wire.WatchCreateRequest(
            watch_id=watch_id, prev_kv=request.prev_kv, fragment=request.fragment, filters=request.filters
        )
        if variant not in self._encoded:
            header = self.make_header(page.revision)
            self._encoded[variant] = [encode(item) for item in _make_responses(page, watch_id, request, header)]
        return self._encoded[variant]


def _make_responses(
    page: Page, watch_id: int, request: wire.WatchCreateRequest, header: wire.Header
) -> Iterator[wire.WatchResponse]:
    events = [
        _make_event(change, request.prev_kv) for change in page.changes if not _is_filtered(change, request.filters)
    ]
    parts = list(_split_events(events)) if request.fragment else [events]
    for index, part in enumerate(parts, 1):
        if part:
            yield wire.WatchResponse(header, watch_id, fragment=index < len(parts), events=tuple(part))


def _make_event(change: Change, prev_kv: bool) -> wire.WireEvent:
    kind, item = change.event
    previous = encode_item(change.previous) if prev_kv and change.previous is not None else None
    return wire.WireEvent(wire.PUT if kind == "put" else wire.DELETE, encode_item(item), previous)


def _is_filtered(change: Change, filters: bytes) -> bool:
    return (_NO_PUTS if change.event.kind == "put" else _NO_DELETIONS) in filters


def _split_events(events: Iterable[wire.WireEvent]) -> Iterator[list[wire.WireEvent]]:
    """Split events into groups of at most FRAGMENT_BYTES, or of one."""
    part: list[wire.WireEvent] = []
    size = 0
    for event in events:
        length = len(encode(event))
        if part and size + length > FRAGMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(event)
        size += length
    yield part


class WatchStream:
    """One stream: `take` handles requests, `take_next` returns responses. `wake` is called when there is a response.

    `end_reason` is why the stream must end, once it must.
    """

    def __init__(self, service: WatchService, wake: Callable[[], None]) -> None:
        self.end_reason: errors.ServedError | None = None
        self._service = service
        self._wake = wake
        self._ids = itertools.count()
        self._watches: dict[int, _ServedWatch] = {}
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0

    def take(self, request: wire.WatchRequest) -> None:
        """Handle a request."""
        if request.create_request is not None:
            self._create(request.create_request)
        elif request.cancel_request is not None:
            self._cancel(request.cancel_request.watch_id)
        elif request.progress_request is not None:
            self._send(wire.WatchResponse(self._make_header(), _NO_WATCH))

    def take_next(self) -> bytes | None:
        """Return the next message; None if there is none now."""
        if not self._queue:
            return None
        message = self._queue.popleft()
        self._queued_bytes -= len(message)
        return message

    def send_progress(self) -> None:
        """Send the store's revision to each watch that requested it and got no event since the last time."""
        for served in list(self._watches.values()):
            if served.request.progress_notify and served.is_quiet:
                self._send(wire.WatchResponse(self._make_header(), served.id))
            served.is_quiet = True

    def end(self, reason: errors.ServedError) -> None:
        """Cancel all watches and drop the queue."""
        self.end_reason = self.end_reason or reason
        for served in self._watches.values():
            if served.watch is not None:
                served.watch.cancel()
        self._watches.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._wake()

    # Requests of the client

    def _create(self, request: wire.WatchCreateRequest) -> None:
        watch_id = request.watch_id or next(watch_id for watch_id in self._ids if watch_id not in self._watches)
        try:
            keys = decode_range(request.key or b"\0", request.range_end)
        except ServedFailure as refused:
            self._send(wire.WatchResponse(self._make_header(), _NO_WATCH, True, True, cancel_reason=str(refused)))
            return
        if watch_id in self._watches:
            reason = "mvcc: duplicate watch ID provided on the WatchStream"
            self._send(wire.WatchResponse(self._make_header(), _NO_WATCH, True, True, cancel_reason=reason))
            return
        served = self._watches[watch_id] = _ServedWatch(watch_id, request)
        self._send(wire.WatchResponse(self._make_header(), watch_id, created=True))
        start_revision = max(1, request.start_revision or self._revision + 1)
        served.watch = self._service.store.watch_pages(
            keys, start_revision, lambda page: self._on_page(served, page), lambda error: self._on_lost(served, error)
        )

    def _cancel(self, watch_id: int) -> None:
        served = self._watches.pop(watch_id, None)
        if served is not None:
            assert served.watch is not None
            served.watch.cancel()
            self._send(wire.WatchResponse(self._make_header(), watch_id, canceled=True))

    # Callbacks of the store

    def _on_page(self, served: _ServedWatch, page: Page) -> None:
        for message in self._service.encode(page, served.id, served.request):
            served.is_quiet = False
            self._add(message)

    def _on_lost(self, served: _ServedWatch, error: StoreError) -> None:
        self._watches.pop(served.id, None)
        oldest = error.revision if isinstance(error, Compacted) else 0
        reason = make_error(error).message
        self._send(
            wire.WatchResponse(
                self._make_header(), served.id, canceled=True, compact_revision=oldest, cancel_reason=reason
            )
        )

    # The queue

    def _send(self, response: wire.WatchResponse) -> None:
        self._add(encode(response))

    def _add(self, message: bytes) -> None:
        if self.end_reason:
            return
        if self._queued_bytes + len(message) > QUEUE_BYTES_MAX and self._queue:
            self.end(errors.TOO_SLOW)
            return
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._wake()

    @property
    def _revision(self) -> int:
        return self._service.store.revision

    def _make_header(self) -> wire.Header:
        return self._service.make_header(self._revision)
