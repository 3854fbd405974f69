"""What the driver does next, event by event: placement, losses, drains, pauses, and when the job has ended."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from launcher.extensions.ray import agent_pool
from launcher.extensions.ray.agent_pool import (
    ActorDied,
    ActorUnreachable,
    AgentPool,
    AskAgain,
    ClusterView,
    DiscardActor,
    EndReported,
    FinishJob,
    PoolAction,
    PoolEvent,
    RemoveGroup,
    RequestGroup,
    Say,
    StartAgent,
    StartReported,
    StopAgent,
    StopRequested,
    merge_outcomes,
)
from launcher.extensions.ray.bundles import ClusterNode, Demand
from launcher.logs.reports.outcome import RunOutcome
from launcher.logs.reports.report import WorkerFailure

SUCCESS = RunOutcome(exit_code=0, reason="all workers succeeded", round=1, ranks=(0,), has_verdict=True)
FAILURE = RunOutcome(exit_code=3, reason="no restart is left", round=1, has_verdict=True)
LEFT = RunOutcome(exit_code=143, reason="stopped by SIGTERM")


class Cluster:
    """A pool, and a cluster that places every bundle on the first node that is free, unless told otherwise."""

    def __init__(self, least: int, most: int, nodes: Sequence[str] = "abcdef", **limits: float) -> None:
        demand = Demand(bundle={"GPU": 8}, label_selector={}, least=least, most=most)
        self.pool = AgentPool(demand=demand, grace_s=2.0, format_moment="at {:g}".format, **limits)
        self.nodes = list(nodes)
        self.placed: dict[int, str] = {}
        self.draining: set[str] = set()
        self.now = 100.0
        self.asked: dict[int, RequestGroup] = {}
        self.history: list[PoolAction] = []

    def step(self, *events: PoolEvent, after_s: float = 0.0) -> list[PoolAction]:
        """One step, and what Ray makes of it before the next."""
        self.now += after_s
        nodes = [ClusterNode(id=name, address=name, resources={"GPU": 8}, labels={}) for name in self.nodes]
        view = ClusterView(nodes=nodes, placed=dict(self.placed), draining=frozenset(self.draining))
        actions = list(self.pool.step(events, view, self.now))
        self.history += actions
        for action in actions:
            if isinstance(action, RequestGroup):
                self.asked[action.slots[0]] = action
            elif isinstance(action, RemoveGroup):
                self.placed.pop(action.slot, None)
        return actions

    def place(self, **where: str) -> None:
        self.placed |= {int(name.removeprefix("s")): node for name, node in where.items()}

    def run(self, *slots: int) -> None:
        """Let these slots' agents start and run."""
        self.step()
        self.step()
        self.step(*(StartReported(slot, self.placed[slot]) for slot in slots))


def find(actions: Sequence[PoolAction], kind: type) -> list[PoolAction]:
    return [action for action in actions if isinstance(action, kind)]


def say(actions: Sequence[PoolAction]) -> str:
    return "\n".join(action.sentence for action in actions if isinstance(action, Say))


def get_end(actions: Sequence[PoolAction]) -> RunOutcome | None:
    ends = [action.outcome for action in actions if isinstance(action, FinishJob)]
    return ends[0] if ends else None


def test_the_least_nodes_are_one_group_and_the_rest_follow_one_by_one() -> None:
    cluster = Cluster(2, 4)
    assert cluster.step() == [RequestGroup((0, 1))]
    cluster.place(s0="a")
    assert find(cluster.step(), RequestGroup) == []  # the group is not complete: another bundle could take its node
    cluster.place(s1="b")
    actions = cluster.step()
    assert find(actions, RequestGroup) == [RequestGroup((2,), ("a", "b")), RequestGroup((3,), ("a", "b"))]
    assert find(actions, StartAgent) == [StartAgent(0, "a", 1), StartAgent(1, "b", 1)]


def test_a_bundle_on_a_node_in_use_is_given_back_before_an_agent_starts() -> None:
    cluster = Cluster(1, 3)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.place(s1="b", s2="b")
    actions = cluster.step()
    assert find(actions, StartAgent) == [StartAgent(1, "b", 1)]
    assert find(actions, RemoveGroup) == [RemoveGroup(2)]
    assert cluster.asked[2] == RequestGroup((2,), ("a", "b"))


def test_a_pending_request_learns_which_nodes_are_in_use_but_not_at_once() -> None:
    cluster = Cluster(1, 3)
    cluster.place(s0="a")
    cluster.step()
    cluster.place(s1="b")
    assert find(cluster.step(), RemoveGroup) == []
    assert find(cluster.step(after_s=agent_pool.EXCLUDE_AGAIN_S), RemoveGroup) == [RemoveGroup(2)]
    assert cluster.asked[2].excluded == ("a", "b")


def test_an_actor_out_of_reach_is_asked_again_and_not_replaced() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    assert "node a does not answer Ray" in say(cluster.step(ActorUnreachable(0)))
    assert cluster.step() == []
    assert cluster.step(after_s=agent_pool.ASK_AGAIN_S) == [AskAgain(0)]
    assert find(cluster.step(after_s=60.0), AskAgain) == []  # one question at a time
    again = cluster.step(ActorUnreachable(0))
    assert find(again, StartAgent) == []
    assert "does not answer" not in say(again)  # said once
    cluster.step(StartReported(0, "a"))
    assert "does not answer" in say(cluster.step(ActorUnreachable(0)))


def test_an_agent_begins_where_ray_has_moved_the_bundle_of_a_lost_node() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    del cluster.placed[0]
    cluster.nodes.remove("a")
    assert DiscardActor(0) in cluster.step(ActorDied(0, "Ray reports the node as dead"))
    assert cluster.step(after_s=30.0) != [StartAgent(0, "c", 1)]
    cluster.place(s0="c")
    assert StartAgent(0, "c", 1) in cluster.step()


def test_an_agent_starts_again_after_a_pause_on_a_node_that_is_alive() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    assert find(cluster.step(ActorDied(0, "it has died")), StartAgent) == []
    assert find(cluster.step(after_s=agent_pool.PAUSE_MIN_S), StartAgent) == []  # the first pause is twice the least
    assert find(cluster.step(after_s=agent_pool.PAUSE_MIN_S), StartAgent) == [StartAgent(0, "a", 1)]


def test_pauses_grow_while_agents_die_soon_and_shrink_after_one_that_ran() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    pauses = []
    for _ in range(7):
        cluster.run(0)
        cluster.step(ActorDied(0, "it has died"))
        began = cluster.now
        while not find(cluster.step(after_s=0.5), StartAgent):
            pass
        pauses.append(cluster.now - began)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    cluster.step(StartReported(0, "a"))
    cluster.step(after_s=agent_pool.STEADY_S)
    cluster.step(ActorDied(0, "it has died"))
    assert find(cluster.step(after_s=agent_pool.PAUSE_MIN_S), StartAgent)


def test_a_bundle_that_moves_before_its_agent_began_is_begun_anew() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.step()
    del cluster.placed[1]
    assert DiscardActor(1) in cluster.step()
    cluster.place(s1="c")
    assert StartAgent(1, "c", 1) in cluster.step(after_s=30.0)


def test_an_agent_on_a_drained_node_leaves_and_is_not_started_there_again() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.draining.add("a")
    actions = cluster.step()
    assert find(actions, StopAgent) == [StopAgent(0)]
    assert find(cluster.step(), StopAgent) == []  # once
    assert get_end(cluster.step(EndReported(0, 143, LEFT))) is None
    assert find(cluster.step(after_s=60.0), StartAgent) == []
    cluster.place(s0="c")
    assert find(cluster.step(), StartAgent) == [StartAgent(0, "c", 1)]


def test_a_bundle_of_its_own_is_given_back_when_its_node_is_drained() -> None:
    cluster = Cluster(1, 2)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.place(s1="b")
    cluster.run(1)
    cluster.draining.add("b")
    cluster.step(after_s=agent_pool.EXCLUDE_AGAIN_S)
    actions = cluster.step(EndReported(1, 143, LEFT))
    assert find(actions, RemoveGroup) == [RemoveGroup(1)]
    assert find(actions, RequestGroup) == [RequestGroup((1,), ("a",))]
    cluster.place(s1="c")
    assert find(cluster.step(), StartAgent) == [StartAgent(1, "c", 1)]


def test_a_drain_that_is_called_off_lets_the_agent_come_back() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.draining.add("a")
    cluster.step()
    cluster.step(EndReported(0, 143, LEFT))
    cluster.draining.clear()
    assert find(cluster.step(), StartAgent) == [StartAgent(0, "a", 1)]


def test_the_job_ends_with_the_verdict_once_every_agent_has_ended() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    assert get_end(cluster.step(EndReported(1, 3, FAILURE))) is None
    assert get_end(cluster.step(EndReported(0, 3, FAILURE))) == FAILURE


def test_nothing_is_said_to_start_again_once_the_job_has_ended() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.step(EndReported(1, 3, FAILURE))
    actions = cluster.step(EndReported(0, -9, None))
    assert get_end(actions) == FAILURE
    assert say(actions) == ""


def test_an_agent_that_outlives_the_verdict_is_waited_for_with_a_limit() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.step(EndReported(1, 0, SUCCESS))
    assert get_end(cluster.step(after_s=2.0 + agent_pool.END_LIMIT_S - 0.1)) is None
    actions = cluster.step(after_s=0.2)
    assert get_end(actions) == SUCCESS
    assert DiscardActor(0) in actions


def test_an_agent_that_begins_when_the_job_has_ended_is_not_waited_for() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0)
    actions = cluster.step(EndReported(0, 0, SUCCESS))
    assert get_end(actions) == SUCCESS
    assert DiscardActor(1) in actions


def test_a_bundle_without_a_node_does_not_keep_a_job_that_has_ended() -> None:
    cluster = Cluster(1, 2)
    cluster.place(s0="a")
    cluster.run(0)
    assert get_end(cluster.step(EndReported(0, 0, SUCCESS))) == SUCCESS


def test_lost_nodes_do_not_keep_a_job_whose_other_agents_have_left() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    del cluster.placed[0]
    cluster.step(ActorDied(0, "Ray reports the node as dead"))
    assert get_end(cluster.step(EndReported(1, 143, LEFT))) == LEFT


def test_an_agent_that_was_given_up_ends_no_job_whose_nodes_may_return() -> None:
    cluster = Cluster(1, 2, return_limit_s=600.0)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.place(s1="b")
    for _ in range(agent_pool.CRASHES_MAX):
        cluster.run(1)
        cluster.step(EndReported(1, -9, None))
        cluster.step(after_s=30.0)
    assert "is not started again" in say(cluster.history)
    cluster.placed.clear()
    assert get_end(cluster.step(ActorDied(0, "Ray reports the node as dead"))) is None
    cluster.place(s0="c")
    assert find(cluster.step(after_s=30.0), StartAgent) == [StartAgent(0, "c", 1)]


def test_a_node_whose_agent_has_left_is_given_back() -> None:
    cluster = Cluster(1, 2)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.place(s1="b")
    cluster.run(1)
    assert find(cluster.step(EndReported(1, 143, LEFT)), RemoveGroup) == [RemoveGroup(1)]
    assert find(cluster.step(after_s=60.0), RemoveGroup) == []  # once


def test_a_job_that_has_lost_all_its_nodes_waits_for_others_with_a_limit() -> None:
    cluster = Cluster(1, 1, return_limit_s=600.0)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.placed.clear()
    cluster.step(ActorDied(0, "Ray reports the node as dead"))
    assert get_end(cluster.step(after_s=599.0)) is None
    end = get_end(cluster.step(after_s=1.0))
    assert end is not None
    assert (end.exit_code, end.reason) == (75, "no node has come back for 600 s (--rejoin-timeout)")


def test_a_group_that_never_fits_is_waited_for_as_long_as_the_option_says() -> None:
    cluster = Cluster(2, 2, start_limit_s=30.0)
    cluster.step()
    assert get_end(cluster.step(after_s=29.0)) is None
    end = get_end(cluster.step(after_s=1.0))
    assert end is not None
    assert end.reason == "Ray has not given the job its nodes for 30 s (--start-timeout)"


def test_an_agent_that_never_starts_is_waited_for_with_a_limit() -> None:
    cluster = Cluster(1, 1, start_limit_s=30.0)
    cluster.step(after_s=20.0)
    cluster.place(s0="a")
    cluster.step(after_s=9.0)
    assert get_end(cluster.step(after_s=29.0)) is None  # the time for an actor is its own
    end = get_end(cluster.step(after_s=1.0))
    assert end is not None
    assert end.reason == "no agent has started for 30 s (--start-timeout)"


def test_missing_nodes_are_said_once_that_lasts_and_then_ever_more_seldom() -> None:
    cluster = Cluster(3, 3, nodes="ab")
    said = [second for second in range(2000) if "wanted" in say(cluster.step(after_s=1.0))]
    assert said == [10, 130, 370, 850, 1810]
    assert (
        "wanted 3 nodes with GPU=8, present 0, since at 101: of 2 nodes in the Ray cluster 2 can hold that "
        "when idle" in say(cluster.history)
    )
    cluster.nodes.append("c")
    cluster.place(s0="a", s1="b", s2="c")
    cluster.run(0, 1)
    assert "wanted 3 nodes with GPU=8, present 2, starting 1, since at 101" in say(cluster.step(after_s=1000.0))
    cluster.step(StartReported(2, "c"))
    assert "wanted 3 nodes, present 3" in say(cluster.step(after_s=30.0))


def test_one_more_missing_node_is_said_without_the_long_pause() -> None:
    cluster = Cluster(1, 3)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.place(s1="b")
    cluster.run(1)
    for _ in range(600):
        cluster.step(after_s=1.0)
    assert "present 2" in say(cluster.history)
    cluster.step(ActorDied(1, "Ray reports the node as dead"))
    del cluster.placed[1]
    assert any("present 1" in say(cluster.step(after_s=1.0)) for _ in range(15))


def test_agents_that_start_in_time_are_not_said_to_be_missing() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    assert not any(say(cluster.step(after_s=1.0)) for _ in range(60))


@pytest.mark.parametrize("code", [-9, 70, 137])
def test_an_agent_that_ends_by_itself_is_started_again_after_a_pause(code: int) -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    assert find(cluster.step(EndReported(0, code, None)), StartAgent) == []
    assert find(cluster.step(after_s=2.0), StartAgent) == [StartAgent(0, "a", 1)]


def test_an_agent_that_always_dies_at_once_is_given_up() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    end = None
    for _ in range(agent_pool.CRASHES_MAX):
        assert end is None
        cluster.run(0)
        end = get_end(cluster.step(EndReported(0, -9, None)))
        cluster.step(after_s=60.0)
    assert end is not None
    assert end.exit_code == 137


def test_an_agent_whose_node_is_unfit_tries_again_while_others_run() -> None:
    unfit = RunOutcome(exit_code=75, reason="the health check failed")
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.step(EndReported(0, 75, unfit))
    assert find(cluster.step(after_s=2.0), StartAgent) == [StartAgent(0, "a", 1)]


def test_a_start_that_fails_everywhere_ends_the_job() -> None:
    unfit = RunOutcome(exit_code=75, reason="only 1 of at least 2 nodes joined")
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.step(EndReported(0, 75, unfit))
    assert get_end(cluster.step(EndReported(1, 75, unfit))) == unfit


def test_an_agent_that_was_refused_is_not_started_again() -> None:
    refused = RunOutcome(exit_code=2, reason="no such script")
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    assert get_end(cluster.step(EndReported(0, 2, refused))) == refused


def test_a_stop_reaches_agents_that_run_and_drops_the_rest() -> None:
    cluster = Cluster(2, 3)
    cluster.step()
    cluster.place(s0="a", s1="b")
    cluster.step()
    cluster.step(StartReported(0, "a"))
    actions = cluster.step(StopRequested(15))
    assert find(actions, StopAgent) == [StopAgent(0)]
    assert find(actions, DiscardActor) == [DiscardActor(1)]
    assert get_end(cluster.step(EndReported(0, 143, LEFT))) == LEFT


def test_a_stop_before_any_node_was_there_ends_at_once() -> None:
    cluster = Cluster(2, 2)
    cluster.step()
    end = get_end(cluster.step(StopRequested(2)))
    assert end is not None
    assert end.exit_code == 130


def test_a_stop_does_not_wait_for_ever() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.step(StopRequested(15))
    end = get_end(cluster.step(after_s=2.0 + agent_pool.END_LIMIT_S))
    assert end is not None
    assert end.reason == "the job was stopped, and 1 agents had not ended yet"


def test_a_second_stop_does_not_wait_for_agents() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    assert get_end(cluster.step(StopRequested(2))) is None
    assert get_end(cluster.step(StopRequested(2))) is not None


def test_an_agent_that_can_never_be_started_ends_the_job_with_the_reason() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    end = None
    for _ in range(agent_pool.CRASHES_MAX):
        assert end is None
        cluster.step()
        cluster.step(after_s=60.0)
        end = get_end(cluster.step(ActorDied(0, "its actor has died (no module named launcher)")))
    assert end is not None
    assert end.reason == "no agent can be started on node a: its actor has died (no module named launcher)"


def test_a_stop_after_the_verdict_does_not_make_the_wait_longer() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.step(EndReported(1, 0, SUCCESS))
    cluster.step(StopRequested(15), after_s=10.0)
    assert get_end(cluster.step(after_s=2.0 + agent_pool.END_LIMIT_S - 10.0)) == SUCCESS


def test_a_stop_that_may_be_lost_is_sent_again_once_the_node_is_reached() -> None:
    cluster = Cluster(2, 2)
    cluster.place(s0="a", s1="b")
    cluster.run(0, 1)
    cluster.draining.add("a")
    cluster.step()
    cluster.step(ActorUnreachable(0))
    assert StopAgent(0) in cluster.step(StartReported(0, "a"))
    cluster.step(StopRequested(15))
    cluster.step(ActorUnreachable(1))
    assert StopAgent(1) in cluster.step(StartReported(1, "b"))


def test_answers_of_actors_that_were_discarded_change_nothing() -> None:
    cluster = Cluster(1, 1)
    cluster.place(s0="a")
    cluster.run(0)
    cluster.step(ActorDied(0, "it has died"))
    assert cluster.step(ActorDied(0, "it has died"), EndReported(0, 0, SUCCESS)) == []


def test_the_report_is_that_of_the_agent_with_the_last_lines() -> None:
    values: Mapping[str, object] = {"rank": 1, "local_rank": 0, "pid": 7, "exit_code": 3, "time": "", "host": "b"}
    short = RunOutcome(exit_code=3, reason="", round=1, ranks=(0,), failures=(WorkerFailure(**values),))
    whole = RunOutcome(exit_code=3, reason="", round=1, ranks=(1,), failures=(WorkerFailure(**values, tail=("no",)),))
    for merged in (merge_outcomes(short, whole), merge_outcomes(whole, short)):
        assert merged.ranks == (0, 1)
        assert merged.failures == whole.failures


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_a_slot_has_one_agent_and_a_stop_ends_the_job(seed: int) -> None:
    chance = random.Random(seed)
    least = chance.randint(1, 3)
    most = least + chance.randint(0, 3)
    cluster = Cluster(least, most, return_limit_s=600.0)
    awaited: dict[int, str] = {}  # slot -> the call of its actor that has no answer yet, "" if there is none
    groups: set[int] = set()
    limit_at, count = float("inf"), chance.randint(5, 150)
    for number in range(count + 30):
        for slot in groups:
            if chance.random() < 0.3:
                cluster.placed.setdefault(slot, chance.choice(cluster.nodes))
        if chance.random() < 0.1:
            cluster.placed.pop(chance.randrange(most), None)
        cluster.draining = {node for node in cluster.nodes if chance.random() < 0.02}
        answers = [slot for slot, call in awaited.items() if call and chance.random() < 0.3]
        events = [make_answer(chance, slot, awaited[slot], cluster) for slot in answers]
        awaited |= {event.slot: "wait" if isinstance(event, StartReported) else "" for event in events}
        stale = EndReported(chance.randrange(most), 0, SUCCESS)
        has_stop = number == count or chance.random() < 0.005
        actions = cluster.step(
            *events,
            *([stale] if stale.slot not in awaited else []),
            *([StopRequested(15)] if has_stop else []),
            after_s=chance.choice([0.1, 0.2, 5.0]),
        )
        for action in actions:
            if isinstance(action, RequestGroup):
                assert groups.isdisjoint(action.slots)
                groups |= {*action.slots}
            elif isinstance(action, RemoveGroup):
                assert action.slot not in awaited
                groups.remove(action.slot)
            elif isinstance(action, StartAgent):
                assert action.slot not in awaited
                assert action.slot in groups
                assert limit_at == float("inf")
                awaited[action.slot] = "start"
            elif isinstance(action, AskAgain):
                assert awaited[action.slot] == ""
                awaited[action.slot] = "start"
            elif isinstance(action, DiscardActor):
                del awaited[action.slot]
        if get_end(actions) is not None:
            assert not awaited
            return
        if has_stop:
            limit_at = min(limit_at, cluster.now + 2.0 + agent_pool.END_LIMIT_S)
        assert cluster.now < limit_at
    raise AssertionError("the job did not end")


def make_answer(
    chance: random.Random, slot: int, call: str, cluster: Cluster
) -> StartReported | EndReported | ActorUnreachable | ActorDied:
    if chance.random() < 0.2:
        return ActorUnreachable(slot) if chance.random() < 0.5 else ActorDied(slot, "it has died")
    if call == "start":
        return StartReported(slot, cluster.placed.get(slot, "a"))
    ends: list[tuple[int, RunOutcome | None]] = [(-9, None), (143, LEFT), (0, SUCCESS), (3, FAILURE), (70, None)]
    return EndReported(slot, *chance.choice(ends))
