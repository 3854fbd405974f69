"""One request to a store of several servers: which is asked, with which token, how long, and what a failure means.

A request goes to the current endpoint; when nothing can have been done there it goes to the next in the circle, until
every endpoint has failed or the time is over. No endpoint is excluded: with a single one the next is the same again.
Each has a gRPC channel of its own, so requests in progress at one continue there while new ones go elsewhere. A request
that may be repeated (a read, a renewal) continues also when its reply is missing. A write whose reply is missing ends
as `OutcomeUnknown`: it may have been done, or may yet be. Writes are waited for longer than the rest, unless their
server has stopped answering altogether (see watch.py).

Names are resolved here, by getaddrinfo, and gRPC is given numbers. Its own resolver also asks the name service for
records that nobody has (AAAA, TXT), and with one name server that is silent, a name that /etc/hosts answers took 14 s,
all of it inside the first calls. A name is resolved when the client is made, and again, beside the calls, when its
server cannot be reached: then it may have moved.

The import of gRPC takes 60 ms, so this module is imported only when a store over a network is used.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct, field, structs

from rendezvous.errors import OutcomeUnknown, StoreError, StoreReplaced, Unreachable
from rendezvous.stores import wire
from rendezvous.stores.addresses import pack_address, resolve_host, split_address
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError, classify
from rendezvous.stores.protobuf import Message, WireError, decode, encode
from rendezvous.stores.wire import Method, Request, Response

if TYPE_CHECKING:
    import grpc

Effect = Literal["read", "renewal", "write"]  # all but a write may be repeated when the reply is missing

RESOLVE_PAUSE_S = 1.0  # between two looks at what a name stands for
LOG_INS_MAX = 3  # a new token may expire, too, while a busy or stopped machine is between log-in and request
ALARM_S = 1.0  # by then a cluster without space has agreed to refuse writes beforehand; it takes one round of agreement

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A peer that is frozen or cut off is noticed in 13 s. etcd treats more than a ping in 5 s as an attack, and any
    # ping without a stream, hence the last of these.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
    # Connecting: an attempt may take 2 s, pauses grow from 0.1 to 0.5 s (gRPC's own limits are 20 and 120 s).
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),  # EtcdClient decides on retries, where it is known whether they are safe
    ("grpc.use_local_subchannel_pool", 1),  # its own connection, also beside another client in this process
    ("grpc.enable_http_proxy", 0),  # a web proxy does not lead to etcd
    # gRPC would measure the bandwidth with each response, to choose a window (a call takes 7 switches between threads
    # without that, and 8 with it), and ask the name service for a configuration of the server.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.service_config_disable_resolution", 1),
    # A prefix of a thousand members is more than gRPC's 4 MiB.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

# gRPC's C core logs to stderr and installs fork handlers unless its environment says otherwise.
_SILENT_ENVIRONMENT = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
_environment_lock = threading.Lock()  # several threads of the process, which share its environment, may create a client

# Where distributions keep their trusted authorities. gRPC would use a list of its own.
_SYSTEM_ROOTS = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class Tls(Struct, frozen=True):
    """PEM files, a certificate with its key. `ca_file` None: the authorities that the system trusts."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


last_call = threading.local()
"""`sent_at`: when this thread's last call was sent, whatever the endpoint, on time.monotonic."""


class TimeLimit(Struct, frozen=True):
    """The time that a call may take with all its attempts; messages contain it."""

    total_s: float
    since: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return max(0.0, self.since + self.total_s - time.monotonic())


class Stream(Protocol):
    """The responses of a stream, as they arrive."""

    def __iter__(self) -> Iterator[bytes]:
        """May also end by grpc.RpcError: see `Endpoint.translate_errors`."""

    def cancel(self) -> object:
        """End it, from any thread."""

    def is_active(self) -> bool:
        """Whether it has not ended."""


class _NumberedChannel(Struct):
    """A channel to the addresses that a name had, and the callables made of it."""

    addresses: tuple[str, ...]
    channel: grpc.Channel
    calls: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = field(default_factory=dict)


class Endpoint:
    """One server, HOST:PORT. `make_channel` makes one to its numbers, for its name; that is resolved at once."""

    def __init__(self, address: str, make_channel: Callable[[Sequence[str], str], grpc.Channel]) -> None:
        self.address = address
        self.heard_at = 0.0
        """When it last answered any request, on time.monotonic."""
        self._make_channel = make_channel
        self._is_numeric = pack_address(split_address(address)[0]) is not None
        self._patient: set[grpc.Future[bytes]] = set()
        self._stream: Stream | None = None  # the last one
        self._lock = threading.Lock()
        self._link: _NumberedChannel | None = None
        self._retired: _NumberedChannel | None = None  # the one before: calls in progress there may still be answered
        self._resolved_at = -math.inf
        self._is_resolving = self._is_closed = False
        self._is_resolved = threading.Event()
        self._resolve()

    def refresh(self) -> None:
        """Resolve the name again in a thread, if it is one: its server cannot be reached, so it may have moved."""
        with self._lock:
            is_due = time.monotonic() >= self._resolved_at + RESOLVE_PAUSE_S
            if self._is_resolving or self._is_closed or not is_due or self._is_numeric:
                return
            self._is_resolving = True
            self._is_resolved.clear()
        try:
            threading.Thread(target=self._resolve, name="store address", daemon=True).start()
        except RuntimeError:  # the machine has no more threads: a later failure tries again
            self._end_resolving()

    def _resolve(self) -> None:
        try:
            addresses = resolve(self.address)
            with self._lock:
                is_new = self._link is None or set(self._link.addresses) != set(addresses)
                if addresses and is_new and not self._is_closed:
                    retired, self._retired = self._retired, self._link
                    self._link = _NumberedChannel(addresses, self._make_channel(addresses, self.address))
                    if retired is not None:
                        retired.channel.close()
        finally:
            self._end_resolving()

    def _end_resolving(self) -> None:
        self._resolved_at, self._is_resolving = time.monotonic(), False
        self._is_resolved.set()

    def _get_link(self, limit_s: float = 0.0) -> _NumberedChannel:
        """Return the current link; wait up to `limit_s` for the name. Raises CallFailed."""
        if self._link is None:
            self.refresh()
            self._is_resolved.wait(max(0.0, limit_s))
        if self._link is None:
            raise CallFailed(EtcdError(ErrorKind.ELSEWHERE, "cannot be reached: its name is not known"))
        return self._link

    def call(
        self, method: Method[Request, Response], request: Request, token: str, limit: TimeLimit, *, is_patient: bool
    ) -> Response:
        """Make a request and wait for its response, if `is_patient` until `abandon`. Raises CallFailed."""
        self._get_link(limit.left_s)
        last_call.sent_at = time.monotonic()
        if is_patient:
            future = self.begin(method, request, limit.left_s, token)
            self._patient.add(future)
            try:
                return self.finish(method, future, limit)
            finally:
                self._patient.discard(future)
        with self.translate_errors(limit.total_s):
            data = self._get_call(method)(encode(request), timeout=limit.left_s, metadata=_make_metadata(token))
        return self.decode(method.response, data)

    def abandon(self) -> None:
        """Stop waiting for the patient requests: this server has stopped answering."""
        for future in tuple(self._patient):
            future.cancel()

    def begin(
        self, method: Method[Request, Response], request: Request, limit_s: float, token: str = ""
    ) -> grpc.Future[bytes]:
        """Send a request without waiting; `finish` takes the response. Raises CallFailed."""
        if self._stream is None or not self._stream.is_active():
            self._require_thread()
        with self.translate_errors(limit_s):
            return self._get_call(method).future(encode(request), timeout=limit_s, metadata=_make_metadata(token))

    def finish(self, method: Method[Request, Response], future: grpc.Future[bytes], limit: TimeLimit) -> Response:
        """Wait for the response to a request that was begun. Raises CallFailed."""
        with self.translate_errors(limit.total_s):
            data = future.result(timeout=limit.left_s)
        return self.decode(method.response, data)

    def open_stream(self, method: Method[Request, Response], requests: Iterator[bytes], token: str) -> Stream:
        """Open a stream. `decode` reads its responses; `translate_errors` reads the error that ends the iteration.

        Raises CallFailed.
        """
        self._require_thread()
        with self.translate_errors(0.0):
            begin: grpc.StreamStreamMultiCallable[Any, Any] = self._get_link().channel.stream_stream(method.path)
            stream: Stream = begin(requests, metadata=_make_metadata(token))
        self._stream = stream
        return stream

    def _require_thread(self) -> None:
        """Raise CallFailed where no thread is to be had, as gRPC needs one to take what comes for such a call.

        If it finds none it counts the call as served nevertheless, and all later ones of the channel wait for ever.
        """
        try:
            threading.Thread(target=time.monotonic, daemon=True).start()
        except RuntimeError:
            sentence = "cannot be asked: no thread can be started"
            raise CallFailed(EtcdError(ErrorKind.ELSEWHERE, sentence, hint="check ulimit -u")) from None

    def decode(self, kind: type[Response], data: bytes) -> Response:
        """Decode a response. Raises CallFailed."""
        self.heard_at = time.monotonic()
        try:
            return decode(kind, data)
        except WireError as error:
            sentence = f"is not etcd: its answer cannot be read ({error})"
            raise CallFailed(EtcdError(ErrorKind.UNKNOWN, sentence)) from None

    @contextmanager
    def translate_errors(self, limit_s: float) -> Iterator[None]:
        """Raise CallFailed for an error of gRPC; `limit_s` is the time limit that its message contains."""
        import grpc

        try:
            yield
        except grpc.FutureTimeoutError:
            raise CallFailed(EtcdError(ErrorKind.UNKNOWN, f"did not answer within {limit_s:.1f} s")) from None
        except grpc.FutureCancelledError:
            raise CallFailed(EtcdError(ErrorKind.UNKNOWN, "was given up before it answered")) from None
        except grpc.RpcError as error:
            text = error.details() or ""
            if text.startswith("etcdserver"):
                self.heard_at = time.monotonic()
            raise CallFailed(classify(error.code().name, text, limit_s)) from None
        except ValueError:
            raise CallFailed(EtcdError(ErrorKind.REFUSED, "was closed by this client")) from None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            links = [link for link in (self._link, self._retired) if link is not None]
        for link in links:
            link.channel.close()

    def _get_call(self, method: Method[Request, Response]) -> grpc.UnaryUnaryMultiCallable[Any, Any]:
        link = self._get_link()
        if method.path not in link.calls:
            link.calls[method.path] = link.channel.unary_unary(method.path)
        return link.calls[method.path]


class Endpoints:
    """All endpoints, and which one is current. A client begins at a random one, so that a thousand spread evenly."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None) -> None:
        with _silence_grpc():
            import grpc

            credentials = None if tls is None else _make_credentials(tls)

            def make_channel(numbers: Sequence[str], address: str) -> grpc.Channel:
                target = f"{'ipv6' if numbers[0].startswith('[') else 'ipv4'}:{','.join(numbers)}"
                # The authority is what a certificate must name, and what a proxy selects by.
                options = (*_OPTIONS, ("grpc.default_authority", address))
                if credentials is None:
                    return grpc.insecure_channel(target, options)
                return grpc.secure_channel(target, credentials, options)

            self.all = tuple(Endpoint(address, make_channel) for address in addresses)
        self._lock = threading.Lock()
        self._index = random.Random().randrange(len(self.all))  # the shared generator may be seeded

    @property
    def current(self) -> Endpoint:
        return self.all[self._index]

    def iterate(self) -> tuple[Endpoint, ...]:
        """Return every endpoint once, the current one first."""
        index = self._index
        return self.all[index:] + self.all[:index]

    def switch_from(self, endpoint: Endpoint) -> None:
        """Make the next endpoint current, unless `endpoint` is not any more; and look where its name is now."""
        endpoint.refresh()
        with self._lock:
            if self.current is endpoint:
                self._index = (self._index + 1) % len(self.all)

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.close()


class EtcdSession:
    """The user's token. It is requested when first needed, and again after `forget`.

    A log-in costs etcd some 60 ms of work, and after its restart all clients log in at once. So it is given `limit_s`,
    longer than a call: calls that cannot wait that long fail, and a later one finds the token there.
    """

    def __init__(self, user: str, password: str, limit_s: float) -> None:
        self.has_user = bool(user)
        self._request = wire.AuthenticateRequest(user, password)
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._token: str | None = None if user else ""
        self._log_in: tuple[Endpoint, grpc.Future[bytes]] | None = None

    def get_token(self, endpoint: Endpoint, limit_s: float) -> str:
        """Return the token, "" without a user or where etcd needs none. Raises CallFailed; nothing was written then."""
        with self._lock:
            if self._token is not None:
                return self._token
            if self._log_in is None or self._log_in[0] is not endpoint:
                if self._log_in is not None:
                    self._log_in[1].cancel()
                self._log_in = (endpoint, endpoint.begin(wire.AUTHENTICATE, self._request, self._limit_s))
            log_in = self._log_in
        token = None
        try:
            token = endpoint.finish(wire.AUTHENTICATE, log_in[1], TimeLimit(limit_s)).token
        except CallFailed as failed:
            if failed.refusal.kind is ErrorKind.NO_USERS:
                token = ""  # as in etcd's own client: the user is given too early, or not needed
            else:
                kind = ErrorKind.ELSEWHERE if failed.refusal.kind is ErrorKind.UNKNOWN else failed.refusal.kind
                raise CallFailed(structs.replace(failed.refusal, kind=kind)) from None
        finally:
            with self._lock:
                if self._log_in is log_in and (token is not None or log_in[1].done()):
                    self._log_in = None
                    self._token = token
        return token

    def forget(self, token: str) -> None:
        """Drop this token, which is no longer valid."""
        with self._lock:
            if self.has_user and self._token == token:
                self._token = None


# docs/internals/decisions/0011-own-etcd-client.md
class EtcdClient:
    """Makes requests; any number of threads may. `on_silent` is called with an endpoint that has stopped answering.

    An endpoint that answers for another cluster than the first answer is as good as dead: what it says is not used.
    """

    on_silent: Callable[[Endpoint], None]

    def __init__(self, endpoints: Endpoints, session: EtcdSession, limit_s: float, write_limit_s: float) -> None:
        self.endpoints = endpoints
        self.session = session
        self.limit_s = limit_s
        self._write_limit_s = write_limit_s
        self.is_closed = False
        self._full_since: float | None = None
        self._cluster_id = 0

    def require_open(self) -> None:
        """Raise StoreError once the store is closed."""
        if self.is_closed:
            raise StoreError("the store is closed")

    def call(
        self,
        method: Method[Request, Response],
        request: Request,
        about: str,
        effect: Effect = "write",
        limit_s: float = 0,
    ) -> Response:
        """Make a request and return its response. `about` names its object in messages. Raises StoreError.

        `limit_s`: how long it may take, 0 for as long as any of its effect.
        """
        self.require_open()
        limit = TimeLimit(limit_s or (self._write_limit_s if effect == "write" else self.limit_s))
        failures: dict[str, EtcdError] = {}
        for endpoint in self.endpoints.iterate():
            started = time.monotonic()
            if failures and not limit.left_s:
                break
            try:
                response = self._call_endpoint(endpoint, method, request, limit, is_write=effect == "write")
            except CallFailed as failed:
                refusal = failures[endpoint.address] = failed.refusal
            else:
                if effect == "write":
                    self._full_since = None
                return response
            if refusal.kind is ErrorKind.FULL:
                self._full_since = self._full_since or started
                if started - self._full_since < ALARM_S:
                    raise OutcomeUnknown(f"{_describe(endpoint.address)} {refusal.phrase}", refusal.hint)
            if refusal.kind in (ErrorKind.REFUSED, ErrorKind.LOG_IN, ErrorKind.FULL):
                raise self.make_error(endpoint, refusal, about)
            self.give_up(endpoint, started)
            if refusal.kind is ErrorKind.UNKNOWN and effect == "write":
                raise OutcomeUnknown(f"{_describe(endpoint.address)} {refusal.phrase}", refusal.hint)
        raise make_unavailable(failures, effect)

    def _call_endpoint(
        self, endpoint: Endpoint, method: Method[Request, Response], request: Request, limit: TimeLimit, is_write: bool
    ) -> Response:
        log_ins = 0
        while True:
            token = self.session.get_token(endpoint, limit.left_s)
            try:
                response = endpoint.call(method, request, token, limit, is_patient=is_write)
                self.check_cluster(response)
                return response
            except CallFailed as failed:
                if not self.is_token_at_fault(failed.refusal, log_ins):
                    raise
            log_ins += 1
            self.session.forget(token)

    def check_cluster(self, response: Message) -> None:
        """Raise CallFailed if this response comes from another cluster than the first. Proxies may omit the id: 0."""
        cluster_id = response.header.cluster_id if isinstance(response, wire.HeaderResponse) else 0
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id not in (0, self._cluster_id):
            names = (f"{each % 2**64:x}" for each in (cluster_id, self._cluster_id))
            phrase = "belongs to cluster {}, and before it was cluster {}".format(*names)
            raise CallFailed(EtcdError(ErrorKind.ELSEWHERE, phrase, error=StoreReplaced))

    def is_token_at_fault(self, refusal: EtcdError, log_ins: int) -> bool:
        """Return whether a new token may help after `log_ins` log-ins; older servers deny an expired one all rights."""
        limit = 1 if refusal.is_permission else LOG_INS_MAX if refusal.kind is ErrorKind.LOG_IN else 0
        return self.session.has_user and log_ins < limit

    def give_up(self, endpoint: Endpoint, since: float) -> None:
        """Switch to another endpoint; call `on_silent` if this one has been silent since `since`, as when frozen."""
        self.endpoints.switch_from(endpoint)
        if endpoint.heard_at < since:
            self.on_silent(endpoint)

    def make_error(self, endpoint: Endpoint, refusal: EtcdError, about: str) -> StoreError:
        """Make the error for a request that was refused."""
        phrase = f"{refusal.phrase} {about}" if refusal.is_permission else refusal.phrase
        return refusal.error(f"{_describe(endpoint.address)} {phrase}", refusal.hint)


def make_unavailable(failures: dict[str, EtcdError], effect: Effect) -> StoreError:
    """Make the error for a request that failed at every endpoint.

    One endpoint of another cluster is a mistake; the store is another one if all are, since a dead one may come back.
    """
    is_unknown = effect != "read" and any(refusal.kind is ErrorKind.UNKNOWN for refusal in failures.values())
    sentences = [f"{_describe(address)} {refusal.phrase}" for address, refusal in failures.items()]
    hints = [refusal.hint for refusal in failures.values() if refusal.hint]
    error: type[StoreError] = OutcomeUnknown if is_unknown else Unreachable
    if all(refusal.error is StoreReplaced for refusal in failures.values()):
        error = StoreReplaced
    return error("; ".join(sentences), hints[0] if hints else None)


def resolve(address: str) -> tuple[str, ...]:
    """Return HOST:PORT in numbers, as gRPC takes them: all that HOST has now, none if it is not known.

    gRPC takes addresses of one family at a time, so beside IPv6 those of IPv4 are written as IPv6 (RFC 4291 2.5.5.2).
    """
    host, port = split_address(address)
    if pack_address(host) is not None:
        return (address,)
    hosts = dict.fromkeys((family, place[0]) for family, place in resolve_host(host, port))
    if all(family == socket.AF_INET for family, _ in hosts):
        return tuple(f"{host}:{port}" for _, host in hosts)
    mapped = (f"::ffff:{host}" if family == socket.AF_INET else host.replace("%", "%25") for family, host in hosts)
    return tuple(f"[{host}]:{port}" for host in mapped)


def _describe(address: str) -> str:
    return f"the store at {address}"


def _make_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call. `hasleader`: a server without a leader shall report it instead of waiting."""
    leader = ("hasleader", "true")
    return (leader, ("token", token)) if token else (leader,)


@contextmanager
def _silence_grpc() -> Iterator[None]:
    """Set the environment that gRPC reads at its first channel, and restore it, since workers may inherit it."""
    with _environment_lock:
        set_by_us = {name: value for name, value in _SILENT_ENVIRONMENT.items() if name not in os.environ}
        os.environ.update(set_by_us)
        try:
            yield
        finally:
            for name in set_by_us:
                os.environ.pop(name, None)


def _make_credentials(tls: Tls) -> grpc.ChannelCredentials:
    import grpc

    roots = tls.ca_file or next((path for path in _SYSTEM_ROOTS if os.path.exists(path)), None)
    files = [None if path is None else _read(path) for path in (roots, tls.key_file, tls.cert_file)]
    return grpc.ssl_channel_credentials(*files)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
