"""The report of a job that failed elsewhere: what other nodes wrote is read with care, then joined to our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.logs.reports.failures import Failures
from launcher.logs.reports.outcome import report_failure
from launcher.logs.reports.report import WorkerFailure
from launcher.placement.adapter.description import NodeAssignment
from rendezvous import codec
from rendezvous.events import Exit
from rendezvous.reasons import Reason
from rendezvous.records import Verdict
from tests.support.reasons import because

CAUSE = WorkerFailure(
    rank=3, local_rank=1, pid=77, exit_code=7, time="2026-01-01T10:00:00", host="h2", message="the cause"
)
SHARE = NodeAssignment(
    ranks=(0, 1), world_size=2, shape=(2,), group_rank=0, group_world_size=1, role_ranks=(0, 1), role_world_size=2,
    master_addr="127.0.0.1", master_port=29500,
)  # fmt: skip


def verdict(failure: str, *others: str, is_first_sure: bool = True) -> Verdict:
    reason = because("a worker failed on h2 in round 1")
    return Verdict(
        kind="failure", exit_code=7, round=1, reason=reason, failure=failure, is_first_sure=is_first_sure, others=others
    )


def told(capfd: pytest.CaptureFixture[str], verdict: Verdict) -> str:
    report_failure(verdict, (), "h1", "train.py")
    return capfd.readouterr().err


def test_a_failure_of_another_node_is_reported_as_if_it_were_here(capfd: pytest.CaptureFixture[str]) -> None:
    text = told(capfd, verdict(codec.encode(CAUSE).decode()))
    assert "\nRoot Cause (first observed failure): rank 3 on h2\n" in text
    assert "the cause" in text


def test_other_failures_are_listed_once_and_an_unsure_order_is_noted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    other = codec.encode(replace(CAUSE, rank=0, host="h3", pid=5)).decode()
    cause = codec.encode(CAUSE).decode()
    text = told(capfd, verdict(cause, other, other, cause, "rubbish", is_first_sure=False))
    assert "first reported; others failed at nearly the same time" in text
    assert "rank 3 on h2" in " ".join(text.split())
    assert "Other failures: rank 0 (exit code 7)\n" in text


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>'


@pytest.mark.parametrize("failure", ["", "rubbish", "[1]", "{}", '{"rank":"x"}', "[" * 100_000])
def test_a_failure_that_cannot_be_read_leaves_the_reason(capfd: pytest.CaptureFixture[str], failure: str) -> None:
    assert told(capfd, verdict(failure)) == "meshrun: error: a worker failed on h2 in round 1\n"


@pytest.mark.parametrize(
    ("aborts_echo", "exit_code", "is_echo"), [(True, -6, True), (True, -9, False), (False, -6, False)]
)
def test_under_jax_an_abort_may_be_the_echo_of_another_failure(
    aborts_echo: bool, exit_code: int, is_echo: bool
) -> None:
    failures = Failures("h1", None, aborts_are_secondary=aborts_echo)
    failures.begin(1, SHARE, lambda local_rank: "")
    assert (failures.note(1, 4711, exit_code, 0.0, None) == "another") is is_echo


class FakePump:
    """Has these last lines of each worker."""

    def __init__(self, text: str) -> None:
        self.lines = tuple(text.split("\n"))

    def read_tail(self, local_rank: int, stream: str, limit_s: float = 0.0) -> tuple[str, ...]:
        return self.lines


NCCL_TIMEOUT = "[E] [PG 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
GLOO_TIMEOUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation"
NCCL_MONITOR = "frame #4: c10d::ProcessGroupNCCL::heartbeatMonitor() + 0x9f5 (0x7f in libtorch_cuda.so)"


@pytest.mark.parametrize(
    ("exit_code", "text", "sentence", "origin"),
    [
        (1, "ZeroDivisionError: division by zero", None, "own"),
        (3, "", None, "own"),
        (-9, "", None, "own"),
        (-11, "Fatal Python error: Segmentation fault", None, "own"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", None, "own"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", None, "own"),
        (-6, "", None, "unclear"),
        (-6, NCCL_TIMEOUT, None, "another"),
        (1, GLOO_TIMEOUT, None, "another"),
        (
            1,
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4521",
            None,
            "another",
        ),
        (-6, NCCL_MONITOR, None, "unclear"),
        (1, NCCL_MONITOR, None, "own"),
        (-6, "", "no heartbeat for 5 s", "unclear"),
        (-9, "", "no heartbeat for 5 s", "unclear"),
    ],
)
def test_a_failure_began_elsewhere_only_where_its_end_may_say_so(
    exit_code: int, text: str, sentence: str | None, origin: str
) -> None:
    failures = Failures("h1", FakePump(text))  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: "")
    assert failures.note(1, 4711, exit_code, 0.0, sentence) == origin


@pytest.mark.parametrize(("pid", "claim"), [(0, None), (4711, (1, "a bad disk"))], ids=["never ran", "says why"])
def test_a_worker_that_never_ran_or_says_why_it_fails_is_no_victim(pid: int, claim: tuple[int, str] | None) -> None:
    failures = Failures("h1", FakePump(NCCL_TIMEOUT))  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: "")
    assert failures.note(1, pid, -6, 0.0, "cannot be run", claim=claim) == "own"


def test_what_a_worker_claims_is_a_kind_and_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    failures = Failures("h1", None)
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.note(1, 7, 76, 0.0, None, claim=(1, "the loss: nan"))
    cause = failures.set_root_cause(1)
    assert cause.failure_class == Reason.of("logs/claim", claim="gave up")
    assert capfd.readouterr().err == "meshrun: rank 1 (pid 7) gave up: the loss: nan (exit code 76)\n"


@pytest.mark.parametrize(
    ("exit_code", "text", "why"),
    [
        (3, "", Reason.of("logs/exit-code", exit_code=3)),
        (-15, "", Reason.of("logs/signal", signal="SIGTERM")),
        (1, f"{TRACEBACK}\nKeyError: 'a'", Reason.of("logs/exception", type="KeyError")),
        (1, f"{TRACEBACK}\nKeyError: 'b'", Reason.of("logs/exception", type="KeyError")),
    ],
)
def test_a_failure_is_the_same_if_it_has_the_same_class_for_the_same_cause(
    exit_code: int, text: str, why: Reason
) -> None:
    failures = Failures("h1", FakePump(text))  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.note(1, 7, exit_code, 0.0, None)
    found = failures.set_root_cause(1).failure_class
    assert found == Reason.of("logs/failure", failure_class="user code" if text else "unknown", why=why)


def test_a_failure_in_words_of_its_own_is_the_same_whatever_they_are(tmp_path: Path) -> None:
    """An error file holds any text, with what differs each time."""
    found = []
    for pid in (41, 42):
        (tmp_path / "error.json").write_text(json.dumps({"message": {"message": f"pid {pid} lost 10.0.0.{pid}: bad"}}))
        failures = Failures("h1", None)
        failures.begin(1, SHARE, lambda local_rank: str(tmp_path / "error.json"))
        failures.note(1, pid, 1, 0.0, None)
        found.append(failures.set_root_cause(1).failure_class)
    how = Reason.of("logs/failure", failure_class="user code", why=Reason.of("logs/exit-code", exit_code=1))
    assert found == [how, how]


@pytest.mark.parametrize(
    ("pid", "exit_code", "told"),
    [
        (0, 127, "rank 1 could not be started: no heartbeat for 8 s"),
        (7, -6, "rank 1 (pid 7) gave no heartbeat for 8 s and was killed"),
        (7, 3, "rank 1 (pid 7) gave no heartbeat for 8 s, was stopped, and failed with exit code 3"),
    ],
)
def test_a_worker_that_ran_is_not_said_to_have_never_started(
    pid: int, exit_code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = Failures("h1", None)
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.note(1, pid, exit_code, 0.0, "no heartbeat for 8 s")
    failures.set_root_cause(1)
    assert capfd.readouterr().err == f"meshrun: {told}\n"


@pytest.mark.parametrize(("last_round", "others"), [(1, "rank 0 (exit code 9)"), (3, "")])
def test_failures_of_an_earlier_round_are_not_part_of_the_report(
    last_round: int, others: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = Failures("h1", None)
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.note(0, 5, 9, 0.0, None)
    end = verdict(codec.encode(CAUSE).decode())
    failures.report_end(Exit(7, end.reason, replace(end, round=last_round)), "train.py", None)
    text = capfd.readouterr().err
    assert "rank 3 on h2" in text
    assert [line for line in text.splitlines() if line.startswith("Other failures")] == [
        f"Other failures: {told}" for told in [others] if told
    ]
