"""All watches of one client over one stream, opened again wherever it broke off.

etcd's stream of watches carries any number of them: each is asked for by a message, named by a number in the answer,
and told under that number. One thread reads, and the thread in which gRPC takes what is to be sent also looks after
the stream; a member with two watches has no others for them.

Watches are asked for one after the other, the next when the one before was answered, so that a refusal, which carries
no number, is known to be whose. When the stream breaks, another is opened at whichever endpoint is current then, and
every watch is asked for again from the revision after the last one told, until its history is gone (`Compacted`) or
it is refused. A store that cannot be reached ends no watch: calls tell of that, and watches go on afterwards.

A stream without events looks the same whether its server is idle or frozen. So one that has not answered a question
in time is opened again, and where there is another endpoint, one that has said nothing for a while is asked for a sign
of life.
"""

from __future__ import annotations

import functools
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from rendezvous.errors import Compacted, StoreError
from rendezvous.stores import wire
from rendezvous.stores.etcd.channel import Endpoint
from rendezvous.stores.etcd.client import EtcdClient
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError, classify
from rendezvous.stores.etcd.watch import EtcdWatch, print_traceback
from rendezvous.stores.protobuf import encode

OPEN_LIMIT_S = 2.0  # how long a server may take to confirm a watch; a healthy one needs milliseconds
QUIET_LIMIT_S = 1.5  # with keep-alives every second an endpoint is never quiet for so long
CHECK_PAUSE_S = 0.25  # while another endpoint might be better
RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # the last one again and again

# Of our own: who seeds the common one wants its numbers in order, whatever a thread of ours does.
_rng = random.Random()


# docs/internals/decisions/0033-one-watch-stream-per-client.md
class WatchLoop:
    """The watches, and the thread that reads for them: it begins with the first and ends with the last."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._watches: dict[EtcdWatch, None] = {}  # those that have not ended, oldest first
        self._stream: _WatchStream | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def add(self, watch: EtcdWatch) -> None:
        with self._lock:
            if self._is_closed.is_set():
                watch.stop()
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="store watches", daemon=True)
                thread.start()  # raises where the machine has no more; the next watch may find one
                self._thread = thread
            self._watches[watch] = None
            if self._stream is not None:
                self._stream.add(watch)

    def remove(self, watch: EtcdWatch) -> None:
        """It has ended."""
        with self._lock:
            self._watches.pop(watch, None)
            if self._stream is not None:
                self._stream.remove(watch)
                if not self._watches:
                    self._stream.cancel()

    def abandon(self, endpoint: Endpoint) -> None:
        """This endpoint has fallen silent: go on elsewhere, if there is an elsewhere."""
        with self._lock:
            if len(self._client.endpoints.all) > 1 and self._stream is not None and self._stream.endpoint is endpoint:
                self._stream.cancel()

    def close(self) -> threading.Thread | None:
        """End all watches; the thread that does."""
        with self._lock:
            self._is_closed.set()
            for watch in self._watches:
                watch.stop()
            self._watches.clear()
            if self._stream is not None:
                self._stream.cancel()
            return self._thread

    # The thread

    def _run(self) -> None:
        failures = log_ins = 0
        while self._is_wanted():
            endpoint, token = self._client.endpoints.current, ""
            stream: _WatchStream | None = None
            try:
                token = self._client.session.get_token(endpoint, OPEN_LIMIT_S)
                stream = self._open(endpoint, token)
                if stream is not None:
                    self._read(stream)
            except CallFailed as failed:
                if stream is not None and stream.is_confirmed:
                    failures = log_ins = 0
                if stream is not None and stream.is_cut:
                    continue  # by us, who knew why
                if self._client.is_token_at_fault(failed.refusal, log_ins):
                    log_ins += 1
                    self._client.session.forget(token)
                elif failed.refusal.kind in (ErrorKind.REFUSED, ErrorKind.LOG_IN):
                    self._lose_all(functools.partial(self._make_error, endpoint, failed.refusal))
                else:
                    self._client.endpoints.switch_from(endpoint)
            except Exception as raised:  # a mistake of ours: nobody shall wait for what does not come
                print_traceback(raised)
                refusal = EtcdError(ErrorKind.REFUSED, f"cannot be read: {raised!r}")
                self._lose_all(functools.partial(self._make_error, endpoint, refusal))
            finally:
                with self._lock:
                    self._stream = None
            if self._watches:
                pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                self._is_closed.wait(pause_s * (0.5 + _rng.random()))
            failures += 1

    def _is_wanted(self) -> bool:
        """Whether there is anything to read; if not, the thread is no more for those who ask from now on."""
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
        """Tell what comes until the stream ends. Raises CallFailed."""
        try:
            for response in stream:
                with self._lock:
                    watch = stream.find_watch(response)
                if watch is not None and not self._take(stream, watch, response):
                    return
        finally:
            stream.end()
        raise CallFailed(EtcdError(ErrorKind.ELSEWHERE, "ended a watch"))

    def _take(self, stream: _WatchStream, watch: EtcdWatch, response: wire.WatchResponse) -> bool:
        """Whether the stream is still good."""
        if not response.canceled:
            watch.take(response)
        elif response.compact_revision:
            watch.lose(Compacted(response.compact_revision))
        else:
            return self._take_refusal(stream, watch, response.cancel_reason)
        return True

    def _take_refusal(self, stream: _WatchStream, watch: EtcdWatch, reason: str) -> bool:
        refusal = classify("", reason, OPEN_LIMIT_S)
        if refusal.kind is ErrorKind.UNKNOWN:
            refusal = EtcdError(ErrorKind.REFUSED, f"ended the watch of {watch.about}: {reason or 'no reason'}")
        if self._client.is_token_at_fault(refusal, watch.log_ins):
            watch.log_ins += 1
            self._client.session.forget(stream.token)
            return False
        if refusal.kind not in (ErrorKind.REFUSED, ErrorKind.LOG_IN):
            self._client.endpoints.switch_from(stream.endpoint)
            return False
        watch.lose(self._make_error(stream.endpoint, refusal, watch))
        return True

    def _make_error(self, endpoint: Endpoint, refusal: EtcdError, watch: EtcdWatch) -> StoreError:
        return self._client.make_error(endpoint, refusal, watch.about)

    def _lose_all(self, error: Callable[[EtcdWatch], StoreError]) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.lose(error(watch))


class _WatchStream:
    """One stream, opened at once. The caller holds a lock, but for reading and cutting."""

    def __init__(self, client: EtcdClient, endpoint: Endpoint, token: str, watches: Iterable[EtcdWatch]) -> None:
        self.endpoint = endpoint
        self.token = token
        self.is_confirmed = False
        """Whether the server has answered for every watch there was."""
        self.is_cut = False
        self._client = client
        self._waiting = deque(watches)  # to be asked for
        self._asked: EtcdWatch | None = None  # not answered yet
        self._asked_at = 0.0
        self._watches_by_id: dict[int, EtcdWatch] = {}
        self._questions = _WatchRequests(self._check)
        self._create_next()
        self._answers = endpoint.open_stream(wire.WATCH, self._questions, token)

    def add(self, watch: EtcdWatch) -> None:
        self._waiting.append(watch)
        self._create_next()

    def remove(self, watch: EtcdWatch) -> None:
        """Hear no more of it. One that was not answered yet is dropped when it is."""
        for id in [id for id, named in self._watches_by_id.items() if named is watch]:
            del self._watches_by_id[id]
            self._questions.add(wire.WatchRequest(cancel_request=wire.WatchCancelRequest(id)))

    def find_watch(self, response: wire.WatchResponse) -> EtcdWatch | None:
        """The watch that is told or lost by this; None if there is nothing to tell."""
        if not response.created:
            return (
                self._watches_by_id.pop(response.watch_id, None)
                if response.canceled
                else self._watches_by_id.get(response.watch_id)
            )
        watch, self._asked = self._asked, None
        self._create_next()
        self.is_confirmed = self.is_confirmed or self._asked is None
        if watch is None or response.canceled:
            return watch
        self._watches_by_id[response.watch_id] = watch
        watch.log_ins = 0
        if watch.has_ended:
            self.remove(watch)
        return None

    def _create_next(self) -> None:
        if self._asked is None and self._waiting:
            watch = self._waiting.popleft()
            self._asked_at = time.monotonic()  # first, since `_look` holds no lock
            self._asked = watch
            watch.begin()
            self._questions.add(wire.WatchRequest(create_request=watch.question))

    def cancel(self) -> None:
        """End it, from any thread; whoever reads it learns that."""
        self.is_cut = True
        self.end()

    def end(self) -> None:
        self._questions.end()
        self._answers.cancel()

    def __iter__(self) -> Iterator[wire.WatchResponse]:
        """What comes. Raises CallFailed."""
        import grpc

        try:
            for data in self._answers:
                yield self.endpoint.decode(wire.WATCH.answer, data)
        except grpc.RpcError as error:
            raise self.endpoint.make_failure(error, OPEN_LIMIT_S) from None

    def _check(self, sent_at: float) -> float | None:
        """See whether the server still answers; when to look again, None if there is nothing to wait for."""
        now = time.monotonic()
        if self._asked is not None:
            since = max(sent_at, self._asked_at)
            if now - since < OPEN_LIMIT_S:
                return since + OPEN_LIMIT_S - now
            self._client.give_up(self.endpoint, since)
            self.cancel()
            return None
        if len(self._client.endpoints.all) == 1:
            return None
        if now - self.endpoint.heard_at >= QUIET_LIMIT_S:
            try:
                self.endpoint.call(wire.STATUS, wire.StatusRequest(), "", self._client.limit_s)
            except CallFailed:
                if self.endpoint.heard_at < now:
                    self._client.give_up(self.endpoint, now)
                    self.endpoint.abandon()  # it is frozen or cut off: a slow disk keeps nobody from saying how he is
        return CHECK_PAUSE_S


class _WatchRequests(Iterator[bytes]):
    """What is sent; gRPC takes it in a thread that has nothing else to do, and so looks after the stream meanwhile.

    It does not end before the stream does. etcd would go on with watches whose questions are over, and we need no
    thread to wait here; but etcd's grpc-proxy takes that for the end and tells nothing any more (tried with 3.4, 3.5).
    """

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self._check = check
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def add(self, question: wire.WatchRequest) -> None:
        self._queue.put(encode(question))

    def end(self) -> None:
        self._queue.put(None)

    def __next__(self) -> bytes:
        sent_at = time.monotonic()  # what was taken before has left by now
        while True:
            try:
                question = self._queue.get(timeout=self._check(sent_at))
            except queue.Empty:
                continue
            if question is None:
                raise StopIteration
            return question
