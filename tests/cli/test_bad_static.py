"""What keeps numbered nodes, or those of an endpoint of their own, from meeting: one sentence each, within a limit."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Outcome, run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('it runs')\n")
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens who never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def static(place: Path, *words: str, **environ: str) -> Outcome:
    return run("meshrun", "--nnodes=2", "--nproc-per-node=1", "--node-name=h1", *words, "train.py", cwd=place,
               environ=environ)  # fmt: skip


def c10d(place: Path, endpoint: str, *words: str) -> Outcome:
    return static(place, "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", *words)


@pytest.mark.parametrize(
    ("words", "environ", "whose"),
    [
        ([], {}, "no --node-rank is given, which makes 0"),
        ([], {"PET_NODE_RANK": "0"}, "this is node rank 0 (PET_NODE_RANK)"),
    ],
)
def test_node_rank_0_must_be_the_node_of_the_master(
    place: Path, words: list[str], environ: dict[str, str], whose: str
) -> None:
    outcome = static(place, "--master-addr=192.0.2.1", *words, **environ)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(
        f"meshrun: error: {whose}, and the master, 192.0.2.1, is not on this node\n"
        "hint: each node has a --node-rank of its own"
    )


def test_node_rank_0_is_waited_for_with_a_limit(place: Path, free: int) -> None:
    where = ("--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={free}", f"--store-port={free + 1}")
    outcome = static(place, *where, "--start-timeout=0.3")
    refused = f"127.0.0.1:{free + 1} cannot be reached: Connection refused"
    assert (outcome.code, outcome.out) == (75, "")
    assert outcome.err == (
        f"meshrun: waiting up to 0.3 s for the store: {refused}; the agent of node rank 0 serves it\n"
        f"meshrun: error: no store could be used within 0.3 s: {refused}\n"
        "hint: the agent of node rank 0 serves it: it must run, with the same --master-addr and --master-port\n"
    )


@pytest.mark.parametrize("number", [0, 1])
def test_a_master_whose_name_nobody_knows_is_waited_for_with_a_limit(place: Path, number: int) -> None:
    outcome = static(place, f"--node-rank={number}", "--master-addr=no-such-host.invalid", "--start-timeout=0.1")
    assert outcome.code == 75
    assert "within 0.1 s: no-such-host.invalid:29501 cannot be found: " in outcome.err


def test_the_master_s_port_is_looked_at_before_anything_is_started(place: Path, taken: int) -> None:
    outcome = static(place, "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={taken}")
    assert outcome.code == 75
    assert outcome.err == (
        f"meshrun: error: port {taken} is meant for rank 0 on this node, and pid {os.getpid()} "
        f"({Path('/proc/self/comm').read_text().strip()}) listens there\n"
        "hint: --master-port gives another, on all nodes\n"
    )


def test_a_port_of_the_store_that_somebody_has_is_named_with_who_has_it(place: Path, taken: int) -> None:
    outcome = static(place, "--node-rank=0", "--master-addr=127.0.0.1", f"--store-port={taken}", "--start-timeout=0.5")
    assert outcome.code == 75
    assert (
        f"error: the store cannot listen on 127.0.0.1:{taken}: the port is taken by pid {os.getpid()} (" in outcome.err
    )
    assert outcome.err.endswith("hint: all nodes may be given another port\n")


def test_a_timeout_names_the_nodes_that_came_and_the_missing_ranks(place: Path, free: int) -> None:
    # Behind a service: the others reach this node by an address that is not its own.
    where = ("--master-addr=192.0.2.1", "--local-addr=127.0.0.1", f"--master-port={free}", f"--store-port={free + 1}")
    outcome = static(place, "--nnodes=4", "--node-rank=0", *where, "--start-timeout=1")
    assert (outcome.code, outcome.out) == (75, "")
    assert f"this agent serves the job's store at 127.0.0.1:{free + 1}; if it is lost" in outcome.err
    reason = "no world could be formed within 1 s: node ranks 1-3 of 4 are missing; here: h1 (0)"
    assert f" {reason}\n" in outcome.err


def test_an_endpoint_that_is_nobodys_address_is_said_to_be_so(place: Path) -> None:
    outcome = c10d(place, "192.0.2.1:29400", "--start-timeout=0.1")
    assert (outcome.code, outcome.out) == (75, "")
    assert outcome.err.endswith(
        "hint: 192.0.2.1 is no address of this node, and as far as can be seen here none of a node that came; "
        "see is_host\n"
    )


def test_few_nodes_of_an_endpoint_of_their_own_are_named_at_the_time_out(place: Path, free: int) -> None:
    outcome = c10d(place, f"127.0.0.1:{free}", "--start-timeout=1")
    assert outcome.code == 75
    reason = "no world could be formed within 1 s: at least 2 nodes must be active, 1 is present; here: h1"
    assert f" {reason}\n" in outcome.err
