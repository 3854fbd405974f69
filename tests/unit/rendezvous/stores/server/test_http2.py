"""gRPC's calls on a connection of the served store: messages, windows, limits, faults, and the time of strangers."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any, NoReturn, cast

import h2.connection
import pytest
from hpack import Decoder

from rendezvous.stores.server import http2
from rendezvous.stores.server.connections import (
    CREDIT_S,
    UNAUTHENTICATED_SHARE,
    ConnectionTable,
    CpuShare,
    ServedConnection,
)
from rendezvous.stores.server.http2 import ConnectionFault, Http2Connection, Http2Stream, StreamHandler
from tests.support.stores.hostile_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

PUSH_PROMISE, CONTINUATION = 5, 9
ACK, PADDED, PRIORITY = 1, 8, 32
LAST_HEADERS = END_HEADERS | END_STREAM
WINDOW = 65_535

# Connections


class Echo(StreamHandler):
    """Says back what it is told, and ends when the client has said all."""

    bytes_max = 200_000

    def __init__(self, stream: Http2Stream) -> None:
        self.stream = stream
        self.log: list[str] = []

    def take(self, message: bytes) -> None:
        self.log.append(f"take {len(message)}")
        self.stream.send(message)

    def half_close(self) -> None:
        self.log.append("half close")
        self.stream.end("NOT_FOUND", "100 % gone\n")

    def lose(self) -> None:
        self.log.append("lose")


class Peer:
    """A connection, and what it says, frame by frame."""

    def __init__(self) -> None:
        self.said = b""
        self.calls: list[Echo] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.connection = Http2Connection(self.begin, self.write)
        self.decoder = Decoder()
        self.tell(PREFACE + frame(SETTINGS, 0, 0))
        self.hear()

    def begin(self, stream: Http2Stream, fields: dict[bytes, bytes]) -> None:
        self.fields.append(fields)
        self.calls.append(Echo(stream))
        stream.call = self.calls[-1]

    def write(self, data: bytes) -> None:
        self.said += data

    def tell(self, data: bytes) -> None:
        self.connection.receive(data)

    def hear(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of every frame since the last time."""
        heard, said, self.said = [], self.said, b""
        while said:
            size = int.from_bytes(said[:3], "big")
            heard.append((said[3], said[4], int.from_bytes(said[5:9], "big"), said[9 : 9 + size]))
            said = said[9 + size :]
        return heard

    def headers(self) -> list[dict[bytes, bytes]]:
        """The fields of every header block since the last time."""
        return [dict(self.decoder.decode(block, raw=True)) for kind, _, _, block in self.hear() if kind == HEADERS]


BLOCK = b"\x83\x04\x02/a"  # POST /a
FIELDS = {b":method": b"POST", b":path": b"/a"}


def call(stream: int, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, BLOCK)


def message(text: bytes) -> bytes:
    return b"\0" + len(text).to_bytes(4, "big") + text


def test_an_answered_call_has_fields_and_a_status_and_stops_its_client() -> None:
    peer = Peer()
    text = call(1) + frame(DATA, END_STREAM, 1, message(b"hello"))
    for byte in text:  # whatever the network cuts it into
        peer.tell(bytes((byte,)))
    assert peer.fields == [FIELDS]
    (first, fields), (second, answer), (last, trailers) = [(said[:3], said[3]) for said in peer.hear()]
    assert (first, second, last) == ((HEADERS, END_HEADERS, 1), (DATA, 0, 1), (HEADERS, LAST_HEADERS, 1))
    assert peer.decoder.decode(fields, raw=True) == [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert answer == message(b"hello")
    status = [(b"grpc-status", b"5"), (b"grpc-message", b"100 %25 gone%0A")]
    assert peer.decoder.decode(trailers, raw=True) == status
    assert not peer.connection.streams
    peer = Peer()
    peer.tell(call(1))
    peer.calls[0].stream.end("UNAVAILABLE")
    (kind, _, _, block), *rest = peer.hear()
    assert kind == HEADERS
    assert dict(peer.decoder.decode(block, raw=True))[b"grpc-status"] == b"14"
    assert rest == [(RST_STREAM, 0, 1, bytes(4))]
    peer.tell(frame(DATA, END_STREAM, 1, message(b"late")))
    assert peer.calls[0].log == []


def test_a_call_that_is_rejected_or_cancelled_at_once_gets_no_answer() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.calls[0].take = lambda _: peer.calls[0].stream.end("UNAVAILABLE")  # type: ignore[method-assign]
    peer.tell(frame(DATA, END_STREAM, 1, message(b"a") + message(b"b")))
    assert peer.calls[0].log == []
    peer = Peer()
    taken_back = frame(DATA, END_STREAM, 1, message(b"x")) + frame(RST_STREAM, 0, 1, bytes(4))
    peer.tell(call(1) + taken_back + call(3) + frame(DATA, END_STREAM, 3, message(b"y")))
    assert {stream for _, _, stream, _ in peer.hear()} == {3}
    peer.tell(frame(PING, 0, 0, bytes(8)))
    assert peer.hear() == [(PING, ACK, 0, bytes(8))], "the connection goes on"


def test_no_more_is_sent_than_the_client_has_room_for() -> None:
    peer = Peer()
    peer.tell(frame(SETTINGS, 0, 0, b"\0\4" + (100).to_bytes(4, "big")) + call(1) + call(3))
    peer.hear()
    peer.tell(frame(DATA, END_STREAM, 1, message(bytes(150))))

    def data() -> list[tuple[int, int]]:
        return [(id, len(payload)) for kind, _, id, payload in peer.hear() if kind == DATA]

    assert data() == [(1, 100)]
    peer.tell(frame(DATA, 0, 3, message(bytes(10))))
    assert data() == [(3, 15)], "the window of one stream does not hold up another"
    peer.tell(frame(WINDOW_UPDATE, 0, 1, (50).to_bytes(4, "big")))
    assert data() == [(1, 50)]
    peer.tell(frame(WINDOW_UPDATE, 0, 1, (50).to_bytes(4, "big")))
    assert [(kind, id) for kind, _, id, _ in peer.hear()] == [(DATA, 1), (HEADERS, 1)]


@pytest.mark.parametrize("size", [0, 10_000])
def test_who_asks_for_more_and_leaves_no_room_for_it_is_sent_away(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The windows of its streams stay closed: no answer leaves, though the socket takes all that does."""
    monkeypatch.setattr(http2, "OWED_BYTES_MAX", 25_000)
    peer = Peer()
    peer.tell(frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)) + call(1) + call(3) + call(5))
    peer.tell(frame(DATA, 0, 1, message(bytes(size))) + frame(DATA, 0, 5, message(b"lost")))
    for stream, flags in ((1, 0), (5, RST_STREAM)):  # answers that are taken, or that nobody waits for, do not count
        kind, content = (WINDOW_UPDATE, (1 << 20).to_bytes(4, "big")) if not flags else (RST_STREAM, bytes(4))
        peer.tell(frame(kind, 0, stream, content))
    assert peer.connection.owed_bytes == 0
    while peer.connection.owed_bytes <= 25_000:
        peer.tell(frame(DATA, 0, 3, message(bytes(size))))
    with pytest.raises(ConnectionFault, match="the answers are not taken"):
        peer.tell(frame(DATA, 0, 3, message(bytes(size))))
    assert 25_000 < peer.connection.owed_bytes < 25_000 + size + 2 * http2.OWED_ENTRY_BYTES


def test_an_error_goes_before_messages_that_have_not_begun_to_leave() -> None:
    peer = Peer()
    peer.tell(frame(SETTINGS, 0, 0, b"\0\4" + (8).to_bytes(4, "big")) + call(1))
    for text in (b"first", b"second", b"third"):
        peer.calls[0].stream.send(text)
    assert [part for kind, _, _, part in peer.hear() if kind == DATA] == [message(b"first")[:8]]
    peer.calls[0].stream.end("UNAVAILABLE")
    peer.tell(frame(WINDOW_UPDATE, 0, 1, (100).to_bytes(4, "big")))
    said = peer.hear()
    assert [kind for kind, _, _, _ in said] == [DATA, HEADERS, RST_STREAM]
    assert said[0][3] == b"st"
    assert peer.connection.owed_bytes == 0


def test_nothing_is_sent_while_the_socket_takes_nothing() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.connection.is_blocked = True
    peer.calls[0].stream.send(b"later")
    assert not [kind for kind, _, _, _ in peer.hear() if kind == DATA]
    peer.connection.is_blocked = False
    peer.connection.resume()
    assert [part for kind, _, _, part in peer.hear() if kind == DATA] == [message(b"later")]


def test_the_window_of_the_connection_holds_for_all_streams_together() -> None:
    peer = Peer()
    peer.tell(frame(SETTINGS, 0, 0, b"\0\4" + (1 << 20).to_bytes(4, "big")) + call(1) + call(3))
    big = message(bytes(50_000))
    for stream in (1, 3):
        for at in range(0, len(big), 16_000):
            peer.tell(frame(DATA, 0, stream, big[at : at + 16_000]))
    sent = sum(len(payload) for kind, _, _, payload in peer.hear() if kind == DATA)
    assert sent == WINDOW
    assert peer.calls[1].stream.owed
    peer.tell(frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    sent += sum(len(payload) for kind, _, _, payload in peer.hear() if kind == DATA)
    assert sent == 2 * len(big)


def test_room_is_made_for_what_was_read_and_none_for_too_much() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.hear()
    for _ in range(6):
        peer.tell(frame(DATA, 0, 1, message(bytes(7995))))
    updates = [(id, int.from_bytes(data, "big")) for kind, _, id, data in peer.hear() if kind == WINDOW_UPDATE]
    assert updates == [(0, 40_000), (1, 40_000)]
    peer = Peer()
    peer.tell(call(1) + frame(DATA, 0, 1, b"\0" + (200_001).to_bytes(4, "big")))
    peer.tell(call(3) + frame(DATA, 0, 3, b"\1" + (1).to_bytes(4, "big") + b"x"))
    assert [fields[b"grpc-status"] for fields in peer.headers()] == [b"8", b"12"]
    assert [call.log for call in peer.calls] == [[], []]


def test_calls_end_with_their_cancellation_connection_or_too_many_of_them() -> None:
    peer = Peer()
    peer.tell(call(1) + call(3) + call(5) + frame(RST_STREAM, 0, 3, bytes(4)))
    assert [call.log for call in peer.calls] == [[], ["lose"], []]
    peer.connection.lose()
    assert [call.log for call in peer.calls] == [["lose"]] * 3
    peer.calls[0].stream.send(b"late")
    assert peer.hear() == []
    peer = Peer()
    for number in range(http2.STREAMS_MAX):
        peer.tell(call(2 * number + 1))
    with pytest.raises(ConnectionFault):
        peer.tell(call(2 * http2.STREAMS_MAX + 1))


def test_a_header_block_may_come_in_parts_and_a_ping_is_answered() -> None:
    peer = Peer()
    first = bytes((3,)) + bytes(5) + BLOCK[:4] + bytes(3)
    peer.tell(frame(HEADERS, PADDED | PRIORITY | END_STREAM, 1, first))
    peer.tell(frame(CONTINUATION, END_HEADERS, 1, BLOCK[4:]))
    assert peer.fields == [FIELDS]
    assert peer.calls[0].log == ["half close"]
    peer = Peer()
    peer.tell(frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"12345678"))
    peer.tell(frame(0xFE, 0xFF, 7, b"from a later version"))
    assert peer.hear() == [(PING, ACK, 0, b"12345678")]


@pytest.mark.parametrize(
    "said",
    [
        frame(DATA, 0, 1, b"x"),  # of a stream that never was
        frame(HEADERS, END_HEADERS, 2, b"\x83"),
        frame(HEADERS, END_HEADERS, 0, b"\x83"),
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05abc"),
        frame(HEADERS, 0, 1, b"\x83") + frame(PING, 0, 0, bytes(8)),
        frame(HEADERS, 0, 1, b"\x83") + frame(CONTINUATION, 4, 3),
        frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 64,
        call(1) + frame(HEADERS, END_HEADERS, 3, b"\x40\x01a\x7f\x81\x1e" + bytes(3968) + b"\xbe" * 4),  # bomb
        frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f"),  # a table of 4,097 bytes
        frame(HEADERS, END_HEADERS, 1, b"\x7f" + b"\xff" * 10_000),  # a number without an end
        frame(CONTINUATION, 4, 1),
        frame(SETTINGS, 0, 1),
        frame(SETTINGS, 0, 0, b"12345"),
        frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        frame(PUSH_PROMISE, 0, 1, bytes(4)),
        frame(PING, 0, 0, bytes(7)),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
        frame(DATA, 0, 1, bytes(16 * 1024 + 1)),
    ],
)
def test_what_cannot_be_gone_on_from_ends_the_connection(said: bytes) -> None:
    peer = Peer()
    with pytest.raises(ConnectionFault):
        peer.tell(said)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"])
def test_who_does_not_begin_as_http2_does_is_no_client(first: bytes) -> None:
    with pytest.raises(ConnectionFault):
        Http2Connection(lambda stream, fields: None, lambda data: None).receive(first)


def test_random_frames_end_a_connection_or_do_nothing_to_it() -> None:
    chance = random.Random(7)
    ended = 0
    for _ in range(300):
        peer = Peer()
        try:
            for _ in range(40):
                known: Any = chance.choice([call(chance.randrange(9)), frame(0, 0, 1, message(b"x"))])
                wild = frame(
                    chance.randrange(12), chance.randrange(256), chance.randrange(9),
                    chance.randbytes(chance.choice((0, 4, 5, 8, 20))),
                )  # fmt: skip
                peer.tell(chance.choice((known, wild)))
                peer.hear()
        except ConnectionFault:
            ended += 1
        peer.connection.lose()
    assert 0 < ended <= 300


def fail(*_: object) -> NoReturn:
    raise RuntimeError("something that nobody foresaw")


def test_an_unexpected_error_while_reading_a_client_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer()
    monkeypatch.setattr(h2.connection.H2Connection, "receive_data", fail)
    with pytest.raises(ConnectionFault):
        peer.tell(call(1))


def test_an_unexpected_error_while_sending_does_not_hurt_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer()
    peer.tell(call(1) + call(3))
    with monkeypatch.context() as patched:
        patched.setattr(h2.connection.H2Connection, "send_data", fail)
        peer.calls[0].stream.send(b"an event that another client has caused")
    assert [call.log for call in peer.calls] == [["lose"], ["lose"]]
    with pytest.raises(ConnectionFault):
        peer.tell(frame(PING, 0, 0, bytes(8)))


def test_a_connection_that_makes_calls_for_days_does_not_grow() -> None:
    peer = Peer()

    def make_calls(start: int) -> int:
        for number in range(start, start + 400):
            peer.tell(call(2 * number + 1) + frame(DATA, END_STREAM, 2 * number + 1, message(b"x")))
        peer.calls.clear()
        peer.fields.clear()
        peer.said = b""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        make_calls(0)
        before = make_calls(400)
        assert make_calls(800) < before + 10_000
    finally:
        tracemalloc.stop()


# Strangers


def test_unauthenticated_clients_get_their_share_of_time_and_no_more() -> None:
    now = [0.0]
    share = CpuShare(lambda: now[0])
    used = 0.0
    while now[0] < 100.0:
        now[0] += share.compute_wait_s() or 0.001
        now[0] += 0.002  # what one of them costs
        share.take(0.002)
        used += 0.002
    assert used / now[0] == pytest.approx(UNAUTHENTICATED_SHARE, rel=0.02)
    now[0] += 1000.0  # a quiet time is not saved up
    share.take(CREDIT_S + 0.01)
    assert share.compute_wait_s() == pytest.approx(0.01 / UNAUTHENTICATED_SHARE)


class _Waiting:
    """A stranger's line that has something to say."""

    is_open = True

    def __init__(self, origin: str, read: Callable[[], None]) -> None:
        self.origin = origin
        self.read = read

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def test_an_error_while_one_client_is_read_keeps_no_other_from_its_turn() -> None:
    async def take_turns() -> None:
        loop = asyncio.get_running_loop()
        mistakes: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: mistakes.append(context))
        lines, is_read = ConnectionTable(loop, lambda *_: None, has_token=True), asyncio.Event()
        lines.share.take(CREDIT_S + 0.01)  # both have to wait

        def fail() -> None:
            raise RuntimeError

        for line in (_Waiting("a", fail), _Waiting("b", is_read.set)):
            lines.let_read(cast("ServedConnection", line))
        await asyncio.wait_for(is_read.wait(), 10.0)
        assert len(mistakes) == 1

    asyncio.run(take_turns())
