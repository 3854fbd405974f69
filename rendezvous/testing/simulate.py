"""Random faults against a simulated cluster, and the invariants that must survive them.

`run(seed)` makes a cluster, throws bursts of faults at it for some virtual time, heals everything, and then
demands a verdict within a bound. The letters in a violation are those of the project's list of invariants:
S1 one live process per rank and one view of the world; S2 no two rounds alive; S3 one verdict that never
changes; S4 an accepted completion is real; S5 the budget is exact; S8 nothing of a round in the next; S10 no
unguarded deciding write; S11 a transaction whose answer was lost counts once; L1 a verdict within a bound.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from rendezvous import keys, records
from rendezvous.messages import Action, Ask, End, Txn
from rendezvous.records import Seal, Status, Verdict
from rendezvous.settings import Settings
from rendezvous.store import Batch, Delete, Get, KeyValue
from rendezvous.testing.cluster import PREFIX, Cluster, Network, Node, Running, Shape

FAULTS_S = 60.0  # virtual time during which faults happen
HEAL_S = 600.0  # and within which, once healed, the job must have ended
STEPS_MAX = 400_000


class Violation(AssertionError):
    """An invariant was broken; the text names it, the seed and the time."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one seed did, for statistics: the verdict, rounds sealed, and faults by kind."""

    seed: int
    members: int
    verdict: str
    rounds: int
    faults: dict[str, int]


class Checker:
    """Watches every write and every start; raises Violation on the first thing that must not be."""

    def __init__(self, cluster: Cluster, settings: Settings, seed: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seed = seed
        self.verdict: Verdict | None = None
        self.seals: dict[int, Seal] = {}
        self._coordinators: dict[int, tuple[str, int, int]] = {}
        self._used_coordinators: set[str] = set()  # where a rank 0 really ran
        self._first_failures: dict[str, tuple[bool, int, int]] = {}  # plan token -> echo, revision, exit code: least
        cluster.check_start = self.check_start
        cluster.check_step = self.check_step
        cluster.check_end = self.check_end
        cluster.check_request = self.check_request
        cluster.store.watch(
            f"/{PREFIX}/",
            prefix=True,
            start_revision=1,
            on_batch=self._see,
            on_lost=lambda error: self.fail("S10", error),
        )

    def fail(self, invariant: str, what: object) -> None:
        raise Violation(f"{invariant}: {what} (seed {self._seed}, at {self._cluster.now:.3f} s)")

    def _see(self, batch: Batch) -> None:
        for event in batch.events:
            name = _name(event.item.key)
            if event.kind == "delete":
                if name == "ctl/round":
                    self.fail("S3", "the seal was deleted")
            elif name == "ctl/verdict":
                self._see_verdict(event.item)
            elif name == "ctl/round":
                self._see_seal(event.item)
            elif name.startswith("status/"):
                self._see_status(event.item)

    def _see_status(self, item: KeyValue) -> None:
        status = records.decode(Status, item.value, item.key)
        if status.outcome == "failed":
            failure = (status.is_peer_loss, item.mod_revision, status.exit_code)
            known = self._first_failures.setdefault(status.plan_token, failure)
            self._first_failures[status.plan_token] = min(known, failure)

    def _see_verdict(self, item: KeyValue) -> None:
        if item.version != 1:
            self.fail("S3", "the verdict was written twice")
        self.verdict = records.decode(Verdict, item.value, item.key)
        root = item.key.removesuffix("/ctl/verdict")
        if self.verdict.kind == "success":
            seal = self.seals[self.verdict.round]
            if seal.round != max(self.seals):
                self.fail("S4", "an old round was accepted")
            prefix = keys.Keys(root).assignments(seal.round, seal.plan_token)
            members = {key.key.rpartition("/")[2] for key in self._cluster.store.get(prefix, prefix=True).items}
            done = {n.finished_as[seal.round] for n in self._cluster.nodes.values() if seal.round in n.finished_as}
            if not members <= done:
                self.fail("S4", f"success of round {seal.round} without {len(members - done)} of its members")
        if self.verdict.failure:
            first = self._first_failures[self.seals[self.verdict.round].plan_token]
            if self.verdict.exit_code != first[2]:
                self.fail("S9", f"the job ends with {self.verdict.exit_code}, its first failure was {first[2]}")
        if self.verdict.kind == "failure" and "restarts" in self.verdict.reason:
            failed = len(self._cluster.failed_rounds)
            if failed <= self._settings.max_restarts:
                self.fail("S5", f"failed after {failed} failed rounds, {self._settings.max_restarts} restarts allowed")

    def _see_seal(self, item: KeyValue) -> None:
        seal = records.decode(Seal, item.value, item.key)
        if seal.round in self.seals or seal.round != max(self.seals, default=0) + 1:
            self.fail("S1", f"round {seal.round} was sealed after round {max(self.seals, default=0)}")
        if self.verdict is not None:
            self.fail("S3", f"round {seal.round} was sealed after the verdict")
        alive = [n.name for n in self._cluster.nodes.values() if n.running is not None and n.may_still_act]
        if alive:
            self.fail("S2", f"round {seal.round} was sealed while processes of an earlier one live on {alive}")
        self.seals[seal.round] = seal
        failed = len([round for round in self._cluster.failed_rounds if round < seal.round])
        if seal.restart_count > self._settings.max_restarts:
            self.fail("S5", f"{seal.restart_count} restarts, {self._settings.max_restarts} allowed")
        if seal.restart_count > failed:
            self.fail("S5", f"{seal.restart_count} restarts charged for {failed} failed rounds")
        if seal.coordinator in self._used_coordinators:
            self.fail("S8", f"round {seal.round} uses the coordinator {seal.coordinator} again")

    def check_start(self, node: Node, started: Running) -> None:
        if node.running is not None:
            self.fail("S2", f"{node.name} starts round {started.round} while round {node.running.round} lives")
        for other in self._cluster.nodes.values():
            if other.running is None or other is node or not other.may_still_act:
                continue
            if other.running.round != started.round:
                self.fail("S2", f"rounds {started.round} and {other.running.round} live at once")
            if other.running.rank == started.rank:
                self.fail("S1", f"rank {started.rank} of round {started.round} lives on {other.name} and {node.name}")
        if started.rank == 0:
            self._used_coordinators.add(started.coordinator)
        world = (started.coordinator, started.world_size, started.restart_count)
        if self._coordinators.setdefault(started.round, world) != world:
            self.fail("S1", f"two views of round {started.round}: {world}, {self._coordinators[started.round]}")
        seal = self.seals.get(started.round)
        if seal is None or seal.restart_count != started.restart_count:
            self.fail("S5", f"{node.name} runs round {started.round} with another restart count than was sealed")

    def check_request(self, node: Node, ask: Ask) -> None:
        """Every write names what it was decided on, so that it does nothing once that has changed."""
        if not isinstance(ask.request, Txn) or node.protocol is None:
            return
        named = {(_name(compare.key), compare.target) for compare in ask.request.compares if compare.relation == "="}
        for write in ask.request.success:
            if isinstance(write, Get):
                continue
            missing = _guards(_name(write.key), isinstance(write, Delete), node.protocol.member_id) - named
            if missing:
                self.fail("S10", f"{node.name} wants to {ask.why} without naming {sorted(missing)}")
        if not all(isinstance(operation, Get) for operation in ask.request.failure):
            self.fail("S10", f"{node.name} writes where its guards do not hold: {ask.why}")

    def check_step(self, node: Node, actions: Sequence[Action]) -> None:
        """Nobody asks to be woken in the past, nor after its end."""
        if any(isinstance(action, End) for action in actions[:-1]):
            self.fail("L1", f"{node.name} acts after its end: {actions}")
        has_ended = bool(actions) and isinstance(actions[-1], End)
        wake_at = node.protocol.wake_at if node.protocol is not None else math.inf
        if wake_at < math.inf and (has_ended or wake_at <= self._cluster.now):
            self.fail("L1", f"{node.name} wants to be woken at {wake_at:.3f}, ended: {has_ended}")

    def check_end(self, node: Node, watched: Sequence[str]) -> None:
        """Who ends with the job's verdict ends with the same one; others end as they were told, never with success."""
        assert node.ended is not None
        verdict, exit_code = node.ended.verdict, node.ended.exit_code
        if watched:
            self.fail("S6", f"{node.name} ends and still watches {watched}")
        if verdict is not None:
            if verdict != self.verdict or exit_code != verdict.exit_code:
                self.fail("S3", f"{node.name} ends with {exit_code}, {verdict}; the store says {self.verdict}")
        elif exit_code not in ((137, 143) if node.is_told_to_leave else (137,)):
            self.fail("S3", f"{node.name} ends with {exit_code} and without a verdict: {node.ended.reason}")


def _name(key: str) -> str:
    """The key below its job."""
    return key.split("/", 4)[-1]


def _guards(name: str, is_delete: bool, member_id: str) -> set[tuple[str, str]]:
    """What a write of this key has to compare: key and target."""
    own = f"members/{member_id}"
    leading = {("ctl/leader", "create"), (own, "create"), ("ctl/verdict", "create")}
    if name in ("current", "spec"):
        return {(name, "mod")}
    if name == own and not is_delete:
        return {(own, "create"), ("current", "mod"), ("ctl/verdict", "create")}
    if name == f"status/{member_id}" and not is_delete:
        return {(own, "create"), (name, "mod")}
    if name == "ctl/leader":
        return leading
    if name == "ctl/verdict":
        return leading | {("ctl/round", "mod"), ("ctl/stop", "mod")}
    if name.startswith(("assign/", "status/")):
        return leading | {("ctl/round", "mod")}
    return leading | {(name, "mod")}


class _Storm:
    """Faults in bursts until FAULTS_S, then none. Agents that exit are started again, as a container would be."""

    def __init__(self, cluster: Cluster, random: Random, checker: Checker, work_s: float, failing: float) -> None:
        self._cluster, self._random, self._checker = cluster, random, checker
        self._work_s, self._failing = work_s, failing
        self.counts: Counter[str] = Counter()
        self._kinds: list[tuple[str, Callable[[Node], None]]] = [
            ("crash", lambda node: node.crash()),
            ("short pause", lambda node: node.pause(random.uniform(0.1, 4.0))),
            ("long pause", lambda node: node.pause(random.uniform(4.0, 30.0))),
            ("cut", lambda node: node.cut(random.uniform(0.5, 20.0))),
            ("leave", lambda node: node.leave()),
            ("hang", self._hang),
            ("deafen", self._deafen),
        ]
        cluster.on_start = self._run_processes

    @property
    def is_over(self) -> bool:
        return self._cluster.now >= FAULTS_S

    def blow(self) -> None:
        """One burst, and the next."""
        if self.is_over:
            return
        nodes = list(self._cluster.nodes.values())
        for node in self._random.sample(nodes, min(len(nodes), self._random.choice([1, 1, 2]))):
            name, strike = self._random.choice(self._kinds)
            if node.is_up:
                self.counts[name] += 1
                strike(node)
        self._cluster.later(self._random.expovariate(1 / 8.0), self.blow)

    def revive(self) -> None:
        """Start what is down, while the job goes on."""
        if self._checker.verdict is None:
            for node in self._cluster.nodes.values():
                if not node.is_up and node.running is None and self._random.random() < 0.5:
                    node.start()
            self._cluster.later(self._random.uniform(0.2, 3.0), self.revive)

    def _hang(self, node: Node) -> None:
        node.hangs_until = max(node.hangs_until, self._cluster.now + self._random.uniform(5.0, 60.0))

    def _deafen(self, node: Node) -> None:
        """Watches end with the connection, which takes a while to come back."""
        node.deafen()
        node.cut(self._random.choice([0.0, self._random.uniform(0.0, 3.0)]))

    def _run_processes(self, node: Node) -> None:
        """What the processes do: work and succeed, or fail, and break when a peer of theirs is gone."""
        running = node.running
        work_s = self._work_s * self._random.uniform(0.8, 1.2)
        if self._random.random() < self._failing and not self.is_over:
            self._cluster.later(self._random.uniform(0.1, work_s), self._fail, node, running, False)
        else:
            self._cluster.later(work_s, self._succeed, node, running)

    def _fail(self, node: Node, running: Running, is_peer_loss: bool) -> None:
        if node.running is running and not node.has_finished:
            self.counts["peer loss" if is_peer_loss else "failure"] += 1
            node.fail(self._random.randint(1, 120), is_peer_loss)
            self._break_peers(running)

    def _break_peers(self, running: Running) -> None:
        for peer in self._cluster.nodes.values():
            if peer.running is not None and peer.running.round == running.round and self._random.random() < 0.5:
                self._cluster.later(self._random.uniform(0.01, 2.0), self._fail, peer, peer.running, True)

    def _succeed(self, node: Node, running: Running) -> None:
        if node.running is not running:
            return
        present = [n for n in self._cluster.nodes.values() if n.running and n.running.round == running.round]
        if len(present) < running.world_size and not any(running.round in n.finished_as for n in present):
            self._cluster.later(1.0, self._fail, node, running, True)  # a collective with a missing peer
        else:
            node.succeed()


def run(seed: int, trace: Callable[[str], None] = lambda line: None) -> Result:
    """Play one seed. Raises Violation; the same seed does the same on every machine and Python."""
    random = Random(seed)
    members = random.randint(1, 12)
    group = random.choice([1, 1, 2, 3]) if members >= 3 else 1
    nodes_min = min(members // group * group, group * random.randint(1, 3))
    shape = Shape(nodes_min=nodes_min, nodes_max=random.randint(nodes_min, members), group=group)
    settings = Settings(
        max_restarts=random.choice([0, 1, 3, 10]),
        join_grace_s=2.0,
        start_timeout_s=400.0,
        rejoin_timeout_s=400.0,
        grow_delay_s=random.choice([5.0, 300.0]),
        shutdown_timeout_s=3.0,
        restart_grace_s=1.0,
        stop_limit_s=5.0,
        min_round_time_s=2.0,
        backoff_max_s=10.0,
        no_progress_rounds=20,
        opens_next_job=False,
    )
    is_calm = random.random() < 0.2
    network = Network(
        delay_s=(0.001, random.choice([0.002, 0.05, 0.4])),
        lose_request=0.0 if is_calm else 0.01,
        lose_answer=0.0 if is_calm else 0.02,
        apply_late=0.0 if is_calm else 0.01,
        refuse=0.0 if is_calm else 0.01,
    )
    cluster = Cluster(random=random, settings=settings, shape=shape, network=network, trace=trace)
    checker = Checker(cluster, settings, seed)
    storm = _Storm(cluster, random, checker, random.uniform(1.0, 60.0), random.choice([0.0, 0.05, 0.3]))
    for index in range(members):
        cluster.later(random.uniform(0.0, 3.0), cluster.add(f"node{index}").start)
    cluster.later(random.uniform(1.0, 5.0), storm.blow)
    cluster.later(4.0, storm.revive)
    _play(cluster, checker)
    verdict = checker.verdict.kind if checker.verdict else ""
    return Result(seed=seed, members=members, verdict=verdict, rounds=len(checker.seals), faults=dict(storm.counts))


def _play(cluster: Cluster, checker: Checker) -> None:
    is_healed = False
    for _ in range(STEPS_MAX):
        if not cluster.step():
            break
        if not is_healed and cluster.now >= FAULTS_S:
            is_healed = True
            cluster.network = Network(delay_s=cluster.network.delay_s)
            for node in cluster.nodes.values():
                node.cut_until = node.paused_until = cluster.now
                node.resume()
        if checker.verdict is not None and not any(node.is_up for node in cluster.nodes.values()):
            break
        if cluster.now > FAULTS_S + HEAL_S:
            up = {node.name: node.said for node in cluster.nodes.values() if node.is_up}
            checker.fail("L1", f"no end {HEAL_S:g} s after the heal; verdict {checker.verdict}; {json.dumps(up)}")
    else:
        checker.fail("L1", f"{STEPS_MAX} steps without an end")


def replay_command(seed: int) -> str:
    """How to see a seed again, for a failure message."""
    return f"python -m rendezvous.testing --seeds {seed} --trace"
