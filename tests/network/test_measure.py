"""`meshctl measure` on emulated trees: what it finds, and what it says where something is amiss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import HostEtcd
from tests.support.network.measuring import (
    MESHCTL,
    TREES,
    URGENT,
    KnownNetwork,
    Measured,
    Measurement,
    find_errors,
    is_exact,
    list_domains,
    place,
)
from tests.support.network.trees import MBIT, why_no_trees

pytestmark = pytest.mark.skipif(bool(why_no_trees()), reason=why_no_trees())

TREE = TREES["8 hosts, 4+4"]
PATHS = place(TREE)


@pytest.fixture(scope="module")
def network() -> Iterator[KnownNetwork]:
    with KnownNetwork(TREE) as network:
        yield network


@pytest.fixture(scope="module")
def endpoint(network: KnownNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with HostEtcd(network, tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd.endpoint


def measure(network: KnownNetwork, endpoint: str, *words: str, **how: object) -> dict[str, Measured]:
    """What all hosts ended with. A machine without a free core may find no tree: one of three tries has to."""
    for _ in range(3):
        ended = Measurement(network, endpoint, *words, **how).wait()  # type: ignore[arg-type]
        if {one.found["verdict"] for one in ended.values() if one.found} == {"tree"}:
            break
    return ended


def test_all_nodes_find_the_tree_and_a_job_is_planned_by_it(
    network: KnownNetwork, endpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "places"
    ended = measure(network, endpoint, "--output", str(file))
    assert {one.exit_code for one in ended.values()} == {0}, ended["n0"].stderr
    found = [one.found for one in ended.values()]
    assert all(one == found[0] for one in found)
    assert is_exact(TREE, found[0])
    assert max(find_errors(TREE, found[0])) < 0.5  # all hosts share the cores of this machine, and its load
    run_agents(network, endpoint, tmp_path, "--locality", f"@{file}")
    nodes = [(tmp_path / str(rank)).read_text() for rank in range(8)]
    assert {frozenset(nodes[:4]), frozenset(nodes[4:])} == set(list_domains(PATHS)[0])


def run_agents(network: KnownNetwork, endpoint: str, directory: Path, *words: str) -> list[str]:
    """Run a job, each rank of which writes the name of its node; return what each agent said."""
    script = directory / "write_rank.py"
    script.write_text("import os; open(os.environ['RANK'], 'w').write(os.uname().nodename)")
    options = ("--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint, "--rdzv-id", "planned")
    sizes = ("--nnodes", "8", "--nproc-per-node", "1", "--mesh", "pp=2,dp=4")
    command = [sys.executable, "-m", "launcher", *options, *sizes, *words, str(script)]
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    agents = [
        subprocess.Popen(
            [*network.host(name).prefix, *URGENT, *command],
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=environ,
        )
        for name in PATHS
    ]
    said = [agent.communicate(timeout=120)[1] for agent in agents]
    assert {agent.returncode for agent in agents} == {0}, said
    return said


def test_a_node_that_states_another_leaf_is_named(network: KnownNetwork, endpoint: str) -> None:
    stated = {name: path[0] for name, path in PATHS.items()} | {"n5": "l1" if PATHS["n5"] == ("l0",) else "l0"}
    ended = measure(network, endpoint, own={name: ("--locality", f"leaf={leaf}") for name, leaf in stated.items()})
    sentences = ended["n0"].found["sentences"]
    assert f"node n5 has leaf {stated['n5']} but answers like leaf {PATHS['n5'][0]}" in sentences


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("unreachable", "no other node reaches its address"),
        ("udp", "TCP passes between it and other nodes, UDP does not"),
    ],
)
def test_a_node_that_cannot_be_reached_is_left_out(
    network: KnownNetwork, endpoint: str, fault: str, reason: str
) -> None:
    if fault == "udp":
        network.block_udp("n3")
    else:
        network.cut("n3", *(name for name in PATHS if name != "n3"))
    try:
        ended = measure(network, endpoint)
    finally:
        network.heal("n3")
    found = ended["n0"].found
    assert f"node n3 is left out: {reason}" in found["sentences"]
    paths = {node["id"]: node["path"] for node in found["nodes"]}
    assert paths.pop("n3") == [None]
    assert list_domains(paths) == list_domains({name: path for name, path in PATHS.items() if name != "n3"})


def test_a_node_that_loses_a_third_of_its_packets_misleads_no_other(network: KnownNetwork, endpoint: str) -> None:
    network.lose("n2", 0.33)
    try:
        ended = Measurement(network, endpoint, "--timeout", "10").wait()
    finally:
        network.heal("n2")
    found = next((one.found for one in ended.values() if one.found), None)
    if found is None:  # it had no connection to the store for long enough: each says what it lacked
        assert {one.exit_code for one in ended.values()} == {75}
        assert all("meshctl: error: " in one.stderr for one in ended.values())
        return
    paths = {node["id"]: node["path"] for node in found["nodes"] if node["path"] != [None]}
    assert paths.keys() >= PATHS.keys() - {"n2"}
    # Its few echoes may contradict one another: then there is no tree. A wrong one there never is.
    assert list_domains(paths) in ([], list_domains({name: PATHS[name] for name in paths}))
    assert {one.exit_code for name, one in ended.items() if name != "n2"} <= {0, 1}
    assert ended["n2"].exit_code in (0, 1, 75)


def test_a_link_that_is_slower_one_way_is_in_the_tree_all_the_same(network: KnownNetwork, endpoint: str) -> None:
    network.set_rate("leaf:l1", 40 * MBIT, into=20 * MBIT)
    try:
        ended = measure(network, endpoint)
    finally:
        network.set_rate("leaf:l1", 40 * MBIT)
    assert is_exact(TREE, ended["n0"].found), ended["n0"].found["sentences"]


def test_traffic_of_others_leads_to_no_wrong_tree(network: KnownNetwork, endpoint: str) -> None:
    """One flow of another job crosses both uplinks all the time."""
    sender, receiver = (next(name for name, path in PATHS.items() if path == (leaf,)) for leaf in ("l0", "l1"))
    with occupy(network, sender, receiver):
        ended = measure(network, endpoint)
    found = ended["n0"].found
    assert is_exact(TREE, found) or found["verdict"] == "unknown", found["sentences"]


@contextmanager
def occupy(network: KnownNetwork, sender: str, receiver: str) -> Iterator[None]:
    """Have one host send to another as fast as TCP lets it."""
    receive = "s = socket.create_server(('', 9000)); print(flush=True); c = s.accept()[0]\nwhile c.recv(65536): pass"
    send = "s = socket.create_connection((sys.argv[1], 9000)); print(flush=True)\nwhile True: s.send(bytes(65536))"
    with ExitStack() as flows:
        for name, program in ((receiver, receive), (sender, send)):
            command = [
                *network.host(name).prefix,
                sys.executable,
                "-c",
                f"import socket, sys\n{program}",
                network.host(receiver).address,
            ]
            flow = flows.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            flows.callback(flow.kill)
            assert flow.stdout is not None
            assert flow.stdout.readline()
        yield


def test_nodes_that_do_not_come_are_waited_for_up_to_the_limit(network: KnownNetwork, endpoint: str) -> None:
    ended = Measurement(network, endpoint, "--timeout", "6", names=["n0", "n1"], count=3).wait()
    assert {one.exit_code for one in ended.values()} == {75}
    assert any("2 of 3 nodes have joined the measurement within 6 s: n" in one.stderr for one in ended.values())


def test_a_node_of_the_measurement_serves_the_store_without_etcd(network: KnownNetwork) -> None:
    words = ("--rdzv-backend", "c10d")
    served = f"{network.host('n1').address}:29400"
    ended = Measurement(network, served, *words, names=["n0", "n1", "n4"]).wait()
    assert {one.exit_code for one in ended.values()} <= {0, 1}, ended["n0"].stderr
    assert len({json.dumps(one.found) for one in ended.values()}) == 1


def test_one_node_has_no_network_to_measure(network: KnownNetwork, endpoint: str) -> None:
    done = subprocess.run([*MESHCTL, "measure", "run", "--nnodes", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("meshctl: error: --nnodes 1 must be an integer >= 2\n")
