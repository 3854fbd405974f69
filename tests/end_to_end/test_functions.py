"""`launcher.launch`: functions in real workers, results and failures back, and nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher.model.errors import LauncherError, UsageError
from tests.support.jobs import call_targets
from tests.support.network.namespaces import free_port


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where calls have their directories. Workers need not import pytest's own `__main__` first."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    return path


def test_what_each_rank_returns_comes_back_by_rank(temporary: Path) -> None:
    found = launcher.launch(call_targets.place, nproc=2, mesh={"dp": "*", "tp": 2}, standalone=True)
    assert found == {0: (0, 2, "1,2"), 1: (1, 2, "1,2")}
    assert not list(temporary.iterdir())


def test_a_large_result_comes_back_through_a_directory_of_this_user_s_own(temporary: Path) -> None:
    size = 20 << 20
    results = launcher.launch(call_targets.many_bytes, size, nproc=2)
    assert [(len(result), result[:1]) for _, result in sorted(results.items())] == [(size, b"0"), (size, b"1")]
    (directory, mode) = launcher.launch(call_targets.directory_mode)[0]
    assert (Path(directory).parent, mode) == (temporary, 0o700)
    assert not list(temporary.iterdir())


def test_partials_methods_and_closures_are_functions_too() -> None:
    pytest.importorskip("cloudpickle")
    add = 4
    assert launcher.launch(functools.partial(int, base=7), "12") == {0: 9}
    assert launcher.launch("a-b".split, "-") == {0: ["a", "b"]}
    assert launcher.launch(lambda number: number + add, 3) == {0: 7}


def test_variables_are_added_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "1")
    monkeypatch.setenv("PET_MODULE", "1")
    found = launcher.launch(call_targets.variables, "ADDED", "GIVEN", env={"ADDED": "yes", "GIVEN": None})
    assert found == {0: {"ADDED": "yes", "GIVEN": None}}


def test_the_first_failure_is_raised_with_the_exception_as_its_cause(temporary: Path) -> None:
    with pytest.raises(launcher.WorkerFailed) as caught:
        launcher.launch(call_targets.fail, 1, nproc=2)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.rank, error.local_rank, error.exit_code, error.host) == (1, 1, 1, os.uname().nodename)
        assert error.traceback.splitlines()[0].startswith("Traceback")
        assert error.traceback.splitlines()[-1] == "ValueError: the loss is not a number"
        assert "functions/bootstrap.py" not in error.traceback
        assert str(error).startswith(f"fail: rank 1 on {error.host} failed with exit code 1: ValueError: the loss")
        assert "fail FAILED" in str(error)
    assert isinstance(caught.value.__cause__, ValueError)
    assert not list(temporary.iterdir())


def test_a_signal_is_told_as_a_signal_and_has_no_traceback() -> None:
    with pytest.raises(launcher.WorkerFailed, match="was ended by SIGKILL") as caught:
        launcher.launch(call_targets.kill_itself)
    assert (caught.value.exit_code, caught.value.traceback, caught.value.__cause__) == (-9, None, None)


def test_a_result_that_cannot_be_pickled_is_named_with_its_rank() -> None:
    with pytest.raises(launcher.WorkerFailed) as caught:
        launcher.launch(call_targets.a_lock)
    assert "rank 0 returned a _thread.lock, which cannot be pickled" in str(caught.value)


def test_what_cannot_be_handed_over_is_named_before_anything_is_started(temporary: Path) -> None:
    with (
        socket.socket() as one,
        pytest.raises(UsageError, match=r"the call of print cannot be sent: .*socket"),
    ):
        launcher.launch(print, 1, one)
    assert not list(temporary.iterdir())


def test_only_what_the_last_round_left_is_a_result(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="rank 0 ended with exit code 0, but its function did not return"):
        launcher.launch(call_targets.succeed_at_second, str(tmp_path / "mark"), nproc=2, max_restarts=1)


def test_output_goes_where_the_caller_s_streams_go() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        launcher.launch(call_targets.speak, nproc=2)
    assert sorted(stdout.getvalue().splitlines()) == ["said é by 0", "said é by 1"]
    assert stderr.getvalue().count("whispered\n") == 2


def test_a_stream_that_fails_stops_the_workers_and_its_error_is_raised(temporary: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    with contextlib.redirect_stdout(Closed()), pytest.raises(BrokenPipeError, match="said"):
        launcher.launch(call_targets.speak_and_stay)
    assert not list(temporary.iterdir())


def test_a_text_is_a_program_and_args_are_its_words(tmp_path: Path) -> None:
    file = tmp_path / "file"
    found = launcher.launch("sh", "-c", f"echo $RANK >> {file}", nproc=2)
    assert found == {0: None, 1: None}
    assert sorted(file.read_text().split()) == ["0", "1"]
    with pytest.raises(launcher.WorkerFailed, match=r"false: rank 0 on \S+ failed with exit code 1\n"):
        launcher.launch("false")


def test_workers_can_use_multiprocessing_and_a_managers_queue() -> None:
    assert launcher.launch(call_targets.pool_of_one) == {0: True}
    with multiprocessing.get_context("spawn").Manager() as manager:
        queue = manager.Queue()
        launcher.launch(call_targets.put, queue, nproc=2)
        assert sorted([queue.get(), queue.get()]) == ["0", "1"]


def test_two_nodes_each_get_the_results_of_their_own_ranks() -> None:
    port = free_port("127.0.0.1")
    results: dict[str, Any] = {}

    def node(name: str) -> None:
        meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{port}", "rdzv_id": "launched"}
        results[name] = launcher.launch(
            call_targets.place, nproc=2, nnodes=2, node_name=name, join_grace=1, start_timeout=60, **meeting
        )

    threads = [threading.Thread(target=node, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sorted(found.items()) for found in results.values()) == [
        [(rank, (rank, 4, "4")) for rank in ranks] for ranks in ((0, 1), (2, 3))
    ]
