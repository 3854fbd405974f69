"""An etcd whose disk is slow: in front of a real one stands a server that keeps every write waiting.

Renewals of leases and watches pass at once: they need no disk. Reads do so as well where several servers share the
work; where there is one, it reads nothing while its disk writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from rendezvous.stores import wire
from rendezvous.stores.protobuf import decode

_STREAMS = (wire.LEASE_KEEP_ALIVE.path, wire.WATCH.path)
_WRITES = (wire.PUT_KEY.path, wire.DELETE_RANGE.path, wire.LEASE_GRANT.path, wire.LEASE_REVOKE.path)
_THREADS = 64  # a stream takes one for as long as it lasts


class SlowWrites:
    """Passes everything on to `endpoint`; writes wait `delay_s` before, and reads too if `delays_reads`.

    `delay_s` may be changed at any time.
    """

    def __init__(self, endpoint: str, delay_s: float, *, delays_reads: bool = False) -> None:
        self.delay_s = delay_s
        self._delays_reads = delays_reads
        self.lost = 0
        """How many of the next writes are passed on and not answered."""
        self.grant_count = 0
        self._is_closed = threading.Event()
        self._channel = grpc.insecure_channel(endpoint)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        self._server.add_generic_rpc_handlers((_Passing(self),))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> SlowWrites:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._server.stop(None).wait(10)
        self._channel.close()

    def call(self, path: str, question: bytes, context: grpc.ServicerContext) -> bytes:
        """One question and its answer."""
        is_write = path in _WRITES or (path == wire.TXN.path and _writes(question))
        self.grant_count += path == wire.LEASE_GRANT.path
        if is_write or self._delays_reads:
            self._is_closed.wait(self.delay_s)
        try:
            answer: bytes = self._channel.unary_unary(path)(question, timeout=30, metadata=_metadata(context))
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
            raise AssertionError from error  # never: abort raises
        if is_write and self.lost > 0:
            self.lost -= 1
            self._is_closed.wait(30)
        return answer

    def stream(self, path: str, questions: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The answers of a stream, as they come."""
        answers = self._channel.stream_stream(path)(questions, metadata=_metadata(context))
        context.add_callback(answers.cancel)
        try:
            yield from answers
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                context.abort(error.code(), error.details())


class _Passing(grpc.GenericRpcHandler):
    def __init__(self, proxy: SlowWrites) -> None:
        self._proxy = proxy

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        path: str = details.method  # type: ignore[attr-defined]
        if path in _STREAMS:
            return grpc.stream_stream_rpc_method_handler(
                lambda asked, context: self._proxy.stream(path, asked, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda asked, context: self._proxy.call(path, asked, context))


def _writes(question: bytes) -> bool:
    txn = decode(wire.TxnRequest, question)
    operations = (*txn.success, *txn.failure)
    return any(operation.request_range is None for operation in operations)


def _metadata(context: grpc.ServicerContext) -> list[tuple[str, str]]:
    return [(name, value) for name, value in context.invocation_metadata() if name in ("token", "hasleader")]
