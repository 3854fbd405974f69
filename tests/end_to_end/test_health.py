"""A node that is not fit does not join, says why, and looks again; nothing of its check is left behind: whole jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.jobs.multi_node import SLEEP, Cluster
from tests.support.jobs.single_node import Job, run
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

N1, N2 = loopback_hosts(2)
TRAIN = """
print("training")
mark("trained")
"""
# A check that leaves a child in a session of its own, which nobody would find by its group or its parent.
LEAVES_A_CHILD = "setsid sh -c 'echo $$ > child; exec sleep 1000' & "


def test_a_node_joins_once_its_check_passes(tmp_path: Path) -> None:
    check = "read typed; echo to stdout $typed; echo to stderr >&2; test -e fit"
    with Job(tmp_path, "--health-check", check, script=TRAIN, prefix=("sh", "-c", 'echo typed | "$@"', "sh")) as job:
        job.says("this node does not join yet")
        assert not job.has_mark("trained", 0, 1)
        (tmp_path / "fit").touch()
        ended = job.wait()
    assert ended.exit_code == 0
    assert ended.stdout == "training\n", "what a check prints is not the workers'"
    assert ended.stderr.startswith(
        "meshrun: this node does not join yet: --health-check exited with code 1; its last lines:\n"
        "  | to stdout\n"
        "  | to stderr\n"
        "meshrun: retrying for 600 s (--start-timeout), with pauses of 1 s to 60 s\n"
        "meshrun: --health-check passed after "
    )
    assert "meshrun: this node is fit now\nmeshrun: 1 worker" in ended.stderr


def test_a_node_that_stays_unfit_gives_up(tmp_path: Path) -> None:
    flood = "i=0; while test $i -lt 3000; do i=$((i+1)); echo line $i of the very same length; done; date +%N"
    check = f"{flood}; printf 'gpu 3: \\033[31mECC\\033[0m\\nmeshrun: all is well\\n'; env | grep -c SECRET; kill -9 $$"
    secret = {"LAUNCHER_JOB_SECRET": "hush", "SLURM_PROCID": "3"}
    with Job(tmp_path, "--health-check", check, "--start-timeout=1.1", script=TRAIN, env=secret) as job:
        ended = job.wait()
        job.wait_until_nobody_is_left()
    assert ended.exit_code == 75
    error = "this node was not fit to join within 1.1 s: --health-check was killed by SIGKILL; its last lines:\n"
    assert ended.stderr.count(f"meshrun: error: {error}") == 1
    last = ended.stderr[ended.stderr.index(error) :].splitlines()
    assert last[1:7] == [f"  | line {number} of the very same length" for number in range(2995, 3001)]
    assert last[8:] == [
        "  | gpu 3: \\x1b[31mECC\\x1b[0m",
        "  | meshrun: all is well",
        "  | 0",
        "hint: set a longer --start-timeout to retry for longer",
    ]
    assert ended.stderr.count("does not join") == 1, "of three looks the second gave the same reason, in other words"
    assert not job.has_mark("trained", 0, 1)


def test_a_check_that_hangs_is_killed_with_all_its_children(tmp_path: Path) -> None:
    check = LEAVES_A_CHILD + "exec >&- 2>&-; trap '' TERM; sleep 1000; :"
    options = ("--health-check", check, "--start-timeout=0.1")
    with Job(tmp_path, *options, script=TRAIN, env={"LAUNCHER_HEALTH_TIMEOUT": "0.5"}) as job:
        ended = job.wait()
        assert not job.left()
    assert ended.exit_code == 75
    assert "--health-check had not ended after 0.5 s and was killed, and printed nothing\n" in ended.stderr


def test_what_a_check_leaves_running_is_gone_before_the_workers_start(tmp_path: Path) -> None:
    script = "child = open('child').read().strip()\nmark('alive', str(os.path.exists('/proc/' + child)))"
    check = LEAVES_A_CHILD + "while ! test -s child; do sleep 0.01; done"
    job = run(tmp_path, "--health-check", check, script=script)
    assert job.mark("alive", 0, 1) == "False"


def test_a_signal_ends_a_check_and_the_wait_for_the_next_one(tmp_path: Path) -> None:
    for check, said in ((LEAVES_A_CHILD + "touch runs; sleep 1000", "runs"), ("touch runs; false", "retrying for")):
        (tmp_path / "runs").unlink(missing_ok=True)
        with Job(tmp_path, "--health-check", check, script=TRAIN) as job:
            if said == "runs":
                wait_until((tmp_path / "runs").exists, what="the check")
            else:
                job.says(said)
            job.send(signal.SIGTERM)
            ended = job.wait()
            assert not job.left()
        assert ended.exit_code == 143
        assert ended.stderr.endswith("meshrun: error: stopped by SIGTERM before this node had joined\n")


@pytest.mark.parametrize("victim", ["agent", "supervisor"])
def test_a_check_outlives_neither_its_agent_nor_the_supervisor(tmp_path: Path, victim: str) -> None:
    check = LEAVES_A_CHILD + "while ! test -s child; do sleep 0.01; done; touch runs; sleep 1000"
    with Job(tmp_path, "--health-check", check, script=TRAIN) as job:
        wait_until((tmp_path / "runs").exists, what="the check")
        os.kill(job.pid if victim == "agent" else job.supervisor_pid, signal.SIGKILL)
        ended = job.wait()
        if victim == "agent":
            job.wait_until_nobody_is_left()
        else:
            assert not job.left()
            assert ended.exit_code == 137
            assert "was killed by SIGKILL" in ended.stderr


def test_other_nodes_do_not_see_one_that_is_not_fit(tmp_path: Path, etcd: EtcdServer) -> None:
    common = ("--nproc-per-node=1", "--nnodes=1:2", "--join-grace=0", "--grow=never")
    with Cluster(tmp_path, *common, etcd=etcd, script=SLEEP) as job:
        job.begin(N1, workers=1)
        job.start(N2, options=("--health-check", "test -e fit"))
        job[N2].says("this node does not join yet")
        assert job.members() == ["n1"]
        (tmp_path / "n2/fit").touch()
        job.wait_for_members("n1", "n2")
        job.finish()
