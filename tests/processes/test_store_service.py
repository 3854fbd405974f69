"""The store that a host serves for its agents, and an agent as the child of a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.calls.launch import make_python_command
from launcher.hosts.store_service import StoreService
from launcher.model.errors import TemporaryError
from tests.support.waiting import wait_until

WORKER = "import os, pathlib, time; pathlib.Path('{0}').write_text(str(os.getpid())); time.sleep(600)"


def run_agent(service: StoreService, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    start = make_python_command("launcher.hosts.agent_process")
    command = [*start, str(os.getpid()), *service.options, *words]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)


def test_an_agent_alone_is_a_client_of_the_store_and_says_so() -> None:
    with StoreService("127.0.0.1") as service:
        done = run_agent(service, "--rdzv-id=r", "--no-python", "true", **service.variables)
        assert done.returncode == 0, done.stderr
        assert f"meets the other nodes of run r in the store at {service.endpoint}" in done.stderr
        assert "serves" not in done.stderr


def test_an_agent_without_the_token_is_not_let_in() -> None:
    with StoreService("127.0.0.1") as service:
        done = run_agent(service, "--start-timeout=2", "--no-python", "true", LAUNCHER_STORE_TOKEN="wrong")
        assert done.returncode == 75
        assert "does not accept this user and password" in done.stderr


def test_every_job_has_a_token_of_its_own() -> None:
    assert StoreService("127.0.0.1").variables != StoreService("127.0.0.1").variables


def test_a_store_that_cannot_listen_is_said() -> None:
    with pytest.raises(TemporaryError, match=r"the store cannot listen on 192\.0\.2\.1"):
        StoreService("192.0.2.1").start()


def test_an_agent_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    start = (
        "import os, subprocess, sys\n"
        "from launcher.calls.launch import make_python_command\n"
        "command = [*make_python_command('launcher.hosts.agent_process'), str(os.getpid()), *sys.argv[1:]]\n"
        "subprocess.Popen(command).wait()\n"
    )
    words = ["--standalone", "--no-python", sys.executable, "-c", WORKER.format(file)]
    parent = subprocess.Popen([sys.executable, "-c", start, *words])
    try:
        wait_until(file.exists, what="a worker")
        worker = int(wait_until(file.read_text))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), what="the worker's end")
