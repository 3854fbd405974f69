"""What the last words of a worker tell. The texts are what the libraries really say; each has one that is not it."""

from __future__ import annotations

import pytest

from launcher.logs.reports.symptoms import (
    EXCEPTION_MAX,
    choose_frames,
    cut_exception,
    find_cause,
    find_exception,
    is_collective_timeout,
    is_refusal,
    split_innermost,
    split_traceback,
)

TIMEOUTS = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv "
    "operation to complete",
    "[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
    "OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.",
    "[E ProcessGroupNCCL.cpp:670] Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
    "CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: "
    "wait timeout after 600000ms, keys: /default_pg/0//0",
    "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    "RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms",
    "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [0]::sync:0. This usually happens",
    "XlaRuntimeError: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cuda:gpu_topology/1 and duration: 2m",
    "ABORTED: /job:jax_worker/replica:0/task:1 heartbeat timeout. This indicates that the remote task has failed",
]
OTHERS = [  # what is like the one above, and the worker's own
    "RuntimeError: Timed out waiting 5000ms for the next batch",
    "Watchdog: started, it looks for operations that time out after 600000 ms",
    "Some operations have failed or timed out in the last epoch",
    "subprocess.TimeoutExpired: Command 'nvidia-smi' timed out after 60 seconds",
    "TimeoutError: timed out after 30 seconds waiting for a client of the licence server",
    "RuntimeError: Rank 1 has not passed the test",
    "google.api_core.exceptions.DeadlineExceeded: 504 Deadline Exceeded",
    "grpc.RpcError: StatusCode.DEADLINE_EXCEEDED: Deadline Exceeded while reading gs://data",
    "ValueError: heartbeat_timeout must be positive",
]


@pytest.mark.parametrize("text", [*TIMEOUTS, *OTHERS, "", "RuntimeError: DataLoader timed out after 30 seconds"])
def test_a_collective_that_gave_up_is_known_from_other_things_that_take_too_long(text: str) -> None:
    for said in (text, f"Traceback (most recent call last):\n  ...\n{text}\nlines after it"):
        assert is_collective_timeout(said) is (text in TIMEOUTS)


FRAMES = '  File "train.py", line 3, in <module>\n    main()\n    ^^^^^^\n  File "train.py", line 1, in main\n'


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        (f"loading\nTraceback (most recent call last):\n{FRAMES}ValueError: bad\nof two lines", "ValueError: bad"),
        (f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory\n", "torch.OutOfMemoryError: CUDA out of memory"),
        (f"Traceback (most recent call last):\n{FRAMES}KeyboardInterrupt", "KeyboardInterrupt"),
        (f"Traceback (most recent call last):\n{FRAMES}KeyError: 1\n\nDuring handling of the above exception, "
         f"another exception occurred:\n\nTraceback (most recent call last):\n{FRAMES}OSError: 2", "OSError: 2"),
        ("".join(f"[rank1]: {line}\n" for line in f"Traceback (most recent call last):\n{FRAMES}E: x".split("\n")),
         "E: x"),
        ('  File "train.py", line 1\n    x = (\n        ^\nSyntaxError: never closed', "SyntaxError: never closed"),
        ("ValueError: a line of a log", ""),
        (f"Traceback (most recent call last):\n{FRAMES}", ""),
        (f"Traceback (most recent call last):\n{FRAMES}E: {'x' * 999}", f"E: {'x' * (EXCEPTION_MAX - 6)}..."),
        ("", ""),
    ],
)  # fmt: skip
def test_the_exception_is_that_of_the_last_traceback(text: str, exception: str) -> None:
    assert find_exception(text) == exception


REFUSALS = [
    "/venv/bin/python3.11: No module named nosuch",
    "/venv/bin/python: No module named a.__main__; 'a' is a package and cannot be directly executed",
    "/venv/bin/python3: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
    "python: can't open file '/job/a.py': [Errno 2] No such file or directory",
    "/opt/pypy3.10/bin/pypy3: can't find '__main__' module in '/job/a'",
    "/home/ada lovelace/bin/python3: No code object available for sys",
]


@pytest.mark.parametrize("line", REFUSALS)
def test_a_python_that_has_found_nothing_to_run_says_so_in_its_last_line(line: str) -> None:
    assert is_refusal(line)
    for text in (line, f"a warning\n{line}\n", f"SystemExit: {line}"):
        assert find_exception(text) == cut_exception(line)
    assert find_exception(f"{line}\nthe script goes on") == ""
    assert find_exception(f"Traceback (most recent call last):\n{FRAMES}E: {line}") == cut_exception(f"E: {line}")


@pytest.mark.parametrize(
    "line", ["tool: No module named x", "python: killed", "ImportError: No module named python", "SystemExit: 2", ""]
)
def test_other_lines_are_no_refusal(line: str) -> None:
    assert not is_refusal(line)


def test_a_syntax_error_may_be_a_line_alone() -> None:
    line = "SyntaxError: Non-UTF-8 code starting with '\\xff' in file /job/a.py on line 1"
    assert find_exception(f"{line}\n") == line


def test_a_traceback_is_split_into_frames_with_their_lines() -> None:
    frames, exception = split_traceback(f"Traceback (most recent call last):\n{FRAMES}ValueError: bad\nmore\n")
    assert [len(frame) for frame in frames] == [3, 1]
    assert exception == "ValueError: bad\nmore"


LOADER = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 9, in <module>\n  File "/venv/site-packages/torch/dataloader.py", line 1, in next\n'
    "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "/venv/site-packages/torch/fetch.py", line 4, in fetch\n  File "/job/data.py", line 3, in __getitem__\n'
    "KeyError: 'x'\n"
)


def test_the_exception_that_another_process_has_passed_on_is_the_innermost() -> None:
    frames, exception = split_innermost(LOADER)
    assert (frames[-1], exception) == (['  File "/job/data.py", line 3, in __getitem__'], "KeyError: 'x'")
    text = f"Traceback (most recent call last):\n{FRAMES}ValueError: bad\nmore"
    assert split_innermost(text) == split_traceback(text)


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (f"Traceback (most recent call last):\n{FRAMES}KeyError: 'x'\n", "KeyError: 'x' (train.py:1)"),
        (
            f'p.RemoteTraceback: \n"""\nTraceback (most recent call last):\n{FRAMES}KeyError: 1\n"""\n',
            "KeyError: 1 (train.py:1)",
        ),
        ("", ""),
    ],
)
def test_what_an_exception_was_raised_from_is_found_with_its_place(before: str, cause: str) -> None:
    last = f"Traceback (most recent call last):\n{FRAMES}RuntimeError: no config"
    between = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert find_cause(f"{before}{between}{last}") == cause
    assert find_cause(f"{before}\nDuring handling of the above exception, another exception occurred:\n\n{last}") == ""


def test_of_the_innermost_frames_one_is_the_users() -> None:
    own, lib = (
        ['  File "/job/train.py", line 3, in read'],
        ['  File "/usr/lib/python3.11/json/decoder.py", line 1, in f'],
    )
    assert choose_frames([own, lib, lib, lib], 3) == [own, lib, lib]
    assert choose_frames([own, own, lib], 3) == [own, own, lib]
    assert choose_frames([lib, lib, lib, lib], 3) == [lib, lib, lib]
