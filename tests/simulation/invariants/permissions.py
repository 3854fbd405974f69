"""What permits an agent to make a request of the store: a proof, an elapsed time, a place in a list.

Most requests without permission do no harm most of the time. So each request is compared with what this agent knew, and
with the true state of the cluster, before it is sent. A write also has to compare the keys that its decision was based
on, so that it does nothing once they have changed: its answer may be lost, or it may be delayed until the state of the
job is another one. `find_missing_guards` has a row for each kind of key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rendezvous import records
from rendezvous.events import Action, StopRound, StoreRequest, Txn
from rendezvous.records import Command, LeaderRecord, Member, Status, Stop, Verdict
from rendezvous.stores.contract import Delete, Get, Operation, Put
from tests.simulation.host import Host
from tests.simulation.invariants.budget import list_quarantined
from tests.simulation.invariants.history import Checks, JobRecord, RoundRecord
from tests.simulation.invariants.witness import Witness

EPS_S = 1e-6
UNSEEN_S = 10.0  # how long a leader may be without the store; it sees all changes at once afterwards


class PermissionChecks(Checks):
    def check(self, host: Host, witness: Witness, job: JobRecord, store_request: StoreRequest) -> None:
        if not isinstance(store_request.request, Txn):
            return
        for compare in store_request.request.compares:
            told = witness.known.items.get(compare.key)
            is_own = compare.key.endswith("/ctl/leader") and compare.target == "mod" and compare.operand
            is_campaign = store_request.kind in ("lead", "take over")
            is_other = is_own and told is not None and told.mod_revision != compare.operand and not is_campaign
            # The next write of a round is made with the answer to the last, before other news of the batch is handled.
            is_next = store_request.kind in ("assign", "seal")
            if is_other and not (is_next and witness.known.seen_at[compare.key] == self._timeline.now):
                self.fail("S10", f"{host.name} wants to {store_request.kind}, and knows that another leads")
        for write in store_request.request.success:
            folder, _, name = getattr(write, "key", "").rpartition("/")
            match write:
                case Delete(key) if folder.endswith("/members"):
                    self._check_removal(host, witness, job, key, name)
                case Put(key) if folder.endswith("/members"):
                    self._check_registration(host, witness, name, store_request.kind)
                    if store_request.kind != "register again":  # a member that is leaving is one until it has left
                        self._check_drained(host, witness, key)
                case Put(key, value) if key.endswith("/ctl/stop"):
                    stop = records.decode(Stop, value, key)
                    if not self._is_outdated(store_request.request):  # else the store rejects it
                        self._check_ending(host, witness, job, stop, is_own=_reports_failure(store_request.request))
                case Put(key, value) if key.endswith("/ctl/verdict"):
                    self._check_verdict(host, witness, job, records.decode(Verdict, value, key))
                case Put(key, value) if folder.endswith("/status"):
                    self._check_status(host, witness, job, name, records.decode(Status, value, key))
                case Put(key) if key.endswith("/ctl/leader") and store_request.kind != "open job":
                    seen = witness.known.items.get(key)
                    guards = {compare.operand for compare in store_request.request.compares if compare.key == key}
                    is_current = guards == {seen.mod_revision if seen is not None else 0}
                    if is_current and not self._is_outdated(store_request.request):  # else the store rejects it
                        is_takeover = store_request.kind == "take over"
                        deletes = [one.key for one in store_request.request.success if isinstance(one, Delete)]
                        is_ordered = any("/ctl/command/" in one and one in witness.known.items for one in deletes)
                        if not is_ordered:
                            self._check_campaign(host, witness, job, key, is_takeover=is_takeover)

    # --- removing a member ---

    def _check_removal(self, host: Host, witness: Witness, job: JobRecord, key: str, member_id: str) -> None:
        """A member may be removed if it is proven gone, if it is cut off, or if it does not stop in time."""
        settings, now, last = self._settings, self._timeline.now, job.last
        if self._is_confirmed_gone(witness, key, member_id):
            if not self._cluster.network.is_forging_refusals:
                self._check_really_gone(host, member_id)
            return
        is_cut_off = now >= witness.down_since.get(member_id, math.inf) + settings.isolation_s - EPS_S
        others = {key.rpartition("/")[2] for key in witness.known.items if "/members/" in key} - {witness.member_id}
        reached = others & witness.up.keys() - witness.down_since.keys()
        is_late = False
        if last is not None and last.stop is not None:
            grace_s = {"kill": settings.restart_grace_s, "grace": settings.shutdown_timeout_s}[last.stop.mode]
            limit_s = max(grace_s + settings.stop_limit_s, settings.view_ttls * settings.lease_ttl_s)
            is_late = now >= last.stopped_at + limit_s - EPS_S and member_id in last.active
        if is_cut_off and not is_late and 2 * len(reached) < len(others):
            self.fail("S7", f"{host.name} removes {member_id} as cut off, and reaches {len(reached)} of {len(others)}")
        if not (is_cut_off or is_late):
            self.fail("S2", f"{host.name} removes {member_id}, which is neither proven gone nor cut off nor late")

    def _is_confirmed_gone(self, witness: Witness, key: str, member_id: str) -> bool:
        """Whether this agent has a proof of death for this incarnation."""
        up, item = witness.up.get(member_id), witness.known.items.get(key)
        if not self._settings.presence_proof or member_id not in witness.gone_since or up is None:
            return False
        address = records.decode(Member, item.value, key).presence_address if item is not None else up.address
        return up.is_provable and up.address == address

    def _check_really_gone(self, host: Host, member_id: str) -> None:
        victim = self.find_host(member_id)
        if victim is None:
            return
        processes = victim.processes
        if victim.has_agent(member_id) or (processes.may_still_act and processes.running_as == member_id):
            self.fail("S2", f"{host.name} removes {member_id} as proven gone, which lives on {victim.name}")

    # --- what an agent reports of itself ---

    def _check_registration(self, host: Host, witness: Witness, member_id: str, kind: str) -> None:
        """A new member has no processes of the one before; `register again` is for the same member only."""
        is_again = kind == "register again"
        if host.running is not None and host.processes.running_as != member_id:
            self.fail("S2", f"{host.name} wants to {kind} while round {host.running.round} of another member lives")
        if is_again and self._timeline.now >= witness.held_until:
            self.fail("S2", f"{host.name} registers again, and its place was held until {witness.held_until:.3f}")

    def _check_status(self, host: Host, witness: Witness, job: JobRecord, member_id: str, status: Status) -> None:
        """A status must report what happened."""
        if status.is_stopped and host.running is not None:
            self.fail("S2", f"{host.name} reports that it has stopped, and round {host.running.round} lives")
        last = job.last
        if last is None or status.plan_token != last.seal.plan_token:
            return
        ended = host.processes.ended_as.get(status.round, ("", 0))
        if status.outcome and member_id not in last.active:
            self.fail("S4", f"{host.name} reports {status.outcome} of round {status.round}, in which it has no ranks")
        if status.outcome == "failed" and status.round in witness.failed_late and not status.is_final:
            self.fail("S9", f"{host.name} reports a failure of round {status.round} that came after its stop")
        if status.outcome and (status.outcome, status.exit_code) != ended:
            self.fail("S9", f"{host.name} reports {status.outcome} with {status.exit_code}, it was {ended}")
        if status.leaving and not (host.is_told_to_leave or host.name in self._cluster.operator.drained):
            self.fail("S9", f"{host.name} says that it leaves, and was not told to")

    def _check_drained(self, host: Host, witness: Witness, key: str) -> None:
        """An agent that knows that its node is drained must not register, unless an undrain was requested."""
        root, items = key.partition("/members/")[0], witness.known.items
        if f"{root}/ctl/drained/{host.name}" not in items:
            return
        commands = [item for name, item in items.items() if name.startswith(f"{root}/ctl/command/")]
        asked = [records.decode(Command, item.value, item.key) for item in commands]
        if not any((each.kind, each.target) == ("undrain", host.name) and not each.is_answered for each in asked):
            self.fail("S10", f"{host.name} registers, and knows that it is drained")

    def check_departure(self, host: Host, witness: Witness, actions: Sequence[Action]) -> None:
        """An agent that leaves must announce it before it signals a worker, or try to for `announce_limit_s`."""
        stops = [each for each in actions if isinstance(each, StopRound) and each.mode == "grace"]
        if not stops or stops[0].reason.kind != "sigterm" or not host.is_told_to_leave or host.state is None:
            return
        key = host.state.job.make_status_key(witness.member_id)
        item = witness.known.items.get(key)
        is_said = item is not None and bool(records.decode(Status, item.value, key).leaving)
        if not is_said and self._timeline.now < witness.left_at + self._settings.announce_limit_s - EPS_S:
            self.fail("L4", f"{host.name} stops its workers and has not said yet that it leaves")

    # --- ending a round, or the job ---

    def _check_ending(self, host: Host, witness: Witness, job: JobRecord, stop: Stop, *, is_own: bool) -> None:
        """A round may be killed after a loss or a failure, and stopped with grace for a departure or to grow.

        `is_own`: the same transaction reports a failure.
        """
        last, now = job.last, self._timeline.now
        if last is None or stop.round != last.seal.round:
            return
        cut_off = {m for m, since in witness.down_since.items() if now >= since + self._settings.isolation_s - EPS_S}
        if stop.mode == "kill" and not (last.departed or last.failed_at or cut_off or is_own):
            self.fail("S4", f"{host.name} kills round {stop.round}, to which nothing has happened: {stop.reason}")
        if stop.mode == "grace" and not (last.active & job.leaving):
            self._check_growth(host, witness, last, stop, job.leaving)

    def _check_growth(
        self, host: Host, witness: Witness, last: RoundRecord, stop: Stop, leaving: Collection[str]
    ) -> None:
        settings, now, told = self._settings, self._timeline.now, witness.known
        quarantined = list_quarantined(last.seal, settings, ago_s=math.inf)
        come = [
            at
            for key, at in told.seen_at.items()
            if "/members/" in key
            and (m := key.rpartition("/")[2]) not in last.active
            and m not in leaving
            and self.find_node_name(m) not in quarantined
        ]
        saved = [
            told.seen_at[key]
            for key, item in told.items.items()
            if "/status/" in key and records.decode(Status, item.value, key).saved_count
        ]
        is_due = {
            "never": False,
            "delay": now >= max((last.sealed_at, *come)) + settings.grow_delay_s - EPS_S,
            "checkpoint": bool(saved) and max(saved) >= max(come, default=-math.inf) - UNSEEN_S,
        }[settings.grow]
        if not is_due:
            self.fail("L3", f"{host.name} ends round {stop.round} and need not: {stop.reason}")

    def _check_verdict(self, host: Host, witness: Witness, job: JobRecord, verdict: Verdict) -> None:
        """The job must not end while members may return from an outage, nor before the time limits have passed."""
        settings, last, now = self._settings, job.last, self._timeline.now
        if last is None:
            return
        until = witness.acknowledged_at + settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
        missed = last.active - job.present  # the leader may not know it yet
        silent = [m for m in missed if m not in witness.gone_since and not _has_stopped(last, m)]
        if verdict.reason.kind in ("stop-requested", "replaced") and silent and now < until - EPS_S:
            self.fail("S7", f"{host.name} stops the job, and {len(silent)} members may live until {until:.3f}")
        if verdict.reason.kind == "too-few-returned" and now < last.stopped_at + settings.rejoin_timeout_s - EPS_S:
            self.fail("L1", f"{host.name} gives up {now - last.stopped_at:g} s after the stop: {verdict.reason}")
        if verdict.reason.kind == "stuck":
            if last.seal.stuck_rounds + 1 < settings.stuck_rounds:
                self.fail("S5", f"{host.name} gives up after {last.seal.stuck_rounds} rounds: {verdict.reason}")
        elif verdict.reason.kind == "short-rounds" and last.seal.short_rounds + 1 < settings.no_progress_rounds:
            self.fail("S5", f"{host.name} gives up after {last.seal.short_rounds} short rounds: {verdict.reason}")

    def check_end(self, host: Host, witness: Witness, job: JobRecord) -> None:
        """An agent that ends as removed must have been removed: its key was deleted and did not just expire."""
        assert host.ended is not None
        if host.state is None or host.ended.reason.kind != "removed":
            return
        if host.state.member_id in job.ended:
            self.fail("S3", f"{host.name} ends as removed, and its lease has ended: {host.ended.reason}")
        if host.state.member_id in job.present and not witness.fenced:
            self.fail("S3", f"{host.name} ends as removed, and is a member: {host.ended.reason}")

    # --- campaigning ---

    def _is_outdated(self, request: Txn) -> bool:
        """Whether a key that the request compares has changed in the store since, so that the request must fail."""
        guards = [
            (one.operand, self._storage.store.get(one.key).first) for one in request.compares if one.target == "mod"
        ]
        return any(operand != (item.mod_revision if item is not None else 0) for operand, item in guards)

    def _check_campaign(self, host: Host, witness: Witness, job: JobRecord, key: str, *, is_takeover: bool) -> None:
        last, now = job.last, self._timeline.now
        if last is None:
            return
        if not is_takeover:
            if key in witness.known.items and self._find_former(witness, key):
                self.fail("S10", f"{host.name} wants to lead, and knows of a leader")
            self._check_in_roster(host, witness, job)
            return
        former = self._find_former(witness, key)
        member_key = f"{key.removesuffix('ctl/leader')}members/{former}"
        if not self._is_confirmed_gone(witness, member_key, former):
            self.fail("S2", f"{host.name} takes over from {former} without a proof that it is gone")
        order = [m for m in last.seal.successors if m != former]
        own_id = witness.member_id
        if own_id not in order:
            self.fail("S10", f"{host.name} takes over and is none of the successors")
        elif now < witness.gone_since[former] + order.index(own_id) * self._settings.successor_delay_s - EPS_S:
            self.fail("S10", f"{host.name} takes over before its turn")

    def _find_former(self, witness: Witness, key: str) -> str:
        item = witness.known.items.get(key)
        return records.decode(LeaderRecord, item.value, key).member_id if item is not None else ""

    def _check_in_roster(self, host: Host, witness: Witness, job: JobRecord) -> None:
        """A non-member of the roster may lead only when no process of the roster can be running."""
        last, settings = job.last, self._settings
        assert last is not None
        if not settings.continues_without_store:
            return
        roster = last.active | set(job.listed_spares)
        if roster & set(host.member_ids) or roster & {witness.member_id}:
            return
        # A member that has joined since proves that the earlier processes of its node were gone.
        new = {self.find_node_name(m) for m in job.present | (job.members - last.known)}
        if {self.find_node_name(m) for m in last.active} <= new:
            return
        present_until = max((job.seen_until.get(m, -math.inf) for m in roster), default=-math.inf)
        if roster & job.present:
            present_until = self._timeline.now
        limit_s = settings.outage_limit_s + settings.lease_ttl_s
        if self._timeline.now < present_until + limit_s - settings.lease_ttl_s / 2:
            self.fail("S7", f"{host.name} wants to lead, to whose roster it does not belong, {limit_s:g} s too early")


def _has_stopped(last: RoundRecord, member_id: str) -> bool:
    status = last.statuses.get(member_id)
    return status is not None and status.is_stopped


def _reports_failure(request: Txn) -> bool:
    puts = [write for write in request.success if isinstance(write, Put) and "/status/" in write.key]
    return any(records.decode(Status, put.value, put.key).outcome == "failed" for put in puts)


# --- what every write has to compare ---

Guard = tuple[str, str]  # key below the job's, and the target of the comparison


def find_missing_guards(request: Txn, member_id: str, is_running: bool) -> set[Guard]:
    """The guards that this request of `member_id` lacks. `is_running`: processes of a round are alive on its node."""
    named = {(strip_job_prefix(compare.key), compare.target) for compare in request.compares if compare.relation == "="}
    wanted: set[Guard] = set()
    for write in request.success:
        if not isinstance(write, Get):
            wanted |= _list_required_guards(write, member_id, is_running)
    if any(compare.key.endswith("/ctl/leader") and not compare.operand for compare in request.compares):
        wanted.discard((f"members/{member_id}", "create"))  # nobody leads, and a later attempt ends the one before
    return wanted - named


def strip_job_prefix(key: str) -> str:
    """The key below its job."""
    return key.split("/", 4)[-1]


def _list_required_guards(write: Operation, member_id: str, is_running: bool) -> set[Guard]:
    name, is_delete = strip_job_prefix(write.key), isinstance(write, Delete)
    own = f"members/{member_id}"
    leading = {("ctl/leader", "mod"), (own, "create"), ("ctl/verdict", "create")}
    if name in ("current", "spec"):
        return {(name, "mod")}
    if name == own and not is_delete:
        joining = {(own, "create"), ("current", "mod"), ("ctl/verdict", "create")}
        return joining | ({("ctl/round", "mod")} if is_running else set())
    if name == f"lease/{member_id}":  # the value has no meaning: the write only tests the lease
        return set()
    if name == f"status/{member_id}" and not is_delete:
        return {(own, "create"), (name, "mod")}
    if name == "ctl/leader":  # an election or a takeover
        return leading | {("ctl/round", "mod"), ("ctl/spares", "mod")}
    if name.startswith("ctl/command/attempt-"):  # by an agent of a later attempt, which is no member
        return {(name, "mod"), ("ctl/verdict", "create")}
    if name == "ctl/verdict":
        return leading | {("ctl/round", "mod"), ("ctl/stop", "mod")}
    if name.startswith(("assign/", "status/", "history/")):
        return leading | {("ctl/round", "mod")}
    # The seal, the stop, another member's key, the list of spares, a drain, a request of the operator.
    return leading | {(name, "mod")}
