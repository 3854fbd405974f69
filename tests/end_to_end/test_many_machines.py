"""Jobs of several agents, each at a loopback address of its own, over a store that one of them serves and over etcd."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import free_port, loopback_hosts
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer

N1, N2, N3 = loopback_hosts(3)
TWO = ("--nproc-per-node=2", "--lease-ttl=15", "--join-grace=0.5")
HOST = ("--rdzv-conf=is_host=1",)

TELL = """
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "TORCHELASTIC_RUN_ID")
mark("env", " ".join(os.environ[name] for name in names))
mark("python", sys.executable)
"""
SECRETS = """
leaked = [name for name in os.environ if "SECRET" in name or "TOKEN" in name or "PASSWORD" in name]
mark("leaked", ",".join(leaked) or "none")
"""


@pytest.fixture
def endpoint() -> str:
    """Where an agent of the first host shall serve the store."""
    return f"{N1.address}:{free_port(N1.address)}"


def served(
    directory: Path, endpoint: str, *options: str, script: str = "", env: dict[str, str] | None = None
) -> Cluster:
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", "--nnodes=2")
    return Cluster(directory, *meeting, *TWO, *options, script=script, env=env)


def test_two_agents_agree_on_who_is_who(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd, script=TELL) as cluster:
        cluster.start(N1, N2)
        ended = cluster.wait()
        ranks = cluster.ranks(1)
        (first, second) = sorted(ranks, key=lambda name: ranks[name])
        assert (ranks[first], ranks[second]) == ([0, 1], [2, 3])
        words = [cluster[name].mark("env", rank, 1).split() for name in (first, second) for rank in ranks[name]]
        (port,) = {word[6] for word in words}
        master = (cluster[first].host.address, port, cluster.run_id)
        assert [tuple(word) for word in words] == [
            ("4", str(local), "2", str(node), "2", *master) for node in (0, 1) for local in (0, 1)
        ]
        assert cluster[first].mark("python", 0, 1) == sys.executable
        for host, one in zip((N1, N2), ended, strict=True):
            assert f"meshrun: {host.name} ({host.address}:" in one.stderr
            assert "meshrun: round 1: 2 of 2 nodes, 4 ranks, dp=4; ranks " in one.stderr


def test_an_agent_that_serves_the_store_says_what_its_loss_means(tmp_path: Path, endpoint: str) -> None:
    with served(tmp_path, endpoint) as cluster:
        cluster.start(N2)
        cluster[N2].says(f"waiting up to 600 s (--start-timeout) for the store: {endpoint} cannot be reached")
        cluster.start(N1, options=HOST)
        where = ", for this host alone" if endpoint.startswith("127.") else ""
        sentence = f"this agent serves the job's store at {endpoint}{where}; if it is lost, the job is lost"
        assert [sentence in one.stderr for one in cluster.wait(N1, N2)] == [True, False]


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
        ranks = cluster.wait_for_round(1, 4)
        (spare,) = {"n1", "n2", "n3"} - ranks.keys()
        cluster[spare].says("is a spare")
        (tmp_path / "fail").touch()
        culprit = next(name for name, own in ranks.items() if 3 in own)
        for name, one in zip(cluster.jobs, cluster.wait(exit_code=7), strict=True):
            box = one.stderr[one.stderr.index("=" * 80) :]
            assert f"Root Cause (first observed failure): rank 3 on {culprit}" in box
            there = "" if name == culprit else f"{culprit}:"
            assert f"  log       : {there}/" in box
            assert "I am the cause" in box


def test_every_agent_shows_the_exception_of_a_script_without_record(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
if RANK == 1:
    beat_until("../fail")
    raise ValueError("bad shape")
beat_until("never")
"""
    with Cluster(tmp_path, "--nnodes=2", etcd=etcd, script=script) as cluster:
        ranks = cluster.begin(N1, N2, workers=2)
        (tmp_path / "fail").touch()
        culprit = next(name for name, own in ranks.items() if 1 in own)
        for name, one in zip(cluster.jobs, cluster.wait(exit_code=1), strict=True):
            output, _, box = one.stderr.partition("=" * 80)
            assert f"rank 1 on {culprit}\n  ValueError: bad shape\n    File " in box
            assert "further up" not in box
            assert ("ValueError: bad shape" in output) == (name == culprit)


def test_a_spare_replaces_a_killed_node_and_the_others_keep_their_ranks(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        first = cluster.begin(N1, N2, workers=4)
        cluster.start(N3)
        cluster[N3].says("is a spare")
        assert cluster.ranks(2) == {}
        lost, kept = (N1, N2) if 0 in first["n1"] else (N2, N1)
        cluster[lost].kill()
        assert cluster.wait_for_round(2, 4) == {kept.name: first[kept.name], "n3": first[lost.name]}
        cluster.finish(kept, N3)
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
        (ended,) = cluster.wait(N2, exit_code=128 + signal.SIGUSR2)
        assert "SIGUSR2 announces a preemption" in ended.stderr
        cluster[N2].marks("asked", first["n2"])
        cluster.wait_for_round(2, 4)
        going.touch()
        (ended,) = cluster.wait(N3, exit_code=143)
        assert f"{going} announces a preemption" in ended.stderr
        cluster.wait_for_round(3, 2)
        cluster[N1].send(signal.SIGUSR1)  # that no option names
        (ended,) = cluster.wait(N1, exit_code=128 + signal.SIGUSR1)
        assert "stopped by SIGUSR1" in ended.stderr


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
        cluster.begin(N1, workers=2)
        cluster.start(N2)
        cluster[N2].says("is a spare")
        assert cluster.ranks(2) == {}
        (tmp_path / "save").touch()
        assert cluster[N1].mark("heard", 0, 1) == "True"
        cluster.wait_for_round(2, 4)
        cluster.finish()


def test_secrets_reach_neither_workers_nor_logs_nor_the_command_line(tmp_path: Path, endpoint: str) -> None:
    token, secret = "token-of-the-store", "secret-of-the-job"
    (tmp_path / "secret").write_text(secret + "\n")
    env = {"LAUNCHER_STORE_TOKEN": token, "LAUNCHER_JOB_SECRET_FILE": str(tmp_path / "secret")}
    with served(tmp_path, endpoint, script=SECRETS, env=env) as cluster:
        cluster.start(N1, options=HOST)
        cluster.start(N2)
        ended = cluster.wait()
        for name, ranks in cluster.ranks(1).items():
            # The token by which the test finds its processes is the test's own.
            assert set(cluster[name].marks("leaked", ranks)) <= {"none", "MESHRUN_TEST_TOKEN"}
        assert not any(word in one.stderr for one in ended for word in (token, secret))


def test_the_loss_of_the_agent_that_serves_the_store_ends_the_job(tmp_path: Path, endpoint: str) -> None:
    options = ("--lease-ttl=3", "--rejoin-timeout=3", "--store-outage=stop")
    with served(tmp_path, endpoint, *options, script="beat_until('never')") as job:
        job.start(N1, options=HOST)
        job.begin(N2, workers=4)
        job[N1].kill()
        job.wait(N2, exit_code=75)
        job[N2].wait_until_nobody_is_left()


def test_over_tls_with_a_user_whose_password_lies_in_a_file(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    password = tmp_path / "password"
    with EtcdServer("3.4", tmp_path / "etcd", tls=certificates, flags=("--bcrypt-cost", "4")) as server:
        server.set_up_users(root_password="root", users={"trainer": ("right", "/meshrun/")})
        conf = f"--rdzv-conf=protocol=https,cacert={certificates.authority},user=trainer,password_file={password}"
        password.write_text("right\n")
        with Cluster(tmp_path, *TWO, "--nnodes=2", conf, etcd=server, script="") as cluster:
            cluster.start(N1, N2)
            cluster.wait()
        for word, more, sentence in (
            ("wrong", "", "does not accept this user and password"),
            ("right", ",etcd_prefix=other", "denies this user"),
        ):
            password.write_text(f"{word}\n")
            with Cluster(tmp_path, *TWO, conf + more, etcd=server) as cluster:
                cluster.start(N1)
                (ended,) = cluster.wait(exit_code=75)
            assert sentence in ended.stderr
            assert word not in ended.stderr


def test_a_signal_to_all_agents_at_once_stops_the_job_and_leaves_nothing(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, "--nnodes=2", *TWO, etcd=etcd) as cluster:
        cluster.begin(N1, N2, workers=4)
        for host in (N1, N2):
            cluster[host].send(signal.SIGTERM)
        cluster.wait(exit_code=143)
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
        ended = cluster.wait()
        (before,), (after,) = (
            {word for name, ranks in cluster.ranks(round).items() for word in cluster[name].marks("port", ranks, round)}
            for round in (1, 2)
        )
        assert (before.split()[1], after.split()[1]) == ("0", "1")
        assert before.split()[0] != after.split()[0]
        assert all("; 1 of 1 restarts used; " in one.stderr for one in ended)
