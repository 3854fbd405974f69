"""The servers of one store, and a gRPC channel to each.

All requests go to the current endpoint until it fails; then the next one in the circle is current. No endpoint is
excluded: with a single endpoint the next one is the same again. Each has a channel of its own, so requests in progress
at one continue there while new ones go elsewhere.

The import of gRPC takes 60 ms, so this module is imported only when a store over a network is used.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rendezvous.errors import SettingsError
from rendezvous.stores.etcd.errors import CallFailed, ErrorKind, EtcdError, classify
from rendezvous.stores.protobuf import WireError, decode, encode
from rendezvous.stores.wire import Method, Request, Response
from rendezvous.values import NamedTuple

if TYPE_CHECKING:
    import grpc

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
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.enable_retries", 0),  # client.py decides on retries, where it is known whether they are safe
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


class Tls(NamedTuple):
    """PEM files. `ca_file` None: the authorities that the system trusts."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Stream(Protocol):
    """The responses of a stream, as they arrive."""

    def __iter__(self) -> Iterator[bytes]:
        """May also end by grpc.RpcError."""

    def cancel(self) -> object:
        """End it, from any thread."""


class Endpoint:
    """One server, HOST:PORT. `heard_at`: when it last answered any request, on time.monotonic."""

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self.address = address
        self.heard_at = 0.0
        self._channel = channel
        self._calls: dict[str, grpc.UnaryUnaryMultiCallable[Any, Any]] = {}
        self._patient: set[grpc.Future[bytes]] = set()

    def call(
        self,
        method: Method[Request, Response],
        request: Request,
        token: str,
        limit_s: float,
        *,
        total_s: float | None = None,
        is_patient: bool = False,
    ) -> Response:
        """Make a request and wait for its response, if `is_patient` until `abandon`. Raises CallFailed.

        `total_s`: the time limit of the whole call, of which `limit_s` is left; messages contain it.
        """
        import grpc

        limit_s, total_s = max(limit_s, 0.0), limit_s if total_s is None else total_s
        if is_patient:
            future = self.begin(method, request, limit_s, token)
            self._patient.add(future)
            try:
                return self.finish(method, future, limit_s, total_s=total_s)
            finally:
                self._patient.discard(future)
        try:
            data = self._make_callable(method)(encode(request), timeout=limit_s, metadata=_make_metadata(token))
        except grpc.RpcError as error:
            raise self.make_failure(error, total_s) from None
        except ValueError:
            raise make_closed_error() from None
        return self.decode(method.response, data)

    def abandon(self) -> None:
        """Stop waiting for the patient requests: this server has stopped answering."""
        for future in tuple(self._patient):
            future.cancel()

    def begin(
        self, method: Method[Request, Response], request: Request, limit_s: float, token: str = ""
    ) -> grpc.Future[bytes]:
        """Send a request without waiting; `finish` takes the response."""
        try:
            return self._make_callable(method).future(encode(request), timeout=limit_s, metadata=_make_metadata(token))
        except ValueError:
            raise make_closed_error() from None

    def finish(
        self,
        method: Method[Request, Response],
        future: grpc.Future[bytes],
        limit_s: float,
        *,
        total_s: float | None = None,
    ) -> Response:
        """Wait for the response to a request that was begun, for `limit_s`. Raises CallFailed."""
        import grpc

        total_s = limit_s if total_s is None else total_s
        try:
            data = future.result(timeout=max(limit_s, 0.0))
        except grpc.FutureTimeoutError:
            raise CallFailed(EtcdError(ErrorKind.UNKNOWN, f"did not answer within {total_s:.1f} s")) from None
        except grpc.FutureCancelledError:
            raise CallFailed(EtcdError(ErrorKind.UNKNOWN, "was given up before it answered")) from None
        except grpc.RpcError as error:
            raise self.make_failure(error, total_s) from None
        return self.decode(method.response, data)

    def open_stream(self, method: Method[Request, Response], requests: Iterator[bytes], token: str) -> Stream:
        """Open a stream. `decode` reads its responses; `make_failure` reads the error that ends the iteration."""
        try:
            opened: Stream = self._channel.stream_stream(method.path, _pass_through, _pass_through)(
                requests, metadata=_make_metadata(token)
            )
        except ValueError:
            raise make_closed_error() from None
        return opened

    def decode(self, kind: type[Response], data: bytes) -> Response:
        """Decode a response. Raises CallFailed."""
        self.heard_at = time.monotonic()
        try:
            return decode(kind, data)
        except WireError as error:
            raise CallFailed(
                EtcdError(ErrorKind.UNKNOWN, f"is not etcd: its answer cannot be read ({error})")
            ) from None

    def make_failure(self, error: grpc.RpcError, limit_s: float) -> CallFailed:
        """Make the failure for an error of gRPC."""
        code = error.code().name
        text = error.details() or ""
        if text.startswith("etcdserver"):
            self.heard_at = time.monotonic()
        return CallFailed(classify(code, text, limit_s))

    def close(self) -> None:
        self._channel.close()

    def _make_callable(self, method: Method[Request, Response]) -> grpc.UnaryUnaryMultiCallable[Any, Any]:
        callable_ = self._calls.get(method.path)
        if callable_ is None:
            callable_ = self._calls[method.path] = self._channel.unary_unary(method.path)
        return callable_


class Endpoints:
    """All endpoints, and which one is current. A client begins at a random one, so that a thousand spread evenly."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None) -> None:
        if not addresses:
            raise SettingsError("the store has no endpoint: HOST:PORT is needed")
        with _silence_grpc():
            import grpc

            if tls is None:
                channels = [grpc.insecure_channel(address, _OPTIONS) for address in addresses]
            else:
                credentials = _make_credentials(tls)
                channels = [grpc.secure_channel(address, credentials, _OPTIONS) for address in addresses]
        self.all = tuple(Endpoint(address, channel) for address, channel in zip(addresses, channels, strict=True))
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
        """Make the next endpoint current, unless `endpoint` is not current any more."""
        with self._lock:
            if self.current is endpoint:
                self._index = (self._index + 1) % len(self.all)

    def close(self) -> None:
        for endpoint in self.all:
            endpoint.close()


def _pass_through(data: bytes) -> bytes:
    return data


def make_closed_error() -> CallFailed:
    return CallFailed(EtcdError(ErrorKind.REFUSED, "was closed by this client"))


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

    if (tls.cert_file is None) != (tls.key_file is None):
        raise SettingsError("a client certificate for the store needs its key, and a key its certificate")
    roots = tls.ca_file or next((path for path in _SYSTEM_ROOTS if os.path.exists(path)), None)
    files = [None if path is None else _read_pem(path) for path in (roots, tls.key_file, tls.cert_file)]
    return grpc.ssl_channel_credentials(*files)


def _read_pem(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise SettingsError(f"cannot read {path}, which is given for the store: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise SettingsError(f"{path}, which is given for the store, is no PEM file: no line begins with -----BEGIN")
    return content
