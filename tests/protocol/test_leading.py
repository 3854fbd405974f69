"""What a leader leaves in the store: who stands by and why, what was, who shall lead next; and what it ignores."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from rendezvous import __version__, records
from rendezvous.events import PlanReady
from rendezvous.leader import commit, leader
from rendezvous.policy.view import View
from rendezvous.reasons import Reason
from rendezvous.records import Command, RoundHistory, Seal, Spares, Status, Verdict
from rendezvous.settings import Settings
from rendezvous.state.state import Leadership, MemberState
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.config import PREFIX, RUN_ID, Shape
from tests.support.protocol.views import first_round

NODE_A, NODE_B = (Reason.of("nodes", names=(name,), count=1) for name in "ab")


class Job:
    """A simulated cluster with its store laid open. The processes of a node end only when a test says so."""

    def __init__(self, nodes: str, shape: Shape, **settings: Any) -> None:
        self.said: list[str] = []
        limits = Settings(**{"join_grace_s": 1.0, "max_restarts": 9, **settings})
        self.cluster = SimulatedCluster(random=Random(1), settings=limits, shape=shape, trace=self.said.append)
        self.cluster.config.stop_s = 0.05
        for name in nodes:
            self.cluster.add(name).start()
        self.run(3.0)

    def run(self, seconds: float) -> None:
        self.cluster.run(self.cluster.now + seconds)

    def start(self, name: str) -> None:
        self.cluster.add(name).start()
        self.run(1.0)

    def fail(self, name: str) -> None:
        self.cluster.nodes[name].processes.fail(3)
        self.run(2.0)

    @property
    def keys(self) -> records.Keys:
        current = self.cluster.storage.store.get(records.make_current_key(PREFIX, RUN_ID)).first
        assert current is not None
        return records.make_job_keys(PREFIX, RUN_ID, current.value.decode())

    def id(self, name: str) -> str:
        protocol = self.cluster.nodes[name].machine
        assert protocol is not None
        return protocol.member_id

    def read(self, kind: type[records.AnyRecord], key: str) -> records.AnyRecord:
        item = self.cluster.storage.store.get(key).first
        assert item is not None
        return records.decode(kind, item.value, key)

    def has(self, key: str) -> bool:
        return self.cluster.storage.store.get(key).first is not None

    def put(self, key: str, value: bytes) -> None:
        self.cluster.storage.store.put(key, value)
        self.cluster.storage.deliver()
        self.run(1.0)


def spares(job: Job) -> dict[str, Reason]:
    return job.read(Spares, job.keys.spares).why


def pasts(job: Job) -> dict[int, RoundHistory]:
    items = job.cluster.storage.store.get(job.keys.history, prefix=True).items
    found = [records.decode(RoundHistory, item.value, item.key) for item in items]
    return {past.round: past for past in found}


def test_who_stands_by_and_why_is_in_the_store_as_members_come_and_go() -> None:
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    assert not spares(job)
    job.start("c")
    assert spares(job) == {job.id("c"): Reason.of("late", round=1)}
    job.cluster.nodes["c"].leave()
    job.run(1.0)
    assert not spares(job)


def test_the_planner_says_why_a_node_has_no_ranks_and_a_common_reason_is_written_once() -> None:
    job = Job("abc", Shape(nodes_min=2, nodes_max=4, group=2))
    assert list(spares(job).values()) == [Reason.of("no-more-needed", nodes=2)]
    job = Job("abcde", Shape(nodes_min=2, nodes_max=2))
    record = job.read(Spares, job.keys.spares)
    assert len(record.member_ids) == len(record.why) == 3
    assert len(record.reasons) == 1


def test_another_leader_says_the_same_of_whom_it_finds_as_a_spare() -> None:
    job = Job("abc", Shape(nodes_min=2, nodes_max=4, group=2), grow_delay_s=1e6)
    (spare,) = spares(job)
    leader = next(name for name in "abc" if job.cluster.nodes[name].is_leader)
    job.cluster.nodes[leader].processes.succeed()  # so that the round does not need it any more
    job.run(1.0)
    job.cluster.nodes[leader].crash()
    job.run(8.0)
    job.start("d")
    assert any(job.cluster.nodes[name].is_leader for name in "abcd")
    assert spares(job) == {spare: Reason.of("no-more-needed", nodes=2), job.id("d"): Reason.of("late", round=1)}


def test_the_list_of_spares_has_an_end_and_begins_with_who_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SPARES_MAX", 2)
    job = Job("abcde", Shape(nodes_min=2, nodes_max=2))
    listed, store = spares(job), job.cluster.storage.store
    without_ranks = [
        item for item in store.get(job.keys.members, prefix=True).items
        if not store.get(
            job.keys.make_assignment_key(1, job.read(Seal, job.keys.round).plan_token, item.key[-16:])
        ).items
    ]  # fmt: skip
    first = sorted(without_ranks, key=lambda item: item.create_revision)[:2]
    assert list(listed) == [item.key[-16:] for item in first]


def test_spares_that_come_one_after_the_other_are_listed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SPARES_PAUSE_S_PER_MEMBER", 1.0)
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    job.start("c")  # runs for a second or so
    for name in "defg":
        job.cluster.add(name).start()
        job.run(0.2)
    assert len(spares(job)) == 1
    job.run(10.0)
    assert len(spares(job)) == 5
    item = job.cluster.storage.store.get(job.keys.spares).first
    assert item is not None
    assert item.version <= 4  # none, c, perhaps some, all


def test_a_spare_is_listed_once_and_unknown_members_change_nothing() -> None:
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    job.start("c")
    before = job.cluster.storage.store.get(job.keys.spares).first
    job.cluster.nodes["a"].processes.save()
    job.run(30.0)
    assert job.cluster.storage.store.get(job.keys.spares).first == before
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    seal = job.read(Seal, job.keys.round)
    foreign = Status(round=1, plan_token=seal.plan_token, outcome="failed", exit_code=9)
    job.put(job.keys.make_status_key("stranger"), records.encode(foreign))
    assert job.read(Seal, job.keys.round) == seal


def test_what_was_is_remembered_by_another_leader_too() -> None:
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    job.fail("b")
    first, second = pasts(job)[1], pasts(job)[2]
    assert (first.round, first.world_size, first.node_count) == (1, 2, 2)
    assert first.ended == Reason.of("failed", nodes=NODE_B, round=1)
    assert first.ran_s == pytest.approx(3.0, abs=0.1)
    assert second.ended is None
    for name in "ab":
        job.cluster.nodes[name].processes.succeed()
    job.run(1.0)
    assert pasts(job)[2].ended == Reason.of("all-succeeded")
    job = Job("ab", Shape(nodes_min=1, nodes_max=2))
    leader = next(name for name in "ab" if job.cluster.nodes[name].is_leader)
    job.cluster.nodes[leader].crash()
    job.run(10.0)
    assert pasts(job)[1].ended == Reason.of("lost", nodes=NODE_A if leader == "a" else NODE_B, round=1)
    ((node, _),) = job.read(Seal, job.keys.round).losses
    assert node.startswith(f"{leader} ")


def test_only_so_many_rounds_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "HISTORY_ROUNDS", 2)
    job = Job("a", Shape(), min_round_time_s=0.0, quarantine_failures=0)
    for _ in range(4):
        job.fail("a")
    assert list(pasts(job)) == [4, 5]


def test_the_seal_names_three_successors_and_nobody_writes_that_a_round_runs() -> None:
    job = Job("abc", Shape(nodes_min=1, nodes_max=3))
    assert not any(job.has(job.keys.make_status_key(job.id(name))) for name in "abc")
    job.fail("a")  # and the next one runs
    statuses = [job.read(Status, job.keys.make_status_key(job.id(name))) for name in "abc"]
    assert [(status.round, status.is_stopped) for status in statuses] == [(1, True)] * 3
    assert job.read(Seal, job.keys.round).round == 2
    job = Job("abcdef", Shape(nodes_min=6, nodes_max=6))
    leader = next(name for name in "abcdef" if job.cluster.nodes[name].is_leader)
    named = job.read(Seal, job.keys.round).successors
    assert len(set(named)) == 3
    assert job.id(leader) not in named


def test_what_nobody_will_read_again_is_removed() -> None:
    job = Job("abc", Shape(nodes_min=1, nodes_max=3), min_round_time_s=0.0)
    gone = job.id("c")
    job.cluster.nodes["c"].processes.save()
    job.run(1.0)
    assert job.has(job.keys.make_status_key(gone))
    job.cluster.nodes["c"].crash()
    job.run(10.0)
    for _ in range(2):
        job.fail("a")
    assert not job.has(job.keys.make_status_key(gone))
    rounds = {
        item.key.split("/")[5] for item in job.cluster.storage.store.get(job.keys.all_assignments, prefix=True).items
    }
    assert rounds == {"3", "4"}


@pytest.mark.parametrize(
    ("proposed", "nodes", "expected"),
    [
        ((), "abcdef", ("b", "c", "d")),
        (("f", "c"), "abcdef", ("f", "c", "b")),
        (("a", "gone", "e"), "abcdef", ("e", "b", "c")),
        ((), "aabbcd", ("c", "e", "f")),
        (("d",), "abbbcd", ("d", "e", "f")),
        ((), "aaaaaa", ()),
    ],
)
def test_successors_are_on_other_nodes_than_the_leader_and_each_other(
    proposed: tuple[str, ...], nodes: str, expected: tuple[str, ...]
) -> None:
    view = replace(first_round("abcdef"), nodes=dict(zip("abcdef", nodes, strict=True)))
    plan = PlanReady(1, dict.fromkeys("abc", ""), 3, "a:1", successors=proposed)
    assert commit.choose_successors(view, plan, tuple("abcdef")) == expected


def test_a_request_that_is_rejected_or_met_is_gone_with_the_next_write() -> None:
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    key = job.keys.make_command_key("t")
    job.put(key, records.encode(Command(kind="undrain", target="b")))
    assert job.read(Command, key).refused == Reason.of("not-drained", target="b", drained=())
    job.fail("b")
    assert not job.has(key)
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    key = job.keys.make_command_key("t")
    job.put(key, records.encode(Command(kind="drain", target="elsewhere")))
    drained = job.cluster.storage.store.get(job.keys.make_drain_key("elsewhere")).first
    assert drained is not None
    assert not job.has(key)
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    key = job.keys.make_command_key("t")
    job.put(key, records.encode(Command(kind="stop", by="ann")))
    assert job.read(Verdict, job.keys.verdict).reason == Reason.of("stop-requested", by="ann")
    assert not job.has(key)


@pytest.mark.parametrize(
    "name", ["members/x", "status/x", "ctl/command/x", "ctl/drained/x", "ctl/spares", "members/other"]
)
def test_what_others_put_among_the_keys_is_named_and_ignored(name: str) -> None:
    job = Job("ab", Shape(nodes_min=2, nodes_max=2))
    stored = job.cluster.storage.store.get(job.keys.make_member_key(job.id("a"))).first
    assert stored is not None
    value = (
        stored.value if name.endswith("other") else json.dumps({"version": __version__, "round": "rubbish"}).encode()
    )
    job.put(f"{job.keys.root}/{name}", value)
    kind = "foreign-member" if name.endswith("other") else "record-ignored"
    assert any(f"{job.keys.root}/{name}" in line and kind in line for line in job.said)
    job.fail("b")
    assert job.read(Seal, job.keys.round).round == 2
    for node in "ab":
        job.cluster.nodes[node].processes.succeed()
    job.run(1.0)
    assert all(job.cluster.nodes[node].ended is not None for node in "ab")


def test_many_arrivals_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    look = leader.observe

    def counted(state: MemberState, leading: Leadership, now: float) -> View:
        looks.append(now)
        return look(state, leading, now)

    monkeypatch.setattr(leader, "observe", counted)
    count = 120
    shape = Shape(nodes_min=count, nodes_max=count)
    cluster = SimulatedCluster(random=Random(1), settings=Settings(lease_ttl_s=60.0), shape=shape)
    for index in range(count):
        cluster.timeline.call_later(index * 0.001, cluster.add(f"node{index:03}").start)
    cluster.run(1.0)
    assert all(node.running is not None for node in cluster.nodes.values())
    assert len(looks) < 3 * count / 4  # each arrival and each report is an event of its own
    assert max(looks) < math.inf
