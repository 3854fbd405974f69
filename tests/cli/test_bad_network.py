"""What keeps nodes from meeting, in a store or by their numbers: one sentence each, within a limit, and the exit code.

What else may be found at the endpoint of a store is in test_probe.py; refusals that need no other server or process are
in the transcripts beside.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rendezvous import __version__
from tests.cli.running import Call, run
from tests.support.stores.etcd import EtcdServer


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens who hangs up at once."""

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def free(nobody: str) -> int:
    return int(nobody.partition(":")[2])


def job(endpoint: str, *words: str) -> tuple[str, ...]:
    place = ("--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nproc-per-node=1")
    return ("meshrun", *place, *words, "train.py")


def static(*words: str) -> tuple[str, ...]:
    return ("meshrun", "--nnodes=2", "--nproc-per-node=1", "--node-name=h1", *words, "train.py")


def c10d(endpoint: str, *words: str) -> tuple[str, ...]:
    return static("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", *words)


# --- a store of its own ---


def test_a_store_that_does_not_come_is_given_up_after_the_start_timeout(place: Path, nobody: str) -> None:
    outcome = run(*job(nobody, "--start-timeout=0.3"), cwd=place)
    assert (outcome.out, outcome.code) == ("", 75)
    assert outcome.err == (
        "meshrun: waiting up to 0.3 s (--start-timeout) for the store: "
        f"{nobody} cannot be reached: Connection refused\n"
        f"meshrun: error: no store could be used within 0.3 s: {nobody} cannot be reached: Connection refused\n"
        "hint: check that the store of --rdzv-endpoint runs, and that this node can reach it\n"
    )


@pytest.mark.parametrize("is_first", [False, True], ids=["any process", "process 1 of a container"])
def test_a_signal_ends_an_agent_that_waits_for_its_store(place: Path, nobody: str, is_first: bool) -> None:
    if is_first and os.geteuid() != 0:
        pytest.skip("a namespace of processes takes root")
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if is_first else []
    words = ["--rdzv-backend=etcd", f"--rdzv-endpoint={nobody}", "--rdzv-id=job", "train.py"]
    program = [*container, sys.executable, "-m", "launcher", *words]
    with subprocess.Popen(program, cwd=place, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        assert "waiting up to 600 s (--start-timeout) for the store" in agent.stderr.readline()
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(children[0]) if is_first else agent.pid, signal.SIGTERM)
        assert agent.stderr.read() == ""
        assert agent.wait(60) == (128 + signal.SIGTERM if is_first else -signal.SIGTERM)


STORE = ("a job whose nodes meet in a store needs the package grpcio", "'grpcio>=1.60,<2'")
SERVER = ("the agent that serves the job's store needs the package h2", "'h2>=4.4,<5'")


@pytest.mark.parametrize(
    ("module", "backend", "said"), [("grpc", "etcd", STORE), ("grpc", "c10d", STORE), ("h2", "c10d", SERVER)]
)
def test_without_its_package_the_store_is_not_even_waited_for(
    call: Call,
    place: Path,
    nobody: str,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    backend: str,
    said: tuple[str, str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    words = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={nobody}", "--rdzv-id=job", "--nnodes=2", "train.py"]
    expected = f"meshrun: error: {said[0]}, which is not installed\nhint: pip install {said[1]}\n"
    assert call("meshrun", *words, cwd=place) == (2, "", expected)


@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        (["--rdzv-conf=user=me"], {}, "etcd user me is set, but no password\nhint: "),
        (
            ["--rdzv-conf=user=me,password_file=/no/such"],
            {},
            "password_file=/no/such cannot be read: No such file or directory\n",
        ),
        (
            [],
            {"LAUNCHER_JOB_SECRET": "a", "LAUNCHER_JOB_SECRET_FILE": "/b"},
            "LAUNCHER_JOB_SECRET and LAUNCHER_JOB_SECRET_FILE are both set\n",
        ),
        (
            ["--local-addr=192.0.2.1"],
            {},
            "192.0.2.1 is not an address of this node\n"
            "hint: set --local-addr to an address of this node, or LAUNCHER_INTERFACE to an interface\n",
        ),
        ([], {"LAUNCHER_INTERFACE": "nosuch0"}, "LAUNCHER_INTERFACE=nosuch0"),
    ],
)
def test_what_this_node_cannot_be_is_a_usage_error(
    call: Call, place: Path, etcd: EtcdServer, words: list[str], environ: dict[str, str], said: str
) -> None:
    outcome = call(*job(etcd.endpoint, *words), cwd=place, environ=environ)
    assert outcome.code == 2
    assert outcome.err.startswith(f"meshrun: error: {said}")


def test_a_port_range_that_is_taken_is_said_so(call: Call, place: Path, etcd: EtcdServer, taken: int) -> None:
    outcome = call(*job(etcd.endpoint, f"--port-range={taken}:{taken}", "--local-addr=127.0.0.1"), cwd=place)
    sentence = f"all ports from {taken} to {taken} on 127.0.0.1 are in use"
    assert outcome == (75, "", f"meshrun: error: {sentence}\nhint: set --port-range to other ports\n")


def test_records_of_another_version_are_refused(place: Path, etcd: EtcdServer) -> None:
    etcd.ctl("put", "/meshrun/job/current", "abc")
    etcd.ctl("put", "/meshrun/job/abc/spec", '{"version":"99.1"}')
    outcome = run(*job(etcd.endpoint, "--start-timeout=2"), cwd=place)
    etcd.ctl("del", "--prefix", "/meshrun/job/")
    assert outcome.code == 2
    assert "run job uses meshrun 99.1, but node " in outcome.err
    assert f" has meshrun {__version__}\nhint: install meshrun 99.1 on every node" in outcome.err


# --- numbered nodes, and those of an endpoint of their own ---


def test_the_master_s_port_is_looked_at_before_anything_is_started(place: Path, taken: int) -> None:
    outcome = run(*static("--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={taken}"), cwd=place)
    assert outcome.code == 75
    assert outcome.err == (
        f"meshrun: error: port {taken} is meant for rank 0 on this node, but pid {os.getpid()} "
        f"({Path('/proc/self/comm').read_text().strip()}) listens there\n"
        "hint: set --master-port to another port, on all nodes\n"
    )


def test_a_port_of_the_store_that_somebody_has_is_named_with_who_has_it(place: Path, taken: int) -> None:
    where = ("--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={taken - 1}")
    outcome = run(*static(*where, "--start-timeout=0.5"), cwd=place)
    assert outcome.code == 75
    sentence = f"the store cannot listen on 127.0.0.1:{taken}: the port is taken by pid {os.getpid()} ("
    assert f"error: {sentence}" in outcome.err
    assert outcome.err.endswith("hint: use another port on all nodes\n")


def test_a_timeout_names_the_nodes_that_came_and_the_missing_ranks(place: Path, free: int) -> None:
    # Behind a service: the others reach this node by an address that is not its own.
    where = ("--master-addr=192.0.2.1", "--local-addr=127.0.0.1", f"--master-port={free}")
    outcome = run(*static("--nnodes=4", "--node-rank=0", *where, "--start-timeout=1"), cwd=place)
    assert (outcome.code, outcome.out) == (75, "")
    assert (
        f"this agent serves the job's store at 127.0.0.1:{free + 1}, for this host alone; if it is lost" in outcome.err
    )
    reason = "too few nodes joined within 1 s: node ranks 1-3 of 4 are missing; joined: h1 (0)"
    assert f" {reason}\n" in outcome.err


def test_few_nodes_of_an_endpoint_of_their_own_are_named_at_the_time_out(place: Path, nobody: str) -> None:
    outcome = run(*c10d(nobody, "--start-timeout=1"), cwd=place)
    assert outcome.code == 75
    reason = "too few nodes joined within 1 s: at least 2 nodes must be active, but 1 is usable; joined: h1"
    assert f" {reason}\n" in outcome.err
    assert outcome.err.splitlines()[-1].endswith(
        "hint: start the same command on the missing nodes; --start-timeout sets how long the other nodes wait"
    )
