"""Looks at the workers of this node, all at once and within one limit, and disturbs none of them.

For each worker: the kernel's view of the process, the flight recorder by the socket that the worker has opened, and its
Python stack by py-spy. The recorder answers while something holds the GIL; the worker's own `dump_traceback` would not,
and is not asked. Nothing is asked twice: what has not answered in time is missing, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import TypeVar

from msgspec import Struct

from launcher.diagnose import recorder, stacks
from launcher.diagnose.evidence import Frame, RankEvidence, State

LIMIT_S = 5.0
AT_ONCE = 16
_STATES: dict[str, State] = {"R": "runs", "D": "blocked", "T": "stopped", "t": "stopped", "Z": "ended", "X": "ended"}
_Result = TypeVar("_Result")


class Target(Struct, frozen=True, kw_only=True):
    """A worker to look at. `socket_path`: where it serves its recorder; it need not be there."""

    rank: int
    pid: int
    socket_path: str = ""


class Examined(Struct, frozen=True, kw_only=True):
    """What is known of a worker, and what it was read from: the recorder's dump and py-spy's text, b"" without."""

    evidence: RankEvidence
    dump: bytes = b""
    stack_text: bytes = b""


class _Look(Struct):
    state: State
    wait: str
    cpu_s: float
    at: float


def gather(targets: Sequence[Target], limit_s: float = LIMIT_S) -> list[Examined]:
    """Look at these workers; takes at most `limit_s` seconds, and a moment."""
    until = time.monotonic() + limit_s
    command = stacks.find_command()
    with ThreadPoolExecutor(min(AT_ONCE, len(targets) or 1)) as pool:
        return list(pool.map(lambda target: _examine(target, command, until), targets))


def _examine(target: Target, command: str | None, until: float) -> Examined:
    first = _look_at_process(target.pid)
    if first is None or first.state == "ended":
        return Examined(evidence=RankEvidence(rank=target.rank, state="ended"))
    missing: list[str] = []
    dump = _try(lambda: _ask_recorder(target.socket_path, until), missing) or b""
    read = _try(lambda: recorder.read_dump(dump, time.time_ns()), missing) if dump else None
    groups, is_truncated = read or (None, False)
    text, stack = _try(lambda: _read_stack(command, target.pid, until), missing) or (b"", None)
    second = _look_at_process(target.pid) or first
    passed_s = second.at - first.at
    evidence = RankEvidence(
        rank=target.rank,
        state=second.state if first.state == second.state else "runs",
        wait=second.wait,
        cpu=(second.cpu_s - first.cpu_s) / passed_s if passed_s > 0 else 0.0,
        stack=stack,
        groups=groups,
        is_truncated=is_truncated,
        missing=tuple(missing),
    )
    return Examined(evidence=evidence, dump=dump, stack_text=text)


def _try(act: Callable[[], _Result], missing: list[str]) -> _Result | None:
    try:
        return act()
    except (ValueError, OSError, HTTPException, subprocess.SubprocessError) as error:
        missing.append(str(error))
        return None


def _look_at_process(pid: int) -> _Look | None:
    """Return the state of a process, where it waits in the kernel, and the CPU time it has used; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    wait = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        wait = file.read().removeprefix("0")
    ticks = int(fields[11]) + int(fields[12])
    state = _STATES.get(fields[0].decode(), "sleeps")
    return _Look(state, wait, ticks / os.sysconf("SC_CLK_TCK"), time.monotonic())


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask_recorder(path: str, until: float) -> bytes:
    """Return the dump that a worker serves. Raises ValueError, OSError and HTTPException."""
    if not path or not os.path.exists(path):
        raise ValueError("no flight recorder: the worker has opened no socket for it")
    connection = _UnixConnection(path, max(0.1, until - time.monotonic()))
    try:
        connection.request("POST", "/handler/fr_trace_json", headers={"Content-Length": "0"})
        answer, found = connection.getresponse(), b""
        while (piece := answer.read1(1 << 20)) and len(found) <= recorder.DUMP_MAX:
            found += piece
            if time.monotonic() > until:
                raise TimeoutError
    except TimeoutError:
        raise ValueError("the worker's flight recorder does not answer") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"the worker's flight recorder answers with status {answer.status}")
    return found


def _read_stack(command: str | None, pid: int, until: float) -> tuple[bytes, tuple[Frame, ...]]:
    """Return what py-spy prints of a process, and the frames on which two looks agree. Raises ValueError."""
    if command is None:
        raise ValueError("no stacks: py-spy is not installed (pip install 'meshrun[stacks]')")
    texts = [_run_py_spy(command, pid, until) for _ in range(2)]
    first, second = (stacks.read_main_stack(text, pid) for text in texts)
    return texts[0], stacks.keep_agreeing(first, second)


def _run_py_spy(command: str, pid: int, until: float) -> bytes:
    words = [command, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, until - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError("py-spy has not answered in time") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(f"py-spy cannot read the worker: {lines[0].removeprefix('Error: ')}")
    return done.stdout
