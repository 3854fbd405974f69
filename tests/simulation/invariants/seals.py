"""What must hold of each seal: who may be omitted, who may be used, the successors, and the restarts charged.

A seal is recorded when its writer requests it, with what that agent knew; it is checked when the store applies it,
which may be much later.
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.errors import EXIT_USELESS
from rendezvous.events import Txn
from rendezvous.reasons import Reason
from rendezvous.records import Member, Seal, Status, Stop, Verdict
from rendezvous.stores.contract import Put
from tests.simulation.cluster import Cluster
from tests.simulation.invariants.budget import ROUNDED_S, list_quarantined
from tests.simulation.invariants.history import Checks, JobRecord, RoundRecord, SealRequest
from tests.simulation.invariants.witness import KnownKeys, Witness

SUCCESSORS = 3


class SealChecks(Checks):
    """`confirmed_gone`: members with a proof of death."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.requests: dict[bytes, SealRequest] = {}  # the record -> its request
        self.confirmed_gone: set[str] = set()

    def check(self, seal: Seal, job: JobRecord, active: set[str]) -> None:
        """Check a seal that the store has applied. `active`: the members with assignments."""
        last = job.last
        if len(active) > self._shape.nodes_max:
            self.fail("L3", f"{len(active)} members have ranks in a world of {self._shape.nodes_max}")
        if last is not None:
            self._check_charge(seal, last)
            self._count_change(last, active)
            if last.active <= last.succeeded:
                self.fail("S4", f"round {seal.round} was sealed although all of round {last.seal.round} had succeeded")

    def check_request(self, seal: Seal, job: JobRecord, active: set[str], request: SealRequest) -> None:
        """Check it against what its writer knew."""
        self._check_successors(seal, active, request.node, job)
        self._check_quarantine(seal, active)
        if job.last is not None:
            self._check_all_stopped(seal, job.last, request, job)

    def note(self, name: str, witness: Witness, job: JobRecord, request: Txn) -> None:
        """Record what the writer of a seal knows."""
        for write in request.success:
            known, ids = witness.known, job.members
            if isinstance(write, Put) and write.key.endswith("/ctl/stop"):
                stop = records.decode(Stop, write.value, write.key)
                ran_s = self._timeline.now - known.seen_at.get(f"{write.key.removesuffix('stop')}round", -math.inf)
                if abs(stop.ran_s - ran_s) > ROUNDED_S:
                    self.fail("S5", f"{name} says that round {stop.round} ran {stop.ran_s:g} s, not {ran_s:g}")
            if isinstance(write, Put) and write.key.endswith("/ctl/round"):
                seal, plan = records.decode(Seal, write.value, write.key), witness.planned[1]
                root = write.key.removesuffix("ctl/round")
                host = seal.coordinator.rpartition(":")[0]
                if plan is None or (plan.coordinator_id, plan.world_size) != (host, seal.world_size):
                    self.fail("S1", f"{name} seals {seal}, the plan that it has asked for last is {plan}")
                offered = _find_offered_port(root, plan.coordinator_id, known)
                if offered and offered != seal.coordinator:
                    self.fail("S8", f"{name} seals the coordinator {seal.coordinator}, {offered} is offered")
                self.requests[write.value] = SealRequest(
                    node=f"{name} {name}",
                    at=self._timeline.now,
                    seal_seen_at=known.seen_at.get(write.key, -math.inf),
                    stop_seen_at=known.seen_at.get(f"{root}ctl/stop", -math.inf),
                    gone={m: known.gone_at[f"{root}members/{m}"] for m in ids if f"{root}members/{m}" in known.gone_at},
                    statuses={
                        m: known.seen_at[f"{root}status/{m}"] for m in ids if f"{root}status/{m}" in known.seen_at
                    },
                    acknowledged_at=witness.acknowledged_at,
                )

    def check_failure(self, verdict: Verdict, last: RoundRecord) -> None:
        """The verdict names the first failure, the budget is used up, and no loss could still explain the failure."""
        first = last.first_failure
        is_stuck = verdict.reason.kind == "stuck"
        if first is None or verdict.exit_code != (EXIT_USELESS if is_stuck else first[3]):
            self.fail("S9", f"the job ends with {verdict.exit_code}, its first failure was {first}")
        use = verdict.reason.values.get("use")
        if not isinstance(use, Reason) or use.kind != "restarts-used":
            return
        settings, now = self._settings, self._timeline.now
        used = sum(1 for age in last.seal.charge_ages_s if age <= settings.restart_window_s)
        is_full = settings.restart_window_s == math.inf and used != settings.max_restarts
        if used < settings.max_restarts or is_full:
            self.fail("S5", f"failed after {used} restarts, {settings.max_restarts} allowed")
        waited_s = now - min(last.failed_at.values())
        if len(last.active) > 1 and waited_s < settings.settle_s - ROUNDED_S:
            self.fail("S5", f"failed {waited_s:g} s after the failure, a loss could still explain it")

    def _check_all_stopped(self, seal: Seal, last: RoundRecord, request: SealRequest, job: JobRecord) -> None:
        """Every member of the last round is gone or has reported its stop, and none may return from an outage."""
        settings = self._settings
        hold_s = settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
        for member_id in last.active:
            status = last.statuses.get(member_id)
            if status is not None and status.is_stopped:
                continue
            if member_id in job.present:
                self.fail("S2", f"round {seal.round} is sealed before {self.find_node_name(member_id)} has stopped")
            if request.at < request.acknowledged_at + hold_s and member_id not in self.confirmed_gone:
                self.fail(
                    "S2", f"round {seal.round} omits {self.find_node_name(member_id)} {hold_s:g} s after an outage"
                )

    def _check_successors(self, seal: Seal, active: set[str], leader: str, job: JobRecord) -> None:
        """Successors are on different nodes, none of them the leader's, and up to three if there are so many nodes."""
        nodes = [self.find_node_name(member_id) for member_id in seal.successors]
        there = {self.find_node_name(m) for m in active if m in job.present} - {leader}
        if leader in nodes or len(set(nodes)) < len(nodes) or len(nodes) < min(SUCCESSORS, len(there)):
            self.fail("S10", f"round {seal.round} of {leader} names the successors {nodes} of {sorted(there)}")

    def _check_quarantine(self, seal: Seal, active: set[str]) -> None:
        """A quarantined node is used only if no world is possible without it."""
        quarantined = list_quarantined(seal, self._settings)
        used = [m for m in active if self.find_node_name(m) in quarantined]
        if used and self._shape.count_usable(len(active) - len(used)):
            self.fail("S5", f"round {seal.round} uses {len(used)} of {quarantined}, and a world is possible without")

    def _check_charge(self, seal: Seal, last: RoundRecord) -> None:
        """A failure costs one restart; only after a departure may it be free, or a restart be refunded."""
        charged = seal.restart_count - last.seal.restart_count
        if charged:
            self._timeline.count("restart charged" if charged > 0 else "restart given back")
        allowed = {-1, 0, 1} if last.departed else {1} if last.first_failure else {0}
        if last.is_port_taken or not last.failed_before_stop:
            allowed |= {0}
        is_too_much = seal.restart_count > self._settings.max_restarts and self._settings.restart_window_s == math.inf
        if charged not in allowed or is_too_much:
            self.fail("S5", f"{charged} restarts charged for round {last.seal.round}, {seal.restart_count} in all")
        ends = [end for host in self._hosts.values() for end in host.processes.ended_as.items()]
        failed = len({round for round, (outcome, _) in ends if outcome == "failed" and round < seal.round})
        if seal.restart_count > failed:
            self.fail("S5", f"{seal.restart_count} restarts charged for {failed} failed rounds")

    def _count_change(self, last: RoundRecord, active: set[str]) -> None:
        """Count how the roster has changed."""
        arrived, left = active - last.active, last.active - active
        if arrived & last.present and left:
            self._timeline.count("spare promoted")
        elif arrived and left:
            self._timeline.count("place taken by a newcomer")
        elif arrived:
            self._timeline.count("world grown")
        elif left:
            self._timeline.count("world shrunk")


def _find_offered_port(root: str, member_id: str, known: KnownKeys) -> str:
    """This member with the port that it has offered last, as far as is known; "" if it is gone.

    It may have been lost since the seal was decided, and is a loss of the new round then.
    """
    key, status_key = f"{root}members/{member_id}", f"{root}status/{member_id}"
    status, member = known.items.get(status_key), known.items.get(key)
    if member is None:
        return ""
    port = records.decode(Status, status.value, status_key).worker_port if status is not None else 0
    return f"{member_id}:{port or records.decode(Member, member.value, key).worker_port}"
