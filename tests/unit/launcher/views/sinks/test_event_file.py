"""The file of --events, and that beside the logs: whole lines, and no harm where none can be written."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.model.concurrency import NO_THREAD
from launcher.model.errors import UsageError
from launcher.views.run_events import RemarkMade, RunEvent
from launcher.views.sinks import event_file
from launcher.views.sinks.event_file import EventFile
from tests.support.threads import no_threads
from tests.support.waiting import wait_until


def remark(text: str) -> RunEvent:
    return RemarkMade(at=1.5, run_id="r", node="n0", sentence=text)


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text("before\n")
    file = EventFile(str(path), "--events", print)
    file.write(remark("one\ntwo"))
    file.close()
    first, second = path.read_text().splitlines()
    assert first == "before"
    assert json.loads(second)["sentence"] == "one\ntwo"
    assert json.loads(second)["time"] == "1970-01-01T00:00:01.500Z"


def read_now(end: int) -> bytes:
    try:
        return os.read(end, 1 << 20)
    except BlockingIOError:
        return b""


def test_a_reader_that_does_not_read_costs_lines_and_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    said: list[str] = []
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = EventFile(str(path), "--events", said.append)
    for _ in range(3000):
        file.write(remark("x" * 1000))
    assert said == [f"--events {path}: events are lost: its reader is too slow"]
    taken: list[bytes] = []
    wait_until(lambda: taken.append(read_now(reader)) or said[1:], what="a remark on what was lost")
    file.write(remark("last"))
    wait_until(lambda: not file._waiting)
    lines = b"".join((*taken, read_now(reader))).decode().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["remark"] * len(lines), "no line is torn"
    assert json.loads(lines[-1])["sentence"] == "last"
    assert said[1:] == [f"--events {path} is written again, without {3001 - len(lines):,} events"]
    os.close(reader)
    file.write(remark("to nobody"))
    file.close()
    assert said[2:] == [
        f"--events {path}: events are lost: Broken pipe", f"--events {path}: 1 event lost: Broken pipe"
    ]  # fmt: skip


def test_storage_of_events_that_hangs_holds_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "END_LIMIT_S", 0.01)
    said: list[str] = []
    gate, write = threading.Event(), os.write
    file = EventFile(str(tmp_path / "events"), "--events", said.append)

    def hang(descriptor: int, data: bytes) -> int:
        if descriptor == file._descriptor:
            assert gate.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", hang)
    for _ in range(3000):
        file.write(remark("x" * 1000))
    assert file._waiting_size <= event_file.WAITING_BYTES_MAX
    file.close()
    label = f"--events {tmp_path}/events"
    assert said == [
        f"{label}: events are lost: its storage does not answer",
        f"{label}: 3,000 events lost: its storage does not answer",
    ]
    gate.set()
    assert file.thread.finish(60)


def test_without_a_thread_to_be_had_lines_wait(tmp_path: Path) -> None:
    said: list[str] = []
    file = EventFile(str(tmp_path / "events"), "--events", said.append)
    with no_threads():
        file.write(remark("one"))
    file.write(remark("two"))
    file.close()
    assert [json.loads(line)["sentence"] for line in (tmp_path / "events").read_text().splitlines()] == ["one", "two"]
    assert said == []


@pytest.fixture
def stdout() -> Iterator[Callable[[int], None]]:
    """Make a descriptor this process's stdout for a test."""
    saved = os.dup(1)

    def put(descriptor: int) -> None:
        os.dup2(descriptor, 1)

    yield put
    os.dup2(saved, 1)
    os.close(saved)


def test_lines_of_workers_and_events_do_not_overwrite_each_other(tmp_path: Path, stdout: Callable[[int], None]) -> None:
    with open(tmp_path / "out", "wb", buffering=0) as shared:  # as a shell opens it: without O_APPEND
        stdout(shared.fileno())
        file = EventFile("-", "--events", print)
        file.write(remark("one"))
        wait_until(lambda: not file._waiting)
        os.write(shared.fileno(), b"a worker's line\n")
        file.write(remark("two"))
        file.close()
    first, worker, second = (tmp_path / "out").read_text().splitlines()
    assert (json.loads(first)["sentence"], worker, json.loads(second)["sentence"]) == ("one", "a worker's line", "two")


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_a_stdout_that_is_not_read_holds_nothing(kind: str, stdout: Callable[[int], None]) -> None:
    if kind == "socket":  # as under systemd
        ours, theirs = socket.socketpair()
        read_end, write_end = ours.detach(), theirs.detach()
    else:
        read_end, write_end = os.pipe()
    stdout(write_end)
    said: list[str] = []
    file = EventFile("-", "--events", said.append)
    for number in range(600):
        file.write(remark(f"{number} " + "x" * 10_000))
    assert said == ["--events -: events are lost: its reader is too slow"]
    assert file._waiting_size <= event_file.WAITING_BYTES_MAX
    os.set_blocking(read_end, False)
    taken: list[bytes] = []
    wait_until(lambda: taken.append(read_now(read_end)) or said[1:], what="a remark on what was lost")
    file.write(remark("last"))
    wait_until(lambda: not file._waiting)
    lines = [json.loads(line)["sentence"] for line in b"".join((*taken, read_now(read_end))).splitlines()]
    assert lines[0][:2] == "0 "
    assert lines[-1] == "last", "no line is torn"
    file.close()
    os.close(read_end)
    os.close(write_end)


def test_what_a_full_disk_has_cut_off_is_completed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    file = EventFile(str(tmp_path / "events"), "--events", said.append)
    room, stored = 50, b""

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room, stored
        taken, room = data[:room], max(0, room - len(data))
        if not taken:
            raise OSError(28, "No space left on device")
        stored += taken
        return len(taken)

    monkeypatch.setattr(os, "write", write)
    for text in ("cut off", "dropped", "dropped"):
        file.write(remark(text))
    wait_until(lambda: not file._waiting)
    assert said == [f"--events {tmp_path}/events: events are lost: No space left on device"]
    room = 10_000
    file.write(remark("again"))
    file.close()
    assert said[1:] == [f"--events {tmp_path}/events is written again, without 2 events"]
    found = [json.loads(line)["sentence"] for line in stored.splitlines()]
    assert found == ["cut off", "again"]


@pytest.mark.parametrize(("name", "why"), [("no/such/directory", "No such file"), (".", "directory")])
def test_what_cannot_be_written_is_refused_at_the_start(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"--events .* cannot be written: .*{why}"):
        EventFile(str(tmp_path / name), "--events", print)


def test_the_file_in_a_log_directory_begins_once_there_is_one(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "of this node"
    known = [""]
    file = EventFile("events.jsonl", "--log-dir", said.append, lambda: known[0])
    file.write(remark("before the first round"))
    assert not file.thread.has_started
    known[0] = str(folder)
    file.write(remark("into nothing"))
    wait_until(lambda: said, what="a remark on what cannot be written")
    wait_until(lambda: not file._waiting)
    folder.mkdir()
    file.write(remark("written"))
    file.close()
    assert [json.loads(line)["sentence"] for line in (folder / "events.jsonl").read_text().splitlines()] == ["written"]
    assert said == [
        "--log-dir events.jsonl: events are lost: No such file or directory",
        "--log-dir events.jsonl is written again, without 2 events",
    ]
    unused = EventFile("events.jsonl", "--log-dir", said.append, str)
    unused.write(remark("of a node that had no round"))
    unused.close()
    assert len(said) == 2


@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_a_link_in_the_place_of_the_file_in_a_log_directory_is_not_followed(
    leads_somewhere: bool, tmp_path: Path
) -> None:
    said: list[str] = []
    target = tmp_path / "of somebody"
    if leads_somewhere:
        target.write_text("precious")
    os.symlink(target, tmp_path / "events.jsonl")
    file = EventFile("events.jsonl", "--log-dir", said.append, lambda: str(tmp_path))
    file.write(remark("one"))
    wait_until(lambda: not file._waiting)
    (tmp_path / "events.jsonl").unlink()
    file.write(remark("two"))
    file.close()
    assert not target.exists() or target.read_text() == "precious"
    assert said == [
        "--log-dir events.jsonl: events are lost: Too many levels of symbolic links",
        "--log-dir events.jsonl is written again, without 1 event",
    ]
    os.symlink(target, tmp_path / "link")
    given = EventFile(str(tmp_path / "link"), "--events", said.append)
    given.write(remark("where it was sent"))
    given.close()
    assert "where it was sent" in target.read_text()


def test_lines_that_find_no_thread_until_the_end_are_counted(tmp_path: Path) -> None:
    said: list[str] = []
    file = EventFile(str(tmp_path / "events"), "--events", said.append)
    with no_threads():
        file.write(remark("one"))
        file.close()
    assert said == [f"--events {tmp_path}/events: 1 event lost: {NO_THREAD}"]
