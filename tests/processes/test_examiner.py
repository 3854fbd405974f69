"""The examiner as the supervisor starts it: its answer and folder, and its end whatever the workers and disks do."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.diagnosis import incident
from launcher.diagnosis.evidence import RankEvidence
from launcher.diagnosis.gather import NO_RECORDER, Examined
from launcher.diagnosis.request import ExamineReport, ExamineRequest, Target
from launcher.ranks.spec_builder import _AS_MAIN
from rendezvous import codec
from tests.support.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.fixture
def worker() -> Iterator[int]:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def start(request: ExamineRequest, **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.diagnosis.examiner", codec.encode(request).decode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environ,
        start_new_session=True,
    )


def examine(request: ExamineRequest, **environ: str) -> ExamineReport:
    out, errors = start(request, **environ).communicate(timeout=60)
    assert errors == b""
    assert out.count(b"\n") == 1
    return codec.decode(ExamineReport, out, "the report")


def test_a_worker_is_told_and_its_folder_written_for_the_user_alone(worker: int, tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_text("\n".join(f"line {at}" for at in range(500)))
    folder = tmp_path / "incident_1_1"
    target = Target(rank=3, pid=worker, outputs=(str(log), str(tmp_path / "none")))
    report = examine(ExamineRequest(targets=(target,), folder=str(folder)))
    assert (report.folder, report.ranks[0].rank, report.ranks[0].state) == (str(folder), 3, "sleeps")
    assert not [one for one in report.remarks if "incident" in one]
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {"rank_3.json", "rank_3.stacks.json", "rank_3.tail.txt"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert json.loads(files["rank_3.json"].read_text())["state"] == "sleeps"
    tail = files["rank_3.tail.txt"].read_text().splitlines()
    assert (tail[0], tail[1], tail[-1]) == (f"==> {log} <==", "line 400", "line 499")


def test_an_existing_folder_is_left_alone(worker: int, tmp_path: Path) -> None:
    report = examine(ExamineRequest(targets=(Target(rank=3, pid=worker),), folder=str(tmp_path)))
    assert (report.folder, report.ranks[0].state) == ("", "sleeps")
    assert f"the incident folder {tmp_path} cannot be created: File exists" in report.remarks
    assert list(tmp_path.iterdir()) == []


def test_of_two_at_once_for_one_folder_one_writes_it(worker: int, tmp_path: Path) -> None:
    request = ExamineRequest(targets=(Target(rank=3, pid=worker),), folder=str(tmp_path / "incident_1_1"))
    both = [start(request), start(request)]
    found = [codec.decode(ExamineReport, one.communicate(timeout=60)[0], "the report") for one in both]
    assert sorted(one.folder for one in found) == ["", request.folder]
    assert [one.ranks[0].state for one in found] == ["sleeps", "sleeps"]


def test_progress_is_asked_without_stacks_and_folder(worker: int, tmp_path: Path) -> None:
    folder = tmp_path / "incident_1_1"
    report = examine(ExamineRequest(targets=(Target(rank=3, pid=worker),), folder=str(folder), levels="recorder"))
    assert (report.folder, report.ranks[0].stack, folder.exists()) == ("", None, False)
    assert report.ranks[0].missing == (NO_RECORDER,)


@pytest.mark.parametrize("text", ["", "{}", '{"targets": 3}'])
def test_a_wrong_request_is_refused_in_a_sentence(text: str) -> None:
    words = [sys.executable, "-m", "launcher.diagnosis.examiner", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("meshrun: the request ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python without py-spy beside it, with the modules of this one."""
    home = tmp_path / "python"
    home.mkdir()
    (home / "python").symlink_to(os.path.realpath(sys.executable))
    return str(home / "python")


@contextlib.contextmanager
def start_without_py_spy(python: str, request: ExamineRequest) -> Iterator[subprocess.Popen[bytes]]:
    folders = [path for path in sys.path if path]
    with subprocess.Popen(
        [python, "-m", "launcher.diagnosis.examiner", codec.encode(request).decode()],
        stdout=subprocess.PIPE,
        env={"PATH": "/nowhere:/bin:/usr/bin", "PYTHONPATH": os.pathsep.join([os.getcwd(), *folders])},
        start_new_session=True,
    ) as child:
        yield child


def examine_with(python: str, request: ExamineRequest, py_spy: str = "") -> ExamineReport:
    """Examine with this shell text in place of py-spy; without, there is none."""
    if py_spy:
        put_py_spy(python, py_spy)
    with start_without_py_spy(python, request) as child:
        return codec.decode(ExamineReport, child.communicate(timeout=60)[0], "the report")


def put_py_spy(python: str, text: str) -> None:
    path = Path(python).with_name("py-spy")
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


WAITS = "def load():\n    threading.Event().wait()\n"
HOLDS = "def load():\n    ctypes.PyDLL(None).pause()\n"
BLOCKS = f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n{WAITS}"
GIVES_UP = f"signal.signal(signal.SIGURG, signal.SIG_DFL)\n{WAITS}"
OWN = "the worker wrote the stack itself, of its main thread only: py-spy is not installed (pip install py-spy)"
NONE = "no stacks: py-spy is not installed (pip install py-spy)"
DENIED = "echo Permission Denied: Try again >&2; exit 1"


@contextlib.contextmanager
def run_as_main(script: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as the agent starts it, whose script is about to call `load`."""
    path = tmp_path / "train.py"
    path.write_text(f"import ctypes, signal, threading, time\n{script}\nprint(flush=True)\nload()\n")
    words = [sys.executable, "-u", _AS_MAIN, "script", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_SLEEPING, 60, "its wait")
            yield child
        finally:
            child.kill()


def read_pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigPnd:")).split()[1], 16)


@pytest.mark.parametrize(("script", "reason"), [(WAITS, OWN), (HOLDS, OWN), (BLOCKS, NONE), (GIVES_UP, NONE)])
def test_without_py_spy_a_worker_writes_its_own_stack(script: str, reason: str, python: str, tmp_path: Path) -> None:
    """It does while something holds the GIL, and never dies of the signal."""
    with run_as_main(script, tmp_path) as child:
        found = [examine_with(python, ExamineRequest(targets=(Target(rank=3, pid=child.pid),))).ranks[0]]
        if script == WAITS:  # a wait in C that a signal interrupts is over
            found += examine_with(python, ExamineRequest(targets=(Target(rank=3, pid=child.pid),)), DENIED).ranks
        assert child.poll() is None or script == HOLDS
        if script == BLOCKS:
            assert not read_pending(child.pid) >> (signal.SIGURG - 1) & 1, "it would come once it is unblocked"
    names = [[frame.function for frame in one.stack or ()][-2:] for one in found]
    assert names == [["load", "<module>"] if reason == OWN else []] * len(found)
    assert reason in found[0].missing


def test_a_worker_whose_time_is_over_is_left_without_a_stack(python: str, tmp_path: Path) -> None:
    """A handler of the script's own writes nothing."""
    script = f"signal.signal(signal.SIGURG, lambda *_: None)\n{WAITS}"
    with run_as_main(script, tmp_path) as child:
        (found,) = examine_with(python, ExamineRequest(targets=(Target(rank=3, pid=child.pid),))).ranks
        assert child.poll() is None
    assert (found.stack, found.missing[-1]) == (None, NONE)


def test_the_program_that_a_shell_script_wraps_is_looked_at() -> None:
    words = ["bash", "-c", f'{sys.executable} -c "import time; print(flush=True); time.sleep(600)"; true']
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (found,) = examine(ExamineRequest(targets=(Target(rank=3, pid=child.pid),))).ranks
        os.killpg(child.pid, signal.SIGKILL)
    assert [frame.function for frame in found.stack or ()] == ["<module>"]


LATE = "no stacks: py-spy has not answered in time"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (DENIED, "no stacks: the kernel does not let py-spy read the worker"),
        ("echo Error: Failed to find python version >&2; exit 1", "no stacks: the worker is not a Python process"),
        ("exec sleep 600", LATE),
        ("exec >&- 2>&-; exec sleep 600", LATE),
        ("echo '[{'", "no stacks: py-spy's answer cannot be read"),
        ("head -c 90000000 /dev/zero", LATE),
    ],
    ids=["refused", "another Python", "hangs", "hangs silently", "half", "huge"],
)
def test_what_py_spy_may_do_is_a_sentence(worker: int, python: str, text: str, sentence: str) -> None:
    request = ExamineRequest(targets=(Target(rank=3, pid=worker),), limit_s=1.0 if sentence == LATE else 60.0)
    (found,) = examine_with(python, request, text).ranks
    assert found.state == "sleeps"
    assert any(one.startswith(sentence) for one in found.missing), found.missing


def test_a_worker_that_ends_while_it_is_looked_at_has_ended(worker: int, python: str) -> None:
    report = examine_with(python, ExamineRequest(targets=(Target(rank=3, pid=worker),)), 'kill -9 "$6"')
    assert report.ranks[0].state == "ended"


def test_with_the_examiner_what_it_has_started_ends(worker: int, python: str, tmp_path: Path) -> None:
    put_py_spy(python, f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 600")
    request = ExamineRequest(targets=(Target(rank=3, pid=worker),), limit_s=60.0)
    with start_without_py_spy(python, request) as child:
        wait_until((tmp_path / "pid").exists, 60, "py-spy")
        spy = psutil.Process(int((tmp_path / "pid").read_text()))
        child.kill()
    wait_until(lambda: not spy.is_running() or spy.status() == psutil.STATUS_ZOMBIE, 60, "the end of py-spy")


def test_an_answer_that_is_not_read_ends_with_its_limit(worker: int) -> None:
    targets = tuple(Target(rank=rank, pid=worker) for rank in range(1000))
    with start(ExamineRequest(targets=targets, limit_s=0.5, levels="recorder")) as child:
        assert child.wait(60) == -signal.SIGALRM


def test_a_full_disk_is_a_remark(worker: int, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    log = tmp_path / "stdout.log"
    log.write_bytes((b"x" * 600 + b"\n") * 200)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        targets = tuple(Target(rank=rank, pid=worker, outputs=(str(log),)) for rank in range(3))
        report = examine(ExamineRequest(targets=targets, folder=str(disk / "incident")))
        names = {path.name for path in (disk / "incident").iterdir()}
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert [one.state for one in report.ranks] == ["sleeps"] * 3
    assert any(one.endswith(" lacks rank_0.tail.txt, rank_1.tail.txt, rank_2.tail.txt: No space left on device")
               for one in report.remarks), report.remarks  # fmt: skip
    assert {f"rank_{rank}.json" for rank in range(3)} <= names
    assert "rank_0.tail.txt" not in names


def test_a_folder_is_bounded_and_large_dumps_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident, "FOLDER_MAX", 1_000_000)
    dump = b"[" + b"1," * 600_000 + b"1]"
    contents = [dump, os.urandom(1_200_000)]
    examined = [
        Examined(evidence=RankEvidence(rank=rank, state="runs"), dump=content) for rank, content in enumerate(contents)
    ]
    path = tmp_path / "incident"
    assert incident.write_incident(str(path), (), examined, float("inf")) == (
        True,
        f"the incident folder {path} lacks rank_1.recorder.json.gz: too large, or too late",
    )
    assert gzip.decompress((path / "rank_0.recorder.json.gz").read_bytes()) == dump
    assert json.loads((path / "rank_1.json").read_text())["state"] == "runs"
