"""How an agent starts its examiner and takes what it says: its place, its output, and its end at the wrong moment."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
from collections.abc import Iterator

import pytest

from launcher.diagnosis.part.local_examiner import MARGIN_S, LocalExaminer
from launcher.diagnosis.request import ExamineReport, ExamineRequest, Target
from launcher.supervisor.loop import _run_module
from launcher.supervisor.messages import WorkerSpec
from tests.support.waiting import wait_until

NOW = 100.0


class FakeSupervisor:
    """Forks what it is told to; with `instead`, runs that Python text in its place; `module` replaces the right one."""

    def __init__(self, instead: str = "") -> None:
        self.instead = instead
        self.module = ""
        self.started: list[int] = []

    def examine(self, spec: WorkerSpec) -> None:
        assert spec.stdout is not None
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(spec.stdout, 1)
                os.closerange(3, 1000)
                if self.instead:
                    os.execv(sys.executable, [sys.executable, "-c", self.instead])
                _run_module([self.module or spec.argv[0], *spec.argv[1:]])
            finally:
                os._exit(1)
        self.started.append(pid)
        os.close(spec.stdout)


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    fake = FakeSupervisor()
    yield fake
    for pid in fake.started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def examine(supervisor: FakeSupervisor, *targets: Target, now: float = NOW, limit_s: float = 20.0) -> ExamineReport:
    examiner = LocalExaminer(supervisor, select.poll())  # type: ignore[arg-type]
    found: list[ExamineReport] = []
    request = ExamineRequest(targets=targets, limit_s=limit_s, levels="recorder")
    examiner.begin(found.append, request, lambda: "", NOW)
    wait_until(lambda: examiner.advance(now) or found, 60, "the report")
    assert examiner.wake_at == math.inf
    (report,) = found
    return report


def test_paths_of_any_length_reach_the_examiner(supervisor: FakeSupervisor) -> None:
    targets = [Target(rank=rank, pid=os.getpid(), outputs=("/x" * 1000, "/y" * 1000)) for rank in range(64)]
    assert len(examine(supervisor, *targets).ranks) == 64


def test_names_that_are_no_text_cost_the_agent_nothing(supervisor: FakeSupervisor) -> None:
    (found,) = examine(supervisor, Target(rank=3, pid=os.getpid(), outputs=("/tmp/l\udcff3/stdout.log",))).ranks
    assert found.rank == 3


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("", "it was killed or has not answered in time"),
        ("print('{\"ranks\": [')", '{"ranks": ['),
        ("print('Traceback'); print('OSError: no room')", "OSError: no room"),
        ("import sys\nwhile True: sys.stdout.buffer.write(b'x' * 65536)", "x" * 200),
    ],
    ids=["nothing", "half", "an exception", "endless"],
)
def test_what_is_no_report_is_a_remark(supervisor: FakeSupervisor, text: str, remark: str) -> None:
    supervisor.instead = text or "pass"
    report = examine(supervisor, Target(rank=3, pid=1))
    assert (report.ranks, report.remarks) == ((), (f"the workers could not be examined: {remark}",))


def test_a_module_that_is_gone_is_a_remark(supervisor: FakeSupervisor) -> None:
    supervisor.module = "launcher.no_such_part"
    report = examine(supervisor, Target(rank=3, pid=1))
    assert report.remarks[0].endswith("ModuleNotFoundError: No module named 'launcher.no_such_part'")


def test_an_examiner_that_does_not_end_is_given_up_at_its_limit(supervisor: FakeSupervisor) -> None:
    supervisor.instead = "import time; time.sleep(600)"
    examiner = LocalExaminer(supervisor, select.poll())  # type: ignore[arg-type]
    folders: list[str] = []

    def find_folder() -> str:
        folders.append("")
        return ""

    finished: list[str] = []
    stacks, counters = ExamineRequest(targets=()), ExamineRequest(targets=(), levels="recorder")
    examiner.begin(lambda report: finished.append("one"), stacks, find_folder, NOW)
    examiner.begin(lambda report: finished.append("two"), stacks, find_folder, NOW + 1)
    examiner.begin(lambda report: finished.append("three"), counters, find_folder, NOW + 1)
    assert len(supervisor.started) == len(folders) == 2, "a look that is under way serves a second question"
    assert examiner.wake_at == NOW + 5 + MARGIN_S
    examiner.advance(examiner.wake_at - 0.1)
    assert finished == []
    examiner.advance(examiner.wake_at)
    assert finished == ["one", "two"]
    descriptors = len(os.listdir("/proc/self/fd"))
    examiner.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1
    assert examiner.wake_at == math.inf


def test_without_a_descriptor_the_report_says_so(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: int) -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe2", refuse)
    report = examine(supervisor, Target(rank=3, pid=1))
    assert report.remarks == ("the workers could not be examined: Too many open files",)
