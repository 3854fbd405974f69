"""HTTP/2 as the served store speaks it: header blocks, frames, windows, and how much of its time strangers get."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rendezvous.stores.serving import frames
from rendezvous.stores.serving.frames import ConnectionFault, frame
from rendezvous.stores.serving.hpack import HeaderError, HeaderReader, read_huffman, written
from rendezvous.stores.serving.http2 import Connection, Stream
from rendezvous.stores.serving.lines import CREDIT_S, STRANGERS_SHARE, Share

# Header blocks


def test_the_examples_of_rfc_7541_are_read() -> None:
    reader = HeaderReader()  # C.4: three requests on one connection, with Huffman codes and the table between them
    request = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    assert reader.read(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == request
    assert reader.read(bytes.fromhex("828684be5886a8eb10649cbf")) == [*request, (b"cache-control", b"no-cache")]
    assert reader.read(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")) == [
        *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html")),
        *((b":authority", b"www.example.com"), (b"custom-key", b"custom-value")),
    ]


def test_what_is_written_is_read() -> None:
    for length in (0, 126, 127, 128, 254, 255, 300, 5000):
        assert HeaderReader().read(written(b"grpc-message", b"x" * length)) == [(b"grpc-message", b"x" * length)]


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # field 0
        b"\xbe",  # a field of an empty table
        b"\xff\xff\xff\xff\xff\xff",  # a number without an end
        b"\x00\x05abc",  # a text that is cut off
        b"\x00",
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x82\x20",  # a table that is resized in the middle
        b"\x00\x81\xff\x01a",  # Huffman: a byte of ones is no letter and no rest
        b"\x40\x01a\x7f\x80\x7d" + bytes(16_200) + b"\xbe" * 3,  # a small block of many large fields
    ],
)
def test_a_block_that_cannot_be_read_ends_the_connection(block: bytes) -> None:
    with pytest.raises(HeaderError):
        HeaderReader().read(block)


def test_the_table_forgets_the_oldest_fields() -> None:
    reader = HeaderReader()
    for number in range(100):
        reader.read(b"\x40\x01a\x40" + b"%064d" % number)
    kept = 0
    while True:
        try:
            reader.read(bytes((0x80 | 62 + kept,)))
        except HeaderError:
            break
        kept += 1
    assert kept == 4096 // (1 + 64 + 32)


def test_a_text_does_not_end_with_half_a_letter() -> None:
    assert read_huffman(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    for wrong in ("f1e3c2e5f23a6ba0ab90f4", "f1e3c2e5f23a6ba0ab90f4ffff", "ffffffff"):
        with pytest.raises(HeaderError):
            read_huffman(bytes.fromhex(wrong))


# Connections


class Echo:
    """Says back what it is told, and ends when the client has said all."""

    bytes_max = 200_000

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.log: list[str] = []

    def take(self, message: bytes) -> None:
        self.log.append(f"take {len(message)}")
        self.stream.send(message)

    def half_close(self) -> None:
        self.log.append("half close")
        self.stream.end("NOT_FOUND", "100 % gone\n")

    def drain(self) -> None:
        self.log.append("drain")

    def lose(self) -> None:
        self.log.append("lose")


class Peer:
    """A connection, and what it says, frame by frame."""

    def __init__(self) -> None:
        self.said = b""
        self.calls: list[Echo] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.connection = Connection(self.begin, self.write)
        self.tell(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
        self.hear()

    def begin(self, stream: Stream, fields: dict[bytes, bytes]) -> None:
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


def call(stream: int, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream, b"\x83" + written(b":path", b"/a"))


def message(text: bytes) -> bytes:
    return b"\0" + len(text).to_bytes(4, "big") + text


TRAILERS = written(b"grpc-status", b"5") + written(b"grpc-message", b"100 %25 gone%0A")


def test_a_call_is_answered_with_fields_messages_and_a_status() -> None:
    peer = Peer()
    text = call(1) + frame(frames.DATA, frames.END_STREAM, 1, message(b"hello"))
    for byte in text:  # whatever the network cuts it into
        peer.tell(bytes((byte,)))
    assert peer.fields == [{b":method": b"POST", b":path": b"/a"}]
    assert peer.hear() == [
        (frames.HEADERS, frames.END_HEADERS, 1, frames.BEGINNING),
        (frames.DATA, 0, 1, message(b"hello")),
        (frames.HEADERS, frames.LAST_HEADERS, 1, TRAILERS),
    ]
    assert not peer.connection.streams


def test_a_call_that_ends_before_the_client_is_done_tells_it_to_stop() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.calls[0].stream.end("UNAVAILABLE")
    assert [(kind, payload) for kind, _, _, payload in peer.hear()] == [
        (frames.HEADERS, frames.BEGINNING + written(b"grpc-status", b"14")),
        (frames.RST_STREAM, bytes(4)),
    ]
    peer.tell(frame(frames.DATA, frames.END_STREAM, 1, message(b"late")))
    assert peer.calls[0].log == []


def test_a_call_that_was_refused_is_not_answered_when_the_client_has_said_all() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.calls[0].take = lambda _: peer.calls[0].stream.end("UNAVAILABLE")  # type: ignore[method-assign]
    peer.tell(frame(frames.DATA, frames.END_STREAM, 1, message(b"a") + message(b"b")))
    assert peer.calls[0].log == []


def test_no_more_is_sent_than_the_client_has_room_for() -> None:
    peer = Peer()
    peer.tell(frame(frames.SETTINGS, 0, 0, b"\0\4" + (100).to_bytes(4, "big")) + call(1) + call(3))
    peer.hear()
    peer.tell(frame(frames.DATA, frames.END_STREAM, 1, message(bytes(150))))

    def data() -> list[tuple[int, int]]:
        return [(id, len(payload)) for kind, _, id, payload in peer.hear() if kind == frames.DATA]

    assert data() == [(1, 100)]
    peer.tell(frame(frames.DATA, 0, 3, message(bytes(10))))
    assert data() == [(3, 15)], "the window of one stream does not hold up another"
    peer.tell(frame(frames.WINDOW_UPDATE, 0, 1, (50).to_bytes(4, "big")))
    assert data() == [(1, 50)]
    peer.tell(frame(frames.WINDOW_UPDATE, 0, 1, (50).to_bytes(4, "big")))
    assert [(kind, id) for kind, _, id, _ in peer.hear()] == [(frames.DATA, 1), (frames.HEADERS, 1)]


def test_the_window_of_the_connection_holds_for_all_streams_together() -> None:
    peer = Peer()
    peer.tell(frame(frames.SETTINGS, 0, 0, b"\0\4" + (1 << 20).to_bytes(4, "big")) + call(1) + call(3))
    big = message(bytes(50_000))
    for stream in (1, 3):
        for at in range(0, len(big), 16_000):
            peer.tell(frame(frames.DATA, 0, stream, big[at : at + 16_000]))
    sent = sum(len(payload) for kind, _, _, payload in peer.hear() if kind == frames.DATA)
    assert sent == frames.WINDOW
    assert not peer.calls[1].stream.is_clear
    peer.tell(frame(frames.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    sent += sum(len(payload) for kind, _, _, payload in peer.hear() if kind == frames.DATA)
    assert sent == 2 * len(big)
    assert peer.calls[1].log[-1] == "drain"


def test_room_is_made_for_what_was_read() -> None:
    peer = Peer()
    peer.tell(call(1))
    peer.hear()
    for _ in range(3):
        peer.tell(frame(frames.DATA, 0, 1, bytes(8000)))
    updates = [(id, int.from_bytes(data, "big")) for kind, _, id, data in peer.hear() if kind == frames.WINDOW_UPDATE]
    assert updates == [(0, 24_000), (1, 24_000)]


def test_a_message_that_is_too_large_or_compressed_is_refused_before_it_is_read() -> None:
    peer = Peer()
    peer.tell(call(1) + frame(frames.DATA, 0, 1, b"\0" + (200_001).to_bytes(4, "big")))
    peer.tell(call(3) + frame(frames.DATA, 0, 3, b"\1" + (1).to_bytes(4, "big") + b"x"))
    statuses = [payload for kind, _, _, payload in peer.hear() if kind == frames.HEADERS]
    assert [dict(HeaderReader().read(status))[b"grpc-status"] for status in statuses] == [b"8", b"12"]
    assert [call.log for call in peer.calls] == [[], []]


def test_a_call_that_is_taken_back_is_lost_and_so_are_all_with_the_connection() -> None:
    peer = Peer()
    peer.tell(call(1) + call(3) + call(5) + frame(frames.RST_STREAM, 0, 3, bytes(4)))
    assert [call.log for call in peer.calls] == [[], ["lose"], []]
    peer.connection.lose()
    assert [call.log for call in peer.calls] == [["lose"]] * 3
    peer.calls[0].stream.send(b"late")
    assert peer.hear() == []


def test_calls_beyond_the_limit_are_refused_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STREAMS_MAX", 2)
    peer = Peer()
    peer.tell(call(1) + call(3) + call(5))
    assert peer.hear() == [(frames.RST_STREAM, 0, 5, frames.REFUSED.to_bytes(4, "big"))]
    assert len(peer.calls) == 2


def test_a_header_block_may_come_in_parts_with_padding() -> None:
    peer = Peer()
    block = b"\x83" + written(b":path", b"/a")
    first = bytes((3,)) + bytes(5) + block[:4] + bytes(3)
    peer.tell(frame(frames.HEADERS, frames.PADDED | frames.PRIORITY | frames.END_STREAM, 1, first))
    peer.tell(frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[4:]))
    assert peer.fields == [{b":method": b"POST", b":path": b"/a"}]
    assert peer.calls[0].log == ["half close"]


def test_a_ping_is_answered_and_an_answer_is_not() -> None:
    peer = Peer()
    peer.tell(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, frames.ACK, 0, b"12345678"))
    peer.tell(frame(0xFE, 0xFF, 7, b"from a later version"))
    assert peer.hear() == [(frames.PING, frames.ACK, 0, b"12345678")]


@pytest.mark.parametrize(
    "said",
    [
        frame(frames.DATA, 0, 1, b"x"),  # of a stream that never was
        frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x83"),
        frame(frames.HEADERS, frames.END_HEADERS, 0, b"\x83"),
        frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x05abc"),
        frame(frames.HEADERS, 0, 1, b"\x83") + frame(frames.PING, 0, 0, bytes(8)),
        frame(frames.HEADERS, 0, 1, b"\x83") + frame(frames.CONTINUATION, 4, 3),
        frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, bytes(16_000)) * 2,
        frame(frames.CONTINUATION, 4, 1),
        frame(frames.RST_STREAM, 0, 1, bytes(4)),
        frame(frames.SETTINGS, 0, 1),
        frame(frames.SETTINGS, 0, 0, b"12345"),
        frame(frames.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        frame(frames.PUSH_PROMISE, 0, 1, bytes(4)),
        frame(frames.PING, 0, 0, bytes(7)),
        frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
        b"\x00\x40\x01\x00",  # a frame of 16 KiB and one byte follows
    ],
)
def test_what_cannot_be_gone_on_from_ends_the_connection(said: bytes) -> None:
    peer = Peer()
    with pytest.raises(ConnectionFault):
        peer.tell(said + bytes(9))


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", frames.PREFACE + frame(frames.PING, 0, 0)])
def test_who_does_not_begin_as_http2_does_is_no_client(first: bytes) -> None:
    with pytest.raises(ConnectionFault):
        Connection(lambda stream, fields: None, lambda data: None).receive(first)


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


# Strangers


def test_strangers_get_their_share_of_the_time_and_no_more() -> None:
    now = [0.0]
    share = Share(lambda: now[0])
    used = 0.0
    while now[0] < 100.0:
        now[0] += share.wait_s() or 0.001
        now[0] += 0.002  # what one of them costs
        share.take(0.002)
        used += 0.002
    assert used / now[0] == pytest.approx(STRANGERS_SHARE, rel=0.02)
    now[0] += 1000.0  # a quiet time is not saved up
    share.take(CREDIT_S + 0.01)
    assert share.wait_s() == pytest.approx(0.01 / STRANGERS_SHARE)
