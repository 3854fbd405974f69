"""meshctl against a job of real agents: status, drain, undrain and stop."""

from __future__ import annotations

import json

from tests.support.jobs import multi_node
from tests.support.jobs.multi_node import Cluster, Make
from tests.support.network.namespaces import Host, Network


def meshctl(network: Network, job: Cluster, *words: str, exit_code: int = 0) -> str:
    """What it prints on a host of its own, as from a login node."""
    done = multi_node.meshctl(*words, endpoint=job.etcd.endpoint, prefix=network.host("login").prefix)
    assert done.returncode == exit_code, done.stderr
    return done.stdout


def test_a_node_is_drained_comes_back_as_a_spare_and_the_job_is_stopped(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool
) -> None:
    job = cluster("--nnodes", "1:3", "--max-restarts", "0", "--grow", "never", "--lease-ttl=15")
    before = job.begin(*hosts[:3], workers=6)
    victim = job.victim(is_leader_victim)

    seen = json.loads(meshctl(network, job, "status", job.run_id, "--json"))
    assert (seen["phase"], seen["round"], seen["world_size"], seen["leader"]) == ("running", 1, 6, job.leader())
    assert {node["name"]: [rank["rank"] for rank in node["ranks"]] for node in seen["nodes"]} == before

    assert meshctl(network, job, "drain", job.run_id, victim).startswith(f"{victim} is drained")
    after = job.wait_for_round(2, 4)
    assert sorted(after) == sorted(name for name in before if name != victim)
    job.wait(victim, exit_code=143)

    host = next(host for host in hosts if host.name == victim)
    job.start(host)  # a drained node may not join
    ended = job[victim].wait()
    assert ended.exit_code != 0
    assert "drained" in ended.stderr
    meshctl(network, job, "undrain", job.run_id, victim)
    job.start(host)
    job.wait_for_members("n1", "n2", "n3")
    assert f"spares    {victim}" in meshctl(network, job, "status", job.run_id)

    assert "was stopped in round 2, exit code 143" in meshctl(network, job, "stop", job.run_id)
    job.wait(exit_code=143)


def test_new_nodes_continue_a_job_once_a_person_declares_all_old_ones_lost(
    cluster: Make, hosts: list[Host], network: Network
) -> None:
    job = cluster("--nnodes", "1:2", "--max-restarts", "0")
    job.begin(*hosts[:2], workers=4)
    for name in ("n1", "n2"):
        job[name].kill()
    job.start(hosts[2])
    job["n3"].says("meshctl takeover")
    assert meshctl(network, job, "takeover", job.run_id).startswith(f"n3 leads run {job.run_id}")
    assert job.wait_for_round(2, 2) == {"n3": [0, 1]}
    job.finish("n3")
    assert meshctl(network, job, "clean", "--all").startswith(f"removed: run {job.run_id}, job ")
    meshctl(network, job, "status", job.run_id, exit_code=2)
