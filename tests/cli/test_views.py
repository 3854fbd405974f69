"""meshctl's views of runs, where there is no run to see."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rendezvous import __version__
from tests.cli.running import Call, Outcome


@pytest.fixture
def meshctl(call: Call) -> Call:
    def called(*words: str) -> Outcome:
        return call("meshctl", *words)

    return called


@pytest.mark.parametrize("command", ["why", "ps", "logs", "events", "serve"])
def test_the_hint_for_an_unknown_run_names_the_list_of_runs(meshctl: Call, command: str) -> None:
    outcome = meshctl(command, "no-such\nrun")
    sentence, hint = outcome.err.splitlines()
    assert outcome.code == 2
    assert "'no-such\\nrun'" in sentence
    assert "meshctl status" in hint


def test_a_number_of_thousands_of_digits_is_refused(meshctl: Call) -> None:
    outcome = meshctl("logs", "no-such-run", "--tail", "9" * 5000)
    assert outcome.code == 2
    assert "--tail must be a number of lines or all, not 999" in outcome.err


@contextmanager
def agent(number: int, answer: bytes) -> Iterator[None]:
    """An agent that answers each question alike. `number`: above all pids, which an agent's name ends with."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0meshrun.{os.geteuid()}.{number}{os.getpid()}")
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                with end:
                    end.recv(4096)
                    end.sendall(answer + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def identity(run_id: str, job: str) -> bytes:
    return json.dumps({"run_id": run_id, "node": "h", "job": job, "version": __version__}).encode()


def test_an_agent_that_does_not_answer_is_told_by_the_list(meshctl: Call) -> None:
    with agent(9000, b""):
        outcome = meshctl("status", "--rdzv-backend", "etcd")  # with an option of the store all runs are listed
    assert outcome.code == 0
    assert "agents of this machine that do not answer: pid " in outcome.err
    assert f"9000{os.getpid()}" in outcome.err


@pytest.mark.parametrize("command", ["why", "status"])
def test_an_agent_that_does_not_answer_is_not_denied(meshctl: Call, command: str) -> None:
    with agent(9000, b""):
        outcome = meshctl(command, "no-run-begins-so")
    assert outcome.code == 2
    assert " (agents that do not respond: pid " in outcome.err


def test_status_without_a_run_lists_several(meshctl: Call) -> None:
    with agent(9000, identity("one", "a")), agent(9001, identity("two", "b")):
        outcome = meshctl("status")
    assert (outcome.code, outcome.err) == (0, "")
    assert [line.split()[0] for line in outcome.out.splitlines() if line.startswith(("one", "two"))] == ["one", "two"]


def test_status_of_two_jobs_of_one_name_asks_for_a_pid(meshctl: Call) -> None:
    with agent(9000, identity("twin", "a")), agent(9001, identity("twin", "b")):
        outcome = meshctl("status", "twin")
    assert outcome.code == 2
    assert "2 jobs of that name run on this machine" in outcome.err
    outcome = meshctl("status", "twin")
    assert "no agent of run twin is on this machine, and no store is set" in outcome.err


def test_a_view_waits_for_a_reader_of_a_pipe_that_does_not_block() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    program = "from launcher.meshctl.view_commands import _write_lines; _write_lines(['x' * 300_000, 'end'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=writing) as process, open(reading, "rb") as reader:
        os.close(writing)
        assert reader.read() == b"x" * 300_000 + b"\nend\n"
    assert process.returncode == 0
