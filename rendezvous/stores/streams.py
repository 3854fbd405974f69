"""Watches over a network: one stream each, opened again wherever it broke off.

A watch has a thread that reads its stream. When the stream breaks, the thread opens another from the revision after
the last one told, at whichever endpoint is current, until the history is gone (`Compacted`) or the watch is
refused. A store that cannot be reached does not end a watch: calls tell of that, and the watch goes on afterwards.

A stream without events looks the same whether its server is idle or frozen. The minder, one thread for all watches,
notices: a watch that is not confirmed in time is opened again, and where there is another endpoint, one that
has said nothing for a while is asked for a sign of life.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator

from rendezvous.errors import Compacted, StoreError
from rendezvous.store import Batch, Event, KeyValue, Watch
from rendezvous.stores import wire
from rendezvous.stores.calls import Calls
from rendezvous.stores.endpoints import Endpoint
from rendezvous.stores.protobuf import encode
from rendezvous.stores.refusals import CallFailed, Kind, Refusal, refusal_of

CALLBACK_LIMIT_S = 10.0  # how long cancel() waits for a callback that is running
OPEN_LIMIT_S = 2.0  # how long a server may take to confirm a watch; a healthy one needs milliseconds
QUIET_LIMIT_S = 1.5  # with keep-alives every second an endpoint is never quiet for so long
MINDER_PAUSE_S = 0.25  # while another endpoint might be better
LONE_MINDER_PAUSE_S = 1.0  # every agent has a minder, and most have one endpoint and nothing to do
RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # the last one again and again

# Of our own: who seeds the common one wants its numbers in order, whatever a thread of ours does.
_chance = random.Random()


class EtcdWatch(Watch):
    """One watch. `about` names it in sentences."""

    def __init__(
        self,
        calls: Calls,
        about: str,
        question: wire.WatchCreateRequest,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> None:
        self.endpoint: Endpoint | None = None
        """Whose stream it reads."""
        self.is_confirmed = False
        self.opened_at = math.inf
        """When the stream was opened that is read now; never, while there is none."""
        self._calls = calls
        self._about = about
        self._question = question
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._token = ""
        self._events: list[Event] = []  # of a response that has come in part
        self._is_cancelled = threading.Event()
        self._calling = threading.RLock()  # held while a callback runs
        self._stream_lock = threading.Lock()
        self._cancel_stream: Callable[[], object] = lambda: None
        self.thread = threading.Thread(target=self._run, name="store watch", daemon=True)
        self.thread.start()

    @property
    def has_ended(self) -> bool:
        return self._is_cancelled.is_set()

    def cancel(self) -> None:
        """Stop; waits for a callback of this watch that is running on its thread, so hold no lock that it needs.

        Raises StoreError when that callback has not ended in CALLBACK_LIMIT_S; no further one starts even then.
        """
        self.stop()
        if not self._calling.acquire(timeout=CALLBACK_LIMIT_S):
            raise StoreError(f"a callback of a watch has not ended in {CALLBACK_LIMIT_S:g} s")
        self._calling.release()

    def stop(self) -> None:
        """Have it end; a callback that is running is not waited for."""
        self._is_cancelled.set()
        self.reopen()

    def reopen(self) -> None:
        """Break the stream off; its thread opens another, unless it shall end."""
        with self._stream_lock:
            self._cancel_stream()

    # The thread

    def _run(self) -> None:
        failures = log_ins = 0
        while not self._is_cancelled.is_set():
            error: StoreError | None = None
            try:
                self._read_stream()
            except StoreError as lost:
                error = lost
            except CallFailed as failed:
                if self.is_confirmed:
                    failures = log_ins = 0
                assert self.endpoint is not None
                if self._calls.is_token_at_fault(failed.refusal, log_ins):
                    log_ins += 1
                    self._calls.session.drop(self._token)
                elif failed.refusal.kind in (Kind.REFUSED, Kind.LOG_IN):
                    error = self._calls.error(self.endpoint, failed.refusal, self._about)
                else:
                    self._calls.endpoints.turn_from(self.endpoint)
            except Exception as raised:  # a callback's fault: shown as any thread's end is, and this watch's last
                _show(raised)
                error = StoreError(f"a callback of the watch raised {raised!r}")
            self.is_confirmed, self.opened_at = False, math.inf
            if error is not None:
                self._tell_last(error)
                return
            self._is_cancelled.wait(RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)] * (0.5 + _chance.random()))
            failures += 1

    def _read_stream(self) -> None:
        """Open the stream and tell what comes until it breaks. Raises CallFailed, Compacted, what a callback raises."""
        import grpc

        endpoint = self.endpoint = self._calls.endpoints.current
        self._events.clear()
        self._token = self._calls.session.token(endpoint, OPEN_LIMIT_S)
        questions = _Questions(encode(wire.WatchRequest(create_request=self._question)))
        with self._stream_lock:
            if self._is_cancelled.is_set():
                return
            stream = endpoint.stream(wire.WATCH, questions, self._token)
            self._cancel_stream = stream.cancel
            self.opened_at = time.monotonic()
        try:
            for data in stream:
                self._take(endpoint.read(wire.WATCH.answer, data))
        except grpc.RpcError as error:
            raise endpoint.failed(error, OPEN_LIMIT_S) from None
        finally:
            questions.end()
            stream.cancel()
        raise CallFailed(Refusal(Kind.ELSEWHERE, "ended a watch"))

    def _take(self, response: wire.WatchResponse) -> None:
        if response.canceled:
            if response.compact_revision:
                raise Compacted(response.compact_revision)
            refusal = refusal_of("", response.cancel_reason, OPEN_LIMIT_S)
            if refusal.kind is Kind.UNKNOWN:
                refusal = Refusal(
                    Kind.REFUSED, f"ended the watch of {self._about}: {response.cancel_reason or 'no reason'}"
                )
            raise CallFailed(refusal)
        if response.created:
            self.is_confirmed = True
            return
        self._events += [_event(event) for event in response.events]
        if response.fragment:
            return
        events, self._events = self._events, []
        for batch in _batches(events):
            if batch.revision >= self._question.start_revision:
                self._tell(batch)
                self._resume_from(batch.revision + 1)
        if not events:  # a sign of life: everything up to this revision has been told
            self._resume_from(response.header.revision + 1)

    def _resume_from(self, revision: int) -> None:
        self._question = self._question._replace(start_revision=max(revision, self._question.start_revision))

    def _tell(self, batch: Batch) -> None:
        with self._calling:
            if not self._is_cancelled.is_set():
                self._on_batch(batch)

    def _tell_last(self, error: StoreError) -> None:
        with self._calling:
            if not self._is_cancelled.is_set():
                self._is_cancelled.set()
                self._on_lost(error)


class _Questions(Iterator[bytes]):
    """What a watch sends: one question, and then nothing until it ends.

    etcd would go on with a watch whose questions are over, and we need no thread to wait here; but etcd's grpc-proxy
    takes that for the end and tells nothing any more (tried with 3.4 and 3.5).
    """

    def __init__(self, question: bytes) -> None:
        self._question: bytes | None = question
        self._has_ended = threading.Event()

    def __next__(self) -> bytes:
        question, self._question = self._question, None
        if question is not None:
            return question
        self._has_ended.wait()
        raise StopIteration

    def end(self) -> None:
        self._has_ended.set()


class Minder:
    """Looks after all watches of one store, on a thread that begins with the first of them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._watches: list[EtcdWatch] = []
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, watch: EtcdWatch) -> None:
        with self._lock:
            self._watches = [each for each in self._watches if not each.has_ended] + [watch]
            if self._is_closed.is_set():
                watch.stop()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store minder", daemon=True)
                self._thread.start()

    def leave(self, endpoint: Endpoint) -> None:
        """This endpoint has fallen silent: open its watches elsewhere, if there is an elsewhere."""
        if len(self._calls.endpoints.all) > 1:
            for watch in self._watches:
                if watch.endpoint is endpoint:
                    watch.reopen()

    def close(self) -> list[threading.Thread]:
        """Have everything end; the threads that do."""
        with self._lock:
            self._is_closed.set()
            watches = list(self._watches)
        for watch in watches:
            watch.stop()
        threads = [watch.thread for watch in watches]
        return threads if self._thread is None else [*threads, self._thread]

    def _run(self) -> None:
        pause_s = MINDER_PAUSE_S if len(self._calls.endpoints.all) > 1 else LONE_MINDER_PAUSE_S
        while not self._is_closed.wait(pause_s):
            now = time.monotonic()
            watches = [watch for watch in self._watches if not watch.has_ended and watch.endpoint is not None]
            for watch in watches:
                if not watch.is_confirmed and now - watch.opened_at > OPEN_LIMIT_S:
                    assert watch.endpoint is not None
                    self._calls.give_up(watch.endpoint, watch.opened_at)
                    watch.reopen()
            if len(self._calls.endpoints.all) > 1:
                for endpoint in {watch.endpoint for watch in watches if watch.is_confirmed}:
                    assert endpoint is not None
                    self._ask_for_sign(endpoint, now)

    def _ask_for_sign(self, endpoint: Endpoint, now: float) -> None:
        if now - endpoint.heard_at < QUIET_LIMIT_S:
            return
        try:
            endpoint.call(wire.STATUS, wire.StatusRequest(), "", self._calls.limit_s)
        except CallFailed:
            if endpoint.heard_at < now:
                self._calls.give_up(endpoint, now)


def _event(event: wire.Event) -> Event:
    return Event("delete" if event.type == wire.DELETE else "put", key_value(event.kv))


def key_value(item: wire.KeyValue) -> KeyValue:
    """A key as etcd sends it, as the contract has it. Names that are no text come from strangers and stay unequal."""
    key = item.key.decode(errors="surrogateescape")
    return KeyValue(key, item.value, item.create_revision, item.mod_revision, item.version, item.lease)


def _batches(events: list[Event]) -> list[Batch]:
    """Events grouped by their revision; they come in order."""
    batches: list[Batch] = []
    for event in events:
        revision = event.item.mod_revision
        if batches and batches[-1].revision == revision:
            batches[-1] = Batch(revision, (*batches[-1].events, event))
        else:
            batches.append(Batch(revision, (event,)))
    return batches


def _show(error: Exception) -> None:
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
