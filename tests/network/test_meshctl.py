"""meshctl against a job of real agents: status, drain, undrain and stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import Host, Network

Make = Callable[..., Cluster]


def meshctl(network: Network, job: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run on a host of its own, as from a login node."""
    program = os.path.join(os.path.dirname(sys.executable), "meshctl")
    command = [*network.host("login").prefix, program, *words, "--rdzv-endpoint", job.etcd.endpoint]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_node_is_drained_comes_back_as_a_spare_and_the_job_is_stopped(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool
) -> None:
    job = cluster("--nnodes", "1:3", "--max-restarts", "0", "--grow", "never")
    job.start(*hosts[:3])
    before = job.wait_for_round(1, 6)
    leader = job.leader()
    victim = leader if is_leader_victim else next(name for name in before if name != leader)

    status = meshctl(network, job, "status", job.run_id, "--json")
    assert status.returncode == 0, status.stderr
    seen = json.loads(status.stdout)
    assert (seen["phase"], seen["round"], seen["world_size"], seen["leader"]) == ("running", 1, 6, leader)
    assert {node["name"]: node["ranks"] for node in seen["nodes"]} == before

    drained = meshctl(network, job, "drain", job.run_id, victim)
    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.startswith(f"{victim} is drained")
    after = job.wait_for_round(2, 4)
    assert sorted(after) == sorted(name for name in before if name != victim)
    assert job[victim].wait().exit_code == 143
    assert job.overlaps() == []

    undrained = meshctl(network, job, "undrain", job.run_id, victim)
    assert undrained.returncode == 0, undrained.stderr
    job.start(next(host for host in hosts if host.name == victim))
    job.wait_for_members("n1", "n2", "n3")
    text = meshctl(network, job, "status", job.run_id).stdout
    assert f"spares    {victim}" in text

    stopped = meshctl(network, job, "stop", job.run_id)
    assert stopped.returncode == 0, stopped.stderr
    assert "was stopped in round 2, exit code 143" in stopped.stdout
    assert {name: job[name].wait().exit_code for name in job.jobs} == dict.fromkeys(job.jobs, 143)


def test_a_drained_node_may_not_join(cluster: Make, hosts: list[Host], network: Network) -> None:
    job = cluster("--nnodes", "1:3", "--join-grace", "0")
    job.start(hosts[0])
    job.wait_for_round(1, 2)
    assert meshctl(network, job, "drain", job.run_id, "n2", "--absent").returncode == 0
    job.start(hosts[1])
    ended = job["n2"].wait()
    assert ended.exit_code != 0
    assert "drained" in ended.stderr
    job.finish()
    assert job["n1"].wait().exit_code == 0


def test_new_nodes_continue_a_job_once_a_person_declares_all_old_ones_lost(
    cluster: Make, hosts: list[Host], network: Network
) -> None:
    job = cluster("--nnodes", "1:2", "--max-restarts", "0")
    job.start(*hosts[:2])
    job.wait_for_round(1, 4)
    for name in ("n1", "n2"):
        job[name].kill()
    job.start(hosts[2])
    job["n3"].says("meshctl takeover")
    taken = meshctl(network, job, "takeover", job.run_id)
    assert taken.returncode == 0, taken.stderr
    assert taken.stdout.startswith(f"n3 leads run {job.run_id}")
    assert job.wait_for_round(2, 2) == {"n3": [0, 1]}
    job.finish()
    assert job["n3"].wait().exit_code == 0
    cleaned = meshctl(network, job, "clean", "--all")
    assert cleaned.stdout.startswith(f"removed: run {job.run_id}, job ")
    assert meshctl(network, job, "status", job.run_id).returncode == 2
