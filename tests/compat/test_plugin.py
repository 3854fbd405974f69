"""Stock torchrun with `--rdzv-backend=meshrun`: its own launcher, our agreement and placement, a real etcd."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.torchrun import UNTIL_FINISH, Torchruns, kill
from tests.support.processes.tree import REPOSITORY, state
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
is_stale = store.check(["written by an earlier round"])
total = torch.ones(1)
dist.all_reduce(total)
store.set("written by an earlier round", "1")
tell(total=total.item(), stale=is_stale)
"""
LEAVE = "dist.barrier()\ndist.destroy_process_group()\n"  # else a thread of gloo's may abort the process as it ends
BOTH = {"LAUNCHER_TARGET_NODES": "2"}  # before the first round
CRASH_ONCE = """
if SEEN["TORCHELASTIC_RESTART_COUNT"] == 0 and SEEN["RANK"] == 1:
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server


def test_workers_of_two_nodes_meet_in_one_store_and_inherit_no_secret(etcd: EtcdServer, tmp_path: Path) -> None:
    script = "assert 'LAUNCHER_JOB_SECRET' not in os.environ\n" + ALL_REDUCE + LEAVE
    secret = {"LAUNCHER_JOB_SECRET": "a secret"}
    with Torchruns(tmp_path, etcd, "--nnodes=2", "--nproc-per-node=2", script=script, environ=secret) as job:
        job.start(2)
        job.start(1)
        assert job.wait() == {"n1": 0, "n2": 0}
        seen = job.wait_for(4, total=4.0, stale=False, SHARED="True", ADDR="127.0.0.21")
        assert sorted((one["NODE"], one["RANK"]) for one in seen) == [("n1", 0), ("n1", 1), ("n2", 2), ("n2", 3)]


def test_rank_0_serves_the_store_where_torchrun_s_agents_shall_not(etcd: EtcdServer, tmp_path: Path) -> None:
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with Torchruns(tmp_path, etcd, "--nnodes=2", script=ALL_REDUCE + LEAVE, environ=own) as job:
        job.start(1)
        job.start(2)
        assert job.wait() == {"n1": 0, "n2": 0}
        job.wait_for(2, total=2.0, SHARED="False", ADDR="127.0.0.21")


def test_a_crash_makes_a_new_round_with_a_store_of_its_own(etcd: EtcdServer, tmp_path: Path) -> None:
    options = ("--nnodes=2", "--max-restarts=2")
    with Torchruns(tmp_path, etcd, *options, script=ALL_REDUCE + CRASH_ONCE + LEAVE) as job:
        job.start(1)
        job.start(2)
        assert job.wait() == {"n1": 0, "n2": 0}
        seen = job.wait_for(4, total=2.0, stale=False)
        assert len({one["MASTER_PORT"] for one in seen}) == 2


def test_a_killed_node_shrinks_the_world_and_a_new_one_makes_it_grow(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=1:2", script=UNTIL_FINISH, environ=BOTH) as job:
        first, second = job.start(1), job.start(2)
        job.wait_for(2, WORLD_SIZE=2)
        kill(second)
        job.wait_for(1, WORLD_SIZE=1, NODE="n1", RANK=0)
        job.start(3)
        job.wait_for(1, WORLD_SIZE=2, NODE="n3", RANK=1)
        job.finish()
        assert first.wait().exit_code == 0
        assert job.agents["n3"].wait().exit_code == 0
        assert all(one["TORCHELASTIC_RESTART_COUNT"] == 0 for one in job.seen())  # torchrun's budget is untouched


def test_nodes_are_numbered_by_place_and_not_by_luck_or_as_text(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=3", script="tell()") as job:
        for number in (10, 9):
            job.start(number).says("n10 leads")
        job.start(2)
        assert set(job.wait().values()) == {0}
        order = sorted(job.seen(), key=lambda one: int(one["GROUP_RANK"]))
        assert [one["NODE"] for one in order] == ["n2", "n9", "n10"]


def test_a_node_beyond_whole_replicas_is_a_spare_that_takes_over(etcd: EtcdServer, tmp_path: Path) -> None:
    options = ("--nnodes=2:4", "--nproc-per-node=2", "--rdzv-conf=nproc=2")
    mesh = {"LAUNCHER_MESH": "dp=*,tp=4", "LAUNCHER_TARGET_NODES": "3"}
    with Torchruns(tmp_path, etcd, *options, script=UNTIL_FINISH, environ=mesh) as job:
        for number in (1, 2, 3):
            job.start(number)
        job.wait_for(4, WORLD_SIZE=4)
        spare = job.agents["n3"]
        spare.says("is a spare")
        kill(job.agents["n1"])
        ranks = {(one["NODE"], one["RANK"]) for one in job.wait_for(2, NODE="n3", WORLD_SIZE=4)}
        assert ranks == {("n3", 0), ("n3", 1)}  # those of the node that is lost
        job.start(4).says("is a spare")
        job.finish()
        codes = job.wait()
        assert (codes["n2"], codes["n3"], codes["n4"]) == (0, 0, 0)


def test_a_job_that_has_failed_ends_everywhere_and_its_name_is_free(etcd: EtcdServer, tmp_path: Path) -> None:
    script = "tell()\nif SEEN['RANK'] == 1:\n    sys.exit(3)\nwait_for('finish')\n"
    with Torchruns(tmp_path, etcd, "--nnodes=2", script=script) as job:
        job.start(1)
        job.start(2)
        assert job.wait() == {"n1": 1, "n2": 1}
        assert "RendezvousClosedError: run " in job.agents["n1"].stderr
        assert "workers are not restarted on node n2" in job.agents["n1"].stderr
        assert "ChildFailedError" in job.agents["n2"].stderr
    (tmp_path / "seen").unlink()
    with Torchruns(tmp_path, etcd, "--nnodes=2", script="tell()", run_id=job.run_id) as again:
        again.start(1)
        again.start(2)
        assert again.wait() == {"n1": 0, "n2": 0}
        again.wait_for(2, WORLD_SIZE=2)
    with Torchruns(tmp_path, etcd, "--nnodes=2", script="tell()", run_id=job.run_id) as late:
        late.start(1)
        assert late.wait() == {"n1": 0}
        assert "has already ended: all workers succeeded" in late.agents["n1"].stderr


def test_an_agent_without_restarts_ends_the_job_if_another_failed_first(etcd: EtcdServer, tmp_path: Path) -> None:
    script = (
        "tell()\n"
        "if SEEN['RANK'] and not SEEN['TORCHELASTIC_RESTART_COUNT']:\n"  # round 1: it fails alone
        "    while len(open('../seen').readlines()) < 2:\n        time.sleep(0.01)\n"
        "    sys.exit(3)\n"
        "wait_for(f\"fail-{SEEN['RANK']}\")\n"
        "sys.exit(4)\n"
    )
    with Torchruns(tmp_path, etcd, "--nnodes=2", "--max-restarts=1", script=script) as job:
        first = job.start(1)
        keys = f"/meshrun/{job.run_id}/"
        wait_until(lambda: "/ctl/leader" in etcd.ctl("get", "--prefix", "--keys-only", keys), 60, "the first to lead")
        second = job.start(2)
        worker = max(job.wait_for(4), key=lambda one: (one["TORCHELASTIC_RESTART_COUNT"], one["RANK"]))["PID"]
        second.send(signal.SIGSTOP)  # it looks when both have failed and the round is being stopped
        (tmp_path / "fail-1").touch()
        wait_until(lambda: state(worker) == "Z", 60, "the end of the second node's worker")
        (tmp_path / "fail-0").touch()
        first.says("stopping round 2 (a worker failed on node n1")
        second.send(signal.SIGCONT)
        assert job.wait() == {"n1": 1, "n2": 1}
        assert "workers are not restarted on node n2" in first.stderr


def test_a_handler_that_was_never_asked_for_a_round_has_nobody_to_wait_for(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from launcher.extensions.torchrun import handler
    from meshrun import create_handler

    monkeypatch.setattr(handler, "LEAVE_LIMIT_S", 0.0)
    monkeypatch.setenv("LAUNCHER_NODE_NAME", "n1")
    told = RendezvousParameters("meshrun", etcd.endpoint, "unasked", 1, 1)
    unasked = create_handler(told)  # type: ignore[arg-type]  # whose settings may be of any kind
    assert unasked.shutdown()
    end = unasked._membership.end
    assert end is not None
    assert end.reason.kind == "torchrun/ended"  # known at once


def test_a_node_that_is_told_to_end_leaves_the_others_running(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=1:2", script=UNTIL_FINISH, environ=BOTH) as job:
        job.start(1)
        second = job.start(2)
        job.wait_for(2, WORLD_SIZE=2)
        second.send(signal.SIGTERM)
        assert second.wait().exit_code != 0
        job.agents["n1"].says("node n2 leaving in round 1")
        job.wait_for(1, WORLD_SIZE=1, NODE="n1")
        job.finish()
        assert job.agents["n1"].wait().exit_code == 0


def test_a_store_that_is_away_stops_nobody_and_meshctl_s_requests_are_met(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=1:2", script=UNTIL_FINISH, environ=BOTH) as job:
        agents = [job.start(1), job.start(2)]
        job.wait_for(2, WORLD_SIZE=2)
        etcd.stop()
        for agent in agents:
            agent.says("did not answer within")
        etcd.cont()
        for agent in agents:
            agent.says("the store answers again")
        assert len(job.seen()) == 2
        meshctl = (sys.executable, "-m", "launcher.meshctl.main")
        for name, words in (("n2", ("drain", job.run_id, "n2")), ("n1", ("stop", job.run_id))):
            command = [*meshctl, *words, "--rdzv-endpoint", etcd.endpoint]
            subprocess.run(command, check=True, cwd=REPOSITORY, timeout=60, stdout=subprocess.DEVNULL)
            assert job.agents[name].wait().exit_code == 1
        job.wait_for(1, WORLD_SIZE=1, NODE="n1")
        assert "RendezvousClosedError: run" in agents[1].stderr
        assert "node n2 was drained" in agents[1].stderr


def test_a_node_that_was_frozen_stops_its_workers_and_comes_back(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=1:2", script=UNTIL_FINISH, environ=BOTH) as job:
        job.start(1)
        second = job.start(2)
        before = job.wait_for(2, WORLD_SIZE=2)
        second.send(signal.SIGSTOP)
        job.wait_for(1, WORLD_SIZE=1, NODE="n1")
        second.send(signal.SIGCONT)
        job.wait_for(4, WORLD_SIZE=2)
        old = next(one["PID"] for one in before if one["NODE"] == "n2")
        wait_until(lambda: old not in second.left(), what="the end of the worker of round 1")
        job.finish()
        assert job.wait() == {"n1": 0, "n2": 0}


def test_a_node_that_succeeded_does_not_end_if_the_others_must_run_again(etcd: EtcdServer, tmp_path: Path) -> None:
    script = "tell()\nif SEEN['RANK'] == 1:\n    wait_for('finish')\n    sys.exit(3)\n"
    with Torchruns(tmp_path, etcd, "--nnodes=1:2", "--max-restarts=1", script=script, environ=BOTH) as job:
        first = job.start(1)
        job.start(2)
        pid = job.wait_for(1, RANK=0)[0]["PID"]
        wait_until(lambda: pid not in first.left(), what="the end of rank 0")
        job.finish()
        assert job.wait() == {"n1": 1, "n2": 0}  # the other runs again as rank 0
        assert "torchrun cannot run them again, so this node leaves" in first.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rdzv-id=none",), "ValueError: an etcd rendezvous needs --rdzv-id"),
        (
            ("--rdzv-endpoint=127.0.0.1:9", "--rdzv-conf=join_timeout=1"),
            "RendezvousConnectionError: no store could be used within 1 s: 127.0.0.1:9 cannot be reached",
        ),
        (("--rdzv-conf=nproc=3",), "ValueError: torchrun starts 1 workers here, but the placement expects 3"),
    ],
)
def test_what_cannot_work_is_one_sentence_at_the_end(
    etcd: EtcdServer, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    with Torchruns(tmp_path, etcd, script="tell()") as job:
        agent = job.start(1, *options)
        assert agent.wait().exit_code == 1
        assert words in agent.stderr
        assert not job.seen()


def test_nodes_are_numbered_by_where_they_stand(etcd: EtcdServer, tmp_path: Path) -> None:
    with Torchruns(tmp_path, etcd, "--nnodes=4", script="tell()") as job:
        for number, leaf in enumerate(("west", "east", "west", "east"), 1):
            job.start(number, f"--rdzv-conf=nproc=1,locality=zone=a/leaf={leaf}")
        assert set(job.wait().values()) == {0}
        ranks = {one["NODE"]: one["RANK"] for one in job.seen()}
        assert sorted(ranks[name] for name in ("n1", "n3")) in ([0, 1], [2, 3])
        assert "round 1: 4 of 4 nodes, 4 ranks; the job spans 2 leaves" in job.agents["n1"].stderr


def test_an_etcd_with_tls_and_users_is_reached_by_the_same_settings(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    (tmp_path / "password").write_text("a password\n")
    with EtcdServer("3.4", tmp_path / "etcd", tls=certificates) as server:
        server.set_up_users(root_password="another", users={"trainer": ("a password", "/team/")})
        conf = f"cacert={certificates.authority},user=trainer,password_file={tmp_path / 'password'},etcd_prefix=team"
        with Torchruns(tmp_path, server, f"--rdzv-conf={conf}", script="tell()") as job:
            job.start(1, f"--rdzv-endpoint=etcds://{server.endpoint}")
            assert job.wait() == {"n1": 0}
            job.wait_for(1, WORLD_SIZE=1)
