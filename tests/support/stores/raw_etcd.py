"""One question to an etcd, word for word: for what our client never asks but others do."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Annotated, Any

import grpc

from rendezvous.stores import wire
from rendezvous.stores.protobuf import Message, decode, encode
from rendezvous.stores.wire import HeaderResponse, Method, Request, Response

LIMIT_S = 20.0


class CompactionRequest(Message, frozen=True):
    revision: Annotated[int, 1] = 0


COMPACT = Method("/etcdserverpb.KV/Compact", CompactionRequest, HeaderResponse)


class RawClient:
    """A connection of its own. Refusals come out as grpc.RpcError."""

    def __init__(self, endpoint: str, *, token: str = "") -> None:
        self.channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self.metadata = (("token", token),) if token else ()

    def ask(self, method: Method[Request, Response], question: Request | bytes) -> Response:
        data = question if isinstance(question, bytes) else encode(question)
        call = self.channel.unary_unary(method.path)
        return decode(method.response, call(data, timeout=LIMIT_S, metadata=self.metadata))

    def refusal(self, method: Method[Request, Response], question: Request | bytes) -> tuple[str, str]:
        """The status code and the words with which the question is refused."""
        try:
            answer = self.ask(method, question)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{question} was answered: {answer}")

    def stream(self, method: Method[Request, Response]) -> RawStream:
        return RawStream(self, method)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawStream:
    """Questions on one side, answers on the other; nothing is read that nobody asks for."""

    def __init__(self, client: RawClient, method: Method[Any, Any]) -> None:
        self.method = method
        self.questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = client.channel.stream_stream(method.path)
        self.answers = call(self._asked(), metadata=client.metadata, timeout=3 * LIMIT_S)

    def _asked(self) -> Iterator[bytes]:
        while (question := self.questions.get()) is not None:
            yield question

    def say(self, question: Message) -> None:
        self.questions.put(encode(question))

    def hear(self) -> Any:
        return decode(self.method.response, next(self.answers))

    def ending(self) -> tuple[str, str]:
        """How the stream ends, once all that came before has been heard."""
        try:
            for _ in self.answers:
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    def cancel(self) -> None:
        self.questions.put(None)
        self.answers.cancel()


def watch(client: RawClient, key: bytes, range_end: bytes = b"", *, confirmed: bool = True, **more: Any) -> RawStream:
    """A stream with one watch on it, which the server has confirmed."""
    stream = client.stream(wire.WATCH)
    stream.say(create(key, range_end, **more))
    if confirmed:
        answer = stream.hear()
        assert (answer.created, answer.canceled) == (True, False)
    return stream


def create(key: bytes, range_end: bytes = b"", **more: Any) -> wire.WatchRequest:
    return wire.WatchRequest(create_request=wire.WatchCreateRequest(key, range_end, **more))
