"""How a node is told to go, what workers tell their agent, what secrets are read from, and what people are told."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
from pathlib import Path

import pytest

from launcher import worker
from launcher.agent.signals import FILE_INTERVAL_S, Termination
from launcher.config import config, credentials
from launcher.config.config import Config
from launcher.config.credentials import Credentials
from launcher.config.options import command_line
from launcher.config.options.network import StoreConfig
from launcher.logs.reports.round_log import STABLE_S, RoundLog
from launcher.model.errors import UsageError
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks import checkpoint_socket as hearing_module
from launcher.ranks.checkpoint_socket import CheckpointSocket
from rendezvous.events import LeaveRequest, StartRound

ETCD = StoreConfig(backend="etcd", endpoints=("h:2379",))
SERVED = StoreConfig(backend="served", endpoints=("h:29400",))


def resolve(*words: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), {}, "python")


# --- told to go ---


def test_a_preemption_signal_sends_sigterm_and_others_are_passed_on() -> None:
    departure = Termination(resolve("--preemption-signal=SIGUSR1"))
    assert "SIGUSR1" in departure.signals
    assert departure.take_signal(signal.SIGUSR1) == LeaveRequest("SIGUSR1 announces a preemption", 128 + signal.SIGUSR1)
    assert departure.signum == signal.SIGTERM
    assert departure.take_signal(signal.SIGTERM) is None
    departure = Termination(resolve())
    assert departure.take_signal(signal.SIGHUP) == LeaveRequest("stopped by SIGHUP", 129)
    assert departure.signum == signal.SIGHUP


def test_a_preemption_file_is_looked_for_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "going"
    departure = Termination(resolve(f"--preemption-file={file}"))
    assert departure.check_file(10.0) is None
    assert departure.wake_at == 10.0 + FILE_INTERVAL_S
    file.touch()
    assert departure.check_file(10.5) is None
    assert departure.check_file(11.0) == LeaveRequest(f"{file} announces a preemption", 143)
    assert departure.check_file(20.0) is None
    assert departure.wake_at == float("inf")


def test_without_a_file_nothing_is_looked_for() -> None:
    assert Termination(resolve()).wake_at == float("inf")
    assert Termination(resolve()).check_file(1.0) is None


# --- told by workers ---


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


# --- secrets ---


def test_secrets_come_from_variables_or_from_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p w\n")
    path = str(tmp_path / "password")
    environ = {"LAUNCHER_ETCD_USER": "me", "LAUNCHER_ETCD_PASSWORD_FILE": path, "LAUNCHER_JOB_SECRET": "s"}
    assert credentials.read(ETCD, environ) == Credentials("me", "p w", "", b"s")
    named = StoreConfig(backend="etcd", endpoints=("h:1",), user="you", password_file=path)
    assert credentials.read(named, {}) == Credentials("you", "p w", "", b"")
    assert credentials.read(SERVED, {"LAUNCHER_STORE_TOKEN": "t", "LAUNCHER_ETCD_USER": "me"}) == Credentials(token="t")
    assert credentials.read(ETCD, {}) == Credentials()


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"x" * 5000, b"\xff"])
def test_a_file_without_a_secret_is_refused_without_showing_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="LAUNCHER_JOB_SECRET_FILE="):
        credentials.read(ETCD, {"LAUNCHER_JOB_SECRET_FILE": str(path)})


@pytest.mark.parametrize(
    "environ", [{"LAUNCHER_ETCD_USER": "me"}, {"LAUNCHER_ETCD_PASSWORD": "hunter2"}, {"LAUNCHER_STORE_TOKEN": "t",
                "LAUNCHER_STORE_TOKEN_FILE": "/t"}],
)  # fmt: skip
def test_half_a_pair_and_one_too_many_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        credentials.read(ETCD, environ)
    assert "hunter2" not in str(caught.value)


# --- told to people ---

SHARE = NodeAssignment(
    ranks=(8, 9, 10, 11), world_size=224, shape=(4, 7, 8), group_rank=1, group_world_size=28, role_ranks=(8, 9, 10, 11),
    role_world_size=224, master_addr="h", master_port=1, summary="28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11",
)  # fmt: skip


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def test_every_round_of_several_nodes_is_told_by_each_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    narrator.log_end(1, "node h17 lost in round 1")
    narrator.log_start(StartRound(2, 1, 224, "h:1", ""), SHARE)
    assert told(capfd) == [
        "meshrun: round 1: 28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11; ranks 8-11 here",
        "meshrun: round 1 ends: node h17 lost in round 1",
        "meshrun: round 2: 28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11; 1 of 3 restarts used; ranks 8-11 here",
    ]


def test_on_one_machine_only_restarts_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=True, max_restarts=3)
    narrator.log_start(StartRound(1, 0, 4, "h:1", ""), SHARE)
    narrator.log_end(1, "a worker failed")
    narrator.log_start(StartRound(2, 1, 4, "h:1", ""), SHARE)
    assert told(capfd) == ["meshrun: round 2 starts with 4 workers, 1 of 3 restarts used"]


def test_what_is_waited_for_is_told_once_and_only_when_it_lasts(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.note("waiting for nodes: 2 are present")
    narrator.log_waiting(10.0)
    assert told(capfd) == []
    assert narrator.wake_at == 10.0 + STABLE_S
    narrator.log_waiting(narrator.wake_at)
    narrator.log_waiting(30.0)
    assert told(capfd) == ["meshrun: waiting for nodes: 2 are present"]
    assert narrator.wake_at == math.inf


def test_quick_changes_are_logged_now_and_then_and_the_last_one_always(
    capfd: pytest.CaptureFixture[str],
) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    for count in range(21):  # an eighth of a second from one to the next
        narrator.note(f"{count} nodes are present")
        narrator.log_waiting(10.0 + count / 8)
    assert told(capfd) == ["meshrun: 16 nodes are present"]
    narrator.log_waiting(narrator.wake_at)
    assert told(capfd) == ["meshrun: 20 nodes are present"]


def test_what_happens_is_told_at_once_where_there_are_other_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    for is_alone in (True, False):
        narrator = RoundLog(is_standalone=is_alone, max_restarts=0)
        narrator.note("round 1 runs 4 ranks")
        narrator.note("the store is back", is_remark=True)
        assert told(capfd) == ([] if is_alone else ["meshrun: the store is back"])
        narrator.log_waiting(10.0)
        narrator.log_waiting(11.0)
        assert told(capfd) == ["meshrun: round 1 runs 4 ranks"]


def test_a_node_that_does_not_lead_says_after_a_while_that_it_waits(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    for at in (10.0, 11.0, 12.5, 13.0):
        narrator.log_waiting(at)
    assert told(capfd) == ["meshrun: waiting for the first round: the agent that leads says what it waits for"]
    narrator.log_start(StartRound(1, 0, 224, "h:1", ""), SHARE)
    told(capfd)
    for at in (20.0, 21.0, 22.5, 23.0):
        narrator.log_waiting(at)
    assert told(capfd) == ["meshrun: waiting for the next round: the agent that leads says what it waits for"]


def test_what_comes_from_elsewhere_makes_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.log_end(1, "lost\nmeshrun: all is well\x1b[2J")
    assert told(capfd) == ["meshrun: round 1 ends: lost\\nmeshrun: all is well\\x1b[2J"]


def test_who_was_told_to_go_waits_for_no_round(capfd: pytest.CaptureFixture[str]) -> None:
    narrator = RoundLog(is_standalone=False, max_restarts=0)
    narrator.set_leaving()
    narrator.log_waiting(10.0)
    assert narrator.wake_at == math.inf
    narrator.log_waiting(20.0)
    assert told(capfd) == []
