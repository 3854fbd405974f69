"""Real writers on the output thread: no line torn, none lost, and no trouble of ours becomes theirs."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.logs.pump import OutputPump
from tests.support.waiting import wait_until

LIMIT_S = 30.0


class Reader:
    """Somebody who reads one end of a pipe or terminal to its end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.data = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # a terminal ends with EIO
            while chunk := os.read(self.fd, 65536):
                self.data += chunk

    def rest(self) -> bytes:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"the console did not end within {LIMIT_S:g} s"
        return self.data


class Job:
    """A pump with its consoles, and the workers that print into it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.warnings: list[str] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self._pumps: list[OutputPump] = []

    def pump(self, **options: Any) -> OutputPump:
        pump = OutputPump(warn=self.warnings.append, **options)
        self._pumps.append(pump)
        return pump

    def log(self, rank: int, stream: str = "stdout") -> Path:
        return self.directory / f"{rank}.{stream}.log"

    def open(self, pump: OutputPump, rank: int, stream: str = "stdout", **options: Any) -> int:
        options = {"path": str(self.log(rank, stream)), "prefix": b"[default%d]:" % rank, **options}
        return pump.open_stream(stream=stream, local_rank=rank, rank=rank, **options)  # type: ignore[arg-type]

    def start(self, code: str, *arguments: object, stdout: int, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Run `code` with the given streams, and close them here as an agent does."""
        command = [sys.executable, "-c", f"import os, sys, time\n{code}", *map(str, arguments)]
        worker = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        for fd in {stdout, stderr} - {None}:
            assert fd is not None
            os.close(fd)
        self.workers.append(worker)
        return worker

    def wait(self) -> None:
        for worker in self.workers:
            assert worker.wait(LIMIT_S) == 0

    def finish(self) -> None:
        """Wait for the end of the workers, and until all that they printed is where it belongs."""
        self.wait()
        for pump in self._pumps:
            assert pump.drain(LIMIT_S)
            pump.close()

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        for pump in self._pumps:
            pump.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.end()


class Pipe:
    """Each end is closed once: its number may be another thread's at once."""

    def __init__(self) -> None:
        self._ends: list[int | None] = [*os.pipe()]

    def __getitem__(self, index: int) -> int:
        end = self._ends[index]
        assert end is not None
        return end

    def close(self, index: int) -> None:
        end, self._ends[index] = self._ends[index], None
        if end is not None:
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close(0)
    pipe.close(1)


class Console(Reader):
    """The reader of a pipe that a pump has as its console: `write_fd` is the pump's end."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe[0])
        self.write_fd = pipe[1]
        self._pipe = pipe

    def rest(self) -> bytes:
        """All of it, once nobody holds the other end."""
        self._pipe.close(1)
        return super().rest()


@pytest.fixture
def console(pipe: Pipe) -> Console:
    return Console(pipe)


LINES = 1000
NUMBERED = f"""
rank = sys.argv[1]
for number in range({LINES}):
    text = f"worker {{rank}} line {{number}} " + "x" * (number % 70)
    print(text[:5], end="", flush=True)  # a line in several writes
    print(text[5:], flush=number % 3 == 0)
"""


def numbers_by_rank(console: bytes) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for line in console.splitlines():
        match = re.fullmatch(rb"\[default(\d)\]:worker (\d) line (\d+) (x*)", line)
        assert match, f"a torn line: {line[:200]!r}"
        assert match[1] == match[2]
        assert len(match[4]) == int(match[3]) % 70
        found.setdefault(match[1], []).append(int(match[3]))
    return found


def test_eight_workers_print_at_once_and_every_line_is_whole_and_in_order(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd, console_stderr=2)
    for rank in range(8):
        job.start(NUMBERED, rank, stdout=job.open(pump, rank))
    job.finish()
    assert numbers_by_rank(console.rest()) == {b"%d" % rank: list(range(LINES)) for rank in range(8)}
    for rank in range(8):
        lines = [f"worker {rank} line {number} " + "x" * (number % 70) for number in range(LINES)]
        assert job.log(rank).read_text().splitlines() == lines
    assert job.warnings == []


def test_stdout_and_stderr_on_one_pipe_do_not_cut_each_others_lines(job: Job, console: Console) -> None:
    other = os.dup(console.write_fd)
    pump = job.pump(console_stdout=console.write_fd, console_stderr=other)
    for rank in range(4):
        stdout = job.open(pump, rank, path=None)
        stderr = job.open(pump, rank, "stderr", path=None, prefix=b"[default%d]:" % (rank + 4))
        job.start(
            "for number in range(100):\n"
            "    for fd, rank in (1, sys.argv[1]), (2, str(int(sys.argv[1]) + 4)):\n"
            "        os.write(fd, f'{rank * 9000} {number}\\n'.encode())\n",
            rank,
            stdout=stdout,
            stderr=stderr,
        )
    job.finish()
    os.close(other)
    lines = console.rest().splitlines()
    assert len(lines) == 4 * 2 * 100
    assert all(re.fullmatch(rb"\[default(\d)\]:\1{9000} \d+", line) for line in lines)


def test_lines_stay_whole_beside_somebody_else_on_the_same_pipe(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    for rank in range(2):
        job.start(NUMBERED, rank, stdout=job.open(pump, rank))
    # As a worker does whose stream is not captured, or the agent of another node.
    job.start(f"for _ in range({LINES}): os.write(1, b'-' * 60 + b'\\n')", stdout=os.dup(console.write_fd))
    job.finish()
    lines = console.rest().splitlines(keepends=True)
    assert lines.count(b"-" * 60 + b"\n") == LINES
    ours = b"".join(line for line in lines if not line.startswith(b"-"))
    assert numbers_by_rank(ours) == {b"0": list(range(LINES)), b"1": list(range(LINES))}


def test_bytes_that_are_no_text_reach_the_file_exactly(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    job.start("os.write(1, bytes(range(256)) * 300)", stdout=job.open(pump, 0))
    job.finish()
    data = bytes(range(256)) * 300
    assert job.log(0).read_bytes() == data
    shown = [b"[default0]:" + line.rpartition(b"\r")[2] + b"\n" for line in data.split(b"\n")]
    assert console.rest() == b"".join(shown)


def test_a_line_of_three_megabytes_is_whole_among_others(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    job.start("print('y' * 3_000_000)", stdout=job.open(pump, 1))
    job.start(NUMBERED, 0, stdout=job.open(pump, 0))
    job.finish()
    lines = console.rest().splitlines(keepends=True)
    assert lines.count(b"[default1]:" + b"y" * 3_000_000 + b"\n") == 1
    assert len(lines) == LINES + 1


def test_a_worker_without_line_ends_neither_fills_memory_nor_goes_unseen(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    job.start("for _ in range(20): os.write(1, b'z' * 1_000_000)", stdout=job.open(pump, 5))
    job.finish()
    lines = console.rest().splitlines()
    assert len(lines) == 3
    assert b"".join(line.removeprefix(b"[default5]:") for line in lines) == b"z" * 20_000_000
    assert job.warnings == ["rank 5 on stdout printed a line longer than 8 MiB; the console shows it in pieces"]


def test_the_end_of_a_stream_shows_its_unfinished_line_and_keeps_the_file(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    job.start("os.write(1, b'last words')", stdout=job.open(pump, 0))
    job.finish()
    assert console.rest() == b"[default0]:last words\n"
    assert job.log(0).read_bytes() == b"last words"


def test_a_stream_without_output_leaves_an_empty_file(job: Job) -> None:
    pump = job.pump()
    os.close(job.open(pump, 0))
    assert pump.drain(LIMIT_S)
    assert job.log(0).read_bytes() == b""


def test_a_full_disk_is_one_warning_and_no_failure(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    for rank in range(2):
        job.start(NUMBERED, rank, stdout=job.open(pump, rank, path="/dev/full"))
    job.finish()
    assert job.warnings == [
        "cannot write to /dev/full: No space left on device; output is missing from log files until that is over; "
        "training continues"
    ]
    assert numbers_by_rank(console.rest()) == {b"0": list(range(LINES)), b"1": list(range(LINES))}


def test_a_console_that_goes_away_is_one_warning_and_files_go_on(job: Job, pipe: Pipe) -> None:
    pump = job.pump(console_stdout=pipe[1])
    pipe.close(0)
    job.start(NUMBERED, 0, stdout=job.open(pump, 0))
    job.finish()
    assert job.warnings == [
        "cannot write to stdout: Broken pipe; workers' output no longer appears there; training continues"
    ]
    assert len(job.log(0).read_text().splitlines()) == LINES


def test_a_terminal_shows_whole_lines(job: Job) -> None:
    ours, theirs = pty.openpty()
    reader = Reader(ours)
    pump = job.pump(console_stdout=theirs)
    write_fd = job.open(pump, 0)
    os.write(write_fd, b"seen\n")
    wait_until(lambda: reader.data == b"[default0]:seen\r\n", what="the line on the terminal")
    os.write(write_fd, b"not ended")
    wait_until(lambda: job.log(0).read_bytes().endswith(b"not ended"))
    assert reader.data == b"[default0]:seen\r\n"
    # The reader's end comes when the last one lets go of the terminal, the pump included.
    pump.close()
    os.close(theirs)
    assert reader.rest() == b"[default0]:seen\r\n[default0]:not ended\r\n"
    os.close(ours)
    os.close(write_fd)


def test_the_hangup_of_a_terminal_is_one_warning(job: Job) -> None:
    ours, theirs = pty.openpty()
    pump = job.pump(console_stdout=theirs)
    os.close(ours)
    job.start(NUMBERED, 0, stdout=job.open(pump, 0))
    job.finish()
    os.close(theirs)
    assert job.warnings == [
        "cannot write to stdout: Input/output error; workers' output no longer appears there; training continues"
    ]
    assert len(job.log(0).read_text().splitlines()) == LINES


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_slow_reader_slows_workers_down_and_loses_nothing(job: Job, pipe: Pipe, is_blocking: bool) -> None:
    os.set_blocking(pipe[1], is_blocking)
    pump = job.pump(console_stdout=pipe[1])
    # More than console, queue and pipe hold together.
    job.start("for _ in range(600): os.write(1, b'z' * 9_999 + b'\\n')", stdout=job.open(pump, 0))
    assert not pump.drain(0.3)
    assert job.workers[0].poll() is None
    reader = Reader(pipe[0])
    job.wait()
    assert pump.drain(LIMIT_S)
    assert os.get_blocking(pipe[1]) is is_blocking, "others use this descriptor too"
    pump.close()
    pipe.close(1)
    assert reader.rest() == (b"[default0]:" + b"z" * 9_999 + b"\n") * 600
    assert job.log(0).stat().st_size == 6_000_000
    assert job.warnings == []


def test_a_console_that_nobody_reads_does_not_keep_output_from_its_file(job: Job, pipe: Pipe) -> None:
    pump = job.pump(console_stdout=pipe[1])
    job.start("for _ in range(250): os.write(1, b'z' * 9_999 + b'\\n')", stdout=job.open(pump, 0))
    job.start("print('only a file')", stdout=job.open(pump, 1, prefix=None))
    job.wait()
    wait_until(lambda: job.log(1).exists() and job.log(1).read_text() == "only a file\n")
    assert not pump.drain(0.1)
    pump.close()
    assert job.log(0).stat().st_size == 2_500_000
    (warning,) = job.warnings
    assert re.fullmatch(r"stdout was too slow: the last \d+ bytes of output are not shown there", warning)


def test_a_stream_ends_when_its_last_holder_does(job: Job, console: Console) -> None:
    pump = job.pump(console_stdout=console.write_fd)
    go_fd, grandchild_fd = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-c", "import os, sys\nif os.fork() == 0:\n    os.read(0, 1)\n    print('late')"],
        stdin=go_fd,
        stdout=(write_fd := job.open(pump, 0)),
    )
    os.close(write_fd)
    os.close(go_fd)
    job.workers.append(worker)
    job.wait()
    assert not pump.drain(0.1)
    os.close(grandchild_fd)
    job.finish()
    assert console.rest() == b"[default0]:late\n"


def test_the_tail_waits_for_what_the_pipe_holds_but_not_for_its_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, read = threading.Event(), os.readv

    def read_late(fd: int, buffers: list[memoryview]) -> int:
        assert gate.wait(LIMIT_S)
        return read(fd, buffers)

    monkeypatch.setattr("launcher.logs.pump.os.readv", read_late)
    pump = job.pump(tail_lines=1)
    write_fd = job.open(pump, 0, "stderr", prefix=None)
    os.write(write_fd, b"I am the cause\n")
    assert pump.read_tail(0, "stderr") == ()
    found: list[tuple[str, ...]] = []
    asking = threading.Thread(target=lambda: found.append(pump.read_tail(0, "stderr", LIMIT_S)))
    asking.start()
    gate.set()
    asking.join(LIMIT_S / 2)
    assert found == [("I am the cause",)]
    os.close(write_fd)


def test_the_tail_is_that_of_the_round_being_run(job: Job) -> None:
    pump = job.pump(tail_lines=2)
    assert pump.read_tail(0, "stderr") == ()
    for words in ("a b c", "d e f"):
        job.start(
            "for word in sys.argv[1].split(): print(word)", words, stdout=job.open(pump, 0, "stderr", prefix=None)
        )
        job.wait()
        assert pump.drain(LIMIT_S)
        assert pump.read_tail(0, "stderr") == tuple(words.split()[1:])
    assert pump.read_tail(0, "stdout") == ()
    assert job.log(0, "stderr").read_text().split() == ["a", "b", "c", "d", "e", "f"]


def test_the_last_lines_of_a_stream_without_a_file_are_kept_whole(job: Job) -> None:
    pump = job.pump()
    total = (1 << 16) - 3  # so that neither the end nor what is kept begins with a line
    text = b"".join(b"line %d\n" % number for number in range(9000))
    for write_fd in (job.open(pump, 0, path=None), job.open(pump, 1, "stderr", prefix=None)):
        os.write(write_fd, text[:total])
        os.close(write_fd)
    assert pump.drain(LIMIT_S)
    assert list(pump.list_rings()) == [(0, "stdout")]
    size, kept = pump.list_rings()[0, "stdout"]
    assert size == total
    assert text[:size].endswith(b"\n" + kept)
    assert kept.count(b"\n") > 200


def test_closing_leaves_no_descriptor_and_no_thread_behind(job: Job, pipe: Pipe) -> None:
    def open_descriptors() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    before = open_descriptors()
    threads = threading.active_count()
    pump = job.pump(console_stdout=pipe[1])
    held = job.open(pump, 0)  # a holder that outlives the job
    os.write(held, b"hello\n")
    pump.close()
    pump.close()
    os.close(held)
    assert open_descriptors() == before
    assert threading.active_count() == threads
    assert job.log(0).read_text() == "hello\n"


def test_a_warning_that_cannot_be_given_is_no_trouble(tmp_path: Path) -> None:
    def warn(sentence: str) -> None:
        raise BrokenPipeError

    pump = OutputPump(warn=warn)
    write_fd = pump.open_stream(stream="stdout", local_rank=0, rank=0, path="/dev/full", prefix=None)
    os.write(write_fd, b"hello\n")
    os.close(write_fd)
    assert pump.drain(LIMIT_S)
    pump.close()


def test_a_thread_that_cannot_be_started_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(BlockingIOError) as caught:  # Python's class for EAGAIN
        OutputPump(warn=print)
    assert caught.value.errno == errno.EAGAIN


# --- one file for lines looked for, of many streams: none torn, none lost, none too many ---


def test_lines_of_many_streams_arrive_whole_however_they_were_cut(tmp_path: Path) -> None:
    warnings: list[str] = []
    with (tmp_path / "console").open("wb") as console:
        pump = OutputPump(console_stdout=console.fileno(), console_stderr=console.fileno(), warn=warnings.append)
        found = pump.open_filter(str(tmp_path / "found"), ("needle",))
        texts, ends = [], []
        for rank in range(8):
            lines = [
                f"line {n} of {rank} " + ("needle" if n % 10 == rank else "straw") * (n % 5 + 1) for n in range(500)
            ]
            texts.append("\n".join(lines).encode() + b"\n" * (rank % 2))  # some end in the middle of a line
            ends.append(
                pump.open_stream(
                    stream="stdout", local_rank=rank, rank=rank, path=None, prefix=b"[%d]:" % rank, line_filter=found
                )
            )
        at, size = 0, 7
        while any(at < len(text) for text in texts):
            for text, end in zip(texts, ends, strict=True):
                if at < len(text):
                    os.write(end, text[at : at + size])
            at, size = at + size, size % 977 + 61
        for end in ends:
            os.close(end)
        assert pump.drain(LIMIT_S)
        pump.close()
    shown = (tmp_path / "console").read_bytes().splitlines()
    assert len(shown) == 8 * 500
    copied = (tmp_path / "found").read_bytes().splitlines()
    assert sorted(copied) == sorted(line for line in shown if b"needle" in line)
    assert len(copied) == 8 * 50
    assert warnings == []


def test_a_filter_whose_file_cannot_be_opened_warns_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warnings: list[str] = []
    pump = OutputPump(warn=warnings.append)
    (tmp_path / "file").touch()
    found = pump.open_filter(str(tmp_path / "file/found"), ("a",))
    end = pump.open_stream(stream="stdout", local_rank=0, rank=0, path=None, prefix=b":", line_filter=found)
    os.write(end, b"a1\na2\n")
    os.close(end)
    assert pump.drain(LIMIT_S)
    pump.close()
    assert capfd.readouterr().out == ":a1\n:a2\n"
    assert len(warnings) == 1
    assert warnings[0].startswith(f"cannot write to {tmp_path}/file/found: Not a directory")
