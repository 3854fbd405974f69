"""What must hold of each seal: who may be left out, who may be used, who shall lead next, and what it was charged.

A seal is remembered as its writer asks for it, with what that agent had been told by then; it is judged when the store
takes it, which may be much later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rendezvous import records
from rendezvous.events import Txn
from rendezvous.records import Seal, Stop, Verdict
from rendezvous.settings import Settings
from rendezvous.stores.contract import Put
from rendezvous.testing.invariants.budget import ROUNDED_S, BudgetModel, SealRequest, list_quarantined
from rendezvous.testing.invariants.deadlines import DeadlineChecks
from rendezvous.testing.invariants.history import JobRecord, RoundRecord
from rendezvous.testing.invariants.witness import Witness

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import SimulatedCluster

SUCCESSORS = 3


class SealChecks:
    """`fail` is called with the invariant's letter and what was seen. `proven`: who is proven to be gone."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        settings: Settings,
        deadlines: DeadlineChecks,
        fail: Callable[[str, object], None],
        has_witnesses: bool,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._deadlines = deadlines
        self._fail = fail
        self._has_witnesses = has_witnesses
        self._budget_model = BudgetModel(settings, self._find_node_name, fail)
        self._seal_requests: dict[bytes, SealRequest] = {}  # the record -> as it was asked for
        self.confirmed_gone: set[str] = set()

    def check(self, record: bytes, seal: Seal, job: JobRecord, assignments: Mapping[str, str]) -> None:
        """Judge a seal that the store has taken; `given` are its assignments."""
        last, active = job.last, set(assignments)
        if len(active) > self._cluster.shape.nodes_max:
            self._fail("L3", f"{len(active)} members have ranks in a world of {self._cluster.shape.nodes_max}")
        if last is not None:
            self._check_charge(seal, last)
            self._count_change(last, active)
            if last.active <= last.succeeded:
                self._fail("S4", f"round {seal.round} was sealed although all of round {last.seal.round} had succeeded")
        if not self._has_witnesses:
            return
        asked = self._seal_requests[record]
        self._check_successors(seal, active, asked.node, job)
        self._check_quarantine(seal, active)
        if last is not None:
            self._check_all_stopped(seal, last, asked, job)
            self._budget_model.check(seal, last, asked, last.lost - job.leaving)

    def note(self, name: str, witness: Witness, job: JobRecord, request: Txn) -> None:
        """Remember what the writer of a seal knew."""
        for write in request.success:
            told, ids = witness.known, job.members
            if isinstance(write, Put) and write.key.endswith("/ctl/stop"):
                stop = records.decode(Stop, write.value, write.key)
                ran_s = [self._cluster.now - at for at in told.times.get(f"{write.key.removesuffix('stop')}round", ())]
                if not any(abs(stop.ran_s - each) <= ROUNDED_S for each in ran_s):
                    self._fail("S5", f"{name} says that round {stop.round} ran {stop.ran_s:g} s, not {ran_s}")
            if isinstance(write, Put) and write.key.endswith("/ctl/round"):
                seal, plan = records.decode(Seal, write.value, write.key), witness.planned[1]
                if plan is None or (plan.coordinator, plan.world_size) != (seal.coordinator, seal.world_size):
                    self._fail("S1", f"{name} seals {seal}, the plan that it has asked for last is {plan}")
                root = write.key.removesuffix("ctl/round")
                self._seal_requests[write.value] = SealRequest(
                    node=f"{name} {name}",
                    at=self._cluster.now,
                    seal_seen_at=told.times.get(write.key, ()),
                    stop_seen_at=told.seen_at.get(f"{root}ctl/stop", -math.inf),
                    gone={m: told.gone_at[f"{root}members/{m}"] for m in ids if f"{root}members/{m}" in told.gone_at},
                    statuses={m: told.seen_at[f"{root}status/{m}"] for m in ids if f"{root}status/{m}" in told.seen_at},
                    acknowledged_at=witness.acknowledged_at,
                )

    def check_failure(self, verdict: Verdict, last: RoundRecord) -> None:
        """The first failure is blamed, the budget is spent, and nothing has explained the failure while it could."""
        first = last.first_failure
        if first is None or verdict.exit_code != first[2]:
            self._fail("S9", f"the job ends with {verdict.exit_code}, its first failure was {first}")
        if "restarts" not in verdict.reason:
            return
        settings, now = self._settings, self._cluster.now
        used = sum(1 for age in last.seal.charge_ages_s if age <= settings.restart_window_s)
        is_full = settings.restart_window_s == math.inf and used != settings.max_restarts
        if used < settings.max_restarts or is_full:
            self._fail("S5", f"failed after {used} restarts, {settings.max_restarts} allowed")
        waited_s = now - min(last.failed_at.values())
        if len(last.active) > 1 and waited_s < settings.settle_s - ROUNDED_S:
            self._fail("S5", f"failed {waited_s:g} s after the failure, a loss could still explain it")

    def _check_all_stopped(self, seal: Seal, last: RoundRecord, request: SealRequest, job: JobRecord) -> None:
        """Every member of the last round is gone or has said that it stopped; who may come back is waited for."""
        settings = self._settings
        hold_s = settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
        for member_id in last.active:
            status = last.statuses.get(member_id)
            if status is not None and status.is_stopped:
                continue
            if member_id in job.present:
                self._fail("S2", f"round {seal.round} is sealed before {self._find_node_name(member_id)} has stopped")
            if request.at < request.acknowledged_at + hold_s and member_id not in self.confirmed_gone:
                self._fail(
                    "S2", f"round {seal.round} omits {self._find_node_name(member_id)} {hold_s:g} s after an outage"
                )

    def _check_successors(self, seal: Seal, active: set[str], leader: str, job: JobRecord) -> None:
        """On other nodes than the leader and each other, and as many as there are, up to three."""
        nodes = [self._find_node_name(member_id) for member_id in seal.successors]
        there = {self._find_node_name(m) for m in active if m in job.present} - {leader}
        if leader in nodes or len(set(nodes)) < len(nodes) or len(nodes) < min(SUCCESSORS, len(there)):
            self._fail("S10", f"round {seal.round} of {leader} names the successors {nodes} of {sorted(there)}")

    def _check_quarantine(self, seal: Seal, active: set[str]) -> None:
        """Who sits out is used only as far as no world is possible without."""
        sitting = list_quarantined(seal, self._settings)
        used = [m for m in active if self._find_node_name(m) in sitting]
        if used and self._cluster.shape.count_usable(len(active) - len(used)):
            self._fail("S5", f"round {seal.round} uses {len(used)} of {sitting}, and a world is possible without")

    def _find_node_name(self, member_id: str) -> str:
        """As marks name it."""
        node = self._deadlines.find_node(member_id)
        return f"{node.name} {node.name}" if node is not None else member_id

    def _check_charge(self, seal: Seal, last: RoundRecord) -> None:
        """A failure costs one restart; only where somebody has departed may it be free, or one be given back."""
        charged = seal.restart_count - last.seal.restart_count
        if charged:
            self._cluster.count("restart charged" if charged > 0 else "restart given back")
        allowed = {-1, 0, 1} if last.departed else {1} if last.first_failure else {0}
        if last.is_port_taken or not last.failed_before_stop:
            allowed |= {0}
        is_too_much = seal.restart_count > self._settings.max_restarts and self._settings.restart_window_s == math.inf
        if charged not in allowed or is_too_much:
            self._fail("S5", f"{charged} restarts charged for round {last.seal.round}, {seal.restart_count} in all")
        failed = len([round for round in self._cluster.failed_rounds if round < seal.round])
        if seal.restart_count > failed:
            self._fail("S5", f"{seal.restart_count} restarts charged for {failed} failed rounds")

    def _count_change(self, last: RoundRecord, active: set[str]) -> None:
        """What the rules have made of it, for the record of what was met."""
        arrived, left = active - last.active, last.active - active
        if arrived & last.present and left:
            self._cluster.count("spare promoted")
        elif arrived and left:
            self._cluster.count("place taken by a newcomer")
        elif arrived:
            self._cluster.count("world grown")
        elif left:
            self._cluster.count("world shrunk")
