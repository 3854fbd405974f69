"""Jobs of several agents, each at a loopback address of its own, over a store that one of them serves and over etcd."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import SLEEP, Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2, N3 = loopback_hosts(3)
TWO = ("--nproc-per-node=2", "--lease-ttl=3", "--join-grace=0.5")
SERVED = ("--rdzv-backend=c10d", "--rdzv-conf=is_host=0")
HOST = ("--rdzv-conf=is_host=1",)

TELL = """
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "MESH_COORDS", "TORCHELASTIC_RUN_ID")
mark("env", " ".join(os.environ[name] for name in names))
"""
SECRETS = """
leaked = [name for name in os.environ if "SECRET" in name or "TOKEN" in name or "PASSWORD" in name]
mark("leaked", ",".join(leaked) or "none")
"""


class Served:
    """Where an agent of the first host shall serve the store."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"{N1.address}:{port}"

    def ctl(self, *words: str) -> str:
        raise NotImplementedError(f"nobody asks {self.endpoint} for {words}")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def served(directory: Path, port: int, *options: str, script: str, env: dict[str, str] | None = None) -> Cluster:
    return Cluster(directory, *SERVED, *options, etcd=Served(port), script=script, env=env)


def test_two_agents_and_a_spare_agree_on_who_is_who(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd, script=TELL) as cluster:
        cluster.start(N1, N2)
        ended = [cluster[host].wait() for host in (N1, N2)]
        assert [one.exit_code for one in ended] == [0, 0]
        words = {}
        for host in (N1, N2):
            for rank in range(4):
                if cluster[host].has_mark("env", rank, 1):
                    words[rank] = cluster[host].mark("env", rank, 1).split()
        assert sorted(words) == [0, 1, 2, 3]
        assert [words[rank][:5] for rank in range(4)] == [
            ["4", "0", "2", "0", "2"],
            ["4", "1", "2", "0", "2"],
            ["4", "0", "2", "1", "2"],
            ["4", "1", "2", "1", "2"],
        ]
        first = N1 if cluster[N1].has_mark("env", 0, 1) else N2
        assert {word[5] for word in words.values()} == {first.address}
        assert len({word[6] for word in words.values()}) == 1
        assert {word[8] for word in words.values()} == {cluster.run_id}
        for host, one in zip((N1, N2), ended, strict=True):
            assert f"meshrun: {host.name} ({host.address}:" in one.stderr
            assert "meshrun: round 1: 2 of 2 nodes, 4 ranks, dp=4; ranks " in one.stderr


def test_an_agent_that_serves_the_store_says_what_its_loss_means(tmp_path: Path, port: int) -> None:
    with served(tmp_path, port, "--nnodes=2", *TWO, script="") as cluster:
        cluster.start(N2)
        cluster[N2].says(f"waiting up to 600 s for the store: {N1.address}:{port} cannot be reached")
        cluster.start(N1, options=HOST)
        ended = [cluster[host].wait() for host in (N1, N2)]
        assert [one.exit_code for one in ended] == [0, 0]
        sentence = f"this agent serves the job's store at {N1.address}:{port}; if it is lost, the job is lost"
        assert sentence in ended[0].stderr
        assert sentence not in ended[1].stderr


def test_agents_of_one_machine_find_out_which_of_them_serves(tmp_path: Path, port: int) -> None:
    options = ("--rdzv-backend=c10d", "--nnodes=2", *TWO)
    with Cluster(tmp_path, *options, etcd=Served(port), script="") as cluster:
        cluster.start(N1, N2)
        ended = [cluster[host].wait() for host in (N1, N2)]
        assert [one.exit_code for one in ended] == [0, 0]
        assert sum("this agent serves" in one.stderr for one in ended) == 1


def test_every_agent_ends_with_the_first_failure_of_the_whole_job(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
if RANK == 3:
    beat_until("../fail")
    print("I am the cause", file=sys.stderr, flush=True)
    sys.exit(7)
beat_until("never")
"""
    with Cluster(tmp_path, "--nnodes=2", *TWO, "--tee=2", etcd=etcd, script=script) as cluster:
        cluster.start(N1, N2, N3)
        cluster.wait_for_round(1, 4)
        spare = next(host for host in (N1, N2, N3) if not cluster[host].ranks(1))
        cluster[spare].says("stands by as a spare")
        (tmp_path / "fail").touch()
        ended = [cluster[host].wait() for host in (N1, N2, N3)]
        assert [one.exit_code for one in ended] == [7, 7, 7]
        culprit = next(host for host in (N1, N2, N3) if 3 in cluster[host].ranks(1))
        boxes = [one.stderr[one.stderr.index("=" * 80) :] for one in ended]
        for box in boxes:
            assert f"host      : {culprit.name}" in box
            assert "rank      : 3 (local_rank: 1)" in box
            assert "I am the cause" in box


def test_a_spare_replaces_a_killed_node_and_the_others_keep_their_ranks(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        cluster.start(N1, N2)
        first = cluster.wait_for_round(1, 4)
        cluster.start(N3)
        cluster[N3].says("stands by as a spare")
        assert cluster.ranks(2) == {}
        lost, kept = (N1, N2) if 0 in first["n1"] else (N2, N1)
        cluster[lost].kill()
        second = cluster.wait_for_round(2, 4)
        assert second == {kept.name: first[kept.name], "n3": first[lost.name]}
        assert cluster.overlaps() == []
        cluster.finish()
        ended = [cluster[host].wait() for host in (kept, N3)]
        assert [one.exit_code for one in ended] == [0, 0]
        assert f"round 1 ends: node {lost.name} lost in round 1" in cluster[kept].stderr


def test_a_node_that_is_told_to_go_leaves_and_the_rest_goes_on_smaller(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *_: (mark("asked"), sys.exit(0)))
beat_until("../finish")
"""
    with Cluster(tmp_path, "--nnodes=1:3", "--target-nodes=3", *TWO, etcd=etcd, script=script) as cluster:
        going = tmp_path / "going"
        cluster.start(N1)
        cluster.start(N2, options=("--preemption-signal=SIGUSR2",))
        cluster.start(N3, options=(f"--preemption-file={going}",))
        first = cluster.wait_for_round(1, 6)
        cluster[N2].send(signal.SIGUSR2)
        ended = cluster[N2].wait()
        assert ended.exit_code == 128 + signal.SIGUSR2
        assert "SIGUSR2 announces a preemption" in ended.stderr
        for rank in first["n2"]:
            cluster[N2].mark("asked", rank, 1)
        cluster.wait_for_round(2, 4)
        going.touch()
        ended = cluster[N3].wait()
        assert ended.exit_code == 143
        assert f"{going} announces a preemption" in ended.stderr
        cluster.wait_for_round(3, 2)
        cluster[N1].send(signal.SIGTERM)
        assert cluster[N1].wait().exit_code == 143
        assert cluster.overlaps() == []


def test_with_checkpoints_as_the_sign_a_job_grows_when_one_is_saved(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
from launcher.worker import checkpoint_saved
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
beat_until("../save")
if ROUND == 1 and RANK == 0:
    mark("heard", str(checkpoint_saved()))
beat_until("../finish")
"""
    with Cluster(tmp_path, "--nnodes=1:2", "--grow=checkpoint", *TWO, etcd=etcd, script=script) as cluster:
        cluster.start(N1)
        cluster.wait_for_round(1, 2)
        cluster.start(N2)
        cluster[N2].says("stands by as a spare")
        assert cluster.ranks(2) == {}
        (tmp_path / "save").touch()
        assert cluster[N1].mark("heard", 0, 1) == "True"
        cluster.wait_for_round(2, 4)
        cluster.finish()
        assert [cluster[host].wait().exit_code for host in (N1, N2)] == [0, 0]


def test_secrets_reach_neither_workers_nor_logs_nor_the_command_line(tmp_path: Path, port: int) -> None:
    token, secret = "token-of-the-store", "secret-of-the-job"
    (tmp_path / "secret").write_text(secret + "\n")
    env = {"LAUNCHER_STORE_TOKEN": token, "LAUNCHER_JOB_SECRET_FILE": str(tmp_path / "secret")}
    with served(tmp_path, port, "--nnodes=2", *TWO, script=SECRETS, env=env) as cluster:
        cluster.start(N1, options=HOST)
        cluster.start(N2)
        ended = [cluster[host].wait() for host in (N1, N2)]
        assert [one.exit_code for one in ended] == [0, 0]
        for host in (N1, N2):
            for rank in cluster[host].ranks(1):
                # The token by which the test finds its processes is the test's own.
                assert cluster[host].mark("leaked", rank, 1) in ("none", "MESHRUN_TEST_TOKEN")
        assert not any(word in one.stderr for one in ended for word in (token, secret))


def test_an_agent_without_the_token_is_refused(tmp_path: Path, port: int) -> None:
    env = {"LAUNCHER_STORE_TOKEN": "right"}
    with served(tmp_path, port, "--nnodes=2", *TWO, script=SLEEP, env=env) as cluster:
        cluster.start(N1, options=HOST)
        cluster[N1].says("meets the other nodes")
        stranger = Cluster(tmp_path, *SERVED, "--nnodes=2", *TWO, etcd=Served(port), run_id=cluster.run_id)
        with stranger:
            stranger.start(N2)
            ended = stranger[N2].wait()
            assert ended.exit_code == 75
            assert "user and a password" in ended.stderr


def test_two_jobs_with_one_id_and_different_meshes_are_told_apart(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        cluster.start(N1, options=("--mesh=dp=*,tp=2",))
        cluster[N1].says("waiting for nodes")
        cluster.start(N2, options=("--mesh=dp=*",))
        ended = cluster[N2].wait()
        assert ended.exit_code == 2
        assert f"run {cluster.run_id} was started with mesh 'dp=*,tp=2', this agent has 'dp=*'" in ended.stderr


def test_the_loss_of_the_agent_that_serves_the_store_ends_the_job(tmp_path: Path, port: int) -> None:
    options = ("--nnodes=2", *TWO, "--rejoin-timeout=3", "--store-outage=stop")
    with served(tmp_path, port, *options, script=SLEEP) as cluster:
        cluster.start(N1, options=HOST)
        cluster.start(N2)
        cluster.wait_for_round(1, 4)
        cluster[N1].kill()
        ended = cluster[N2].wait()
        assert ended.exit_code == 75
        wait_until(lambda: not cluster[N2].left(), 20, "the end of all processes of n2")


def test_workers_on_several_nodes_run_the_interpreter_of_the_agent(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *TWO, etcd=etcd, script="mark('python', sys.executable)") as cluster:
        cluster.start(N1)
        assert cluster[N1].wait().exit_code == 0
        assert cluster[N1].mark("python", 0, 1) == sys.executable
        assert "round 1: 1 of 1 node, 2 ranks, dp=2; ranks 0-1 here" in cluster[N1].stderr


def test_over_tls_with_a_user_whose_password_lies_in_a_file(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    password = tmp_path / "password"
    password.write_text("right\n")
    with EtcdServer("3.4", tmp_path / "etcd", tls=certificates) as server:
        server.set_up_users(root_password="root", users={"trainer": ("right", "/meshrun/")})
        conf = f"--rdzv-conf=protocol=https,cacert={certificates.authority},user=trainer,password_file={password}"
        with Cluster(tmp_path, *TWO, "--nnodes=2", conf, etcd=server, script="") as cluster:
            cluster.start(N1, N2)
            assert [cluster[host].wait().exit_code for host in (N1, N2)] == [0, 0]
        password.write_text("wrong\n")
        with Cluster(tmp_path, *TWO, conf, etcd=server, script="") as cluster:
            cluster.start(N1)
            ended = cluster[N1].wait()
            assert ended.exit_code == 75
            assert "does not accept this user and password" in ended.stderr
        password.write_text("right\n")
        with Cluster(tmp_path, *TWO, conf, "--rdzv-prefix=other", etcd=server, script="") as cluster:
            cluster.start(N1)
            ended = cluster[N1].wait()
            assert ended.exit_code == 75
            assert "denies this user" in ended.stderr
        assert not any(word in ended.stderr for word in ("right", "wrong"))


def test_a_signal_to_all_agents_at_once_stops_the_job_and_leaves_nothing(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        cluster.start(N1, N2)
        cluster.wait_for_round(1, 4)
        for host in (N1, N2):
            cluster[host].send(signal.SIGTERM)
        assert [cluster[host].wait().exit_code for host in (N1, N2)] == [143, 143]
        for host in (N1, N2):
            cluster[host].wait_until_nobody_is_left()


def test_a_failure_within_the_budget_restarts_all_once_with_a_new_port(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
mark("port", os.environ["MASTER_PORT"] + " " + os.environ["TORCHELASTIC_RESTART_COUNT"])
if ROUND == 1:
    if RANK == 1:
        sys.exit(3)
    beat_until("never")
"""
    with Cluster(tmp_path, "--nnodes=2", "--max-restarts=1", *TWO, etcd=etcd, script=script) as cluster:
        cluster.start(N1, N2)
        ended = [cluster[host].wait() for host in (N1, N2)]
        assert [one.exit_code for one in ended] == [0, 0]
        ports = {
            round: {cluster[host].mark("port", rank, round) for host in (N1, N2) for rank in cluster[host].ranks(round)}
            for round in (1, 2)
        }
        (first,), (second,) = ports[1], ports[2]
        assert (first.split()[1], second.split()[1]) == ("0", "1")
        assert first.split()[0] != second.split()[0]
        assert all("; 1 of 1 restarts used; " in one.stderr for one in ended)
