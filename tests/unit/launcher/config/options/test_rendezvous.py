"""torchrun's rendezvous options on one node: what the workers get, and what is said to have no effect."""

from __future__ import annotations

import pytest

from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line
from launcher.model.errors import UsageError


def resolve(*words: str, **environ: str) -> Config:
    return config.resolve(command_line.parse([*words, "train.py"]), environ, "python")


# What torchrun 2.13 exports as TORCHELASTIC_RUN_ID was observed for each line; None is a name drawn at random.
@pytest.mark.parametrize(
    ("words", "run_id"),
    [
        ([], None),
        (["--standalone"], None),
        (["--standalone", "--rdzv-id=job"], None),
        (["--standalone", "--master-port=29533"], None),
        (["--master-addr=127.0.0.2"], None),
        (["--local-addr=127.0.0.3"], None),
        (["--master-port=29511"], "none"),
        (["--master-port=29511", "--rdzv-id=job"], "job"),
        (["--rdzv-backend=c10d"], "none"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"], "job"),
        (["--rdzv-id=job"], "job"),  # torchrun drops it here and draws a name
    ],
)
def test_the_run_is_called_as_under_torchrun(words: list[str], run_id: str | None) -> None:
    assert resolve(*words).run_id == run_id


@pytest.mark.parametrize(
    ("words", "address", "port", "notes"),
    [
        ([], None, None, []),
        (["--master-addr=node7", "--master-port=29500"], "node7", 29500, []),
        (["--master-addr=[::1]", "--master-port=29500"], "::1", 29500, []),
        (["--master-port=29500"], None, 29500, []),
        (["--master-port=0"], None, None, []),
        (["--master-addr=node7"], "node7", None, []),
        (["--rdzv-endpoint=node7:29400"], "node7", 29400, []),
        (["--rdzv-endpoint=[::1]:29400"], "::1", 29400, []),
        (
            ["--rdzv-endpoint=node7:29400", "--master-port=1"],
            "node7",
            29400,
            ["--master-port 1 has no effect beside --rdzv-endpoint node7:29400"],
        ),
        (
            ["--master-addr=node7", "--local-addr=node8"],
            "node7",
            None,
            ["--local-addr node8 has no effect on one node when the master's address is given"],
        ),
        (
            ["--rdzv-backend=c10d", "--master-addr=node7", "--master-port=1"],
            None,
            None,
            ["--master-addr node7, --master-port 1 have no effect with --rdzv-backend c10d"],
        ),
    ],
)
def test_a_given_master_address_reaches_the_workers_unchanged(
    words: list[str], address: str | None, port: int | None, notes: list[str]
) -> None:
    made = resolve(*words)
    assert (made.master_addr, made.master_port, list(made.notes)) == (address, port, notes)


def test_standalone_overrides_the_rendezvous_options_and_says_so() -> None:
    made = resolve(
        "--standalone",
        "--rdzv-id=job",
        "--rdzv-backend=etcd",
        "--rdzv-endpoint=x:1",
        "--node-rank=3",
        "--master-port=1",
    )
    assert (made.standalone, made.rdzv_backend, made.rdzv_endpoint, made.run_id) == (True, "c10d", None, None)
    assert (made.node_rank, made.master_addr, made.master_port) == (0, None, None)
    assert made.notes == (
        "--rdzv-backend etcd, --rdzv-id job, --rdzv-endpoint x:1, --node-rank 3, --master-port 1 have no effect "
        "beside --standalone",
    )


def test_the_commonest_commands_of_one_machine_say_nothing() -> None:
    for words in (
        ["--standalone", "--nnodes=1", "--nproc-per-node=2"],
        ["--standalone", "--rdzv-backend=c10d", "--nproc-per-node=2"],
        ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7", "--nproc-per-node=2"],
        ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29500", "--nproc-per-node=2"],
    ):
        assert resolve(*words).notes == ()


def test_the_variables_of_a_job_controller_work_for_one_node() -> None:
    made = resolve(
        PET_NNODES="1", PET_NPROC_PER_NODE="auto", PET_NODE_RANK="0", PET_MASTER_ADDR="a-0.a", PET_MASTER_PORT="29500"
    )
    assert (made.worker_count, made.master_addr, made.master_port, made.notes) == ("auto", "a-0.a", 29500, ())


def test_an_endpoint_elsewhere_has_no_effect_and_is_said_so() -> None:
    made = resolve("--rdzv-backend=c10d", "--rdzv-endpoint=node7:29400")
    assert made.rdzv_endpoint == "node7:29400"
    assert made.notes == ("--rdzv-endpoint node7:29400 has no effect on one node: its rendezvous is inside the agent",)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rdzv-backend=c10"], "--rdzv-backend c10: no such rendezvous backend"),
        (["--node-rank=1"], "--node-rank 1: a job of one node has only node rank 0"),
        (["--node-rank=-1"], "--node-rank -1 is not a whole number of at least 0"),
        (["--master-port=65536"], "--master-port 65536: a port is a number from 0 (any free one) to 65535"),
        (["--master-port=x"], "--master-port x: a port is a number from 0 (any free one) to 65535"),
        (["--rdzv-endpoint=node7"], "--rdzv-endpoint node7: a static rendezvous needs HOST:PORT"),
        (["--rdzv-endpoint=no de:1"], "--rdzv-endpoint no de:1: 'no de' is no address and no name of a host"),
        (["--rdzv-endpoint=:1"], "--rdzv-endpoint :1: '' is no address and no name of a host"),
        (["--rdzv-endpoint=h:1:2"], "--rdzv-endpoint h:1:2: 'h:1' is no address and no name of a host"),
        (["--master-addr=a b"], "--master-addr a b: 'a b' is no address and no name of a host"),
        (["--local-addr=::g"], "--local-addr ::g: '::g' is no address and no name of a host"),
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=a:b"],
            "--rdzv-endpoint a:b: a port is a number from 0 (any free one) to 65535",
        ),
        (["--rdzv-conf=timeout"], "--rdzv-conf timeout: 'timeout' is not KEY=VALUE"),
        (["--rdzv-conf=a=1,=2"], "--rdzv-conf a=1,=2: '=2' is not KEY=VALUE"),
        (["--rdzv-id=a\udcff"], "--rdzv-id 'a\\udcff': only printable characters will do"),
        (["--role=a\nb"], "--role 'a\\nb': only printable characters will do"),
        (["--rdzv-id=a/b"], "--rdzv-id a/b: a name that becomes part of a path cannot hold a /"),
    ],
)
def test_what_cannot_work_on_one_node_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(*words)
    assert str(caught.value) == sentence


def test_torchruns_store_in_a_file_is_not_needed_on_one_node() -> None:
    made = resolve("--rdzv-backend=c10d", "--rdzv-endpoint=/tmp/file", "--rdzv-conf=store_type=file")
    assert made.network is None
    assert made.notes == ("--rdzv-conf: store_type without effect on one node",)


def test_settings_are_read_and_the_unknown_ones_named() -> None:
    made = resolve("--rdzv-conf", "join_timeout=60, last_call_timeout=5,jion_timeout=3,colour=red")
    assert made.rdzv_conf == {"join_timeout": "60", "last_call_timeout": "5", "jion_timeout": "3", "colour": "red"}
    assert made.notes == (
        "--rdzv-conf: join_timeout, last_call_timeout without effect on one node",
        "--rdzv-conf: jion_timeout is not known, did you mean join_timeout?",
        "--rdzv-conf: colour is not known",
    )


@pytest.mark.parametrize(
    ("text", "address"), [("fe80::1%eth0", "fe80::1%eth0"), ("[::1]", "::1"), ("node-7.x", "node-7.x")]
)
def test_an_address_may_be_a_name_or_one_of_either_family(text: str, address: str) -> None:
    assert resolve(f"--master-addr={text}").master_addr == address


def test_with_another_backend_a_node_rank_has_no_effect() -> None:
    assert resolve("--rdzv-backend=c10d", "--node-rank=2").notes == (
        "--node-rank 2 has no effect with --rdzv-backend c10d",
    )
