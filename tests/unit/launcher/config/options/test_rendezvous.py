"""torchrun's rendezvous options on one node, and those of nodes that the user has numbered: who is who, and where."""

from __future__ import annotations

import pytest

from launcher.config.options.network import StoreConfig
from launcher.model.errors import UsageError
from tests.support.options import refusal, resolve

STATIC = ("--nnodes=4", "--node-rank=2", "--master-addr=node0", "--master-port=29500")


def meets_at(endpoint: str, *, is_host: bool = False, prefix: str = "meshrun") -> StoreConfig:
    return StoreConfig(backend="served", endpoints=(endpoint,), is_host=is_host, prefix=prefix)


# What torchrun 2.13 exports as TORCHELASTIC_RUN_ID was observed for each line; None is a name drawn at random.
@pytest.mark.parametrize(
    ("words", "run_id"),
    [
        ([], None),
        (["--standalone"], None),
        (["--standalone", "--rdzv-id=job"], None),
        (["--standalone", "--master-port=29533"], None),
        (["--master-addr=127.0.0.2"], None),
        (["--master-port=29511", "--rdzv-id=job"], "job"),
        (["--rdzv-backend=c10d"], "none"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"], "job"),
        (["--rdzv-id=job"], "job"),  # torchrun drops it here and draws a name
    ],
)
def test_the_run_is_called_as_under_torchrun(words: list[str], run_id: str | None) -> None:
    assert resolve(*words).rendezvous.run_id == run_id


def alone(place: str, backend: str = " --rdzv-backend c10d") -> list[str]:
    """What is said of a place to meet where the number of nodes is not known."""
    return [
        f"{place}: without --nnodes this agent runs alone, as rank 0 of a job of its own",
        f"hint: add --nnodes N{backend} to run on N nodes, or --standalone to run on this one",
    ]


@pytest.mark.parametrize(
    ("words", "address", "port", "notes"),
    [
        ([], None, None, []),
        (["--master-addr=node7", "--master-port=29500"], "node7", 29500, alone("--master-addr node7")),
        (["--master-addr=[::1]", "--master-port=29500"], "::1", 29500, []),
        (["--master-port=29500"], None, 29500, []),
        (["--master-port=0"], None, None, []),
        (["--master-addr=node7"], "node7", None, alone("--master-addr node7")),
        (["--rdzv-endpoint=node7:29400"], "node7", 29400, alone("--rdzv-endpoint node7:29400")),
        (["--rdzv-endpoint=[::1]:29400"], "::1", 29400, []),
        (["--rdzv-endpoint=node7:29400", "--master-port=1"], "node7", 29400,
         ["--master-port 1 has no effect beside --rdzv-endpoint node7:29400", *alone("--rdzv-endpoint node7:29400")]),
        (["--master-addr=node7", "--local-addr=node8"], "node7", None,
         ["--local-addr node8 has no effect on one node when the master's address is given",
          *alone("--master-addr node7")]),
        (["--rdzv-backend=c10d", "--master-addr=node7", "--master-port=1"], None, None,
         ["--master-addr node7, --master-port 1 have no effect with --rdzv-backend c10d",
          *alone("--master-addr node7", "")]),
    ],
)  # fmt: skip
def test_a_given_master_address_reaches_the_workers_unchanged(
    words: list[str], address: str | None, port: int | None, notes: list[str]
) -> None:
    made = resolve(*words)
    assert (made.rendezvous.master_addr, made.rendezvous.master_port, list(made.notes)) == (address, port, notes)


def test_standalone_and_settings_that_are_not_known_are_said_to_be_so() -> None:
    words = ("--rdzv-id=job", "--rdzv-backend=etcd", "--rdzv-endpoint=x:1", "--node-rank=3", "--master-port=1")
    made = resolve("--standalone", *words)
    meeting = made.rendezvous
    assert (meeting.rdzv_backend, meeting.rdzv_endpoint, meeting.run_id) == ("c10d", None, None)
    assert (meeting.node_rank, meeting.master_addr, meeting.master_port) == (0, None, None)
    assert made.notes == (
        "--rdzv-backend etcd, --rdzv-id job, --rdzv-endpoint x:1, --node-rank 3, --master-port 1 have no effect "
        "beside --standalone",
    )
    made = resolve("--rdzv-conf", "join_timeout=60, last_call_timeout=5,jion_timeout=3,colour=red")
    given = {"join_timeout": "60", "last_call_timeout": "5", "jion_timeout": "3", "colour": "red"}
    assert made.rendezvous.rdzv_conf == given
    assert made.notes == (
        "--rdzv-conf: join_timeout, last_call_timeout without effect on one node",
        "--rdzv-conf: jion_timeout is not known, did you mean join_timeout?",
        "--rdzv-conf: colour is not known",
    )


@pytest.mark.parametrize("words", [(), ("--master-port=65535",)])
def test_the_port_of_the_store_can_be_another(words: tuple[str, ...]) -> None:
    assert resolve(*STATIC, *words, LAUNCHER_STORE_PORT="7").rendezvous.network == meets_at("node0:7")
    note = "LAUNCHER_STORE_PORT=5 has no effect on one machine"
    assert resolve("--nnodes=1", LAUNCHER_STORE_PORT="5").notes == (note,)
    for port, why in (
        ("0", "other nodes connect to this port: it cannot be 0"),
        ("29500", "rank 0 listens on that port"),
    ):
        with pytest.raises(UsageError, match=f"LAUNCHER_STORE_PORT={port}: {why}"):
            resolve(*STATIC, LAUNCHER_STORE_PORT=port)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--node-rank=1"], "--node-rank 1: a job of one node has only node rank 0"),
        (["--node-rank=-1"], "--node-rank -1 must be an integer >= 0"),
        (["--master-port=65536"], "--master-port 65536: a port is a number from 0 (any free one) to 65535"),
        (["--rdzv-endpoint=node7"], "--rdzv-endpoint node7: a static rendezvous needs HOST:PORT"),
        (["--rdzv-endpoint=no de:1"], "--rdzv-endpoint no de:1: 'no de' is neither an address nor the name of a host"),
        (["--rdzv-endpoint=h:1:2"], "--rdzv-endpoint h:1:2: 'h:1' is neither an address nor the name of a host"),
        (["--local-addr=::g"], "--local-addr ::g: '::g' is neither an address nor the name of a host"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:b"],
         "--rdzv-endpoint a:b: a port is a number from 0 (any free one) to 65535"),
        (["--rdzv-conf=a=1,=2"], "--rdzv-conf: '=2' is not KEY=VALUE"),
        (["--rdzv-conf='pw=p'"], "--rdzv-conf: a password on the command line can be read by other users"),
        (["--rdzv-conf=timeout,password=p"], "--rdzv-conf: a password on the command line can be read by other users"),
        (["--rdzv-id=a\udcff"], "--rdzv-id 'a\\udcff': it must contain only printable characters"),
        (["--role=a\nb"], "--role 'a\\nb': it must contain only printable characters"),
        # Nodes that are numbered.
        (["--nnodes=2"], "--nnodes 2: several nodes need a rendezvous"),
        ([*STATIC, "--node-rank=4"], "--node-rank 4: the node ranks of --nnodes 4 are 0 to 3"),
        ([*STATIC, "--nnodes=2:"], "--nnodes 2:: a static rendezvous needs an exact number of nodes"),
        ([*STATIC, "--master-port=0"], "--master-port 0: other nodes connect to this port: it cannot be 0"),
        ([*STATIC, "--rdzv-endpoint=h:0"], "--rdzv-endpoint h:0: other nodes connect to this port: it cannot be 0"),
        ([*STATIC, "--rdzv-endpoint=h"], "--rdzv-endpoint h: a static rendezvous needs HOST:PORT"),
        ([*STATIC, "--master-port=65535"], "the store uses the port after 65535, which is the last one"),
        ([*STATIC, "--rdzv-conf=store_type=file"],
         "--rdzv-conf: store_type=file: several nodes cannot use a file as their store"),
        ([*STATIC, "--target-nodes=3"], "--target-nodes 3 is outside of --nnodes 4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_is_refused(words: list[str], sentence: str) -> None:
    assert refusal(*words)[0] == sentence


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        # The commonest commands of one machine.
        (["--standalone", "--nnodes=1", "--nproc-per-node=2"], []),
        (["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7", "--nproc-per-node=2"], []),
        (["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29500", "--nproc-per-node=2"], []),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=node7:29400"],
         ["--rdzv-endpoint node7:29400 has no effect on one node: its rendezvous is inside the agent",
          *alone("--rdzv-endpoint node7:29400", "")]),
        (["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node7:29400"],
         ["--rdzv-endpoint node7:29400 has no effect on one node: its rendezvous is inside the agent"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=/tmp/file", "--rdzv-conf=store_type=file"],
         ["--rdzv-conf: store_type without effect on one node"]),
        (["--nnodes=2", "--node-rank=1"],
         ["--master-addr is not set: agents on other machines cannot reach 127.0.0.1"]),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_said_to_have_none(words: list[str], notes: list[str]) -> None:
    made = resolve(*words)
    assert list(made.notes) == notes
    assert (made.rendezvous.network is None) == ("--nnodes=2" not in words)
    assert made.rendezvous.rdzv_endpoint == next(
        (word[16:] for word in words if word.startswith("--rdzv-endpoint=")), None
    )


@pytest.mark.parametrize(
    ("text", "address"), [("fe80::1%eth0", "fe80::1%eth0"), ("[::1]", "::1"), ("node-7.x", "node-7.x")]
)
def test_an_address_may_be_a_name_or_one_of_either_family(text: str, address: str) -> None:
    assert resolve(f"--master-addr={text}").rendezvous.master_addr == address


@pytest.mark.parametrize("text", ["::1", "fe80::1", "2001:db8::5:2940", "::"])
def test_an_address_whose_last_part_may_be_a_port_needs_brackets(text: str) -> None:
    with pytest.raises(UsageError, match=f"the last part of {text} may be a port") as refused:
        resolve("--nnodes=2", f"--rdzv-endpoint={text}")
    assert refused.value.hint == "write an IPv6 address in brackets, such as [::1]:29400"
    assert resolve("--nnodes=2", "--rdzv-endpoint=2001:db8::5:29400").rendezvous.master_addr == "2001:db8::5", (
        "no address has it"
    )


def test_the_numbers_the_address_and_the_port_are_taken_as_given() -> None:
    made = resolve(*STATIC)
    meeting = made.rendezvous
    assert (made.placement.nodes_min, made.placement.nodes_max, meeting.node_rank) == (4, 4, 2)
    assert (meeting.master_addr, meeting.master_port, meeting.network) == ("node0", 29500, meets_at("node0:29501"))
    assert (meeting.run_id, meeting.rdzv_backend, made.notes) == ("none", "static", ())
    assert meeting.origins["node_rank"] == "--node-rank"


@pytest.mark.parametrize(
    ("words", "address", "port", "network"),
    [
        ((*STATIC, "--node-rank=0"), "node0", 29500, meets_at("node0:29501", is_host=True)),
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
    meeting = made.rendezvous
    assert (meeting.master_addr, meeting.master_port, meeting.network) == (address, port, network)


def test_what_is_redundant_or_cannot_be_in_a_static_rendezvous_is_said() -> None:
    made = resolve(*STATIC, "--nnodes=2:4")
    assert (made.placement.nodes_min, made.placement.nodes_max) == (4, 4)
    assert made.notes == ("--nnodes 2:4: a static rendezvous starts with all 4 nodes; with c10d fewer are enough",)
    made = resolve(*STATIC, "--rdzv-endpoint=node1:5", "--rdzv-conf=is_host=1,read_timeout=60,timeout=9")
    meeting = made.rendezvous
    assert (meeting.master_addr, meeting.master_port, meeting.settings) == ("node1", 5, {"start_timeout_s": 9.0})
    assert made.notes == (
        "--rdzv-conf: is_host without effect with --rdzv-backend static",
        "--rdzv-conf: read_timeout without effect here",
        "--master-addr node0, --master-port 29500 have no effect beside --rdzv-endpoint node1:5",
    )


def test_one_node_is_one_machine_and_nodes_that_meet_in_a_store_are_numbered_there() -> None:
    for words in (["--nnodes=1"], ["--nnodes=1:4"], ["--nnodes=1:1", "--node-rank=0", "--master-port=29500"]):
        made = resolve(*words)
        assert (made.rendezvous.network, made.rendezvous.node_rank, made.placement.nodes_max) == (None, 0, 1)
    for words in (["--rdzv-backend=c10d", "--rdzv-endpoint=h"], ["--rdzv-endpoint=etcd://h", "--rdzv-id=r"]):
        made = resolve("--nnodes=2", *words, "--master-port=5")
        meeting = made.rendezvous
        assert (meeting.node_rank, meeting.master_addr, meeting.master_port) == (None, None, None)
        assert made.notes == (
            "--master-port 5 has no effect where nodes meet in a store, because each round assigns the ranks",
        )
