"""What an agent sees of its workers: real processes that sleep, compute, are stopped, hold the GIL, answer rubbish."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.diagnosis.gather import NO_RECORDER, Examined, gather
from launcher.diagnosis.recorder import DUMP_MAX
from launcher.diagnosis.request import Target
from tests.support.waiting import wait_until

SLEEP = "def wait():\n    time.sleep(600)\nwait()"
SPIN = "def spin():\n    while True: pass\nspin()"
HOLD_GIL = "import ctypes\ndef hold():\n    ctypes.PyDLL(None).sleep(600)\nhold()"
RECORD = """
import os, torch, torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3): dist.all_reduce(torch.ones(4))
server = _WorkerServer(os.environ["SOCKET"])
"""


@pytest.fixture(autouse=True)
def _reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy that was killed is waited for, however busy the machine is: one that is left is a warning."""
    monkeypatch.setattr("launcher.diagnosis.gather.KILL_LIMIT_S", 20.0)


@contextlib.contextmanager
def run(program: str, socket_path: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a Python of its own; it is ready when it begins what follows its preparations."""
    head, _, rest = program.rpartition("def ")
    text = f"import sys, time\n{head}\nprint('ready', flush=True)\n{'def ' if head or rest else ''}{rest}"
    child = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={"SOCKET": socket_path, "PATH": "/usr/bin:/bin"},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def examine(pid: int, socket_path: str = "", limit_s: float = 20.0) -> Examined:
    (found,) = gather([Target(rank=3, pid=pid, socket_path=socket_path)], limit_s)
    return found


def find_function(pid: int) -> str:
    stack = examine(pid).evidence.stack
    return stack[0].function if stack else ""


@pytest.mark.parametrize(
    ("program", "function", "state"),
    [(SLEEP, "wait", "sleeps"), (SPIN, "spin", "runs"), (HOLD_GIL, "hold", "sleeps")],
    ids=["asleep", "busy", "GIL held"],
)
def test_state_and_stack_of_a_worker_are_seen(program: str, function: str, state: str) -> None:
    with run(program) as child:
        wait_until(lambda: find_function(child.pid) == function, 60, "the function")
        found = examine(child.pid).evidence
        assert (found.rank, found.state) == (3, state)
        assert (found.cpu > 0) == (program is SPIN)
        assert found.missing == (NO_RECORDER,)


def test_a_stopped_worker_is_told_apart() -> None:
    with run(SLEEP) as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: examine(child.pid).evidence.state == "stopped", 60, "its stop")


def test_a_worker_blocked_in_the_kernel_is_told_apart() -> None:
    # After vfork(2) the parent waits so until its child ends, which goes on in the parent's memory.
    with run("import ctypes\ndef wait():\n    ctypes.PyDLL(None).vfork(); time.sleep(600)\nwait()") as child:
        wait_until(lambda: examine(child.pid).evidence.state == "blocked", 60, "its wait")


def test_a_worker_that_has_ended_is_told() -> None:
    with run(SLEEP) as child:
        child.kill()
        child.wait()
        assert examine(child.pid).evidence.state == "ended"


def test_the_flight_recorder_answers_while_something_holds_the_gil(tmp_path: Path) -> None:
    path = str(tmp_path / "recorder")
    with run(RECORD + HOLD_GIL, path) as child:
        wait_until(lambda: find_function(child.pid) == "hold", 60, "the function")
        found = examine(child.pid, path)
        assert found.evidence.missing == ()
        assert found.evidence.groups is not None
        ((group,), function) = found.evidence.groups, found.evidence.stack and found.evidence.stack[0].function
        assert (group.description, group.last, group.calls[0].operation) == ("default_pg", 3, "all_reduce")
        assert function == "hold"
        assert b"entries" in found.dump


# A torch without CUDA has no recorder of NCCL's: this one serves what ProcessGroupNCCL would have recorded, at first
# nothing.
RECORD_NCCL = """
import json
from torch._C._distributed_c10d import _register_handler
ENTRY = {
    "record_id": 0, "pg_id": 0, "process_group": ["7", "tp"], "collective_seq_id": 5, "p2p_seq_id": 0, "op_id": 5,
    "profiling_name": "nccl:all_gather", "time_created_ns": time.time_ns(), "input_sizes": [[4]], "timeout_ms": 600000,
    "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "started",
    "time_discovered_started_ns": time.time_ns(), "time_discovered_completed_ns": 0, "retired": False, "is_p2p": False,
}
answers = iter([{}, {"entries": [ENTRY]}])
def answer_nccl(request, response):
    response.set_content(json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, **next(answers)}), "text")
    response.set_status(200)
_register_handler("dump_nccl_trace_json", answer_nccl)
"""


def test_collectives_of_nccl_are_seen_together_with_those_of_gloo(tmp_path: Path) -> None:
    path = str(tmp_path / "recorder")
    with run(RECORD_NCCL + RECORD + SLEEP, path) as child:
        without, found = examine(child.pid, path), examine(child.pid, path)
    assert [group.description for group in without.evidence.groups or ()] == ["default_pg"]
    assert len(json.loads(without.dump)["entries"]) == 3
    assert found.evidence.missing == ()
    assert {(group.description, group.last, group.calls[0].operation) for group in found.evidence.groups or ()} == {
        ("default_pg", 3, "all_reduce"),
        ("tp", 5, "all_gather"),
    }
    first, second = json.loads(found.dump)
    assert (len(first["entries"]), len(second["entries"])) == (3, 1)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"entries": [', "the flight recorder's dump cannot be read: "),
        (b"HTTP/1.0 404 No\r\n\r\n", "the worker's flight recorder returned status 404"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (DUMP_MAX + 1), "the flight recorder's dump has 33,554,433 bytes"),
        (b"", "the worker's flight recorder does not respond"),
        (b"SSH-2.0\r\n", "the worker's flight recorder returned b'SSH-2.0"),
    ],
    ids=["half", "refused", "huge", "silent", "another protocol"],
)
def test_rubbish_from_a_worker_is_a_sentence(answer: bytes, sentence: str, tmp_path: Path) -> None:
    path = str(tmp_path / "recorder")
    with socket.socket(socket.AF_UNIX) as listener, run(SLEEP) as child:
        listener.bind(path)
        listener.listen()
        is_over = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
                if not answer:
                    is_over.wait(60)

        threading.Thread(target=serve, daemon=True).start()
        try:
            found = examine(child.pid, path, 20.0 if answer else 0.5).evidence
        finally:
            is_over.set()
        assert found.groups is None
        assert any(one.startswith(sentence) for one in found.missing), found.missing


def test_many_workers_are_looked_at_together() -> None:
    with contextlib.ExitStack() as children:
        pids = [children.enter_context(run(SLEEP)).pid for _ in range(4)]
        for pid in pids:
            wait_until(lambda: examine(pid).evidence.state == "sleeps", 60, "its sleep")  # noqa: B023  (called at once)
        found = gather([Target(rank=rank, pid=pid) for rank, pid in enumerate(pids * 5)], 5.0)
        assert [one.evidence.rank for one in found] == list(range(20))
        assert {one.evidence.state for one in found} == {"sleeps"}


def test_a_py_spy_that_cannot_be_killed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nexec sleep 600\n")
    spy.chmod(0o755)
    spared: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr("launcher.diagnosis.stacks.find_command", lambda: str(spy))
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: spared.append(self))
    monkeypatch.setattr("launcher.diagnosis.gather.KILL_LIMIT_S", 0.02)
    with run(SLEEP) as child:
        began = time.monotonic()
        found = examine(child.pid, limit_s=0.2).evidence
        took_s = time.monotonic() - began
    monkeypatch.undo()
    for one in spared:
        one.kill()
        one.wait()
    assert "no stacks: py-spy has not answered in time" in found.missing
    assert took_s < 60, "it would have slept for 600 s"


def test_dumps_that_come_too_late_to_be_read_cost_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(dump: bytes, now_ns: int) -> tuple[tuple[()], bool]:
        while time.monotonic() < until:
            pass
        return (), False

    path = str(tmp_path / "recorder")
    monkeypatch.setattr("launcher.diagnosis.recorder.read_dump", read)
    with socket.socket(socket.AF_UNIX) as listener, run(SLEEP) as child:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            for _ in range(4):
                connection, _ = listener.accept()
                with connection:
                    is_nccl = b"nccl" in connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 404 No\r\n\r\n" if is_nccl else b"HTTP/1.0 200 OK\r\n\r\n{}")

        threading.Thread(target=serve, daemon=True).start()
        wait_until(lambda: examine(child.pid).evidence.state == "sleeps", 60, "its sleep")
        until = time.monotonic() + 2.0
        targets = [Target(rank=rank, pid=child.pid, socket_path=path) for rank in range(2)]
        first, second = (one.evidence for one in gather(targets, 1.9, "recorder"))
    assert (first.groups, first.missing) == ((), ())
    assert (second.groups, second.missing) == (None, ("the flight recorder's dump arrived too late to be read",))
    assert second.state == "sleeps"
