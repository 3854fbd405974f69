"""Deadlines that must hold at every step, whether or not a violation does harm.

A watchdog that expires a second too late does harm only if two other faults fall into that second. So the near miss is
the failure: each extension, each start and each lost membership is compared with the true state of the store, the other
agents and the clock, computed here from the messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rendezvous import events
from rendezvous.events import Action, get_request_kind
from rendezvous.state.state import MemberState
from tests.simulation.cluster import Cluster
from tests.simulation.host import Host
from tests.simulation.invariants.history import Checks, JobRecord
from tests.simulation.invariants.witness import Witness

EPS_S = 1e-6
ProbeKey = tuple[str, int, str]  # member id of the leader, number of the probe, plan token


class DeadlineChecks(Checks):
    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self._acknowledged_at: dict[ProbeKey, dict[str, float]] = {}  # probe -> who acknowledged it, and when

    def check(self, host: Host, witness: Witness, job: JobRecord, actions: Sequence[Action]) -> None:
        """Check one step of this agent. `job`: of which it is a member."""
        member_id = host.state.member_id if host.state is not None else ""
        is_over = witness.was_member and self._timeline.now >= witness.watchdog_until + self._settings.kill_margin_s
        for action in actions:
            match action:
                case events.StoreRequest(_, kind, events.Txn()) if (
                    is_over and get_request_kind(action.request) == "write"
                ):
                    self.fail(
                        "S10", f"{host.name} wants to {kind}, and is no member since {witness.watchdog_until:.3f}"
                    )
                case events.StartRound() if is_over:
                    self.fail("S1", f"{host.name} starts workers, and is no member since {witness.watchdog_until:.3f}")
                case events.SendToPeer(_, text):
                    self._check_confirmation(member_id, json.loads(text), job)
                case events.ExtendWatchdog(until):
                    self._check_extension(host, witness, job, host.to_timeline(until))
                    witness.watchdog_until = host.to_timeline(until)
                case events.StartRound():
                    self._check_start(host, witness, job, action)
        if host.state is not None and not host.state.membership.has_ended:
            self._check_stop(host, witness)
            self._check_renewals(host, witness)
            self._check_knowledge(host, witness)

    def check_always(self, host: Host, witness: Witness, actions: Sequence[Action]) -> None:
        """Check what must hold whatever the store has lost, before `check`."""
        for action in actions:
            if isinstance(action, events.SendToPeer) and host.state is not None:
                self._note_acknowledgement(host.state.member_id, action.member_id, json.loads(action.text), witness)
        gone_by = host.processes.watchdog_until + self._settings.kill_margin_s + EPS_S
        if host.processes.may_still_act and self._timeline.now > gone_by:
            self.fail(
                "S6", f"processes live on {host.name}, whose watchdog ended at {host.processes.watchdog_until:.3f}"
            )
        if witness.is_shown_less and host.state is not None:
            running = host.running
            if not host.state.membership.is_final:
                self.fail("S10", f"the store has gone back, {host.name} was shown it, and continues")
            if running is not None and running.round not in witness.fenced:
                self.fail("S2", f"the store has gone back, and {host.name} does not kill round {running.round} at once")

    # --- the watchdog ---

    def compute_lease_bound(self, lease: int) -> float:
        """Until when processes may run under this lease."""
        settings = self._settings
        grace_s = settings.lease_ttl_s if lease in self._storage.leases.broken else 0.0
        return self._storage.leases.get_end(lease) + grace_s - settings.kill_margin_s

    def _check_extension(self, host: Host, witness: Witness, job: JobRecord, until: float) -> None:
        settings, state = self._settings, host.state
        assert state is not None
        lease, is_member, member_id = state.lease.id, state.is_member, state.member_id
        if witness.member_id not in ("", member_id):
            # The extension came before the end of the membership, in the same step.
            lease, is_member, member_id = witness.lease, witness.was_member, witness.member_id
        bound = self.compute_lease_bound(lease) if lease is not None else -math.inf
        if is_member:
            own_key = state.job.make_member_key(member_id)
            bound = min(bound, witness.read_at.get(own_key, -math.inf) + settings.view_s - settings.kill_margin_s)
        bound = max(bound, witness.held_until - settings.kill_margin_s)
        is_allowed = until <= max(bound, self._timeline.now) + EPS_S
        if is_allowed and until > witness.acknowledged_at + settings.lease_ttl_s:  # longer than any probe holds it
            return
        held = self._compute_held_bound(witness, job, member_id)
        if until <= held + EPS_S:  # even if the lease turns out to have ended since
            witness.held_until = max(witness.held_until, until + settings.kill_margin_s)
        elif not is_allowed:
            self.fail(
                "S1",
                f"the watchdog of {host.name} is extended to {until:.3f}; its lease and its last read allow "
                f"{bound:.3f}, an outage {held:.3f}",
            )

    def _compute_held_bound(self, witness: Witness, job: JobRecord, member_id: str) -> float:
        """Until when acknowledgements of the whole roster permit the processes of this member to run."""
        settings, last = self._settings, job.last
        if not settings.continues_without_store or last is None:
            return -math.inf
        found = -math.inf
        alive = self._list_alive(job) - {member_id}
        if not alive:
            found = self._timeline.now
        for (leader_id, _, token), times in self._acknowledged_at.items():
            if token != last.seal.plan_token or member_id not in times or leader_id not in times:
                continue
            sent_at = times[leader_id]
            in_time = {m for m, at in times.items() if at <= sent_at + settings.probe_s + EPS_S}
            if alive <= in_time and member_id in in_time:
                found = max(found, times[member_id])
        limit = witness.renewed_at + settings.outage_limit_s
        return min(found + settings.lease_ttl_s, limit) - settings.kill_margin_s

    def _list_alive(self, job: JobRecord) -> set[str]:
        """The members of the roster whose agent or processes are alive."""
        active = job.last.active if job.last is not None else set()
        return {m for m in active | set(job.listed_spares) if self._is_alive(m)}

    def _check_confirmation(self, member_id: str, message: list[Any], job: JobRecord) -> None:
        """A leader that declares the round held must have all acknowledgements in time."""
        name, number, token, *_ = message
        if name != "HoldOn":
            return
        times = self._acknowledged_at[member_id, number, token]
        missing = self._list_alive(job) - times.keys()
        is_late = self._timeline.now > times[member_id] + self._settings.probe_s + EPS_S
        if job.last is not None and token == job.last.seal.plan_token and (missing or is_late):
            self.fail("S1", f"probe {number} is said to hold, late: {is_late}, not acknowledged by {sorted(missing)}")

    def _note_acknowledgement(self, member_id: str, to: str, message: list[Any], witness: Witness) -> None:
        """Record the acknowledgement of a probe; the probe itself is its leader's."""
        name, number, token, *_ = message
        if name not in ("IsStoreAway", "StoreIsAway"):
            return
        leader_id = member_id if name == "IsStoreAway" else to
        self._acknowledged_at.setdefault((leader_id, number, token), {}).setdefault(member_id, self._timeline.now)
        witness.acknowledged_at = self._timeline.now
        for old in list(self._acknowledged_at)[:-64]:
            del self._acknowledged_at[old]

    def _is_alive(self, member_id: str) -> bool:
        host = self.find_host(member_id)
        if host is None:
            return False
        return host.has_agent(member_id) or (host.running is not None and host.processes.running_as == member_id)

    # --- starts and stops ---

    def _check_start(self, host: Host, witness: Witness, job: JobRecord, start: events.StartRound) -> None:
        state, last, now = host.state, job.last, self._timeline.now
        assert state is not None
        if last is None:
            return
        watchdog_until, lease = witness.watchdog_until, state.lease.id
        is_finite = self._settings.lease_ttl_s < math.inf
        if is_finite and not now < watchdog_until < math.inf:
            self.fail("S1", f"{host.name} starts round {start.round} at the end of its watchdog, {watchdog_until:.3f}")
        held_until = witness.held_until - self._settings.kill_margin_s
        if lease is None or max(self.compute_lease_bound(lease), held_until) <= now - EPS_S:
            self.fail("S1", f"{host.name} starts round {start.round} when its lease is over")
        key = state.job.make_assignment_key(last.seal.round, last.seal.plan_token, state.member_id)
        if start.round != last.seal.round or key not in witness.just_read:
            self.fail("S1", f"{host.name} starts round {start.round} and has read {witness.just_read}, not {key}")
        if last.assignments.get(state.member_id) != start.assignment:
            given = last.assignments.get(state.member_id)
            self.fail("S1", f"{host.name} starts with {start.assignment}, sealed for it is {given}")
        if start.coordinator != last.seal.coordinator or start.world_size != last.seal.world_size:
            self.fail("S1", f"{host.name} starts {start}, sealed is {last.seal}")

    def _check_stop(self, host: Host, witness: Witness) -> None:
        """An agent that stops being a member must order its processes to be killed in the same step."""
        state = host.state
        assert state is not None
        why = ""
        if witness.was_member and state.member_id != witness.member_id:
            why = "lapses"
        elif state.is_member and self._timeline.now >= witness.held_until:
            own_key = state.job.make_member_key(state.member_id)
            if own_key in witness.known.gone_at:
                why = "was removed"
        is_over = self._timeline.now >= witness.held_until and witness.is_lease_gone and not state.membership.is_final
        if is_over and witness.was_member and state.member_id == witness.member_id:
            self.fail("L2", f"{host.name} was told that its lease has ended, and does not come back")
        running = host.running
        if why and running is not None and running.round not in witness.fenced:
            self.fail("S2", f"{host.name} {why} and does not kill round {running.round} at once")
        self.note_membership(state, witness)

    def note_membership(self, state: MemberState, witness: Witness) -> None:
        """Record which member the agent is after this step; as another one it knows nothing, and awaits no answer."""
        if witness.member_id not in ("", state.member_id):
            witness.forget(self._timeline.now)
        witness.member_id, witness.was_member = state.member_id, state.is_member
        witness.lease = state.lease.id

    def _check_renewals(self, host: Host, witness: Witness) -> None:
        """A member with a lease must request the next renewal in time."""
        state = host.state
        assert state is not None
        if not state.is_member or state.lease.ends_at == math.inf or state.membership.is_final:
            return
        if state.job.make_member_key(state.member_id) in witness.known.gone_at:
            return
        if self._cluster.config.store_owner is not None and state.leaving.verdict is not None:
            return  # it ends, and its lease with it: there may be no store any more
        due = witness.renewed_at + self._settings.keep_alive_interval_s + self._settings.retry_delay_s
        is_asking = witness.is_asking(events.KeepAlive) or witness.is_asking_for(
            "grant another lease", "register again", "probe lease"
        )
        if not is_asking and host.to_timeline(state.requests.wake_at) > max(due, self._timeline.now) + 1.0:
            self.fail(
                "L2", f"{host.name} renews its lease when it wakes at {state.requests.wake_at:.3f}, not at {due:.3f}"
            )

    # --- knowledge of the store ---

    def _check_knowledge(self, host: Host, witness: Witness) -> None:
        """Known revisions never decrease; after a resync the cache has what was read, and watches go on from there."""
        state = host.state
        assert state is not None
        if not state.is_member:
            return
        job, cache = state.job, state.cache.keys
        for key in (job.leader, job.round, job.stop, job.spares, job.make_member_key(state.member_id)):
            revision = cache.get_revision(key)
            if 0 < revision < witness.revisions.get(key, 0):
                self.fail("S10", f"{host.name} knew {key} as of {witness.revisions[key]}, and now as of {revision}")
            witness.revisions[key] = max(revision, witness.revisions.get(key, 0))
        for key, lost_at in witness.unwatched.items():
            if witness.resynced_at.get(key, -math.inf) > lost_at:
                self.fail("L5", f"{host.name} has read {key} again and does not watch it")
        if witness.has_resynced:
            for key in sorted(witness.followed):
                known = {item.key: item.mod_revision for item in cache.list_under(key)}
                told = {name: item.mod_revision for name, item in witness.known.items.items() if name.startswith(key)}
                if known != told:
                    self.fail("S10", f"{host.name} knows {known} below {key}, and was shown {told}")
