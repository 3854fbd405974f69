"""torchrun's static rendezvous of several nodes: who is who, where they meet, and what cannot be."""

from __future__ import annotations

import pytest

from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line
from launcher.config.options.network import StoreConfig
from launcher.model.errors import UsageError

STATIC = ("--nnodes=4", "--node-rank=2", "--master-addr=node0", "--master-port=29500")


def resolve(*words: str, **environ: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), environ, "python")


def meets_at(endpoint: str, *, is_host: bool = False, prefix: str = "meshrun") -> StoreConfig:
    return StoreConfig(backend="served", endpoints=(endpoint,), is_host=is_host, prefix=prefix)


def test_the_numbers_the_address_and_the_port_are_taken_as_given() -> None:
    made = resolve(*STATIC)
    assert (made.nodes_min, made.nodes_max, made.node_rank) == (4, 4, 2)
    assert (made.master_addr, made.master_port, made.network) == ("node0", 29500, meets_at("node0:29501"))
    assert (made.run_id, made.rdzv_backend, made.notes) == ("none", "static", ())
    assert made.origins["node_rank"] == "--node-rank"


@pytest.mark.parametrize(
    ("words", "address", "port", "network"),
    [
        (STATIC, "node0", 29500, meets_at("node0:29501")),
        ((*STATIC, "--node-rank=0"), "node0", 29500, meets_at("node0:29501", is_host=True)),
        ((*STATIC, "--store-port=7"), "node0", 29500, meets_at("node0:7")),
        ((*STATIC, "--master-port=65535", "--store-port=7"), "node0", 65535, meets_at("node0:7")),
        (("--nnodes=2", "--master-addr=[fd00::1]"), "fd00::1", 29500, meets_at("[fd00::1]:29501", is_host=True)),
        (("--nnodes=2", "--rdzv-endpoint=[::1]:80"), "::1", 80, meets_at("[::1]:81", is_host=True)),
        ((*STATIC, "--rdzv-conf=etcd_prefix=/a"), "node0", 29500, meets_at("node0:29501", prefix="a")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_node_rank_0_serves_the_store_beside_the_port_of_rank_0(
    words: tuple[str, ...], address: str, port: int, network: StoreConfig
) -> None:
    made = resolve(*words)
    assert (made.master_addr, made.master_port, made.network) == (address, port, network)


def test_the_variables_of_a_job_controller_work_for_several_nodes() -> None:
    made = resolve(
        PET_NNODES="3", PET_NPROC_PER_NODE="auto", PET_NODE_RANK="1", PET_MASTER_ADDR="a-0.a", PET_MASTER_PORT="29500"
    )
    assert (made.nodes_min, made.node_rank, made.network, made.notes) == (3, 1, meets_at("a-0.a:29501"), ())
    assert made.origins["node_rank"] == "PET_NODE_RANK"


def test_all_nodes_take_part_though_fewer_were_said_to_be_enough() -> None:
    made = resolve(*STATIC, "--nnodes=2:4")
    assert (made.nodes_min, made.nodes_max) == (4, 4)
    assert made.notes == ("--nnodes 2:4: where each node has its number, all 4 take part; with c10d fewer may",)


def test_redundant_options_of_a_static_rendezvous_have_no_effect() -> None:
    made = resolve(*STATIC, "--rdzv-endpoint=node1:5", "--rdzv-conf=is_host=1,read_timeout=60,timeout=9")
    assert (made.master_addr, made.master_port, made.settings) == ("node1", 5, {"start_timeout_s": 9.0})
    assert made.notes == (
        "--rdzv-conf: is_host without effect with --rdzv-backend static",
        "--rdzv-conf: read_timeout without effect here",
        "--master-addr node0, --master-port 29500 have no effect beside --rdzv-endpoint node1:5",
    )
    assert resolve("--nnodes=2", "--node-rank=1").notes == (
        "--master-addr is not given: only agents of this machine can meet at 127.0.0.1",
    )


def test_one_node_is_one_machine_and_no_store_is_served() -> None:
    for words in (["--nnodes=1"], ["--nnodes=1:4"], ["--nnodes=1:1", "--node-rank=0", "--master-port=29500"]):
        made = resolve(*words)
        assert (made.network, made.node_rank, made.nodes_max) == (None, 0, 1)
    assert resolve("--nnodes=1", "--store-port=5").notes == ("--store-port 5 has no effect on one machine",)


def test_an_etcd_or_c10d_numbers_the_nodes_itself() -> None:
    for words in (["--rdzv-backend=c10d", "--rdzv-endpoint=h"], ["--rdzv-endpoint=etcd://h", "--rdzv-id=r"]):
        made = resolve("--nnodes=2", *words, "--store-port=5")
        assert (made.node_rank, made.master_addr, made.master_port) == (None, None, None)
        assert made.notes == ("--store-port 5 has no effect where nodes meet in a store: the round says who is who",)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nnodes=2"], "--nnodes 2: the nodes need a place to meet"),
        ([*STATIC, "--node-rank=4"], "--node-rank 4: the node ranks of --nnodes 4 are 0 to 3"),
        ([*STATIC, "--node-rank=x"], "--node-rank x is not a whole number of at least 0"),
        (
            [*STATIC, "--nnodes=2:"],
            "--nnodes 2:: where each node has its number, how many there are must be said",
        ),
        ([*STATIC, "--master-port=0"], "--master-port 0: the other nodes must know the port, 0 is any"),
        ([*STATIC, "--rdzv-endpoint=h:0"], "--rdzv-endpoint h:0: the other nodes must know the port, 0 is any"),
        ([*STATIC, "--rdzv-endpoint=h"], "--rdzv-endpoint h: a static rendezvous needs HOST:PORT"),
        ([*STATIC, "--store-port=0"], "--store-port 0: the other nodes must know the port, 0 is any"),
        ([*STATIC, "--store-port=29500"], "--store-port 29500: rank 0 listens on that port"),
        (
            [*STATIC, "--master-port=65535"],
            "the store would be on the port after 65535, which is the last",
        ),
        (
            [*STATIC, "--rdzv-conf=store_type=file"],
            "--rdzv-conf: store_type=file: several nodes meet over the network, not in a file",
        ),
        ([*STATIC, "--target-nodes=3"], "--target-nodes 3 is outside of --nnodes 4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(*words)
    assert str(caught.value) == sentence
