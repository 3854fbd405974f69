"""meshrun-ray on a cluster of real raylets: start, losses of every kind, drain, stop, and what reaches workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil

from tests.ray.conftest import add_node
from tests.ray.running import LIMIT_S, Driver, find_number, find_round
from tests.support.ray_cluster import RayTestCluster
from tests.support.waiting import wait_until

ONE_EACH = ("--nproc-per-node=1", "--bundle=CPU=3", "--max-restarts=9", "--grow=delay=1")


def test_every_node_gets_an_agent_and_the_end_is_a_success(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH) as driver:
        workers = driver.wait_for_world(3)
        assert {find_number(cluster, worker) for worker in workers} == set(cluster.nodes)
        assert len(driver.list_agents()) == 3
        driver.finish()
        assert driver.wait() == 0
        assert all(f"rank {rank} is in round 1" in driver.output for rank in range(3))
        assert "etcd" not in driver.output
        assert not driver.list_processes()


def test_a_directory_may_have_modules_of_our_names(cluster: RayTestCluster, tmp_path: Path) -> None:
    """Ray puts the directory of the job first on the path of its processes."""
    for name in ("launcher", "rendezvous", "msgspec"):
        (tmp_path / f"{name}.py").touch()
    with Driver(cluster, tmp_path, *ONE_EACH) as driver:
        driver.wait_for_world(3)
        driver.finish()
        assert driver.wait() == 0


def test_a_worker_that_is_killed_is_restarted_by_the_same_agents(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH) as driver:
        before = driver.wait_for_world(3)
        agents = {name: agent.pid for name, agent in driver.list_agents().items()}
        os.kill(before[1]["pid"], signal.SIGKILL)
        driver.wait_for_world(3, find_round(before))
        assert {name: agent.pid for name, agent in driver.list_agents().items()} == agents


def test_a_lost_node_makes_the_world_smaller_and_a_new_one_larger(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2:3") as driver:
        before = driver.wait_for_world(3)
        agents = {name: (agent.pid, agent.ppid()) for name, agent in driver.list_agents().items()}
        lost = cluster.kill(find_number(cluster, before[1]))
        smaller = driver.wait_for_world(2, find_round(before))
        del agents[f"ray-{lost.id[:8]}"]
        driver.wait_for(f"the agent on node {lost.id[:8]} is lost: Ray reports the node as dead")
        new = add_node(cluster)
        larger = driver.wait_for_world(3, find_round(smaller))
        assert new in {find_number(cluster, worker) for worker in larger}
        now = {name: (agent.pid, agent.ppid()) for name, agent in driver.list_agents().items()}
        assert {name: now[name] for name in agents} == agents
        assert "; 0 of 9 restarts used" in driver.wait_for(r"round 2: 2 of 2 nodes[^\n]*")
        driver.finish()
        assert driver.wait() == 0


def test_a_spare_takes_the_place_of_a_lost_node(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2", "--spares=1") as driver:
        before = driver.wait_for_world(2)
        driver.wait_for("(which|this node) is a spare")
        cluster.kill(find_number(cluster, before[0]))
        after = driver.wait_for_world(2, find_round(before))
        assert {find_number(cluster, worker) for worker in after} == set(cluster.nodes)


def test_an_agent_leaves_a_node_before_it_is_taken(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2:3") as driver:
        before = driver.wait_for_world(3)
        gone = cluster.nodes[find_number(cluster, before[2])]
        agent = driver.list_agents()[f"ray-{gone.id[:8]}"]
        cluster.drain(gone.number)
        driver.wait_for(f"Ray is removing node {gone.id[:8]}: its agent leaves")
        driver.wait_for_world(2, find_round(before))
        wait_until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE, LIMIT_S, "its end")
        assert gone.number in cluster.nodes  # it is still there: nothing was killed
        driver.finish()
        assert driver.wait() == 0


def test_a_stop_ends_every_agent_and_worker_before_the_driver(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH) as driver:
        driver.wait_for_world(3)
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.wait(10) == 128 + signal.SIGTERM
        assert not driver.list_processes()


def test_the_exit_code_is_that_of_the_worker_that_failed(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, "--nproc-per-node=1", "--bundle=CPU=3") as driver:
        driver.wait_for_world(3)
        driver.finish(7, rank=1)
        assert driver.wait() == 7
        report = driver.output.partition("FAILED")
        assert report[1]
        assert driver.output.count("FAILED") == 1  # the driver's alone
        assert "exit code 7" in driver.output


def test_labels_of_nodes_keep_groups_together(cluster: RayTestCluster, tmp_path: Path) -> None:
    options = ("--nproc-per-node=1", "--bundle=CPU=3", "--mesh=dp=*,tp=2", "--within=tp=leaf", "--nnodes=2:3")
    with Driver(cluster, tmp_path, *options) as driver:
        workers = driver.wait_for_world(2)
        leaves = {cluster.nodes[find_number(cluster, worker)].leaf for worker in workers}
        assert leaves == {"leaf1"}  # the only leaf of two nodes


def test_workers_see_the_devices_of_their_bundle_alone(cluster: RayTestCluster, tmp_path: Path) -> None:
    options = ("--devices=fake:2", "--visible-env=CUDA_VISIBLE_DEVICES", "--bundle=GPU=2")
    with Driver(cluster, tmp_path, *options) as driver:
        first = driver.wait_for_world(6)
        with Driver(cluster, tmp_path, *options) as other:
            second = other.wait_for_world(6)
            for number in cluster.nodes:
                seen = [list_visible(cluster, workers, number) for workers in (first, second)]
                assert len(seen[0]) == len(seen[1]) == 2
                assert sorted(seen[0] | seen[1]) == ["0", "1", "2", "3"]


def list_visible(cluster: RayTestCluster, workers: list[dict[str, Any]], number: int) -> set[str]:
    """The devices that the workers on this node see, all of them together."""
    texts = [one["environ"]["CUDA_VISIBLE_DEVICES"] for one in workers if find_number(cluster, one) == number]
    return {name for text in texts for name in text.split(",")}


def test_an_agent_has_the_chips_of_its_bundle_and_no_gpu(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, "--nproc-per-node=1", "--devices=cpu", "--bundle=TPU=2", "--nnodes=2") as driver:
        driver.wait_for_world(2)
        for agent in driver.list_agents().values():
            environ = agent.environ()
            assert environ["TPU_VISIBLE_CHIPS"] == "0,1"
            assert environ["CUDA_VISIBLE_DEVICES"] == ""


def test_what_ray_sets_for_itself_does_not_reach_workers(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--export=MINE", MINE="7", NOT_MINE="8") as driver:
        (worker, *_) = driver.wait_for_world(3)
        found = worker["environ"]
        assert not {"RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT", "OMP_NUM_THREADS"} & {*found}
        assert found["MINE"] == "7"
        assert "NOT_MINE" not in found
        assert "LAUNCHER_STORE_TOKEN" not in found


def test_nothing_is_left_when_the_driver_is_killed(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH) as driver:
        driver.wait_for_world(3)
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        wait_until(lambda: not driver.list_processes(), 10.0, "the end of agents and workers")


def test_nodes_that_ray_cannot_give_are_named(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=5") as driver:
        said = driver.wait_for(r"wanted [^\n]*")
        assert "wanted 5 nodes with CPU=3, present 0, since " in said
        assert "of 4 nodes in the Ray cluster 3 can hold that when idle" in said
        driver.process.send_signal(signal.SIGTERM)
        assert driver.wait(10) == 128 + signal.SIGTERM


def test_waiting_for_nodes_ends_where_a_limit_is_set(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=5", "--start-timeout=2") as driver:
        assert driver.wait() == 75
        assert "Ray has not given the job its nodes for 2 s (--start-timeout)" in driver.output


def test_two_jobs_on_one_cluster_do_not_meet(cluster: RayTestCluster, tmp_path: Path) -> None:
    options = ("--nproc-per-node=1", "--bundle=CPU=1", "--nnodes=3")
    with Driver(cluster, tmp_path, *options) as one, Driver(cluster, tmp_path, *options) as other:
        one.wait_for_world(3)
        other.wait_for_world(3)
        one.finish(3)
        assert one.wait() == 3
        other.finish()
        assert other.wait() == 0


def test_an_old_version_of_ray_is_refused(cluster: RayTestCluster, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import ray\nray.__version__ = '2.40.0'\n")
    with Driver(cluster, tmp_path, *ONE_EACH, PYTHONPATH=str(tmp_path)) as driver:
        assert driver.wait() == 2
        assert "meshrun-ray needs Ray 2.51 or newer, but 2.40.0 is installed" in driver.output


def test_an_agent_that_is_killed_is_started_again(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2:3") as driver:
        before = driver.wait_for_world(3)
        agents = driver.list_agents()
        agents.popitem()[1].kill()
        smaller = driver.wait_for_world(2, find_round(before))
        driver.wait_for("was ended by signal 9; it is started again in")
        driver.wait_for_world(3, find_round(smaller))


def test_an_actor_that_is_killed_is_replaced_and_nothing_is_charged(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2:3") as driver:
        before = driver.wait_for_world(3)
        os.kill(driver.list_agents().popitem()[1].ppid(), signal.SIGKILL)
        driver.wait_for("is lost: its actor has died")
        smaller = driver.wait_for_world(2, find_round(before))
        larger = driver.wait_for_world(3, find_round(smaller))
        driver.wait_for(f"round {find_round(larger)}: 3 of 3 nodes")  # Ray brings lines later than they are written
        assert "; 0 of 9 restarts used" in driver.wait_for(rf"round {find_round(larger)}: 3 of 3 nodes[^\n]*")


def test_the_job_ends_though_a_node_never_comes_back(cluster: RayTestCluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path, *ONE_EACH, "--nnodes=2:3") as driver:
        before = driver.wait_for_world(3)
        cluster.kill(find_number(cluster, before[0]))
        driver.wait_for_world(2, find_round(before))
        driver.wait_for("wanted 3 nodes with CPU=3, present 2")
        driver.finish()
        assert driver.wait() == 0
