"""The invariants of agreement, watched while a simulated cluster runs.

The letters in a violation are those of the project's list of invariants: S1 one live process per rank and one
view of the world; S2 no two rounds alive; S3 one verdict that never changes and that all who end agree on; S4 an
accepted completion is real, and none is run again; S5 the budget is exact; S6 nothing is left behind; S8 nothing
of a round in the next; S9 the exit code is the first failure's; S10 no write that does not name what it was
decided on; S11 a transaction whose answer was lost counts once; L1 a verdict within a bound, and nobody asks to
be woken in the past.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rendezvous import keys, records
from rendezvous.messages import Action, Ask, End, Txn
from rendezvous.records import Seal, Status, Verdict
from rendezvous.settings import Settings
from rendezvous.store import Batch, Delete, Get, KeyValue
from rendezvous.testing.cluster import PREFIX, Cluster, Node, Running


class Violation(AssertionError):
    """An invariant was broken; the text names it, the seed and the time."""


class _Round:
    """What the store has held of one sealed round. Members are named by their ids."""

    def __init__(self, seal: Seal, active: set[str], departed: set[str]) -> None:
        self.seal = seal
        self.active = active
        self.departed = departed  # lost, or leaving, before they had succeeded
        self.succeeded: set[str] = set()
        self.first_failure: tuple[bool, int, int] | None = None  # echo, revision, exit code: the least of all

    def see(self, member_id: str, status: Status, revision: int) -> None:
        if status.outcome == "succeeded":
            self.succeeded.add(member_id)
        if status.outcome == "failed":
            failure = (status.is_peer_loss, revision, status.exit_code)
            self.first_failure = min(self.first_failure or failure, failure)


class Checker:
    """Watches every request, write, start and end; raises Violation on the first thing that must not be."""

    def __init__(self, cluster: Cluster, settings: Settings, seed: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seed = seed
        self.verdict: Verdict | None = None
        self.rounds: list[_Round] = []
        self._departed: set[str] = set()  # members that are gone or leaving
        self._worlds: dict[int, tuple[str, int, int]] = {}
        self._used_coordinators: set[str] = set()  # where a rank 0 really ran
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

    # --- the store ---

    def _see(self, batch: Batch) -> None:
        for event in batch.events:
            name = _name(event.item.key)
            last = self.rounds[-1] if self.rounds else None
            if event.kind == "delete":
                if name == "ctl/round":
                    self.fail("S3", "the seal was deleted")
                if name.startswith("members/"):
                    self._depart(name.removeprefix("members/"))
            elif name == "ctl/verdict":
                self._see_verdict(event.item)
            elif name == "ctl/round":
                self._see_seal(event.item, last)
            elif name.startswith("status/"):
                self._see_status(name.removeprefix("status/"), event.item, last)

    def _see_status(self, member_id: str, item: KeyValue, last: _Round | None) -> None:
        status = records.decode(Status, item.value, item.key)
        if last is not None and status.plan_token == last.seal.plan_token:
            last.see(member_id, status, item.mod_revision)
        if status.leaving:
            self._depart(member_id)

    def _depart(self, member_id: str) -> None:
        self._departed.add(member_id)
        if self.rounds and member_id in self.rounds[-1].active - self.rounds[-1].succeeded:
            self.rounds[-1].departed.add(member_id)

    def _see_verdict(self, item: KeyValue) -> None:
        if item.version != 1:
            self.fail("S3", "the verdict was written twice")
        verdict = self.verdict = records.decode(Verdict, item.value, item.key)
        last = self.rounds[-1] if self.rounds else None
        if verdict.round != (last.seal.round if last else 0):
            self.fail("S4", f"a verdict on round {verdict.round} of {len(self.rounds)}")
        if verdict.kind == "success":
            assert last is not None
            done = {node.finished_as.get(verdict.round) for node in self._cluster.nodes.values()}
            if not last.active <= done:
                self.fail("S4", f"success of round {verdict.round} without {len(last.active - done)} of its members")
        if verdict.failure and last is not None:
            first = last.first_failure
            if first is None or verdict.exit_code != first[2]:
                self.fail("S9", f"the job ends with {verdict.exit_code}, its first failure was {first}")
        if verdict.failure and last is not None and "restarts" in verdict.reason:
            used = last.seal.restart_count
            if used != self._settings.max_restarts:
                self.fail("S5", f"failed after {used} restarts, {self._settings.max_restarts} allowed")

    def _see_seal(self, item: KeyValue, last: _Round | None) -> None:
        seal = records.decode(Seal, item.value, item.key)
        if seal.round != len(self.rounds) + 1:
            self.fail("S1", f"round {seal.round} was sealed after round {len(self.rounds)}")
        if self.verdict is not None:
            self.fail("S3", f"round {seal.round} was sealed after the verdict")
        alive = [n.name for n in self._cluster.nodes.values() if n.running is not None and n.may_still_act]
        if alive:
            self.fail("S2", f"round {seal.round} was sealed while processes of an earlier one live on {alive}")
        if seal.coordinator in self._used_coordinators:
            self.fail("S8", f"round {seal.round} uses the coordinator {seal.coordinator} again")
        if last is not None:
            self._check_charge(seal, last)
            if last.active <= last.succeeded:
                self.fail("S4", f"round {seal.round} was sealed although all of round {last.seal.round} had succeeded")
        root = item.key.removesuffix("/ctl/round")
        found = self._cluster.store.get(keys.Keys(root).assignments(seal.round, seal.plan_token), prefix=True)
        active = {item.key.rpartition("/")[2] for item in found.items}
        self.rounds.append(_Round(seal, active, active & self._departed))

    def _check_charge(self, seal: Seal, last: _Round) -> None:
        """A failure costs one restart; only where somebody has departed may it be free, or one be given back."""
        charged = seal.restart_count - last.seal.restart_count
        allowed = [-1, 0, 1] if last.departed else [1] if last.first_failure else [0]
        if charged not in allowed or seal.restart_count > self._settings.max_restarts:
            self.fail("S5", f"{charged} restarts charged for round {last.seal.round}, {seal.restart_count} in all")
        failed = len([round for round in self._cluster.failed_rounds if round < seal.round])
        if seal.restart_count > failed:
            self.fail("S5", f"{seal.restart_count} restarts charged for {failed} failed rounds")

    # --- the agents ---

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
        if self._worlds.setdefault(started.round, world) != world:
            self.fail("S1", f"two views of round {started.round}: {world}, {self._worlds[started.round]}")
        if started.round > len(self.rounds):
            self.fail("S10", f"{node.name} starts round {started.round}, which nobody has sealed")
        if self.rounds[started.round - 1].seal.restart_count != started.restart_count:
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
