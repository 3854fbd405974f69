"""What the agent sees of its workers' progress, in real processes; what follows is in test_progress.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from launcher.config.options.readers import HangLimits
from launcher.diagnosis.part import node_progress
from launcher.diagnosis.part.node_progress import NodeProgress
from launcher.diagnosis.progress import HEARTBEAT, PHASE, ProgressNews, ProgressSigns, ProgressWatch
from launcher.hardware.linux import shared_page
from launcher.hardware.linux.kernel import list_children, read_stat
from launcher.hardware.linux.shared_page import SharedPage
from tests.support.waiting import wait_until

LIMITS = HangLimits(step_s=8.0, start_s=8.0)
TRACED = "import ctypes, sys; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0), flush=True); sys.stdin.read()"
THREADED = """
import subprocess, threading, sys
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
subprocess.run(["sleep", "600"])
"""
SHOWS = """
import sys
from launcher.ranks import as_main, main_start
main_start.prepare_evidence(as_main.load)
while True:
    sys.stdout.write(".")
    sys.stdout.flush()
    sys.stdin.readline()
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that writes what it reads, and end it by its pipe."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(*command: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def watch(page: SharedPage) -> NodeProgress:
    """One worker, whose output the agent does not read."""
    return NodeProgress(ProgressWatch(LIMITS, 0.0), page, None, (0,), frozenset({0}), {}, 0.0)


def live(node: NodeProgress, pid: int, until: float) -> ProgressNews | None:
    """The silence that is found by then, with looks whenever the watch asks for them."""
    while node.wake_at <= until:
        if (news := node.check({0: pid}, node.wake_at)) is not None:
            assert news.kind == "silent"
            return news
    return None


def say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"loss\n")
    assert process.stdout.read(5) == b"loss\n"


@pytest.mark.parametrize("command", [("cat",), ("sh", "-c", "cat; exit $?")], ids=["a program", "a wrapper of one"])
def test_what_a_worker_writes_is_progress(command: tuple[str, ...], start: Start, page: SharedPage) -> None:
    worker, node = start(*command), watch(page)
    say(worker)
    assert live(node, worker.pid, 7.0) is None
    say(worker)
    assert live(node, worker.pid, 15.0) is None  # 8 s would have been over, since the start
    node = watch(page)
    assert live(node, worker.pid, 3700.0) is not None


def test_what_a_worker_writes_for_its_agent_is_no_progress(start: Start, page: SharedPage) -> None:
    worker = start(sys.executable, "-c", SHOWS)
    assert worker.stdin is not None

    def shows() -> None:
        assert worker.stdout is not None
        assert worker.stdout.read(1) == b"."
        # The kernel counts what is written once it can be read: not before the worker waits for input.
        wait_until(lambda: (stat := read_stat(worker.pid)) is not None and stat.state == "S")

    shows()
    node = watch(page)
    assert live(node, worker.pid, 7.0) is None
    os.kill(worker.pid, signal.SIGURG)
    wait_until(lambda: node_progress._read_stack_size(worker.pid) > 0)
    worker.stdin.write(b"\n")  # it is beyond the handler when it answers
    shows()
    found = live(node, worker.pid, 9.0)
    assert found is not None
    assert "since the start" in found.sentence


def test_a_worker_that_is_stopped_is_said_to_be_not_to_hang(
    start: Start, capfd: pytest.CaptureFixture[str], page: SharedPage
) -> None:
    worker, node = start("cat"), watch(page)
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: (stat := read_stat(worker.pid)) is not None and stat.state == "T")
    assert live(node, worker.pid, 10_000.0) is None
    assert capfd.readouterr().err.count("rank 0 is stopped") == 1
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: (stat := read_stat(worker.pid)) is not None and stat.state != "T")
    assert live(node, worker.pid, 10_020.0) is not None


def test_no_hang_is_said_of_a_traced_worker_and_its_counters_reach_the_watch(start: Start, page: SharedPage) -> None:
    worker = start(sys.executable, "-c", TRACED)
    assert worker.stdout is not None
    if worker.stdout.read(2) != b"0\n":
        pytest.skip("ptrace is refused here")
    assert live(watch(page), worker.pid, 10_000.0) is None
    worker, node = start("cat"), watch(page)
    live(node, worker.pid, 4.0)
    assert node.watch.needs_counters
    node.watch.take_counters({0: 1})
    assert not node.watch.needs_counters


def test_nothing_is_said_of_a_worker_that_cannot_be_seen(
    start: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], page: SharedPage
) -> None:
    read = node_progress._read_fields
    monkeypatch.setattr(node_progress, "_read_fields", lambda pid, name: {} if name == "io" else read(pid, name))
    assert live(watch(page), start("cat").pid, 10_000.0) is None
    assert capfd.readouterr().err == ""


@pytest.fixture
def page() -> Iterator[SharedPage]:
    made = shared_page.make()
    made.begin(2, None)
    yield made
    os.close(made.descriptor)


def write(page: SharedPage, local_rank: int, index: int, number: int) -> None:
    page._write((1 + local_rank) * shared_page.NUMBERS_PER_LINE + index, number)


def observe(page: SharedPage, *local_ranks: int) -> ProgressSigns:
    node = NodeProgress(ProgressWatch(LIMITS, 0.0), page, None, (4, 5), frozenset(), {}, 0.0)
    return node._observe(dict.fromkeys(local_ranks, os.getpid()))


def test_when_each_worker_last_showed_a_sign_is_known_before_anybody_asks(page: SharedPage) -> None:
    seen: dict[int, float] = {}
    limits = HangLimits(step_s=800.0, start_s=800.0)
    node = NodeProgress(ProgressWatch(limits, 0.0), page, None, (4, 5), frozenset(), seen, 0.0)
    pids = dict.fromkeys((0, 1), os.getpid())
    node.check(pids, node.wake_at)
    assert seen == {0: 0.0, 1: 0.0}
    write(page, 1, shared_page.HEARTBEAT_COUNT, 3)
    for _ in range(3):
        node.check(pids, node.wake_at)
    assert seen == {0: 0.0, 1: node_progress.LOOK_S}


def test_heartbeats_and_steps_of_any_worker_are_signs(page: SharedPage) -> None:
    assert observe(page, 0, 1).signs[HEARTBEAT] == 0
    write(page, 1, shared_page.HEARTBEAT_COUNT, 3)
    assert observe(page, 0, 1).signs[HEARTBEAT] == 3
    write(page, 0, shared_page.REACHED_STEP, 1)
    assert observe(page, 0, 1).signs[HEARTBEAT] == 4, "step 0"


def test_phases_of_workers_that_live_count(page: SharedPage) -> None:
    for local_rank in range(2):
        write(page, local_rank, shared_page.PHASE_COUNT, 1)
        write(page, local_rank, shared_page.PHASE_LIMIT_MS, 9000)
    assert observe(page, 0, 1).signs[PHASE] == 2
    assert [phase.rank for phase in observe(page, 0, 1).phases] == [4, 5]
    assert [phase.rank for phase in observe(page, 1).phases] == [5], "the other has ended in its phase"


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (("sh", "-c", "cat; exit $?"), 2),
        (("sh", "-c", "sleep 600 & sleep 600 & wait"), 1),
        ((sys.executable, "-c", THREADED), 1),
    ],
    ids=["a wrapper", "two children", "a program with threads"],
)
def test_only_what_a_wrapper_wraps_counts_as_the_worker(command: tuple[str, ...], count: int, start: Start) -> None:
    worker = start(*command)
    wait_until(lambda: len(list_children(worker.pid)) == (2 if "&" in command[-1] else 1))
    children = list_children(worker.pid)
    assert len(list(node_progress._look_at(worker.pid, reads_output=True))) == count
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def test_the_watch_loads_no_pump_where_there_is_none() -> None:
    script = "import sys, launcher.diagnosis.part.progress_part; print('launcher.logs.pump' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
