"""The options of a job on several machines: where the nodes meet, on which terms, and what contradicts what."""

from __future__ import annotations

import pytest

from launcher.config.options.network import StoreConfig
from launcher.config.options.readers import PASSWORD_HINT
from launcher.model.errors import UsageError
from launcher.placement.adapter.description import Description, decode_description, encode_description
from tests.support.options import refusal, resolve

ETCD = ("--rdzv-backend=etcd", "--rdzv-endpoint=h1:2379,h2", "--rdzv-id=run7")
SERVED = ("--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--nnodes=2")


def test_settings_of_our_own_override_torchruns_and_are_checked() -> None:
    made = resolve(*ETCD, "--rdzv-conf=etcd_prefix=x", LAUNCHER_RDZV_PREFIX="y")
    assert made.rendezvous.network is not None
    assert made.rendezvous.network.prefix == "y"
    with pytest.raises(UsageError, match="LAUNCHER_RDZV_PREFIX=/: the prefix of the keys"):
        resolve(*ETCD, LAUNCHER_RDZV_PREFIX="/")
    assert refusal(*ETCD, "--grow=60")[1] == "write --grow delay=60"


@pytest.mark.parametrize(
    ("words", "network"),
    [
        (ETCD, StoreConfig(backend="etcd", endpoints=("h1:2379", "h2:2379"))),
        (("--rdzv-endpoint=etcd://h1,h2:99", "--rdzv-id=r"),
         StoreConfig(backend="etcd", endpoints=("h1:2379", "h2:99"))),
        (("--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcds://[::1]:1,etcds://b/", "--rdzv-id=r"),
         StoreConfig(backend="etcd", endpoints=("[::1]:1", "b:2379"), uses_tls=True)),
        ((*ETCD, "--rdzv-conf=protocol=https,cacert=/ca,cert=/c,key=/k,user=me,password_file=/p,etcd_prefix=/a/b/"),
         StoreConfig(backend="etcd", endpoints=("h1:2379", "h2:2379"), prefix="a/b", uses_tls=True, ca_file="/ca",
                     cert_file="/c", key_file="/k", user="me", password_file="/p")),
        ((*ETCD, "--rdzv-conf=ca_cert=/ca,etcd_prefix=x"),
         StoreConfig(backend="etcd", endpoints=("h1:2379", "h2:2379"), prefix="x", uses_tls=True, ca_file="/ca")),
        (SERVED, StoreConfig(backend="served", endpoints=("node0:29400",))),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=node0:5", "--mesh=dp=*", "--rdzv-conf=is_host=true"),
         StoreConfig(backend="served", endpoints=("node0:5",), is_host=True)),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=node0:5"), None),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=node0:5", "--rdzv-conf=is_host=0"),  # a store that a program serves
         StoreConfig(backend="served", endpoints=("node0:5",), is_host=False)),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=node0:5", "--rdzv-conf=is_host=1"), None),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--mesh=dp=*"), None),
        (("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1:4"), None),
        (("--rdzv-backend=c10d", "--nnodes=1:4"), None),
        (("--standalone", *ETCD), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_the_nodes_meet_where_the_options_say(words: tuple[str, ...], network: StoreConfig | None) -> None:
    assert resolve(*words).rendezvous.network == network


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ((*ETCD, "--nnodes=3"), (3, 3)),
        ((*ETCD, "--nnodes=4:32"), (4, 32)),
        ((*ETCD, "--nnodes=4:"), (4, None)),
        ((*ETCD, "--mesh=pp=4,dp=*,tp=8"), (1, None)),
        ((*ETCD, "--mesh=pp=4,dp=*,tp=8", "--nnodes=2"), (2, 2)),
        (("--mesh=pp=4,dp=*,tp=8",), (1, 1)),
    ],
)
def test_a_mesh_says_how_many_nodes_there_may_be(words: tuple[str, ...], nodes: tuple[int, int | None]) -> None:
    made = resolve(*words)
    assert (made.placement.nodes_min, made.placement.nodes_max) == nodes


def test_terms_are_read_from_options_before_torchruns_settings() -> None:
    made = resolve(*ETCD, "--rdzv-conf=timeout=9,last_call_timeout=4", "--start-timeout=8", LAUNCHER_GROW="never")
    meeting = made.rendezvous
    assert meeting.settings == {"start_timeout_s": 8.0, "join_grace_s": 4.0, "grow": "never"}
    assert (meeting.origins["start-timeout"], meeting.origins["grow"]) == ("--start-timeout", "LAUNCHER_GROW")
    assert made.notes == ()
    made = resolve(
        *ETCD, "--nnodes=2:8", "--target-nodes=4", "--store-outage=stop", "--on-finished=exit",
        "--restart-window=60", "--rejoin-timeout=5",
        "--grow=delay=7", LAUNCHER_PRESENCE_PROOF="off", LAUNCHER_MIN_ROUND_TIME="1",
    )  # fmt: skip
    meeting = made.rendezvous
    assert meeting.settings == {
        "target_nodes": 4, "continues_without_store": False, "presence_proof": False, "on_finished": "exit",
        "restart_window_s": 60.0, "min_round_time_s": 1.0, "rejoin_timeout_s": 5.0, "grow": "delay",
        "grow_delay_s": 7.0,
    }  # fmt: skip


def test_every_setting_of_torchruns_is_a_term_or_said_to_have_none() -> None:
    made = resolve(*ETCD, "--rdzv-conf=join_timeout=9,timeout=8,last_call_timeout=7,close_timeout=6")
    assert made.rendezvous.settings == {"start_timeout_s": 9.0, "join_grace_s": 7.0, "farewell_s": 6.0}
    assert made.notes == ()
    made = resolve(
        *SERVED, "--rdzv-conf=read_timeout=60,keep_alive_interval=5,keep_alive_max_attempt=3,store_type=tcp,use_libuv=1"
    )
    assert made.rendezvous.settings == {}
    assert made.notes == (
        "--rdzv-conf: read_timeout, keep_alive_interval, keep_alive_max_attempt, store_type, use_libuv without effect "
        "here; use --lease-ttl to set how long a node may be silent",
    )
    assert resolve(*ETCD, "--rdzv-conf=is_host=1").notes == (
        "--rdzv-conf: is_host without effect with --rdzv-backend etcd",
    )


def test_what_a_node_says_of_itself_can_be_given_and_a_run_be_called_none() -> None:
    made = resolve(
        *ETCD, "--node-name= h1 ", "--port-range=30000:30010", "--worker-port-range=31000:31000",
        "--preemption-signal=SIGUSR1", "--preemption-file=/x/going", "--lease-ttl=7",
        SLURM_RESTART_COUNT="2", LAUNCHER_INTERFACE="eth1",
    )  # fmt: skip
    meeting = made.rendezvous
    assert (meeting.node_name, meeting.interface, meeting.port_range) == ("h1", "eth1", (30000, 30010))
    assert (meeting.worker_port_range, made.shutdown.preemption_signal) == ((31000, 31000), "SIGUSR1")
    assert (made.shutdown.preemption_file, meeting.lease_ttl_s, meeting.attempt) == ("/x/going", 7.0, 2)
    assert resolve("--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-id=none").rendezvous.run_id == "none"
    assert resolve(*SERVED).rendezvous.run_id == "none"


def test_options_without_effect_on_one_machine_or_in_a_store_are_said() -> None:
    assert resolve("--join-grace=3", "--grow=never", "--restart-window=9", LAUNCHER_INTERFACE="eth0").notes == (
        "--join-grace 3, --grow never have no effect on one machine",
    )
    assert resolve("--standalone", "--target-nodes=3").notes == ("--target-nodes 3 has no effect on one machine",)
    assert resolve(LAUNCHER_JOIN_GRACE="3", SLURM_RESTART_COUNT="1").notes == ()
    made = resolve(*SERVED, "--node-rank=1", "--master-addr=a", "--master-port=5", "--rdzv-conf=read_timeout=60,cert=x")
    assert made.notes == (
        "--rdzv-conf: cert without effect with --rdzv-backend c10d",
        "--rdzv-conf: read_timeout without effect here",
        "--node-rank 1, --master-addr a, --master-port 5 have no effect where nodes meet in a store, because each "
        "round assigns the ranks",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rdzv-backend=etcd"], "--rdzv-backend etcd needs --rdzv-endpoint"),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=h"],
         "an etcd rendezvous needs --rdzv-id"),
        (["--rdzv-endpoint=zk://h", "--rdzv-backend=etcd"], "--rdzv-endpoint zk://h: unknown scheme zk://"),
        ([*SERVED, "--rdzv-endpoint=etcd://h"], "--rdzv-endpoint etcd://h names an etcd, but --rdzv-backend c10d "
         "does not use one"),
        ([*SERVED, "--rdzv-endpoint=a,b"], "--rdzv-endpoint a,b: name exactly one node for c10d, not 2"),
        ([*SERVED, "--rdzv-endpoint=a:0"], "--rdzv-endpoint a:0: other nodes connect to this port: it cannot be 0"),
        (["--standalone", "--nnodes=2"], "--nnodes 2 and --standalone exclude each other"),
        ([*ETCD, "--rdzv-endpoint=h:x"], "--rdzv-endpoint h:x: a port is a number from 0 (any free one) to 65535"),
        ([*ETCD, "--rdzv-conf=cert=/c"], "--rdzv-conf names a certificate but no key"),
        ([*ETCD, "--rdzv-conf=key=/c"], "--rdzv-conf names a key but no certificate"),
        ([*ETCD, "--rdzv-conf=cert=/c,ssl_cert=/d"], "--rdzv-conf: cert and ssl_cert are the same setting"),
        ([*ETCD, "--rdzv-conf=protocol=ftp"], "--rdzv-conf: protocol=ftp is neither http nor https"),
        ([*ETCD, "--rdzv-conf=protocol=http,cacert=/c"], "--rdzv-conf names certificates for a connection without TLS"),
        (["--rdzv-endpoint=etcd://h", "--rdzv-id=r", "--rdzv-conf=protocol=https"],
         "--rdzv-endpoint etcd://h and protocol=https contradict each other"),
        ([*SERVED, "--rdzv-conf=is_host=maybe"], "--rdzv-conf: is_host=maybe is neither 1 nor 0"),
        ([*ETCD, "--rdzv-conf=join_timeout=x"], "--rdzv-conf: join_timeout=x is not a number of seconds"),
        ([*ETCD, "--rdzv-conf=read_timeout=x"], "--rdzv-conf: read_timeout=x is not a number of seconds"),
        ([*SERVED, "--rdzv-endpoint=/shared/file", "--rdzv-conf=store_type=file"],
         "--rdzv-conf: store_type=file: several nodes cannot use a file as their store"),
        ([*ETCD, "--nnodes=2:4", "--target-nodes=5"], "--target-nodes 5 is outside of --nnodes 2:4"),
        ([*ETCD, "--nnodes=2:", "--target-nodes=1"], "--target-nodes 1 is outside of --nnodes 2:"),
        ([*ETCD, "--grow=soon"], "--grow soon is not never, delay, delay=SECONDS or checkpoint"),
        ([*ETCD, "--grow=never=5"], "--grow never=5 is not never, delay, delay=SECONDS or checkpoint"),
        ([*ETCD, "--grow=delay=soon"], "--grow delay=soon: 'soon' is not a number of seconds"),
        ([*ETCD, "--store-outage=x"], "--store-outage x is neither continue nor stop"),
        ([*ETCD, "--port-range=5"], "--port-range 5 is not FIRST:LAST with ports from 1 to 65535"),
        ([*ETCD, "--port-range=9:5"], "--port-range 9:5 is not FIRST:LAST with ports from 1 to 65535"),
        ([*ETCD, "--worker-port-range=0:5"], "--worker-port-range 0:5 is not FIRST:LAST with ports from 1 to 65535"),
        ([*ETCD, "--preemption-signal=SIGKILL"], "--preemption-signal SIGKILL is not a signal that can be handled"),
        ([*ETCD, "--preemption-signal=SIGTREM"], "--preemption-signal SIGTREM is not a signal that can be handled"),
        ([*ETCD, "--node-name=a/b"], "--node-name a/b: a name that becomes part of a path cannot contain a /"),
        ([*ETCD, "--attempt=-1"], "--attempt -1 must be an integer >= 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_contradicts_itself_is_refused(words: list[str], sentence: str) -> None:
    assert refusal(*words)[0] == sentence


@pytest.mark.parametrize(
    "words",
    [
        [*ETCD, "--rdzv-endpoint=etcd://me:hunter2@h1:2379"],
        [*ETCD, "--rdzv-endpoint=me:hunter2@h1"],
        [*ETCD, "--rdzv-conf=user=me,password=hunter2"],
        ["--rdzv-conf=password=hunter2,timeout=10m"],
        ['--rdzv-conf="password=hunter2,timeout=10m"'],
        ["--rdzv-conf='password = hunter2'"],
        ["--rdzv-conf=password:hunter2"],
        ["--rdzv-conf=password hunter2"],
        ["--rdzv-conf=user=me password=hunter2"],
        ["--rdzv-conf=passwd=hunter2,timeout=10m"],
        ["--rdzv-conf=password=hunter2.py"],
        [*ETCD, '--rdzv-endpoint="me:hunter2@h1:2379"'],
        ["--standalone", "--rdzv-endpoint=me:hunter2@h1"],
        ["--rdzv-endpoint=me:hunter2@h1"],
        ["--nnodes=2", "--node-rank=0", "--rdzv-endpoint=me:hunter2@h1:2"],
    ],
)
def test_a_password_in_the_command_line_is_refused_and_not_repeated(words: list[str]) -> None:
    sentence, hint = refusal(*words)
    assert "can be read by other users" in sentence
    assert "hunter2" not in sentence
    assert hint == PASSWORD_HINT


def test_a_file_for_a_password_may_be_called_like_one() -> None:
    made = resolve(*ETCD, "--rdzv-conf=user=me,password_file=/run/passwords/password").rendezvous.network
    assert made is not None
    assert made.password_file == "/run/passwords/password"


def test_a_text_that_other_nodes_could_not_read_is_refused() -> None:
    long, longer = "x" * 255, "x" * 256
    made = resolve("--role", long, "--node-name", long, "--local-addr", long)
    meeting, role = made.rendezvous, made.workers.role
    told = Description(slot_count=1, address=meeting.local_addr or "", role=role, name=meeting.node_name or "")
    assert decode_description(encode_description(told)) == told
    assert refusal("--role", longer)[0] == "--role has 256 characters; the limit is 255"
    assert refusal(LAUNCHER_NODE_NAME=longer)[0] == "LAUNCHER_NODE_NAME has 256 characters; the limit is 255"
    for option in ("--local-addr", "--master-addr"):
        assert refusal(option, longer)[0].endswith("is neither an address nor the name of a host")
