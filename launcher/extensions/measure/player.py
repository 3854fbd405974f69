"""One node's part in a round: it sends to its target, asks the others, and counts what arrives."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Sequence

from launcher.extensions.measure.procedure import RoundReport
from launcher.extensions.measure.schedule import NOBODY, SETTLE_S, WARM_S, LoadRound, list_asked
from launcher.extensions.measure.tcp_load import BulkReceiver, choose_stream_count, start_sending
from launcher.extensions.measure.udp_echo import EchoSocket
from launcher.hardware.linux.interfaces import list_addresses
from launcher.hardware.linux.sysfs import FileTree

QUESTIONS = 64  # of a node in a round, to all that it asks together; so many to each
REPEATS_MIN, REPEATS_MAX = 3, 8
Address = tuple[str, int]


def read_speed_mbit(address: str) -> int:
    """Return the speed of the interface that has this address, in Mbit/s; 0 if it does not say."""
    for _, name in socket.if_nameindex():
        if address in list_addresses(name):
            return max(0, FileTree().read_number(f"/sys/class/net/{name}/speed") or 0)
    return 0


class Player:
    """The sockets of this node, at one of its addresses. `speed_mbit`: of its interface, 0 if unknown."""

    def __init__(self, address: str, speed_mbit: int = 0) -> None:
        self._echo = EchoSocket(address)
        self._bulk = BulkReceiver(address)
        self._token = b""
        self._streams = choose_stream_count(speed_mbit)

    @property
    def ports(self) -> tuple[int, int]:
        """Where it answers echoes, and where it receives bulk data."""
        return self._echo.port, self._bulk.port

    def set_token(self, token: bytes) -> None:
        self._token = token
        self._echo.set_token(token)
        self._bulk.set_token(token)

    def play(
        self,
        serial: int,
        round: LoadRound,
        *,
        own: int,
        echoes: Sequence[Address],
        bulks: Sequence[Address],
        absent: Collection[int] = (),
    ) -> RoundReport:
        """Play a round and return what this node, number `own`, saw of it. `echoes`, `bulks`: addresses of all."""
        numbers = list_asked(own, len(echoes))
        places = [(number, echoes[number]) for number in numbers if number not in absent]
        repeats = max(REPEATS_MIN, min(REPEATS_MAX, QUESTIONS // max(1, len(places))))
        began = time.monotonic()
        sending = []
        if round.targets:
            end = began + WARM_S + round.window_s
            if (target := round.targets[own]) != NOBODY:
                pace_bps = round.paces_bps[own] if round.paces_bps else 0
                limits = {"pace_bps": pace_bps, "streams": self._streams}
                sending = start_sending(bulks[target], self._token, serial, end=end, **limits)
            time.sleep(WARM_S)
        before, counted_at = self._bulk.count_bytes(serial), time.monotonic()
        self._echo.ask(serial, places, repeats, max(0.0, began + round.duration_s - SETTLE_S - time.monotonic()))
        received = self._bulk.count_bytes(serial) - before
        received_bps = int(received * 8 / max(1e-3, time.monotonic() - counted_at))
        for thread in sending:
            thread.join()
        time.sleep(SETTLE_S)
        return RoundReport(tuple(self._echo.find_low_us(serial, number) for number in numbers), received_bps)

    def close(self) -> None:
        self._echo.close()
        self._bulk.close()
