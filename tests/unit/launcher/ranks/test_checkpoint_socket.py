"""What workers tell their agent of checkpoints, and whose messages are not heard."""

from __future__ import annotations

import os
import select
import socket

import pytest

from launcher import worker
from launcher.ranks import checkpoint_socket as hearing_module
from launcher.ranks.checkpoint_socket import CheckpointSocket


def test_a_worker_tells_its_agent_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = CheckpointSocket()
    for name, value in {**hearing.environment, "LAUNCHER_ROUND": "3"}.items():
        monkeypatch.setenv(name, value)
    assert worker.checkpoint_saved()
    assert worker.checkpoint_saved()
    assert hearing.take() == [3, 3]
    assert hearing.take() == []
    hearing.close()
    assert not worker.checkpoint_saved()


def test_without_an_agent_that_listens_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker.SOCKET_VARIABLE, raising=False)
    assert not worker.checkpoint_saved()


def test_what_is_no_such_message_is_not_heard() -> None:
    hearing = CheckpointSocket()
    place, _, token = hearing.environment[worker.SOCKET_VARIABLE].partition(":")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in ("", " saved", " saved x", " other 3", " saved " + "9" * 500, " saved 4"):
            sender.sendto((token + message).encode(), f"\0{place}")
    heard = hearing.take()
    hearing.close()
    assert [number for number in heard if number < 1000] == [4]


def test_a_message_without_the_token_is_dropped_before_it_wakes_the_agent() -> None:
    hearing = CheckpointSocket()
    place, _, token = hearing.environment[worker.SOCKET_VARIABLE].partition(":")
    others = [token[:at] + ("1" if token[at] == "0" else "0") + token[at + 1 :] for at in range(len(token))]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # ten datagrams would fill the queue
        for begin in ("", "saved 1", token[:-1], *others):
            sender.sendto(f"{begin} saved 1".encode(), f"\0{place}")
        assert select.select([hearing], [], [], 0)[0] == []
        sender.sendto(f"{token} saved 1".encode(), f"\0{place}")
    assert select.select([hearing], [], [], 0)[0] == [hearing]
    assert hearing.take() == [1]
    hearing.close()


def test_without_a_kernel_filter_the_agent_checks_tokens_in_small_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hearing_module, "_ATTACH_FILTER", -1)
    hearing = CheckpointSocket()
    place, _, token = hearing.environment[worker.SOCKET_VARIABLE].partition(":")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(b"0123456789abcdef saved 1", f"\0{place}")
        sender.sendto(f"{token} saved 2".encode(), f"\0{place}")
        assert hearing.take() == [2]
        monkeypatch.setattr(hearing_module, "MESSAGES_MAX", 3)
        for _ in range(5):
            sender.sendto(f"{token} saved 2".encode(), f"\0{place}")
    assert [len(hearing.take()) for _ in range(3)] == [3, 2, 0]
    hearing.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_other_users_are_not_heard_even_if_they_know_the_token() -> None:
    hearing = CheckpointSocket()
    place, _, token = hearing.environment[worker.SOCKET_VARIABLE].partition(":")
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"{token} saved 1".encode(), f"\0{place}")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert select.select([hearing], [], [], 0)[0] == [hearing]
    assert hearing.take() == []
    hearing.close()
