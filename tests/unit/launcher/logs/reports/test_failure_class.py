"""The table of failure classes: what each row takes, and what it must not take for it."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest

from launcher.logs.reports.failure_class import RULES, Consequence, FailureEvidence, classify, find_consequence
from rendezvous.reasons import Reason

REPEATED = Reason.of("logs/repeated", node="h1", error="x")
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"

# One for each row of RULES, in their order: what it takes, and what looks alike and is something else.
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    ("unknown", {"exit_code": -6, "is_unresponsive": True}, "an abort of its own", {"exit_code": -6}, "user code"),
    ("preemption", {"exit_code": 1, "is_leaving": True}, "SIGTERM from elsewhere", {"exit_code": -15}, "unknown"),
    ("configuration", {"exit_code": 127, "spawn_error": errno.ENOENT}, "a shell that finds no program",
     {"exit_code": 127}, "unknown"),
    ("memory", {"exit_code": 1, "spawn_error": errno.ENOMEM}, "a number that is no errno of a start",
     {"exit_code": errno.ENOMEM}, "unknown"),
    ("launcher", {"exit_code": 1, "spawn_error": errno.EAGAIN}, "a worker that may start no processes",
     {"exit_code": 1, "exception": "BlockingIOError: [Errno 11] Resource temporarily unavailable"}, "user code"),
    ("launcher", {"exit_code": 1, "spawn_error": errno.ELOOP}, "one that ran", {"exit_code": 1}, "unknown"),
    ("launcher", {"exit_code": 1, "is_port_taken": True}, "a port of the script's own",
     {"exit_code": 1, "exception": "OSError: [Errno 98] Address already in use"}, "network"),
    ("memory", {"exit_code": -9, "is_out_of_memory": True}, "SIGKILL from elsewhere", {"exit_code": -9}, "unknown"),
    ("user code", {"exit_code": -6, "xid": 31}, "a GPU that is gone", {"exit_code": -6, "xid": 79}, "device"),
    ("device", {"exit_code": 1, "xid": 48}, "its exit code alone", {"exit_code": 48}, "unknown"),
    ("memory", {"exit_code": 1, "exception": OOM}, "a program that says so",
     {"exit_code": 1, "exception": "ValueError: out of memory"}, "user code"),
    ("memory", {"exit_code": 1, "exception": "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"},
     "the word under another type", {"exit_code": 1, "exception": "grpc.RpcError: RESOURCE_EXHAUSTED: quota"},
     "user code"),
    ("memory", {"exit_code": 1, "exception": "OSError: [Errno 12] Cannot allocate memory"}, "no space on a disk",
     {"exit_code": 1, "exception": "OSError: [Errno 28] No space left on device"}, "storage"),
    ("device", {"exit_code": 1, "exception": ECC}, "an assertion in a kernel of the script",
     {"exit_code": 1, "exception": "torch.AcceleratorError: CUDA error: device-side assert triggered"}, "user code"),
    ("network", {"exit_code": 1, "is_peer_loss": True, "exception": "RuntimeError: Connection closed by peer"},
     "a bug that names a connection", {"exit_code": 1, "exception": "RuntimeError: no connection is configured"},
     "user code"),
    ("network", {"exit_code": 1, "exception": "torch.distributed.DistNetworkError: failed to connect"},
     "a bug in a script of that name", {"exit_code": 1, "exception": "ValueError: DistNetworkError"}, "user code"),
    ("network", {"exit_code": 1, "exception": "OSError: [Errno 113] No route to host"}, "another error of an OSError",
     {"exit_code": 1, "exception": "FileNotFoundError: [Errno 2] No such file or directory: 'a'"}, "user code"),
    ("network", {"exit_code": 1, "exception": "jax.errors.JaxRuntimeError: UNAVAILABLE: failed to connect"},
     "a program that XLA cannot compile",
     {"exit_code": 1, "exception": "jax.errors.JaxRuntimeError: INVALID_ARGUMENT: shapes"}, "user code"),
    ("storage", {"exit_code": 1, "exception": "OSError: [Errno 116] Stale file handle"}, "the words without the errno",
     {"exit_code": 1, "exception": "OSError: Stale file handle"}, "user code"),
    ("storage", {"exit_code": -signal.SIGXFSZ}, "CPU time", {"exit_code": -signal.SIGXCPU}, "unknown"),
    ("configuration", {"exit_code": 1, "exception": "ModuleNotFoundError: No module named 'x'"},
     "an attribute that is missing", {"exit_code": 1, "exception": "AttributeError: module 'x' has no attribute 'y'"},
     "user code"),
    ("configuration", {"exit_code": 1, "exception": "/usr/bin/python3: No module named x"},
     "another program's words", {"exit_code": 1, "exception": "tool: No module named x"}, "user code"),
    ("configuration", {"exit_code": 2}, "the same code beside an exception",
     {"exit_code": 2, "exception": "ValueError: bad"}, "user code"),
    ("user code", {"exit_code": 1, "exception": "KeyError: 3"}, "no exception", {"exit_code": 1}, "unknown"),
    ("user code", {"exit_code": -11}, "a crash that its GPU explains", {"exit_code": -11, "xid": 79}, "device"),
]  # fmt: skip

NO_PROGRAM = Consequence(Reason.of("logs/no-program"))


def test_each_row_has_its_cases() -> None:
    assert [case[0] for case in CASES] == [rule.failure_class for rule in RULES]


@pytest.mark.parametrize("index", range(len(RULES)), ids=lambda index: f"{index} {RULES[index].failure_class}")
def test_a_row_takes_its_failure_and_not_the_one_that_looks_alike(index: int) -> None:
    expected, evidence, _, alike, other = CASES[index]
    assert RULES[index].applies(FailureEvidence(**evidence))
    assert classify(FailureEvidence(**evidence)).failure_class == expected
    assert classify(FailureEvidence(**alike)).failure_class == other
    assert other != expected


@pytest.mark.parametrize(
    "exception",
    [
        "ValueError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: copy failed: [Errno 28] No space left on device",
        "KeyError: 'RESOURCE_EXHAUSTED:'",
        "RuntimeError: ConnectionResetError",
        "train.CUDA error: hardware error",
    ],
)
def test_what_a_program_says_in_words_decides_nothing(exception: str) -> None:
    assert classify(FailureEvidence(exit_code=1, exception=exception)).failure_class == "user code"


def test_a_class_says_why() -> None:
    for evidence, why in (
        (FailureEvidence(exit_code=1, exception=OOM), Reason.of("logs/exception", type="OutOfMemoryError")),
        (FailureEvidence(exit_code=-9, is_out_of_memory=True), Reason.of("logs/killed-for-memory")),
    ):
        assert classify(evidence) == ("memory", why)


@pytest.mark.parametrize(
    ("evidence", "is_alone", "expected"),
    [
        ({"exit_code": 127, "spawn_error": errno.ENOENT}, True, NO_PROGRAM),
        ({"exit_code": 127, "spawn_error": errno.ENOENT}, False, Consequence(is_node_fault=True)),
        ({"exit_code": 127, "spawn_error": errno.ENOENT, "is_leaving": True}, True, Consequence()),
        ({"exit_code": 127}, True, Consequence()),
        ({"exit_code": 2}, True, Consequence()),
        ({"exit_code": 1, "spawn_error": errno.EAGAIN}, True, Consequence()),
        ({"exit_code": 1, "exception": ECC}, False, Consequence()),
    ],
)  # fmt: skip
def test_only_an_absent_program_ends_a_job_or_node(
    evidence: dict[str, Any], is_alone: bool, expected: Consequence
) -> None:
    assert find_consequence(FailureEvidence(**evidence), is_alone=is_alone) == expected


@pytest.mark.parametrize(
    ("is_alone", "is_leaving", "expected"),
    [
        (True, False, Consequence(final_reason=REPEATED)),
        (False, False, Consequence(is_node_fault=True)),
        (False, True, Consequence()),
    ],
)
def test_an_error_that_comes_again_ends_the_job_or_where_there_are_others_the_node(
    is_alone: bool, is_leaving: bool, expected: Consequence
) -> None:
    evidence = FailureEvidence(exit_code=1, exception="ModuleNotFoundError: No module named 'x'", is_leaving=is_leaving)
    assert find_consequence(evidence, is_alone=is_alone, repeated=REPEATED) == expected
