"""The sockets of a measurement on loopback: echoes and bulk data for participants, nothing for strangers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from launcher.extensions.measure.player import Player
from launcher.extensions.measure.procedure import RoundReport
from launcher.extensions.measure.schedule import LoadRound
from launcher.extensions.measure.tcp_load import BulkReceiver, start_sending
from launcher.extensions.measure.udp_echo import EchoSocket
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
OURS, THEIRS = b"o" * 16, b"t" * 16


@pytest.fixture
def echo() -> Iterator[EchoSocket]:
    with contextlib.closing(EchoSocket(HOST)) as echo:
        echo.set_token(OURS)
        yield echo


@pytest.fixture
def receiver() -> Iterator[BulkReceiver]:
    with contextlib.closing(BulkReceiver(HOST)) as receiver:
        receiver.set_token(OURS)
        yield receiver


def test_a_participant_gets_echoes_of_less_than_a_second(echo: EchoSocket) -> None:
    echo.ask(1, [(0, (HOST, echo.port)), (1, (HOST, 9))], repeats=4, window_s=0.2)
    assert 0 < echo.find_low_us(1, 0) < 1_000_000
    assert echo.find_low_us(1, 1) == echo.find_low_us(2, 0) == 0


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wall_clock_that_is_set_does_not_matter(
    echo: EchoSocket, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + hours * 3600 * 10**9)
    echo.ask(1, [(0, (HOST, echo.port))], repeats=2, window_s=0.2)
    assert 1 < echo.find_low_us(1, 0) < 60_000_000


@pytest.mark.parametrize("data", [THEIRS + b"\1" + bytes(22), OURS + b"\1" + bytes(23), OURS, b""])
def test_a_datagram_that_is_not_of_the_measurement_gets_no_answer(echo: EchoSocket, data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind((HOST, 0))
        stranger.sendto(data, (HOST, echo.port))
        echo.ask(1, [(0, (HOST, echo.port))], repeats=2, window_s=0.2)  # what came before this has been read by then
        wait_until(lambda: echo.find_low_us(1, 0), what="an echo after the stranger's")
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(100)


def test_bulk_data_count_for_their_round_with_the_headers_of_frames(receiver: BulkReceiver) -> None:
    end = time.monotonic() + 0.3
    for thread in start_sending((HOST, receiver.port), OURS, 7, end=end, pace_bps=0, streams=2):
        thread.join()
    wait_until(lambda: receiver.count_bytes(7), what="bytes of round 7")
    assert receiver.count_bytes(6) == 0


def test_a_stream_of_a_stranger_is_closed_and_counts_nothing(receiver: BulkReceiver) -> None:
    with socket.create_connection((HOST, receiver.port), 20) as stranger:
        stranger.sendall(THEIRS + bytes((0, 0, 0, 7)))
        assert stranger.recv(1) == b""
    assert receiver.count_bytes(7) == 0


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_a_player_reports_what_it_received_and_who_answered(host: str) -> None:
    player = Player(host)
    try:
        player.set_token(OURS)
        echoes, bulks = ([(host, port)] * 2 for port in player.ports)
        seen = player.play(1, LoadRound(targets=(0, -1)), own=0, echoes=echoes, bulks=bulks)
        idle = player.play(2, LoadRound(), own=0, echoes=echoes, bulks=bulks, absent={1})
    finally:
        player.close()
    assert seen.received_bps > 0
    assert seen.round_trips_us[0] > 0
    assert idle == RoundReport((0,), 0)
