"""What keeps a job on several machines from starting: one sentence each, within a bounded time, and the exit code."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Outcome, run
from tests.support.stores.etcd import EtcdServer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('it runs')\n")
    return tmp_path


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def job(place: Path, *words: str, endpoint: str, **environ: str) -> Outcome:
    return run("meshrun", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nproc-per-node=1",
               *words, "train.py", cwd=place, environ=environ)  # fmt: skip


def test_a_store_that_does_not_come_is_given_up_after_the_start_timeout(place: Path, nobody: str) -> None:
    outcome = job(place, "--start-timeout=0.3", endpoint=nobody)
    assert (outcome.out, outcome.code) == ("", 75)
    assert outcome.err == (
        f"meshrun: waiting up to 0.3 s for the store: {nobody} cannot be reached: Connection refused\n"
        f"meshrun: error: no store could be used within 0.3 s: {nobody} cannot be reached: Connection refused\n"
        "hint: --rdzv-endpoint names the store, --start-timeout is how long it is waited for\n"
    )


@pytest.mark.parametrize("name", ["a" * 70, "a..b"])
def test_what_can_be_no_name_of_a_host_is_refused(place: Path, name: str) -> None:
    outcome = job(place, endpoint=f"{name}:2379")
    assert outcome.code == 2
    assert outcome.err == f"meshrun: error: {name}:2379 cannot be a place: {name!r} is no name of a host\n"


@pytest.mark.parametrize("is_first", [False, True], ids=["any process", "process 1 of a container"])
def test_a_signal_ends_an_agent_that_waits_for_its_store(place: Path, nobody: str, is_first: bool) -> None:
    if is_first and os.geteuid() != 0:
        pytest.skip("a namespace of processes takes root")
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if is_first else []
    words = ["--rdzv-backend=etcd", f"--rdzv-endpoint={nobody}", "--rdzv-id=job", "train.py"]
    program = [*container, sys.executable, "-m", "launcher", *words]
    with subprocess.Popen(program, cwd=place, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        assert "waiting up to 600 s for the store" in agent.stderr.readline()
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(children[0]) if is_first else agent.pid, signal.SIGTERM)
        assert agent.stderr.read() == ""
        assert agent.wait(60) == (128 + signal.SIGTERM if is_first else -signal.SIGTERM)


@pytest.mark.parametrize("backend", ["etcd", "c10d"])
def test_without_grpcio_the_store_is_not_even_waited_for(place: Path, nobody: str, backend: str) -> None:
    start = "import sys; sys.modules['grpc'] = None; from launcher import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={nobody}", "--rdzv-id=job", "--nnodes=2", "train.py"]
    outcome = run("python", "-c", start, *words, cwd=place)
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err == (
        "meshrun: error: a job whose nodes meet in a store needs the package grpcio, which is not installed\n"
        "hint: pip install 'grpcio>=1.60,<2'\n"
    )


def test_without_h2_the_store_is_not_served(place: Path, nobody: str) -> None:
    start = "import sys; sys.modules['h2'] = None; from launcher import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = ["--rdzv-backend=c10d", f"--rdzv-endpoint={nobody}", "--rdzv-id=job", "--nnodes=2", "train.py"]
    outcome = run("python", "-c", start, *words, cwd=place)
    assert (outcome.out, outcome.code) == ("", 2)
    assert outcome.err == (
        "meshrun: error: the agent that serves the job's store needs the package h2, which is not installed\n"
        "hint: pip install 'h2>=4.4,<5'\n"
    )


def test_a_name_that_nobody_has_is_given_up_too(place: Path) -> None:
    outcome = job(place, "--start-timeout=0.1", endpoint="no-such-host.invalid:2379")
    assert outcome.code == 75
    assert "no-such-host.invalid:2379 cannot be found: " in outcome.err


def test_a_web_server_is_refused_at_once(place: Path) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    endpoint = f"127.0.0.1:{server.server_port}"
    outcome = job(place, endpoint=endpoint)
    server.shutdown()
    thread.join()
    server.server_close()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"meshrun: error: {endpoint} is a web server, not an etcd\nhint: ")


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_tls_where_there_is_none_is_refused_at_once(place: Path, etcd: EtcdServer) -> None:
    outcome = job(place, endpoint=f"etcds://{etcd.endpoint}")
    assert outcome.code == 2
    assert outcome.err.startswith(f"meshrun: error: {etcd.endpoint} does not speak TLS\nhint: ")


def test_a_missing_password_and_a_missing_file_are_usage_errors(place: Path, nobody: str) -> None:
    outcome = job(place, "--rdzv-conf=user=me", endpoint=nobody)
    assert outcome.err.startswith("meshrun: error: etcd shall be asked as user me, and no password is given\nhint: ")
    assert outcome.code == 2
    outcome = job(place, "--rdzv-conf=user=me,password_file=/no/such", endpoint=nobody)
    assert outcome.err == "meshrun: error: password_file=/no/such cannot be read: No such file or directory\n"
    outcome = job(place, endpoint=nobody, LAUNCHER_JOB_SECRET="a", LAUNCHER_JOB_SECRET_FILE="/b")
    assert outcome.err.startswith("meshrun: error: LAUNCHER_JOB_SECRET and LAUNCHER_JOB_SECRET_FILE are both set\n")


def test_an_address_that_is_not_this_nodes_is_refused(place: Path, etcd: EtcdServer) -> None:
    outcome = job(place, "--local-addr=192.0.2.1", endpoint=etcd.endpoint)
    assert outcome.code == 2
    assert outcome.err == (
        "meshrun: error: 192.0.2.1 is no address of this node\nhint: --local-addr or --interface names one\n"
    )
    outcome = job(place, "--interface=nosuch0", endpoint=etcd.endpoint)
    assert outcome.code == 2
    assert "--interface nosuch0" in outcome.err


def test_a_port_range_that_is_taken_is_said_so(place: Path, etcd: EtcdServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = job(place, f"--port-range={port}:{port}", "--local-addr=127.0.0.1", endpoint=etcd.endpoint)
    assert outcome.code == 75
    assert outcome.err == (
        f"meshrun: error: every port from {port} to {port} of 127.0.0.1 is taken\nhint: --port-range gives others\n"
    )


def test_a_node_that_is_named_to_serve_the_store_must_be_this_one(place: Path) -> None:
    words = ["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-conf=is_host=1", "train.py"]
    outcome = run("meshrun", "--rdzv-endpoint=192.0.2.1:29400", *words, cwd=place)
    assert outcome.code == 2
    assert outcome.err.startswith("meshrun: error: is_host=1, and 192.0.2.1:29400 is not on this node\n")


def test_too_few_nodes_are_waited_for_with_a_limit_and_named(place: Path, etcd: EtcdServer) -> None:
    outcome = job(place, "--nnodes=2", "--start-timeout=1", "--node-name=h1", endpoint=etcd.endpoint)
    assert (outcome.out, outcome.code) == ("", 75)
    assert "at least 2 nodes must be active, 1 is present" in outcome.err
    assert "Traceback" not in outcome.err


def test_records_of_another_version_are_refused(place: Path, etcd: EtcdServer) -> None:
    etcd.ctl("put", "/meshrun/job/current", "abc")
    etcd.ctl("put", "/meshrun/job/abc/spec", '{"version":999}')
    outcome = job(place, "--start-timeout=2", endpoint=etcd.endpoint)
    etcd.ctl("del", "--prefix", "/meshrun/job/")
    assert outcome.code == 2
    assert "/meshrun/job/abc/spec has record version 999, this agent reads version 1" in outcome.err
