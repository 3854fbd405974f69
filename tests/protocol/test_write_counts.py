"""What a restart costs the store, in exact figures: a write more is a disk more, on the way of every restart.

A worker fails in a simulated cluster whose messages all take a millisecond, whose processes stop in 50 ms, and whose
planner takes as long as a message. So the time until the last node runs again, less what the processes take to stop,
is the number of messages that follow one another.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from rendezvous.events import KeepAlive, StoreRequest, get_request_kind
from rendezvous.settings import Settings
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.config import Shape
from tests.simulation.host import Host
from tests.simulation.network import NetworkModel

STOP_S = 0.05
MESSAGE_S = 0.001


class Restart:
    """A restart of `count` nodes after a failure on the leader's node, or on another one."""

    def __init__(self, count: int, *, is_leaders: bool, **settings: object) -> None:
        self.writes: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        limits = Settings(join_grace_s=1.0, max_restarts=9, observe_pause_s=0.0, **settings)  # type: ignore[arg-type]
        cluster = SimulatedCluster(
            random=Random(1),
            settings=limits,
            shape=Shape(nodes_min=count, nodes_max=count),
            network=NetworkModel(delay_s=(MESSAGE_S, MESSAGE_S)),
        )
        cluster.config.stop_s = STOP_S
        nodes = [cluster.add(f"n{index}") for index in range(count)]
        for node in nodes:
            node.start()
        cluster.run(3.0)
        cluster.observers.before_request = self._count
        failed_at = cluster.now
        next(node for node in nodes if node.is_leader == is_leaders).processes.fail(3)
        while any(node.running is None or node.running.round != 2 for node in nodes):
            assert cluster.step()
        self.messages = round((cluster.now - failed_at - STOP_S) / MESSAGE_S)
        cluster.run(cluster.now + 0.02)  # what is still on its way counts too

    def _count(self, host: Host, store_request: StoreRequest) -> None:
        if not isinstance(store_request.request, KeepAlive):
            kinds = self.writes if get_request_kind(store_request.request) == "write" else self.reads
            kinds[store_request.kind] += 1


@pytest.mark.parametrize("count", [2, 8])
def test_a_failure_on_a_follower_costs_four_writes_one_after_the_other(count: int) -> None:
    restart = Restart(count, is_leaders=False)
    assert restart.writes == {"report": count + 1, "stop": 1, "seal": 1}
    assert restart.reads == {"read assignment": count}
    # Failed, stop, stopped, seal: each to the store, and from it to those who wait for it; then the assignment.
    assert restart.messages == 4 * 2 + 2


@pytest.mark.parametrize("count", [2, 8])
def test_a_failure_on_the_leader_s_node_costs_three(count: int) -> None:
    restart = Restart(count, is_leaders=True)
    assert restart.writes == {"report": count, "stop": 1, "seal": 1}
    assert restart.reads == {"read assignment": count}
    assert restart.messages == 3 * 2 + 2


def test_assignments_that_do_not_fit_into_the_seal_s_transaction_cost_more() -> None:
    restart = Restart(8, is_leaders=False, operations_per_txn=8)
    assert restart.writes == {"report": 9, "stop": 1, "assign": 1, "seal": 1}
    assert restart.messages == 4 * 2 + 2 + 2
