"""meshctl's views of runs, where there is no run to see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.meshctl.config_file import read_config
from tests.cli.running import Outcome, run


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text("[store]\n")
    path.chmod(0o600)
    return str(path)


def meshctl(*words: str, **environ: str) -> Outcome:
    return run("meshctl", *words, environ=environ)


def test_a_broken_configuration_file_is_told_where_it_is_not_needed(broken: str) -> None:
    listed = meshctl("list", LAUNCHER_CONFIG=broken)
    assert listed.code == 0
    assert listed.err == (
        f"meshctl: configuration file {broken}, line 1: [store] is not of the form name = \"text\"; the runs of this"
        " machine follow\n"
    )  # fmt: skip
    assert listed.out
    for words in (["status", "no-such-run"], ["why", "no-such-run"], ["list", "--rdzv-conf", "a=b"]):
        refused = meshctl(*words, LAUNCHER_CONFIG=broken)
        assert (refused.code, refused.out) == (2, "")
        assert f"meshctl: error: configuration file {broken}, line 1" in refused.err


@pytest.mark.parametrize("command", ["why", "stacks", "ps", "logs", "events", "serve"])
def test_the_hint_for_an_unknown_run_names_the_list_of_runs(command: str, tmp_path: Path) -> None:
    outcome = meshctl(command, "no-such\nrun", LAUNCHER_CONFIG=str(tmp_path / "none"))
    sentence, hint = outcome.err.splitlines()
    assert outcome.code == 2
    assert "'no-such\\nrun'" in sentence
    assert "meshctl list" in hint


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tail", "9" * 5000), "--tail must be a number of lines or all, not 999"),
        (("--round", str(2**63)), "Invalid value for '--round'"),
        (("--rank", str(2**63)), "Invalid value for '--rank'"),
    ],
)
def test_a_number_that_no_agent_can_read_is_refused(words: tuple[str, ...], sentence: str) -> None:
    outcome = meshctl("logs", "no-such-run", *words)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


def test_the_configuration_file_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    call = f"write_config({str(path)!r}, {{'rdzv-prefix': '\\xfc'}})"
    program = f"from launcher.meshctl.config_file import write_config; {call}"
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert read_config(str(path)) == {"rdzv-prefix": "ü"}


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


def test_an_agent_that_does_not_answer_is_told_by_the_list(tmp_path: Path) -> None:
    with agent(9000, b""):
        outcome = meshctl("list", LAUNCHER_CONFIG=str(tmp_path / "none"))
    assert outcome.code == 0
    assert "agents of this machine that do not answer: pid " in outcome.err
    assert f"9000{os.getpid()}" in outcome.err


@pytest.mark.parametrize("command", ["why", "status"])
def test_an_agent_that_does_not_answer_is_not_denied(command: str, tmp_path: Path) -> None:
    with agent(9000, b""):
        outcome = meshctl(command, "exp", LAUNCHER_CONFIG=str(tmp_path / "none"))
    assert outcome.code == 2
    assert ", unless it is one that does not answer (pid " in outcome.err


def test_status_of_two_jobs_of_one_name_asks_for_a_pid(tmp_path: Path) -> None:
    environ = {"LAUNCHER_CONFIG": str(tmp_path / "none")}
    with agent(9000, b'{"run_id":"twin","node":"h","job":"a"}'), agent(9001, b'{"run_id":"twin","node":"h","job":"b"}'):
        outcome = meshctl("status", "twin", **environ)
    assert outcome.code == 2
    assert "2 jobs of that id run on this machine: name a pid" in outcome.err
    outcome = meshctl("status", "twin", **environ)
    assert "no agent of run twin is on this machine, and no store is named" in outcome.err


def test_a_view_waits_for_a_reader_of_a_pipe_that_does_not_block(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    program = "from launcher.meshctl.view_commands import _write_lines; _write_lines(['x' * 300_000, 'end'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=writing) as process, open(reading, "rb") as reader:
        os.close(writing)
        assert reader.read() == b"x" * 300_000 + b"\nend\n"
    assert process.returncode == 0
