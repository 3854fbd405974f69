"""Failures of workers: what is a cause, an echo or a kill for memory, and what the report of a job makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.hardware.linux import kernel_log
from launcher.hardware.linux.kernel_log import KernelLog
from launcher.logs.reports.failures import Failures, count_oom_kills, is_abort, is_out_of_memory
from launcher.logs.reports.outcome import report_failure
from launcher.logs.reports.report import Finding, WorkerFailure
from launcher.logs.reports.symptoms import is_peer_loss
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


def test_failures_of_other_nodes_are_reported_once_as_if_they_were_here(capfd: pytest.CaptureFixture[str]) -> None:
    text = told(capfd, verdict(codec.encode(CAUSE).decode()))
    assert "\nRoot Cause (first observed failure): rank 3 on h2\n" in text
    assert "the cause" in text
    other = codec.encode(replace(CAUSE, rank=0, host="h3", pid=5)).decode()
    cause = codec.encode(CAUSE).decode()
    text = told(capfd, verdict(cause, other, other, cause, "rubbish", is_first_sure=False))
    assert "first reported; others failed at nearly the same time" in text
    assert "rank 3 on h2" in " ".join(text.split())
    assert "Other failures:\n  rank 0: exit code 7\n" in text


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>'


@pytest.mark.parametrize("failure", ["", "rubbish", "[1]", "{}", '{"rank":"x"}', "[" * 100_000])
def test_a_failure_that_cannot_be_read_leaves_the_reason(capfd: pytest.CaptureFixture[str], failure: str) -> None:
    assert told(capfd, verdict(failure)) == "meshrun: error: a worker failed on h2 in round 1\n"


@pytest.mark.parametrize(
    ("aborts_echo", "exit_code", "is_echo"), [(True, -6, True), (True, -9, False), (False, -6, False)]
)
def test_under_jax_an_abort_may_be_an_echo_of_another(aborts_echo: bool, exit_code: int, is_echo: bool) -> None:
    failures = begin(aborts_are_secondary=aborts_echo)
    assert (failures.note(1, 4711, exit_code, 0.0, None) == "another") is is_echo


class FakePage:
    """What the workers of the present round have left in the shared page."""

    def __init__(self, words: str = "\n", step: int = -1, saves: int = 0) -> None:
        self.words, self.step, self.saves = words, step, saves

    def read_last_words(self, local_rank: int) -> str:
        return self.words

    def read_step(self) -> int:
        return self.step

    def read_save_count(self) -> int:
        return self.saves


IMPORT = f"{TRACEBACK}\nModuleNotFoundError: No module named 'absent'"


@pytest.mark.parametrize(
    ("rounds", "is_final"),
    [
        ({1: {}, 2: {}}, True),
        ({1: {}, 3: {}}, False),
        ({1: {}, 2: {"step": 0}}, False),
        ({1: {}, 2: {"saves": 1}}, False),
        ({1: {"step": 7}, 2: {}}, False),
        ({1: {"saves": 1}, 2: {}, 3: {}}, True),
    ],
)
def test_an_error_of_the_configuration_comes_again_if_the_round_before_ended_by_it_and_none_got_past_it(
    rounds: dict[int, dict[str, int]], is_final: bool
) -> None:
    page = FakePage()
    failures = Failures("h1", FakePump(IMPORT), page=page)  # type: ignore[arg-type]
    for number, reached in rounds.items():
        vars(page).update({"step": -1, "saves": 0} | reached)
        failures.begin(number, SHARE, lambda local_rank: "")
        failures.note(1, 4711, 1, 0.0, None)
        final_reason, is_node_fault = failures.set_root_cause(1).consequence
    assert ((final_reason is not None), is_node_fault) == (is_final, False)


REFUSAL = "/venv/bin/python: can't open file '/job/tool.py': [Errno 2] No such file or directory"
HEAD = "\nTraceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("words", "said", "is_final"),
    [
        (f"{HEAD}SystemExit: {REFUSAL}\n", "", True),
        ("", REFUSAL, True),
        (f'{HEAD}  File "/job/train.py", line 2, in <module>\nSystemExit: 1\n', REFUSAL, False),
        (f'{HEAD}  File "/job/train.py", line 2, in <module>\nSystemExit: {REFUSAL}\n', "", False),
        ("\n", REFUSAL, False),
    ],
)
def test_a_python_that_a_script_has_started_may_find_something_to_run_the_next_time(
    words: str, said: str, is_final: bool
) -> None:
    failures = Failures("h1", FakePump(said), page=FakePage(words))  # type: ignore[arg-type]
    for number in (1, 2):
        failures.begin(number, SHARE, lambda local_rank: "")
        failures.note(1, 4711, 2, 0.0, None)
        end = failures.set_root_cause(1)
    told = codec.decode(WorkerFailure, end.text, "the failure")
    assert (end.consequence[0] is not None, told.hint != "") == (is_final, is_final)


@pytest.mark.parametrize(("said", "is_abrupt"), [("", True), (IMPORT, False)])
def test_an_end_with_a_known_exception_is_not_abrupt(said: str, is_abrupt: bool) -> None:
    failures = Failures("h1", FakePump(said), page=FakePage())  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.note(1, 4711, 3, 0.0, None)
    told = codec.decode(WorkerFailure, failures.set_root_cause(1).text, "the failure")
    assert told.is_abrupt is is_abrupt


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_page_that_cannot_be_read_costs_its_words_alone(error: type[Exception]) -> None:
    class Broken(FakePage):
        def read_last_words(self, local_rank: int) -> str:
            raise error

        def read_step(self) -> int:
            raise error

    failures = Failures("h1", FakePump(IMPORT), page=Broken())  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: "")
    assert failures.note(1, 4711, 1, 0.0, None) == "own"
    assert failures.set_root_cause(1).rank == 1


class FakePump:
    """Has these last lines of each worker."""

    def __init__(self, text: str) -> None:
        self.lines = tuple(text.split("\n"))

    def read_tail(self, local_rank: int, stream: str, limit_s: float = 0.0) -> tuple[str, ...]:
        return self.lines


def begin(text: str | None = None, error_file: object = "", **how: bool) -> Failures:
    """In a round of two workers, which leave this text as their last lines, and this error file."""
    failures = Failures("h1", None if text is None else FakePump(text), **how)  # type: ignore[arg-type]
    failures.begin(1, SHARE, lambda local_rank: str(error_file))
    return failures


NCCL_TIMEOUT = "[E] [PG 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
GLOO_TIMEOUT = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation"
NCCL_MONITOR = "frame #4: c10d::ProcessGroupNCCL::heartbeatMonitor() + 0x9f5 (0x7f in libtorch_cuda.so)"


@pytest.mark.parametrize(
    ("exit_code", "text", "sentence", "origin"),
    [
        (1, "ZeroDivisionError: division by zero", None, "own"),
        (-9, "", None, "own"),
        (-11, "Fatal Python error: Segmentation fault", None, "own"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", None, "own"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", None, "own"),
        (-6, "", None, "unclear"),
        (-6, NCCL_TIMEOUT, None, "another"),
        (1, GLOO_TIMEOUT, None, "another"),
        (1, "RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4521", None, "another"),
        (-6, NCCL_MONITOR, None, "unclear"),
        (1, NCCL_MONITOR, None, "own"),
        (-6, "", "no heartbeat for 5 s", "unclear"),
        (-9, "", "no heartbeat for 5 s", "unclear"),
    ],
)
def test_a_failure_began_elsewhere_if_it_says_so(exit_code: int, text: str, sentence: str | None, origin: str) -> None:
    assert begin(text).note(1, 4711, exit_code, 0.0, sentence) == origin


@pytest.mark.parametrize(("pid", "claim"), [(0, None), (4711, (1, "a bad disk"))], ids=["never ran", "says why"])
def test_a_worker_that_never_ran_or_says_why_it_fails_is_no_victim(pid: int, claim: tuple[int, str] | None) -> None:
    assert begin(NCCL_TIMEOUT).note(1, pid, -6, 0.0, "cannot be run", claim=claim) == "own"


def test_what_a_worker_claims_is_a_kind_and_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    failures = begin()
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
def test_a_failure_is_the_same_if_its_class_and_cause_are(exit_code: int, text: str, why: Reason) -> None:
    failures = begin(text)
    failures.note(1, 7, exit_code, 0.0, None)
    found = failures.set_root_cause(1).failure_class
    assert found == Reason.of("logs/failure", failure_class="user code" if text else "unknown", why=why)


@pytest.mark.parametrize(
    ("exit_code", "text", "failure_class"),
    [
        (-9, "Out of memory: Killed process 7 (python)", "memory"),
        (-9, "Out of memory: Killed process 77 (python)", "unknown"),
        (-6, "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python", "device"),
        (1, "Out of memory: Killed process 7 (python)", "unknown"),  # of an earlier process with this pid
    ],
)
def test_what_the_kernels_log_says_of_a_process_makes_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int, text: str, failure_class: str
) -> None:
    (tmp_path / "kmsg").write_text(f"3,900,100,-;{text}\n")
    monkeypatch.setattr(kernel_log, "KernelLog", lambda: KernelLog(str(tmp_path / "kmsg")))
    failures = begin()
    failures.note(1, 7, exit_code, 0.0, None)
    found = failures.set_root_cause(1).failure_class
    assert found is not None
    assert found.values["failure_class"] == failure_class


def test_a_failure_in_words_of_its_own_is_the_same_whatever_they_are(tmp_path: Path) -> None:
    """An error file holds any text, with what differs each time."""
    found = []
    for pid in (41, 42):
        (tmp_path / "error.json").write_text(json.dumps({"message": {"message": f"pid {pid} lost 10.0.0.{pid}: bad"}}))
        failures = begin(error_file=tmp_path / "error.json")
        failures.note(1, pid, 1, 0.0, None)
        found.append(failures.set_root_cause(1).failure_class)
    how = Reason.of("logs/failure", failure_class="user code", why=Reason.of("logs/exit-code", exit_code=1))
    assert found == [how, how]


@pytest.mark.parametrize(
    ("pid", "exit_code", "told"),
    [
        (0, 127, "rank 1 could not be started: no heartbeat for 8 s"),
        (7, -6, "rank 1 (pid 7) showed no heartbeat for 8 s and was killed"),
        (7, 3, "rank 1 (pid 7) showed no heartbeat for 8 s, was stopped, and failed with exit code 3"),
    ],
)
def test_a_worker_that_ran_is_not_said_to_have_never_started(
    pid: int, exit_code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = begin()
    failures.note(1, pid, exit_code, 0.0, "no heartbeat for 8 s")
    failures.set_root_cause(1)
    assert capfd.readouterr().err == f"meshrun: {told}\n"


@pytest.mark.parametrize(("last_round", "is_told"), [(1, True), (3, False)])
def test_failures_of_earlier_rounds_are_not_told(
    last_round: int, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = begin()
    failures.note(0, 5, 9, 0.0, None)
    end = verdict(codec.encode(CAUSE).decode())
    failures.report_end(Exit(7, end.reason, replace(end, round=last_round)), "train.py", None)
    text = capfd.readouterr().err
    assert "rank 3 on h2" in text
    assert ("Other failures:\n  rank 0: exit code 9\n" in text) is is_told
    assert ("Other failures" in text) is is_told


EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 7\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def events(tmp_path: Path, *, cgroup: str, mounts: list[str], files: dict[str, str]) -> str:
    """A /proc/self and a /sys/fs/cgroup below `tmp_path`; {sys} in `mounts` stands for the latter."""
    proc, system = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    (proc / "mountinfo").write_text("".join(f"{mount.format(sys=system)}\n" for mount in mounts))
    for name, content in files.items():
        path = system / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(proc)


ROOT = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
V2 = "30 21 0:26 / {sys} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


SCOPE = "user.slice/session-1.scope"
UNIFIED = "33 21 0:29 / {sys}/unified rw - cgroup2 cgroup2 rw"
CPU = "31 21 0:27 / {sys}/cpu rw - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "32 21 0:28 / {sys}/memory rw - cgroup cgroup rw,memory"
GROUPS: dict[str, tuple[str, list[str], dict[str, str], int | None]] = {
    "a host with version 2": (f"0::/{SCOPE}\n", [ROOT, V2],
        {f"{SCOPE}/memory.events": EVENTS, "user.slice/memory.events": "oom_kill 9\n"}, 2),
    "the root group, which has no count": ("0::/\n", [ROOT, V2], {"cpu.stat": ""}, None),
    "version 1, with an empty version 2 beside it":
        ("9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n", [ROOT, CPU, MEMORY, UNIFIED],
         {"memory/job/memory.oom_control": OOM_CONTROL, "unified/memory.events": "oom_kill 9\n"}, 5),
    "a kernel before 4.13": ("4:memory:/\n", [ROOT, MEMORY],
        {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
    "rubbish": ("rubbish\n::\n", ["rubbish", "a b - c"], {}, None),
}  # fmt: skip


@pytest.mark.parametrize("kind", GROUPS)
def test_the_count_of_the_own_group_is_found(tmp_path: Path, kind: str) -> None:
    cgroup, mounts, files, expected = GROUPS[kind]
    assert count_oom_kills(events(tmp_path, cgroup=cgroup, mounts=mounts, files=files)) == expected


def test_the_count_is_read_anew_each_time(tmp_path: Path) -> None:
    assert count_oom_kills(str(tmp_path / "missing")) is None
    memory = events(tmp_path, cgroup="0::/\n", mounts=[V2], files={"memory.events": EVENTS})
    assert count_oom_kills(memory) == 2
    (tmp_path / "sys" / "memory.events").write_text("oom_kill 3\n")
    assert count_oom_kills(memory) == 3
    (tmp_path / "sys" / "memory.events").unlink()
    assert count_oom_kills(memory) is None


@pytest.mark.parametrize(
    ("exit_code", "before", "after", "expected"),
    [(-9, 2, 3, True), (-9, 2, 2, False), (-9, None, 3, False), (-9, 2, None, False), (-15, 2, 3, False)],
)
def test_only_a_sigkill_while_the_count_grew_is_a_kill_for_memory(
    exit_code: int, before: int | None, after: int | None, expected: bool
) -> None:
    assert is_out_of_memory(exit_code, before, after) is expected


ECHOES = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4521",
    "RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection reset by peer",
    "torch.distributed.DistBackendError: NCCL error in: ... ncclRemoteError: A call failed possibly due to a network "
    "error or a remote process exiting prematurely.",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "[E] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9, in send\n'
    "BrokenPipeError: [Errno 32] Broken pipe",
    "torch.distributed.DistStoreError: Socket Timeout",
    "F1121 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most "
    "likely indicates that another task died",
    "ValueError: UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by "
    "peer [127.0.0.1]:29584",
    "RuntimeError: [/paddle/third_party/gloo/gloo/transport/tcp/pair.cc:584] TIMEOUT self_rank = 0 pair_rank = 1 "
    "peer_str = [127.0.0.1]:2432",
    "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted",
]
CAUSES = [
    "",
    "ZeroDivisionError: division by zero",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "BrokenPipeError: [Errno 32] Broken pipe",
    '  File "urllib3/connection.py", line 9, in read\nConnectionResetError: [Errno 104] Connection reset by peer',
    "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    "I1121 coordination_service.cc:417] /job:jax_worker/replica:0/task:2 has connected to coordination service.",
]


@pytest.mark.parametrize("text", [*ECHOES, *CAUSES])
def test_the_loss_of_a_peer_is_known_wherever_it_stands(text: str) -> None:
    assert is_peer_loss(text) is (text in ECHOES)
    assert is_peer_loss(f"Traceback (most recent call last):\n  ...\n{text}\nsome lines after it") is (text in ECHOES)


@pytest.mark.parametrize(
    ("exit_code", "message", "sentence", "expected"),
    [(-6, None, None, True), (-6, "Traceback ...", None, False), (-6, None, "no sign of life for 60 s", False),
     (-11, None, None, False), (134, None, None, False)],
)  # fmt: skip
def test_an_abort_without_an_explanation_is_told_from_one_with_one(
    exit_code: int, message: str | None, sentence: str | None, expected: bool
) -> None:
    assert is_abort(exit_code, message, sentence) is expected


@pytest.mark.parametrize(("is_cause", "rank"), [(True, 1), (False, -1)])
def test_one_that_was_ended_for_a_hang_is_called_its_cause_only_if_that_is_known(is_cause: bool, rank: int) -> None:
    failures = Failures("h1", None)
    failures.begin(1, SHARE, lambda local_rank: "")
    failures.finding = Finding(("they are at 2 lines",), "known" if is_cause else "unknown", (1,) if is_cause else ())
    failures.note(1, 4711, -6, 0.0, "no sign of progress")
    root = failures.set_root_cause(1)
    told = codec.decode(WorkerFailure, root.text, "the failure")
    assert (root.rank, told.rank, told.is_stand_in) == (rank, 1, not is_cause)
    assert (told.finding, told.hang) == (("they are at 2 lines",), "known" if is_cause else "unknown")
    failures.begin(2, SHARE, lambda local_rank: "")
    failures.note(1, 4711, 1, 0.0, None)
    assert failures.finding is None
    assert codec.decode(WorkerFailure, failures.set_root_cause(1).text, "the failure").finding == ()
