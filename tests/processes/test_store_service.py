"""The store that a host serves for its agents."""

from __future__ import annotations

import os
import subprocess

import pytest

from launcher.calls.launch import make_python_command
from launcher.extensions.ray.store_service import StoreService, serve_store
from launcher.model.errors import TemporaryError


def run_agent(service: StoreService, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*make_python_command("launcher.calls.agent"), str(os.getpid()), "/nowhere", *service.options, *words]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)


def test_an_agent_alone_is_a_client_of_the_store() -> None:
    with serve_store("127.0.0.1") as service:
        done = run_agent(service, "--rdzv-id=r", "--no-python", "true", **service.variables)
        assert done.returncode == 0, done.stderr
        assert "round 1: 1 of 1 node, " in done.stderr
        assert "serves" not in done.stderr


def test_an_agent_without_the_token_is_not_let_in() -> None:
    with serve_store("127.0.0.1") as service:
        done = run_agent(service, "--start-timeout=2", "--no-python", "true", LAUNCHER_STORE_TOKEN="wrong")
        assert done.returncode == 75
        assert "does not accept this user and password" in done.stderr


def test_every_job_has_a_token_of_its_own() -> None:
    with serve_store("127.0.0.1") as one, serve_store("127.0.0.1") as other:
        assert one.variables != other.variables


def test_a_store_that_cannot_listen_is_said() -> None:
    with pytest.raises(TemporaryError, match=r"the store cannot listen on 192\.0\.2\.1"), serve_store("192.0.2.1"):
        pass
