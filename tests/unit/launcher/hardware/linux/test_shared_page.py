"""The page that agent and workers share, and what each makes of it."""

from __future__ import annotations

import errno
import faulthandler
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.agent.command import parse
from launcher.agent.lifecycle import Round, WorkerExit
from launcher.agent.worker_channel import ABORT_GRACE_S, WorkerChannel
from launcher.hardware.linux import kernel
from launcher.hardware.linux.figures import SIZE, find_offset, read_figures, write_figures
from launcher.hardware.linux.shared_page import (
    CLAIM_GIVES_UP,
    LINE_SIZE,
    NUMBER_SIZE,
    REACHED_STEP,
    STEPS_MAX,
    VARIABLE,
    SharedPage,
    find_last_words_offset,
    make,
)
from launcher.model.errors import ShortageError, TemporaryError
from launcher.supervisor.heartbeats import CHECKS_PER_TIMEOUT, Heartbeats
from launcher.worker import (
    blame_node,
    checkpoint_saved,
    client,
    figures,
    give_up,
    heartbeat,
    progress,
    stop_request,
    stop_requested,
)


@pytest.fixture
def board() -> Iterator[SharedPage]:
    made = make()
    yield made
    os.close(made.descriptor)


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this process the worker at a place of a board, in a round."""

    def become(board: SharedPage | None, index: int = 0, round: int = 1) -> None:
        monkeypatch.setattr(client, "_page", None)
        monkeypatch.setattr(client, "_is_resolved", False)
        monkeypatch.setenv("LAUNCHER_ROUND", str(round))
        monkeypatch.delenv(VARIABLE, raising=False)
        for name, value in (board.list_variables(index) if board else {}).items():
            monkeypatch.setenv(name, value)

    return become


class Orders:
    """In the place of a supervisor."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Sequence[int] | None]] = []

    def signal(self, round: int, signum: int, only: Sequence[int] | None = None) -> None:
        self.sent.append((signum, only))


def test_a_stop_reaches_the_workers_of_its_round_and_the_agent_sees_who_has_asked(board: SharedPage, be: Any) -> None:
    board.begin(2, None)
    be(board, 1, round=3)
    assert not stop_requested()
    board.request_stop(3)
    assert stop_requested()
    be(board, 1, round=4)
    assert not stop_requested()
    board.begin(3, None)
    be(board, 2, round=5)
    assert board.list_stop_pollers(5) == frozenset()
    stop_requested()
    assert (board.list_stop_pollers(5), board.list_stop_pollers(6)) == (frozenset({2}), frozenset())


def test_beats_are_counted_for_each_worker_and_begin_anew_with_a_round(board: SharedPage, be: Any) -> None:
    board.begin(3, 60)
    be(board, 1)
    assert heartbeat()
    assert heartbeat()
    assert board.read_heartbeats() == [0, 2, 0]
    board.begin(2, 60)
    assert board.read_heartbeats() == [0, 0]


def test_a_page_that_was_cut_is_not_read(board: SharedPage) -> None:
    board.begin(3, 60)
    os.ftruncate(board.descriptor, LINE_SIZE + NUMBER_SIZE)
    assert board.read_heartbeats() == [0, 0, 0]
    assert board.read_phases() == [(0, 0.0, "")] * 3
    assert (board.read_step(), board.list_claims()) == (-1, {})


def test_the_last_words_of_a_round_are_its_own(board: SharedPage) -> None:
    board.begin(2, None)
    assert board.read_last_words(1) == ""
    os.pwrite(board.descriptor, b"\nthe end \xff", find_last_words_offset(2))
    assert [board.read_last_words(index) for index in range(2)] == ["", "\nthe end \ufffd"]
    board.begin(2, None)
    assert board.read_last_words(1) == ""
    board.begin(3, None)
    assert board.read_heartbeats() == [0, 0, 0]


@pytest.mark.parametrize("line", [4, 64, 30_000])
def test_last_words_lie_behind_the_figures_of_every_worker(line: int, board: SharedPage) -> None:
    assert find_offset(line) + SIZE <= find_last_words_offset(0)
    board.begin(2, None)
    assert write_figures(board.descriptor, line, "x" * 1000)
    os.pwrite(board.descriptor, b"\nthe end", find_last_words_offset(line // 4))
    assert read_figures(board.descriptor, line) == "x" * 1000
    board.begin(2, None)
    assert read_figures(board.descriptor, line) == "x" * 1000
    assert os.fstat(board.descriptor).st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("is_read", [True, False])
def test_a_beat_without_a_limit_counts_and_says_whether_it_is_read(is_read: bool, board: SharedPage, be: Any) -> None:
    board.begin(1, None, reads_heartbeats=is_read)
    be(board)
    before = faulthandler.is_enabled()
    faulthandler.disable()
    try:
        assert heartbeat() == is_read
        assert not faulthandler.is_enabled()
    finally:
        if before:
            faulthandler.enable()
    assert board.read_heartbeats() == [1]


def test_without_a_page_there_is_no_stop_and_no_listener_and_a_claim_still_ends_the_worker(be: Any) -> None:
    be(None)
    assert (stop_requested(), heartbeat()) == (False, False)
    be(None)
    with pytest.raises(SystemExit) as end:
        blame_node("bad GPU")
    assert end.value.code == 75


@pytest.mark.parametrize("what", ["closed", "another file", "rubbish"])
def test_a_descriptor_that_is_no_shared_page_any_more_is_left_alone(
    what: str, be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = make()
    board.begin(1, 60)
    be(board)
    os.close(board.descriptor)
    other = tmp_path / "other"
    other.write_bytes(bytes(4096))
    if what == "another file":
        opened = os.open(other, os.O_RDWR)
        if opened != board.descriptor:  # all below it may be taken
            os.dup2(opened, board.descriptor)
            os.close(opened)
    elif what == "rubbish":
        monkeypatch.setenv(VARIABLE, "seven")
    assert (stop_requested(), heartbeat()) == (False, False)
    assert other.read_bytes() == bytes(4096)
    if what == "another file":
        os.close(board.descriptor)


@pytest.mark.parametrize("lacks", ["Python", "the C library"])
def test_without_memfd_create_there_is_a_shared_page_all_the_same(
    lacks: str, be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    if lacks == "the C library":
        monkeypatch.setattr(kernel, "_call", Mock(side_effect=OSError(errno.ENOSYS, "no memfd_create")))
    made = make()
    assert not os.get_inheritable(made.descriptor)
    made.begin(1, 60)
    be(made)
    assert heartbeat()
    assert made.read_heartbeats() == [1]
    assert made.read_last_words(0) == ""
    os.close(made.descriptor)


@pytest.mark.parametrize("has_memory", [True, False])
def test_without_memfd_create_the_page_is_in_memory_if_it_can_be(
    has_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.TemporaryFile
    folders: list[str | None] = []

    def make_file(dir: str | None = None) -> Any:
        folders.append(dir)
        if dir is not None and not has_memory:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", dir)
        return made(dir=tmp_path)

    monkeypatch.setattr(kernel, "_call", Mock(side_effect=OSError(errno.ENOSYS, "no memfd_create")))
    monkeypatch.setattr(tempfile, "TemporaryFile", make_file)
    os.close(make().descriptor)
    assert folders == (["/dev/shm"] if has_memory else ["/dev/shm", None])


@pytest.mark.parametrize("room", [LINE_SIZE * 3, 0])
def test_a_stop_is_requested_on_a_full_disk_too(
    room: int, board: SharedPage, be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.begin(2, None)
    write = os.pwrite

    def write_if_there_is_room(descriptor: int, data: bytes, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write_if_there_is_room)
    WorkerChannel(board, Orders(), None).request_stop(3, 100.0, "maintenance")  # type: ignore[arg-type]
    be(board, 1, round=3)
    assert stop_requested() == (room > 0)
    request = stop_request()
    assert request is None if room == 0 else request is not None and request.reason == ""


def test_without_any_file_to_share_no_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_call", Mock(side_effect=OSError(errno.EPERM, "")))
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(TemporaryError, match="that agent and workers share: No space left on device") as refused:
        make()
    assert refused.value.hint == "check df -h and df -i"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, TemporaryError), (errno.ENOMEM, ShortageError)])
def test_a_page_that_cannot_be_written_is_a_sentence(
    number: int, kind: type[TemporaryError], board: SharedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(TemporaryError, match="that agent and workers share") as refused:
        WorkerChannel(board, Orders(), None).begin({}, 2, 0.0)  # type: ignore[arg-type]
    assert type(refused.value) is kind


def test_a_low_limit_on_open_files_keeps_the_shared_pages_descriptor() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        made = make()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert made.descriptor < 100
    os.close(made.descriptor)


def test_a_worker_is_unresponsive_after_a_whole_timeout_in_which_it_was_looked_at() -> None:
    beats, now = Heartbeats(8.0, 0.0), 0.0
    found: list[int] = []
    while not found:
        now = beats.wake_at
        found = beats.observe([5, int(now), 0], {0, 1, 2}, now)
    assert found == [0]
    assert 8.0 < now <= 8.0 + 2 * 8.0 / CHECKS_PER_TIMEOUT
    assert beats.observe([5, 99, 0], {0, 1, 2}, now + 1) == []  # told once
    beats = Heartbeats(1.0, 0.0)
    assert not any(beats.observe([0, 3], {0}, look / 10) for look in range(100))
    beats = Heartbeats(8.0, 0.0)
    assert beats.observe([1], {0}, 1.0) == []
    assert beats.observe([1], {0}, 1000.0) == []
    assert beats.observe([2], {0}, 1001.0) == []


Channel = tuple[WorkerChannel, Orders, Round]


@pytest.fixture
def channel(board: SharedPage, be: Any) -> Channel:
    """Of two workers, of which the second has sent a heartbeat, once; 8 s are the limit."""
    return make_channel(board, 8.0, be, heartbeat)


def make_channel(board: SharedPage, timeout_s: float | None, be: Any, act: Callable[[], object]) -> Channel:
    orders = Orders()
    channel = WorkerChannel(board, orders, timeout_s)  # type: ignore[arg-type]
    channel.begin({0: os.getpid(), 1: os.getpid()}, 2, 0.0)
    be(board, 1)
    act()
    return channel, orders, Round(1, 2)


def test_an_unresponsive_worker_gets_sigabrt_and_is_killed_if_it_stays(channel: Channel) -> None:
    conversation, orders, round = channel
    looks = (look / 2 for look in range(1, 100))
    at = next(now for now in looks if conversation.check_heartbeats(round, now) == [] and orders.sent)
    assert orders.sent == [(signal.SIGABRT, [1])]
    assert conversation.end_reasons == {1: "no heartbeat for 8 s"}
    assert conversation.check_heartbeats(round, at + ABORT_GRACE_S) == [1]
    assert orders.sent[1:] == [(signal.SIGKILL, [1])]
    assert conversation.check_heartbeats(round, at + 2 * ABORT_GRACE_S) == []


def test_one_that_has_ended_by_sigabrt_is_not_lost_as_well(channel: Channel) -> None:
    conversation, orders, round = channel
    at = next(now for now in range(1, 100) if conversation.check_heartbeats(round, now) == [] and orders.sent)
    round.take_exit(WorkerExit(1, -signal.SIGABRT, False), at)
    assert conversation.check_heartbeats(round, at + 10 * ABORT_GRACE_S) == []


def test_workers_that_are_told_to_end_may_be_silent(channel: Channel) -> None:
    conversation, orders, round = channel
    round.stop(signal.SIGTERM, 1000.0, 0.0)
    assert not any(conversation.check_heartbeats(round, float(now)) for now in range(100))
    assert orders.sent == []


@pytest.mark.parametrize(("words", "timeout_s"), [((), None), (("2.5",), 2.5), (("0",), None)])
def test_the_time_out_is_an_option_and_none_unless_it_is_given(words: tuple[str, ...], timeout_s: float | None) -> None:
    environ = {"LAUNCHER_HEARTBEAT_TIMEOUT": "9"} if words else {}
    made = parse((*(f"--heartbeat-timeout={word}" for word in words), "train.py"), environ)
    assert made.hangs.heartbeat_timeout_s == timeout_s


def test_a_saved_checkpoint_reaches_the_agent_once_in_its_round(board: SharedPage, be: Any) -> None:
    channel = WorkerChannel(board, Orders(), None, reads_saves=True)  # type: ignore[arg-type]
    channel.begin({}, 2, 0.0)
    be(board, 0)
    assert checkpoint_saved()
    be(board, 1)
    assert checkpoint_saved()
    assert not channel.check_saves(channel.wake_at - 0.1)
    assert channel.check_saves(channel.wake_at)
    assert not channel.check_saves(channel.wake_at)
    assert checkpoint_saved()
    channel.begin({}, 2, 10.0)
    assert not channel.check_saves(channel.wake_at)
    assert checkpoint_saved()
    assert channel.check_saves(channel.wake_at)
    assert checkpoint_saved()
    assert channel.check_saves(math.inf), "the round is over"
    assert not channel.check_saves(math.inf)


def test_a_saved_checkpoint_that_no_agent_reads_is_not_reported(board: SharedPage, be: Any) -> None:
    channel = WorkerChannel(board, Orders(), None)  # type: ignore[arg-type]
    channel.begin({}, 1, 0.0)
    be(board, 0)
    assert not checkpoint_saved()
    assert (channel.wake_at, channel.check_saves(10.0), channel.check_saves(math.inf)) == (math.inf, False, False)
    be(None)
    assert not checkpoint_saved()


@pytest.mark.parametrize(
    ("signum", "has_handler", "is_asked", "sent"),
    [
        (signal.SIGUSR1, False, True, [(signal.SIGUSR1, [0])]),  # it would die of it
        (signal.SIGUSR1, True, True, [(signal.SIGUSR1, [])]),  # the two have got it alone
        (signal.SIGINT, True, True, [(signal.SIGINT, [0])]),  # Python's own would break off the step
        (signal.SIGUSR1, False, False, [(signal.SIGUSR1, None)]),  # not graceful: it ends at once
    ],
)
def test_a_worker_that_asks_is_spared_a_signal_it_does_not_handle(
    signum: int, has_handler: bool, is_asked: bool, sent: list[object], board: SharedPage, be: Any
) -> None:
    conversation, orders, round = make_channel(board, None, be, stop_requested)
    if is_asked:
        conversation.request_stop(1, 0.0, "")
    before = signal.signal(signum, (lambda *_: None) if has_handler else signal.SIG_DFL)
    try:
        conversation.signal_workers(round, signum)
    finally:
        signal.signal(signum, before)
    assert orders.sent == sent
    assert stop_requested() == is_asked


@pytest.mark.parametrize(
    ("handled", "got", "sent"),
    [
        ((signal.SIGUSR1,), [signal.SIGUSR1, signal.SIGUSR1], []),  # SIGTERM would end it before it has saved
        ((signal.SIGUSR1, signal.SIGTERM), [signal.SIGUSR1] * 2 + [signal.SIGTERM] * 2, []),
        ((signal.SIGTERM,), [signal.SIGTERM, signal.SIGTERM], []),
        ((), [], [(signal.SIGTERM, None)]),
    ],
)
def test_a_notice_goes_to_the_workers_that_handle_it(
    handled: tuple[int, ...], got: list[int], sent: list[object], board: SharedPage, be: Any
) -> None:
    conversation, orders, round = make_channel(board, None, be, lambda: None)
    numbers, told = (signal.SIGUSR1, signal.SIGTERM), []
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        signal.signal(number, (lambda it, _: told.append(it)) if number in handled else signal.SIG_DFL)
    try:
        conversation.signal_workers(round, signal.SIGTERM, signal.SIGUSR1)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert told == got
    assert [one for one in orders.sent if one[1] != []] == sent


@pytest.mark.parametrize(
    ("reason", "read"), [("n2 leaves", "n2 leaves"), ("", ""), ("ä" * 400, "ä" * 256), ("a\0b", "a\0b")]
)
def test_a_worker_learns_why_it_must_stop_and_its_time(board: SharedPage, be: Any, reason: str, read: str) -> None:
    board.begin(2, None)
    be(board, 1)
    assert stop_request() is None
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    board.request_stop(1, now + 28.0, reason)
    told = stop_request()
    assert told is not None
    assert told.reason == read
    assert 0.0 < told.seconds_left <= 28.001
    board.request_stop(1, now - 3600.0, "sooner")  # a notice may come while it saves
    assert stop_request() == ("sooner", 0.0)
    board.request_stop(1, math.inf, "")
    assert stop_request() > ("", 1e9)
    be(board, 1, round=2)
    assert stop_request() is None
    be(None)
    assert stop_request() is None


def test_a_worker_that_has_closed_the_page_still_learns_of_a_stop(board: SharedPage, be: Any) -> None:
    board.begin(1, None)
    be(board)
    assert not stop_requested()
    board.request_stop(1, time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0, "why")
    number = os.dup(board.descriptor)
    os.environ[VARIABLE] = f"{number}:{os.environ[VARIABLE].partition(':')[2]}"
    os.close(number)
    told = stop_request()
    assert told is not None
    assert told.reason == ""
    assert told.seconds_left > 0.0


def test_the_highest_step_of_any_worker_reaches_the_agent(board: SharedPage, be: Any) -> None:
    board.begin(2, None)
    assert board.read_step() == -1
    be(board, 1)
    assert progress(0)
    assert board.read_step() == 0
    assert progress(1200)
    assert progress(7)
    be(board, 0)
    assert progress(5)
    assert board.read_step() == 1200
    with pytest.raises(ValueError, match="step -1 is not"):
        progress(-1)
    board.begin(2, None)
    assert board.read_step() == -1
    be(None)
    assert not progress(3)


def read_all(board: SharedPage) -> list[str]:
    return [read_figures(board.descriptor, line) for line in (1, 2)]


def test_figures_reach_the_agent_and_are_kept_until_they_are_given_again(
    board: SharedPage, be: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_metrics", {})
    monkeypatch.setattr(figures, "_totals", {})
    board.begin(2, None)
    assert read_all(board) == ["", ""]
    be(board, 1)
    assert progress(3, total_steps=100, metrics={"loss": 1 / 3, "nan": float("nan"), "name": "ä", 7: True})
    metrics = {"loss": "0.333333", "nan": "nan", "name": "ä", "7": "True"}
    assert [text and json.loads(text) for text in read_all(board)] == [
        "", {"round": 1, "metrics": metrics, "total": 100}
    ]  # fmt: skip
    assert progress(4, metrics={"loss": 10**5000, "bad": object(), "worse": float})
    metrics |= {"loss": "int", "bad": "object", "worse": "type"}
    assert json.loads(read_all(board)[1]) == {"round": 1, "metrics": metrics, "total": 100}
    assert progress(5, total_steps="many", metrics={f"m{number}": "x" * 1000 for number in range(300)})  # type: ignore[arg-type]
    found = json.loads(read_all(board)[1])
    assert (found["total"], len(found["metrics"])) == (100, 257)
    for endless in (10**5000, -(10**5000)):
        assert progress(5, total_steps=endless)
        assert json.loads(read_all(board)[1])["total"] == (STEPS_MAX if endless > 0 else 0)
    assert max(map(len, found["metrics"].values())) == 65
    os.pwrite(board.descriptor, b"[", find_offset(2) + 20)
    assert read_all(board) == ["", ""], "a look that meets a write sees nothing"


def test_figures_that_cannot_be_written_are_no_error(board: SharedPage, be: Any) -> None:
    board.begin(2, None)
    assert not write_figures(board.descriptor, 1, "x" * SIZE)
    be(board, 0)
    assert progress(0)
    os.environ[VARIABLE] = "no:page"
    assert progress(1, total_steps=10)
    be(None)
    assert not progress(2, total_steps=10)


def test_another_file_that_took_the_pages_descriptor_is_not_written(
    board: SharedPage, be: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_metrics", {})
    monkeypatch.setattr(figures, "_totals", {})
    board.begin(2, None)
    be(board, 0)
    assert progress(0)
    kept = os.dup(board.descriptor)
    with open(tmp_path / "checkpoint", "wb") as other:
        os.dup2(other.fileno(), board.descriptor)
        assert progress(1, total_steps=10, metrics={"loss": 1})
        assert client.write_claim(CLAIM_GIVES_UP, "the loss is infinite"), "the kind is in the memory that both map"
    assert os.path.getsize(tmp_path / "checkpoint") == 0
    os.dup2(kept, board.descriptor)
    os.close(kept)
    assert board.list_claims() == {0: (CLAIM_GIVES_UP, "")}
    assert board.read_step() == 1
    del os.environ[VARIABLE]
    assert client.write_claim(CLAIM_GIVES_UP, "no variable")


@pytest.mark.parametrize("number", [2**64 - 1, 2**53, STEPS_MAX + 1])
def test_what_cannot_be_a_step_is_none(board: SharedPage, be: Any, number: int) -> None:
    board.begin(2, None)
    be(board, 0)
    progress(STEPS_MAX - 1)
    os.pwrite(board.descriptor, number.to_bytes(8, sys.byteorder), 2 * LINE_SIZE + REACHED_STEP * NUMBER_SIZE)
    assert board.read_steps() == [STEPS_MAX - 1, -1]
    assert board.read_step() == STEPS_MAX - 1


@pytest.mark.parametrize(("reason", "read"), [("no data", "no data"), ("", ""), ("ä" * 400, "ä" * 256)])
def test_a_claim_reaches_the_agent_with_its_reason_and_ends_the_worker(
    board: SharedPage, be: Any, reason: str, read: str, capfd: pytest.CaptureFixture[str]
) -> None:
    board.begin(2, None)
    be(board, 1)
    with pytest.raises(SystemExit) as end:
        give_up(reason)
    assert end.value.code == 76
    assert board.list_claims() == {1: (CLAIM_GIVES_UP, read)}
    assert capfd.readouterr().err == f"this worker gives up: {reason}\n"
    board.begin(2, None)
    assert board.list_claims() == {}
