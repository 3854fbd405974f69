"""Timers that workers set for themselves: what comes through the pipe, and who has run out of time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.ranks.timers import TimerTable, choose_path


def request(pid: int, name: str, expires: float, signum: int = 9) -> bytes:
    """As torch's FileTimerClient writes it."""
    told = {"version": 1, "pid": pid, "scope_id": name, "expiration_time": expires, "signal": signum}
    return json.dumps(told).encode() + b"\n"


def test_a_timer_runs_out_at_its_time_and_once() -> None:
    timers = TimerTable()
    assert timers.next_at == float("inf")
    timers.feed(request(7, "step", 100.0) + request(8, "load", 90.0, 15))
    assert timers.next_at == 90.0
    assert timers.take_expired(89.9) == []
    assert timers.take_expired(100.0) == [(8, "load", 15), (7, "step", 9)]
    assert timers.take_expired(200.0) == []


def test_a_timer_can_be_taken_back_and_set_anew() -> None:
    timers = TimerTable()
    timers.feed(request(7, "step", 100.0) + request(7, "step", -1.0, 0) + request(8, "step", 100.0))
    assert timers.take_expired(100.0) == [(8, "step", 9)]
    timers.feed(request(7, "step", 100.0) + request(7, "step", 300.0))
    assert timers.next_at == 300.0


def test_the_other_timers_of_a_killed_process_are_forgotten() -> None:
    timers = TimerTable()
    timers.feed(request(7, "step", 100.0) + request(7, "epoch", 200.0) + request(8, "step", 150.0))
    timers.take_expired(100.0)
    timers.forget(7)
    assert timers.take_expired(1000.0) == [(8, "step", 9)]


def test_a_request_may_come_in_pieces() -> None:
    timers = TimerTable()
    text = request(7, "step", 100.0)
    timers.feed(text[:20])
    timers.feed(text[20:] + text[:1])
    assert timers.next_at == 100.0


def test_what_comes_behind_half_a_request_does_not_push_it_out() -> None:
    timers = TimerTable()
    text = request(7, "step", 100.0)
    timers.feed(text[:-1])
    many = b"".join(request(8, str(number), 200.0) for number in range(1000))  # more than a pipe holds
    timers.feed(b"\n" + many)
    assert timers.next_at == 100.0


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\n", b"{}\n", b"[]\n", b"7\n", b'{"pid": "x"}\n', b"\xff\xfe\n", b"{" * 100_000 + b"\n",
        b"[" * 100_000 + b"\n", b'{"pid": 1e999, "scope_id": 1, "expiration_time": 1, "signal": 9}\n',
        request(7, "step", float("nan")), b'{"pid": 7, "scope_id": 1, "expiration_time": null, "signal": 9}\n',
    ],
)  # fmt: skip
def test_rubbish_sets_no_timer_and_hinders_none(rubbish: bytes) -> None:
    timers = TimerTable()
    timers.feed(rubbish + request(8, "step", 100.0))
    assert timers.take_expired(1e12) == [(8, "step", 9)]


def test_a_pipe_that_an_agent_has_left_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    assert choose_path(str(path), "fresh") == str(path)
    os.mkfifo(path)
    assert choose_path(str(path), "fresh") == str(path)
    assert not path.exists()


def test_a_pipe_in_which_another_agent_listens_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert choose_path(str(path), "fresh") == "fresh"
    finally:
        os.close(reader)
    assert path.exists()


def test_what_is_no_pipe_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    assert choose_path(str(path), "fresh") == str(path)
    assert path.read_text() == "mine"
