"""What must hold of times at every step, whether or not anything comes of it.

A watchdog that runs a second too long does harm only if two other faults fall into that second. So the
near miss is the failure: each order to extend it, each start and each lapse is held against what the store, the other
agents and the clock really were, computed here from what was seen on the wire.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rendezvous.events import (
    Action,
    Event,
    ExtendWatchdog,
    KeepAlive,
    SendToPeer,
    StartRound,
    StoreRequest,
    Txn,
    get_request_kind,
)
from rendezvous.settings import Settings
from rendezvous.testing.invariants.history import JobRecord
from rendezvous.testing.invariants.witness import Witness

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import SimulatedCluster
    from rendezvous.testing.simulation.node import SimulatedNode

EPS_S = 1e-6
ProbeKey = tuple[str, int, str]  # who leads, its number, the plan token


class DeadlineChecks:
    """`fail` is called with the invariant's letter and what was seen."""

    def __init__(self, cluster: SimulatedCluster, settings: Settings, fail: Callable[[str, object], None]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._fail = fail
        self._acknowledged_at: dict[ProbeKey, dict[str, float]] = {}  # who has said when that the store is away

    def check(
        self, node: SimulatedNode, witness: Witness, job: JobRecord, events: Sequence[Event], actions: Sequence[Action]
    ) -> None:
        """After one step of this agent: `job` is the one that it is a member of."""
        member_id = node.machine.member_id if node.machine is not None else ""
        gone_by = node.processes.watchdog_until + self._settings.kill_margin_s + EPS_S
        if node.processes.may_still_act and self._cluster.now > gone_by:
            self._fail(
                "S6", f"processes live on {node.name}, whose watchdog ended at {node.processes.watchdog_until:.3f}"
            )
        is_over = witness.was_member and self._cluster.now >= witness.watchdog_until + self._settings.kill_margin_s
        for action in actions:
            match action:
                case StoreRequest(_, why, Txn()) if is_over and get_request_kind(action.request) == "write":
                    self._fail(
                        "S10", f"{node.name} wants to {why}, and is no member since {witness.watchdog_until:.3f}"
                    )
                case StartRound() if is_over:
                    self._fail("S1", f"{node.name} starts workers, and is no member since {witness.watchdog_until:.3f}")
                case SendToPeer(to, text):
                    self._note_acknowledgement(member_id, to, json.loads(text), witness, job)
                case ExtendWatchdog(until):
                    self._check_extension(node, witness, job, node.to_cluster_time(until))
                    witness.watchdog_until = node.to_cluster_time(until)
                case StartRound():
                    self._check_start(node, witness, job, action)
        if node.machine is not None and not node.machine.state.membership.has_ended:
            self._check_stop(node, witness)
            self._check_renewals(node, witness)
            self._check_knowledge(node, witness)

    # --- the watchdog ---

    def compute_lease_bound(self, lease: int) -> float:
        """Until when the processes of whoever lives on this lease may live."""
        storage, settings = self._cluster.storage, self._settings
        grace_s = settings.lease_ttl_s if storage.is_broken(lease) else 0.0
        return storage.get_lease_end(lease) + grace_s - settings.kill_margin_s

    def _check_extension(self, node: SimulatedNode, witness: Witness, job: JobRecord, until: float) -> None:
        settings, protocol = self._settings, node.machine
        assert protocol is not None
        lease, is_member, member_id = protocol.state.lease.id, protocol.state.is_member, protocol.member_id
        if witness.member_id not in ("", member_id):  # it was extended before the membership ended in this very step
            lease, is_member, member_id = witness.lease, witness.was_member, witness.member_id
        bound = self.compute_lease_bound(lease) if lease is not None else -math.inf
        if is_member:
            own_key = protocol.state.job.make_member_key(member_id)
            bound = min(bound, witness.read_at.get(own_key, -math.inf) + settings.view_s - settings.kill_margin_s)
        bound = max(bound, witness.held_until - settings.kill_margin_s)  # what was held is held
        is_allowed = until <= max(bound, self._cluster.now) + EPS_S
        if (
            is_allowed and until > witness.acknowledged_at + settings.lease_ttl_s
        ):  # no beat that could have held it so long
            return
        held = self._compute_held_bound(witness, job, member_id)
        if until <= held + EPS_S:  # and is held though the lease is found to have ended in the meantime
            witness.held_until = max(witness.held_until, until + settings.kill_margin_s)
        elif not is_allowed:
            self._fail(
                "S1",
                f"the watchdog of {node.name} is extended to {until:.3f}; its lease and its last look at the store "
                "allow "
                f"{bound:.3f}, an outage {held:.3f}",
            )

    def _compute_held_bound(self, witness: Witness, job: JobRecord, member_id: str) -> float:
        """Until when the words of the whole roster permit this member's processes to live."""
        settings, last = self._settings, job.last
        if not settings.continues_without_store or last is None:
            return -math.inf
        found = -math.inf
        alive = self._list_alive(job) - {member_id}
        if not alive:
            found = self._cluster.now
        for (leader_id, _, token), words in self._acknowledged_at.items():
            if token != last.seal.plan_token or member_id not in words or leader_id not in words:
                continue
            asked_at = words[leader_id]
            in_time = {m for m, at in words.items() if at <= asked_at + settings.probe_s + EPS_S}
            if alive <= in_time and member_id in in_time:
                found = max(found, words[member_id])
        limit = witness.renewed_at + settings.outage_limit_s
        return min(found + settings.lease_ttl_s, limit) - settings.kill_margin_s

    def _list_alive(self, job: JobRecord) -> set[str]:
        """The members of the roster of whom something is left."""
        active = job.last.active if job.last is not None else set()
        return {m for m in active | set(job.listed_spares) if self._is_anything_left(m)}

    def _note_acknowledgement(
        self, member_id: str, to: str, message: list[object], witness: Witness, job: JobRecord
    ) -> None:
        """Remember who has said in which beat that it cannot reach the store; whoever says that it holds must know."""
        name, number, token = message
        if name not in ("IsStoreAway", "StoreIsAway", "HoldOn"):
            return
        assert isinstance(number, int)
        assert isinstance(token, str)
        if name == "HoldOn":
            words = self._acknowledged_at[member_id, number, token]
            missing = self._list_alive(job) - words.keys()
            is_late = self._cluster.now > words[member_id] + self._settings.probe_s + EPS_S
            if job.last is not None and token == job.last.seal.plan_token and (missing or is_late):
                self._fail("S1", f"beat {number} is said to hold, late: {is_late}, words that lack: {sorted(missing)}")
            return
        leader_id = member_id if name == "IsStoreAway" else to
        self._acknowledged_at.setdefault((leader_id, number, token), {}).setdefault(member_id, self._cluster.now)
        witness.acknowledged_at = self._cluster.now
        for old in list(self._acknowledged_at)[:-64]:
            del self._acknowledged_at[old]

    def _is_anything_left(self, member_id: str) -> bool:
        node = self.find_node(member_id)
        return node is not None and (
            (node.is_up and node.machine is not None and node.machine.member_id == member_id)
            or (node.running is not None and node.processes.running_as == member_id)
        )

    def find_node(self, member_id: str) -> SimulatedNode | None:
        """The machine whose agents have asked to be this member."""
        return next((node for node in self._cluster.nodes.values() if member_id in node.member_ids), None)

    # --- starts and stops ---

    def _check_start(self, node: SimulatedNode, witness: Witness, job: JobRecord, start: StartRound) -> None:
        protocol, last, now = node.machine, job.last, self._cluster.now
        assert protocol is not None
        if last is None:
            return
        watchdog_until, lease = witness.watchdog_until, protocol.state.lease.id
        is_finite = self._settings.lease_ttl_s < math.inf
        if is_finite and not now < watchdog_until < math.inf:
            self._fail("S1", f"{node.name} starts round {start.round} at the end of its watchdog, {watchdog_until:.3f}")
        held_until = witness.held_until - self._settings.kill_margin_s
        if lease is None or max(self.compute_lease_bound(lease), held_until) <= now - EPS_S:
            self._fail("S1", f"{node.name} starts round {start.round} when its lease is over")
        key = protocol.state.job.make_assignment_key(last.seal.round, last.seal.plan_token, protocol.member_id)
        if start.round != last.seal.round or key not in witness.just_read:
            self._fail("S1", f"{node.name} starts round {start.round} and has read {witness.just_read}, not {key}")
        if last.assignments.get(protocol.member_id) != start.assignment:
            given = last.assignments.get(protocol.member_id)
            self._fail("S1", f"{node.name} starts with {start.assignment}, sealed for it is {given}")
        if start.coordinator != last.seal.coordinator or start.world_size != last.seal.world_size:
            self._fail("S1", f"{node.name} starts {start}, sealed is {last.seal}")

    def _check_stop(self, node: SimulatedNode, witness: Witness) -> None:
        """Who is no member any more, or was removed, has ordered its processes to be killed by the end of that step."""
        protocol = node.machine
        assert protocol is not None
        why = ""
        if witness.was_member and protocol.member_id != witness.member_id:
            why = "lapses"
        elif protocol.state.is_member and self._cluster.now >= witness.held_until:
            own_key = protocol.state.job.make_member_key(protocol.member_id)
            if own_key in witness.known.gone_at:
                why = "was removed"
        is_over = (
            self._cluster.now >= witness.held_until and witness.is_lease_gone and not protocol.state.membership.is_final
        )
        if is_over and witness.was_member and protocol.member_id == witness.member_id:
            self._fail("L2", f"{node.name} was told that its lease has ended, and does not come back")
        running = node.running
        if why and running is not None and running.round not in witness.fenced:
            self._fail("S2", f"{node.name} {why} and does not kill round {running.round} at once")
        if witness.member_id not in ("", protocol.member_id):
            witness.forget(self._cluster.now)
        witness.member_id, witness.was_member = protocol.member_id, protocol.state.is_member
        witness.lease = protocol.state.lease.id

    def _check_renewals(self, node: SimulatedNode, witness: Witness) -> None:
        """A member that lives on a lease asks for the next renewal in time, or is about to."""
        protocol = node.machine
        assert protocol is not None
        if (
            not protocol.state.is_member
            or protocol.state.lease.ends_at == math.inf
            or protocol.state.membership.is_final
        ):
            return
        if protocol.state.job.make_member_key(protocol.member_id) in witness.known.gone_at:
            return
        due = witness.renewed_at + self._settings.keep_alive_interval_s + self._settings.retry_delay_s
        is_asking = (
            witness.is_asking(KeepAlive)
            or witness.is_asking_for("a new lease")
            or witness.is_asking_for("register again")
            or witness.is_asking_for("see whether the lease")
        )
        if not is_asking and node.to_cluster_time(protocol.wake_at) > max(due, self._cluster.now) + 1.0:
            self._fail("L2", f"{node.name} renews its lease when it wakes at {protocol.wake_at:.3f}, not at {due:.3f}")

    # --- what it knows ---

    def _check_knowledge(self, node: SimulatedNode, witness: Witness) -> None:
        """What is known becomes only newer; who has looked knows what it was shown, and watches it from there."""
        protocol = node.machine
        assert protocol is not None
        if not protocol.state.is_member:
            return
        job, mirror = protocol.state.job, protocol.state.cache.keys
        for key in (job.leader, job.round, job.stop, job.spares, job.make_member_key(protocol.member_id)):
            revision = mirror.get_revision(key)
            if 0 < revision < witness.revisions.get(key, 0):
                self._fail("S10", f"{node.name} knew {key} as of {witness.revisions[key]}, and now as of {revision}")
            witness.revisions[key] = max(revision, witness.revisions.get(key, 0))
        for key, lost_at in witness.unwatched.items():
            if witness.resynced_at.get(key, -math.inf) > lost_at:
                self._fail("L5", f"{node.name} has read {key} again and does not watch it")
        if witness.has_resynced:
            for key in sorted(witness.followed):
                known = {item.key: item.mod_revision for item in mirror.list_under(key)}
                told = {name: item.mod_revision for name, item in witness.known.items.items() if name.startswith(key)}
                if known != told:
                    self._fail("S10", f"{node.name} knows {known} below {key}, and was shown {told}")
