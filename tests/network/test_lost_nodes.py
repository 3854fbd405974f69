"""Nodes that are lost, cut off or frozen while workers only sleep: who takes over, and that nobody lives twice.

Every worker writes down when it lived, on one clock for all hosts. Whatever happens to a node, no worker of a later
round may have begun before the last one of an earlier round was dead.
"""

from __future__ import annotations

import pytest

from tests.support.jobs.multi_node import FAULT_REPEATS, Cluster, Make
from tests.support.network.namespaces import Direction, Host, Network
from tests.support.waiting import wait_until

NO_RESTARTS = ("--max-restarts", "0")
# What both have frozen in between is for `make slow WHAT=faults`.
FROZEN = [("agent",), ("node",)] if FAULT_REPEATS == 1 else [("agent",), ("agent", "supervisor"), ("node",)]


def with_spare(cluster: Make, hosts: list[Host], *options: str) -> tuple[Cluster, dict[str, list[int]]]:
    """Round 1 on n1, n2 and n3, n4 as a spare; the job and its ranks."""
    job = cluster("--nnodes", "3", *NO_RESTARTS, *options)
    ranks = job.begin(*hosts[:3], workers=6)
    job.start(hosts[3])
    job.wait_for_members("n1", "n2", "n3", "n4")
    return job, ranks


def require_spare_in_its_place(before: dict[str, list[int]], after: dict[str, list[int]], victim: str) -> None:
    expected = {name: ranks for name, ranks in before.items() if name != victim}
    assert after == {**expected, "n4": before[victim]}


def others(job: Cluster, victim: str) -> list[str]:
    return [name for name in job.jobs if name != victim]


def test_a_killed_node_is_replaced_by_the_spare_and_only_its_ranks_are_new(
    cluster: Make, hosts: list[Host], is_leader_victim: bool
) -> None:
    job, before = with_spare(cluster, hosts, "--lease-ttl=15")
    victim = job.victim(is_leader_victim)
    job[victim].kill()
    require_spare_in_its_place(before, job.wait_for_round(2, 6), victim)
    job.finish(*others(job, victim))


def test_without_a_spare_a_killed_node_drops_a_whole_replica(
    cluster: Make, hosts: list[Host], is_leader_victim: bool
) -> None:
    job = cluster("--nnodes", "2:4", "--mesh", "pp=2,dp=*,tp=2", *NO_RESTARTS, "--lease-ttl=15")
    job.begin(*hosts, workers=8)
    victim = job.victim(is_leader_victim)
    job[victim].kill()
    after = job.wait_for_round(2, 4)
    assert sorted(rank for ranks in after.values() for rank in ranks) == [0, 1, 2, 3]
    assert victim not in after
    job.finish(*others(job, victim))


def test_workers_of_a_cut_off_node_are_dead_before_the_next_round_starts(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool, direction: Direction
) -> None:
    job, before = with_spare(cluster, hosts)
    victim = job.victim(is_leader_victim)
    network.cut(victim, direction=direction)
    require_spare_in_its_place(before, job.wait_for_round(2, 6), victim)
    wait_until(lambda: not job[victim].worker_pids(), 20, "the end of the workers that are cut off")
    network.heal(victim)
    job.wait_for_members("n1", "n2", "n3", "n4")
    job.finish()


def test_a_node_that_is_cut_off_from_the_store_alone_is_replaced(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool
) -> None:
    job, before = with_spare(cluster, hosts)
    victim = job.victim(is_leader_victim)
    network.cut(victim, "store")
    require_spare_in_its_place(before, job.wait_for_round(2, 6), victim)
    network.heal(victim)
    job.wait_for_members("n1", "n2", "n3", "n4")
    job.finish()


def test_a_node_that_is_cut_off_from_its_peers_alone_is_replaced(
    cluster: Make, hosts: list[Host], network: Network, is_leader_victim: bool
) -> None:
    job, before = with_spare(cluster, hosts)
    victim = job.victim(is_leader_victim)
    network.cut(victim, *others(job, victim))
    require_spare_in_its_place(before, job.wait_for_round(2, 6), victim)
    job.finish(*others(job, victim))


@pytest.mark.parametrize("parts", FROZEN, ids="+".join)
def test_a_frozen_node_that_thaws_never_has_two_owners_of_one_rank(
    cluster: Make, hosts: list[Host], is_leader_victim: bool, parts: tuple[str, ...]
) -> None:
    job, before = with_spare(cluster, hosts)
    victim = job.victim(is_leader_victim)
    frozen = job[victim].freeze(*parts)
    require_spare_in_its_place(before, job.wait_for_round(2, 6), victim)
    job[victim].thaw(frozen)
    wait_until(lambda: not job[victim].worker_pids(), 20, "the end of the workers that were frozen")
    job.finish(*others(job, victim))
