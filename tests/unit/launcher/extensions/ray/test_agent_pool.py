"""What the driver does next, event by event: placement, losses, drains, pauses, and when the job has ended.

Each paragraph of agent_pool.txt is a schedule, and behind each of its lines is what the pool does. To accept a change,
run with UPDATE_TRANSCRIPTS=1 and read the difference as you would code.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from launcher.extensions.ray import agent_pool
from launcher.extensions.ray.bundles import ClusterNode, Demand
from launcher.logs.reports.outcome import RunOutcome
from launcher.logs.reports.report import WorkerFailure

DOES = "  ->  "
TRANSCRIPT = Path(__file__).with_name("agent_pool.txt")
SUCCESS = RunOutcome(exit_code=0, reason="all workers succeeded", round=1, ranks=(0,), has_verdict=True)
FAILURE = RunOutcome(exit_code=3, reason="no restart is left", round=1, has_verdict=True)
LEFT = RunOutcome(exit_code=143, reason="stopped by SIGTERM")
OUTCOMES = {
    "": None,
    "success": SUCCESS,
    "failure": FAILURE,
    "left": LEFT,
    "unfit": RunOutcome(exit_code=75, reason="the health check failed"),
    "refused": RunOutcome(exit_code=2, reason="no such script"),
}


class Cluster:
    """A pool, and a cluster that places what it is told to."""

    def __init__(self, least: int, most: int, **limits: float) -> None:
        demand = Demand(bundle={"GPU": 8}, label_selector={}, least=least, most=most)
        self.pool = agent_pool.AgentPool(demand=demand, grace_s=2.0, format_moment="at {:g}".format, **limits)
        self.nodes = list("abcdef")
        self.placed: dict[int, str] = {}
        self.draining: set[str] = set()
        self.now = 100.0

    def step(self, *events: agent_pool.PoolEvent, after_s: float = 0.0) -> list[agent_pool.PoolAction]:
        """One step, and what Ray makes of it before the next."""
        self.now += after_s
        nodes = [ClusterNode(id=name, resources={"GPU": 8}, labels={}) for name in self.nodes]
        view = agent_pool.ClusterView(nodes=nodes, placed=dict(self.placed), draining=frozenset(self.draining))
        actions = list(self.pool.step(events, view, self.now))
        for action in actions:
            if isinstance(action, agent_pool.RemoveGroup):
                self.placed.pop(action.slot, None)
        return actions

    def play(self, line: str) -> Iterator[str]:
        """Do what a line of the transcript says, and tell what the pool does."""
        verb, *words = line.split()
        if verb == "place":
            self.placed |= {int(slot): node for slot, _, node in (word.partition("=") for word in words)}
        elif verb == "unplace":
            for slot in words:
                self.placed.pop(int(slot), None)
        elif verb == "drain":
            self.draining = {*words}
        elif verb == "nodes":
            self.nodes = list(words[0])
        elif verb == "node":
            (self.nodes.append if words[0][0] == "+" else self.nodes.remove)(words[0][1:])
        elif verb == "run":  # two steps, and then these slots' agents run
            yield from map(show, [*self.step(), *self.step()])
            slots = [int(slot) for slot in words]
            yield from map(show, self.step(*(agent_pool.StartReported(slot, self.placed[slot]) for slot in slots)))
        elif verb == "step":
            after_s = float(words.pop(0)) if words and words[0][0] == "+" else 0.0
            events = [read_event(text) for text in " ".join(words).split(";") if text]
            yield from map(show, self.step(*events, after_s=after_s))
        elif verb in ("for", "until"):  # steps of so many seconds, for so many of them or until an agent starts
            began = self.now
            while self.now - began < float(words[1]):
                actions = self.step(after_s=float(words[0]))
                yield from (f"after {self.now - began:g} s: {show(action)}" for action in actions)
                if verb == "until" and any(isinstance(action, agent_pool.StartAgent) for action in actions):
                    break
        else:
            raise ValueError(line)


def read_event(text: str) -> agent_pool.PoolEvent:
    kind, first, *rest = text.split()
    if kind == "started":
        return agent_pool.StartReported(int(first), rest[0])
    if kind == "ended":
        return agent_pool.EndReported(int(first), int(rest[0]), OUTCOMES["".join(rest[1:])])
    if kind == "unreachable":
        return agent_pool.ActorUnreachable(int(first))
    if kind == "died":
        return agent_pool.ActorDied(int(first), " ".join(rest))
    assert kind == "stop", text
    return agent_pool.StopRequested(int(first))


def show(action: agent_pool.PoolAction) -> str:
    if isinstance(action, agent_pool.Say):
        return f"say: {action.sentence.partition(': of ')[0]}"  # what the cluster has: test_bundles
    if isinstance(action, agent_pool.FinishJob):
        return f"end with {action.outcome.exit_code}: {action.outcome.reason}"
    if isinstance(action, agent_pool.RequestGroup):
        slots = ", ".join(map(str, action.slots))
        return f"request {slots}" + (f" but not on {', '.join(action.excluded)}" if action.excluded else "")
    if isinstance(action, agent_pool.StartAgent):
        return f"start {action.slot} on {action.node}, agent {action.number}"
    return f"{type(action).__name__} {action.slot}"


def play(scenario: str) -> str:
    title, begin, *lines = [line.partition(DOES)[0] for line in scenario.splitlines()]
    _, least, most, *limits = begin.split()
    cluster = Cluster(
        int(least), int(most), **{name: float(value) for name, _, value in (limit.partition("=") for limit in limits)}
    )
    played = [title, begin]
    for line in lines:
        done = " | ".join(cluster.play(line))
        played.append(f"{line}{DOES}{done}" if done else line)
    return "\n".join(played)


SCENARIOS = TRANSCRIPT.read_text().rstrip("\n").split("\n\n")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.partition("\n")[0].strip("# ."))
def test_the_transcript_is_what_happens(scenario: str) -> None:
    assert play(scenario).splitlines() == scenario.splitlines()


def get_end(actions: Sequence[agent_pool.PoolAction]) -> RunOutcome | None:
    ends = [action.outcome for action in actions if isinstance(action, agent_pool.FinishJob)]
    return ends[0] if ends else None


def test_the_report_has_the_last_lines_and_the_transcript_is_written_anew_when_asked() -> None:
    values: Mapping[str, object] = {"rank": 1, "local_rank": 0, "pid": 7, "exit_code": 3, "time": "", "host": "b"}
    short = RunOutcome(exit_code=3, reason="", round=1, ranks=(0,), failures=(WorkerFailure(**values),))
    whole = RunOutcome(exit_code=3, reason="", round=1, ranks=(1,), failures=(WorkerFailure(**values, tail=("no",)),))
    for merged in (agent_pool.merge_outcomes(short, whole), agent_pool.merge_outcomes(whole, short)):
        assert merged.ranks == (0, 1)
        assert merged.failures == whole.failures
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        TRANSCRIPT.write_text("\n\n".join(map(play, SCENARIOS)) + "\n")


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
        awaited |= {event.slot: "wait" if isinstance(event, agent_pool.StartReported) else "" for event in events}
        stale = agent_pool.EndReported(chance.randrange(most), 0, SUCCESS)
        has_stop = number == count or chance.random() < 0.005
        actions = cluster.step(
            *events,
            *([stale] if stale.slot not in awaited else []),
            *([agent_pool.StopRequested(15)] if has_stop else []),
            after_s=chance.choice([0.1, 0.2, 5.0]),
        )
        for action in actions:
            if isinstance(action, agent_pool.RequestGroup):
                assert groups.isdisjoint(action.slots)
                groups |= {*action.slots}
            elif isinstance(action, agent_pool.RemoveGroup):
                assert action.slot not in awaited
                groups.remove(action.slot)
            elif isinstance(action, agent_pool.StartAgent):
                assert action.slot not in awaited
                assert action.slot in groups
                assert limit_at == float("inf")
                awaited[action.slot] = "start"
            elif isinstance(action, agent_pool.AskAgain):
                assert awaited[action.slot] == ""
                awaited[action.slot] = "start"
            elif isinstance(action, agent_pool.DiscardActor):
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
) -> agent_pool.StartReported | agent_pool.EndReported | agent_pool.ActorUnreachable | agent_pool.ActorDied:
    if chance.random() < 0.2:
        return agent_pool.ActorUnreachable(slot) if chance.random() < 0.5 else agent_pool.ActorDied(slot, "it has died")
    if call == "start":
        return agent_pool.StartReported(slot, cluster.placed.get(slot, "a"))
    ends: list[tuple[int, RunOutcome | None]] = [(-9, None), (143, LEFT), (0, SUCCESS), (3, FAILURE), (70, None)]
    return agent_pool.EndReported(slot, *chance.choice(ends))
