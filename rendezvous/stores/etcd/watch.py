"""All watches of one client over one stream, which is opened again whenever it breaks.

etcd's watch stream carries any number of watches: each is created by a message, gets an id in the response, and its
events carry that id. One thread reads, and the thread in which gRPC takes the outgoing messages also monitors the
stream; a member with two watches has no other threads for them.

Watches are created one after the other, the next when the last one was confirmed, so that a refusal, which carries no
id, can be assigned. When the stream breaks, another is opened at the endpoint that is current then, and every watch is
created again from the revision after the last one delivered, until its history is gone (`Compacted`) or it is refused.
A store that cannot be reached ends no watch: calls report that, and watches continue afterwards.

A stream without events looks the same whether its server is idle or frozen. So a stream that has not confirmed a watch
in time is opened again, and where there is another endpoint, one that has been silent for a while gets a request.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from msgspec import structs

from rendezvous.errors import Compacted, StoreReplaced, Unreachable
from rendezvous.stores import wire
from rendezvous.stores.callbacks import CallbackWatch, print_traceback
from rendezvous.stores.contract import Batch, KeyEvent, KeyValue, OnBatch, OnLost
from rendezvous.stores.etcd.client import Endpoint, EtcdClient, TimeLimit
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError, classify
from rendezvous.stores.protobuf import encode

OPEN_LIMIT_S = 2.0  # how long a server may take to confirm a watch; a healthy one needs milliseconds
QUIET_LIMIT_S = 1.5  # with keep-alives every second an endpoint is never quiet for this long
CHECK_PAUSE_S = 0.25  # while another endpoint might be better
RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # the last one again and again

# Its own generator: a user who seeds the shared one expects its numbers in order, whatever a thread here does.
_rng = random.Random()


class EtcdWatch(CallbackWatch):
    """One watch. `about` names it in messages."""

    def __init__(
        self,
        about: str,
        request: wire.WatchCreateRequest,
        on_batch: OnBatch,
        on_lost: OnLost,
        drop: Callable[[CallbackWatch], None],
    ) -> None:
        super().__init__(on_batch, on_lost, drop)
        self.about = about
        self.request = request
        """The request for the events that are still to be delivered."""
        self.log_ins = 0
        """How often a new token was requested because this watch was refused."""

    def take(self, response: wire.WatchResponse) -> None:
        """Deliver a response, on the reading thread."""
        told = map(_decode_event, response.events)
        for revision, events in itertools.groupby(told, lambda event: event.item.mod_revision):
            if revision >= self.request.start_revision:
                self.deliver(Batch(revision, tuple(events)))
                self._resume_from(revision + 1)
        if not response.events:  # a progress notification: everything up to this revision has been delivered
            self._resume_from(response.header.revision + 1)

    def _resume_from(self, revision: int) -> None:
        if revision > self.request.start_revision:
            self.request = structs.replace(self.request, start_revision=revision)


def _decode_event(event: wire.WireEvent) -> KeyEvent:
    return KeyEvent("delete" if event.type == wire.DELETE else "put", decode_item(event.kv))


def decode_item(item: wire.WireKeyValue) -> KeyValue:
    """Decode a key as etcd sends it. A key that is not text was written by others; its bytes become surrogates."""
    key = item.key.decode(errors="surrogateescape")
    return KeyValue(key, item.value, item.create_revision, item.mod_revision, item.version, item.lease)


# docs/internals/decisions/0033-one-watch-stream-per-client.md
class WatchLoop:
    """The watches, and the thread that reads for them: it starts with the first and ends with the last."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._watches: dict[EtcdWatch, None] = {}  # those that have not ended, oldest first
        self._stream: _WatchStream | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def add(self, watch: EtcdWatch) -> None:
        """Create a watch; one that is added after `close` is stopped.

        Raises Unreachable where no thread is to be had.
        """
        with self._lock:
            if self._is_closed.is_set():
                watch.has_ended = True
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="store watches", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # Python's exception for EAGAIN; the next watch may find one
                    raise Unreachable("no thread can be started to read from the store", "check ulimit -u") from None
                self._thread = thread
            self._watches[watch] = None
            if self._stream is not None:
                self._stream.add(watch)

    def remove(self, watch: CallbackWatch) -> None:
        """Remove a watch that has ended."""
        assert isinstance(watch, EtcdWatch)
        with self._lock:
            self._watches.pop(watch, None)
            if self._stream is not None:
                self._stream.remove(watch)
                if not self._watches:
                    self._stream.cancel()

    def abandon(self, endpoint: Endpoint) -> None:
        """Continue at another endpoint, if there is one: this one has stopped answering."""
        with self._lock:
            if len(self._client.endpoints.all) > 1 and self._stream is not None and self._stream.endpoint is endpoint:
                self._stream.cancel()

    def close(self) -> threading.Thread | None:
        """End all watches; return the thread that does it."""
        with self._lock:
            self._is_closed.set()
            for watch in self._watches:
                watch.has_ended = True
            self._watches.clear()
            if self._stream is not None:
                self._stream.cancel()
            return self._thread

    # The thread

    def _run(self) -> None:
        failures = log_ins = 0
        foreign: set[str] = set()  # endpoints that were another cluster when they were asked last
        while self._is_wanted():
            endpoint, token = self._client.endpoints.current, ""
            stream: _WatchStream | None = None
            try:
                token = self._client.session.get_token(endpoint, OPEN_LIMIT_S)
                stream = self._open(endpoint, token)
                if stream is not None:
                    self._read(stream)
            except CallFailed as failed:
                (foreign.add if failed.refusal.error is StoreReplaced else foreign.discard)(endpoint.address)
                if stream is not None and stream.is_confirmed:
                    failures = log_ins = 0
                if stream is not None and stream.is_cut:
                    continue  # cut by this client, which has switched already
                if self._client.is_token_at_fault(failed.refusal, log_ins):
                    log_ins += 1
                    self._client.session.forget(token)
                elif failed.refusal.kind in (ErrorKind.REFUSED, ErrorKind.LOG_IN) or len(foreign) == len(
                    self._client.endpoints.all
                ):
                    self._lose_all(endpoint, failed.refusal)
                else:
                    self._client.endpoints.switch_from(endpoint)
            except Exception as raised:  # a bug: no watch shall wait for events that do not come
                print_traceback(raised)
                self._lose_all(endpoint, EtcdError(ErrorKind.REFUSED, f"cannot be read: {raised!r}"))
            finally:
                with self._lock:
                    self._stream = None
            if self._watches:
                pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                self._is_closed.wait(pause_s * (0.5 + _rng.random()))
            failures += 1

    def _is_wanted(self) -> bool:
        """Return whether there is a watch to read for; if not, forget the thread, so that the next watch starts one."""
        with self._lock:
            if not self._watches:
                self._thread = None
            return bool(self._watches)

    def _open(self, endpoint: Endpoint, token: str) -> _WatchStream | None:
        with self._lock:
            if not self._watches:
                return None
            self._stream = _WatchStream(self._client, endpoint, token, self._watches)
            return self._stream

    def _read(self, stream: _WatchStream) -> None:
        """Deliver the responses until the stream ends. Raises CallFailed."""
        try:
            for response in stream:
                self._client.check_cluster(response)
                with self._lock:
                    watch = stream.find_watch(response)
                if watch is not None and not self._take(stream, watch, response):
                    return
        finally:
            stream.end()
        raise CallFailed(EtcdError(ErrorKind.ELSEWHERE, "ended a watch"))

    def _take(self, stream: _WatchStream, watch: EtcdWatch, response: wire.WatchResponse) -> bool:
        """Handle a response; return whether the stream is still usable."""
        if not response.canceled:
            watch.take(response)
            return True
        if response.compact_revision:
            watch.deliver(Compacted(response.compact_revision))
            return True
        refusal = classify("", response.cancel_reason, OPEN_LIMIT_S)
        if refusal.kind is ErrorKind.UNKNOWN:
            reason = response.cancel_reason or "no reason"
            refusal = EtcdError(ErrorKind.REFUSED, f"ended the watch of {watch.about}: {reason}")
        if self._client.is_token_at_fault(refusal, watch.log_ins):
            watch.log_ins += 1
            self._client.session.forget(stream.token)
            return False
        if refusal.kind not in (ErrorKind.REFUSED, ErrorKind.LOG_IN):
            self._client.endpoints.switch_from(stream.endpoint)
            return False
        watch.deliver(self._client.make_error(stream.endpoint, refusal, watch.about))
        return True

    def _lose_all(self, endpoint: Endpoint, refusal: EtcdError) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.deliver(self._client.make_error(endpoint, refusal, watch.about))


class _WatchStream:
    """One stream, opened at once. The caller holds a lock, except for iterating and `cancel`."""

    def __init__(self, client: EtcdClient, endpoint: Endpoint, token: str, watches: Iterable[EtcdWatch]) -> None:
        self.endpoint = endpoint
        self.token = token
        self.is_confirmed = False
        """Whether the server has confirmed every watch at some time."""
        self.is_cut = False
        self._client = client
        self._waiting = deque(watches)  # to be created
        self._unconfirmed: EtcdWatch | None = None  # created, but not confirmed yet
        self._created_at = 0.0
        self._watches_by_id: dict[int, EtcdWatch] = {}
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # encoded; None ends the stream
        self._create_next()
        self._responses = endpoint.open_stream(wire.WATCH, self._iterate_requests(), token)

    def add(self, watch: EtcdWatch) -> None:
        self._waiting.append(watch)
        self._create_next()

    def remove(self, watch: EtcdWatch) -> None:
        """Cancel a watch. One that is not confirmed yet is dropped when it is."""
        for watch_id in [watch_id for watch_id, registered in self._watches_by_id.items() if registered is watch]:
            del self._watches_by_id[watch_id]
            self._requests.put(encode(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(watch_id))))

    def find_watch(self, response: wire.WatchResponse) -> EtcdWatch | None:
        """Return the watch that this response concerns; None if there is nothing to deliver."""
        if not response.created:
            find = self._watches_by_id.pop if response.canceled else self._watches_by_id.get
            return find(response.watch_id, None)
        watch, self._unconfirmed = self._unconfirmed, None
        self._create_next()
        self.is_confirmed = self.is_confirmed or self._unconfirmed is None
        if watch is None or response.canceled:
            return watch
        self._watches_by_id[response.watch_id] = watch
        watch.log_ins = 0
        if watch.has_ended:
            self.remove(watch)
        return None

    def _create_next(self) -> None:
        if self._unconfirmed is None and self._waiting:
            watch = self._waiting.popleft()
            self._created_at = time.monotonic()  # first, since `_check` holds no lock
            self._unconfirmed = watch
            self._requests.put(encode(wire.WatchRequest(create_request=watch.request)))

    def cancel(self) -> None:
        """End the stream, from any thread; the reader sees `is_cut`."""
        self.is_cut = True
        self.end()

    def end(self) -> None:
        self._requests.put(None)
        self._responses.cancel()

    def __iter__(self) -> Iterator[wire.WatchResponse]:
        """Yield the responses. Raises CallFailed."""
        with self.endpoint.translate_errors(OPEN_LIMIT_S):
            for data in self._responses:
                yield self.endpoint.decode(wire.WATCH.response, data)

    def _iterate_requests(self) -> Iterator[bytes]:
        """Yield the messages to send; gRPC takes them in a thread with no other work, which so monitors the stream.

        The iterator does not end before the stream does. etcd would continue watches whose requests have ended, without
        a thread that waits here; but etcd's grpc-proxy takes that for the end and sends nothing more (tried with 3.4,
        3.5).
        """
        sent_at = time.monotonic()  # the message before has been sent by now
        while True:
            try:
                request = self._requests.get(timeout=self._check(sent_at))
            except queue.Empty:
                continue
            if request is None:
                return
            yield request
            sent_at = time.monotonic()

    def _check(self, sent_at: float) -> float | None:
        """Check whether the server still answers. Return the seconds to the next check, None if none is needed."""
        now = time.monotonic()
        if self._unconfirmed is not None:
            since = max(sent_at, self._created_at)
            if now - since < OPEN_LIMIT_S:
                return since + OPEN_LIMIT_S - now
            self._client.give_up(self.endpoint, since)
            self.cancel()
            return None
        if len(self._client.endpoints.all) == 1:
            return None
        if now - self.endpoint.heard_at >= QUIET_LIMIT_S:
            try:
                limit = TimeLimit(self._client.limit_s)
                self.endpoint.call(wire.STATUS, wire.Empty(), "", limit, is_patient=False)
            except CallFailed:
                if self.endpoint.heard_at < now:
                    self._client.give_up(self.endpoint, now)
                    self.endpoint.abandon()  # it is frozen or cut off: a slow disk does not delay its status
        return CHECK_PAUSE_S
