"""The invariants of the agreement, checked after every step of a simulated cluster.

The names in a violation are those of the project's list of invariants: S1 one live process per rank and one view of the
world; S2 no two rounds alive; S3 one verdict that never changes and on which all agents agree; S4 an accepted
completion is real, and none is run again; S5 the budget is exact; S6 no process and no watch is left behind; S7 no two
jobs alive under one run id; S8 nothing of a round in the next; S9 the exit code is the first failure's; S10 no write
without a comparison of what it was decided on; S11 a transaction whose answer was lost counts once; L1 a verdict in
time; L2 leases renewed in time; L3 worlds grow when due; L4 departures announced; L5 lost watches replaced.

A store that is restored to a snapshot breaks its promise: what was written since, a verdict or a restart, has not
happened for those who read it from then on. So the records go back with it, and hold again from there (S3, S4, S5, S7,
S8, S11). Agents from before are excused from all that compares them with these records, and their processes from S1
and S2 across nodes for as long as their watchdogs allow. What still holds of them: two rounds never live on one node;
no process outlives its watchdog or its agent; and an agent that is shown less than it was kills its processes and ends.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence

from rendezvous import events, records
from rendezvous.events import Action, Exit, ExtendWatchdog, Log, PeerGone, StoreRequest, Txn
from rendezvous.records import Assignment, Seal, Spares, Status, Stop, Verdict
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Batch, Get, KeyEvent, Watch
from tests.simulation.cluster import Cluster
from tests.simulation.config import PREFIX
from tests.simulation.host import Host
from tests.simulation.invariants.budget import BudgetChecks
from tests.simulation.invariants.deadlines import DeadlineChecks
from tests.simulation.invariants.history import Checks, JobRecord, RoundRecord
from tests.simulation.invariants.permissions import PermissionChecks, find_missing_guards
from tests.simulation.invariants.seals import SealChecks
from tests.simulation.invariants.witness import Witness
from tests.simulation.processes import Running

EXIT_CODES = (137,)  # with which an agent may end without a verdict of the job


class Checker(Checks):
    """Observes every request, write, start and end; raises Violation when an invariant is broken.

    `exit_codes`: with which agents may end that end before the job does and were not told to leave. `has_witnesses`:
    whether deadlines, budgets and permissions are checked too, for which much is recorded of each agent.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        seed: int = 0,
        exit_codes: Sequence[int] = EXIT_CODES,
        has_witnesses: bool = True,
    ) -> None:
        super().__init__(cluster, seed)
        self._exit_codes = exit_codes
        self.is_removed = False  # keys were deleted by hand: the store is no record of the job any more
        self._jobs: defaultdict[str, JobRecord] = defaultdict(JobRecord)
        self._job = JobRecord()  # of the event being checked, else the last one
        self._kept: tuple[defaultdict[str, JobRecord], str] = (defaultdict(JobRecord), "")  # with the snapshot
        self._outdated: list[MemberState] = []  # of agents that have seen what a restored store does not have
        self._outlived: list[Running] = []  # what they ran then
        self._void_requests: set[bytes] = set()  # seals that were requested by them
        self._has_witnesses = has_witnesses
        self._witnesses: defaultdict[MemberState, Witness] = defaultdict(Witness)
        self._deadlines, self._permissions = DeadlineChecks(cluster, seed), PermissionChecks(cluster, seed)
        self._seals, self._budget = SealChecks(cluster, seed), BudgetChecks(cluster, seed)
        cluster.observers.before_start = self.check_start
        cluster.observers.after_step = self.check_step
        cluster.observers.after_end = self.check_end
        cluster.observers.before_request = self.check_request
        cluster.storage.on_snapshot, cluster.storage.on_restore = self._keep, self._go_back
        self._watch = self._follow(1)

    def _follow(self, revision: int) -> Watch:
        return self._storage.store.watch(
            f"/{PREFIX}/",
            prefix=True,
            start_revision=revision,
            on_batch=self._observe,
            on_lost=lambda error: self.fail("S10", error),
        )

    # --- a store that goes back ---

    def _keep(self) -> None:
        """Keep the records as they are, with a snapshot of the store."""
        self._kept = copy.deepcopy((self._jobs, self._find_name(self._job)))

    def _go_back(self, revision: int) -> None:
        """Continue from the records that were kept: the store has been restored, and is at this revision."""
        self._watch.cancel()
        self._watch = self._follow(revision + 1)
        self._jobs, name = copy.deepcopy(self._kept)
        self._job = self._jobs[name]
        self._outdated += [host.state for host in self._hosts.values() if host.state is not None]
        self._outlived += [host.running for host in self._hosts.values() if host.running is not None]
        self._void_requests |= self._seals.requests.keys()

    def _find_name(self, job: JobRecord) -> str:
        return next((name for name, each in self._jobs.items() if each is job), "")

    def _is_outdated(self, host: Host) -> bool:
        return any(host.state is state for state in self._outdated)

    @property
    def verdict(self) -> Verdict | None:
        """The last job's."""
        return self._job.verdict

    @property
    def is_of_earlier_attempt(self) -> bool:
        """Whether the last job is of an attempt before the present one."""
        return self._parse_attempt(self._find_name(self._job)) < (self._cluster.config.attempt or 0)

    @staticmethod
    def _parse_attempt(job_name: str) -> int:
        return records.Keys(job_name).attempt

    @property
    def rounds(self) -> list[RoundRecord]:
        return self._job.rounds

    # --- the store ---

    def _observe(self, batch: Batch) -> None:
        if self.is_removed:
            return
        for event in batch.events:
            parts = event.item.key.split("/", 4)
            if len(parts) == 5:
                self._job = self._jobs[parts[3]]
                self._observe_event(parts[4], event)

    def _observe_event(self, name: str, event: KeyEvent) -> None:
        job = self._job
        kind, _, rest = name.partition("/")
        if event.kind == "delete":
            if name == "ctl/round":
                self.fail("S3", "the seal was deleted")
            if kind == "members":
                job.present.discard(rest)
                job.seen_until[rest] = self._timeline.now
                if job.leases[rest] in self._storage.leases.ended_at:
                    job.ended.add(rest)
                job.depart(rest, self._timeline.now)
                if job.last is not None:
                    job.last.lost.add(rest)
        elif kind == "members":
            if rest in job.members - job.present:
                self._timeline.count("re-registration")
            job.members.add(rest)
            job.present.add(rest)
            job.leases[rest] = event.item.lease
            job.ended.discard(rest)
            if job.last is not None:
                job.last.lost.discard(rest)
        elif kind == "status":
            self._observe_status(rest, event)
        elif name == "ctl/verdict":
            self._observe_verdict(event)
        elif name == "ctl/round":
            self._observe_seal(event)
        elif name == "ctl/stop" and job.last is not None:
            stop = records.decode(Stop, event.item.value, event.item.key)
            if stop.round == job.last.seal.round:
                job.last.stop_revision = event.item.mod_revision
                job.last.stop, job.last.stopped_at = stop, self._timeline.now
        elif name.startswith("ctl/drained/"):
            for member_id in self._hosts[name.rpartition("/")[2]].member_ids:
                job.leaving.add(member_id)
                job.depart(member_id, self._timeline.now)
        elif name == "ctl/spares":
            spares = records.decode(Spares, event.item.value, event.item.key)
            job.listed_spares = spares.member_ids
            self._timeline.counts["bench"] += any(reason.kind == "quarantined" for reason in spares.reasons)
        elif name == "ctl/leader":
            self._timeline.count("takeover of the leader" if event.item.version > 1 else "election")

    def _observe_status(self, member_id: str, event: KeyEvent) -> None:
        status = records.decode(Status, event.item.value, event.item.key)
        last = self._job.last
        if last is not None and status.plan_token == last.seal.plan_token:
            try:
                last.observe(member_id, status, event.item.mod_revision, self._timeline.now)
            except ValueError as error:
                self.fail("S4", error)
        if status.leaving:
            self._job.leaving.add(member_id)
            self._job.depart(member_id, self._timeline.now)

    def _observe_verdict(self, event: KeyEvent) -> None:
        job, last = self._job, self._job.last
        if event.item.version != 1 or job.verdict is not None:
            self.fail("S3", "the verdict was written twice")
        verdict = job.verdict = records.decode(Verdict, event.item.value, event.item.key)
        self._timeline.count(f"verdict: {verdict.kind}")
        if verdict.reason.kind == "replaced":
            self._timeline.count("attempt told to end" if job.present else "attempt found to be over")
        if verdict.round != (last.seal.round if last else 0):
            self.fail("S4", f"a verdict on round {verdict.round} of {len(job.rounds)}")
        if verdict.kind == "success":
            assert last is not None
            done = {host.processes.finished_as.get(verdict.round) for host in self._hosts.values()}
            if not last.active <= done:
                self.fail("S4", f"success of round {verdict.round} without {len(last.active - done)} of its members")
        if verdict.failure and last is not None:
            self._seals.check_failure(verdict, last)

    def _observe_seal(self, event: KeyEvent) -> None:
        job = self._job
        seal = records.decode(Seal, event.item.value, event.item.key)
        if seal.round != len(job.rounds) + 1:
            self.fail("S1", f"round {seal.round} was sealed after round {len(job.rounds)}")
        if job.verdict is not None:
            self.fail("S3", f"round {seal.round} was sealed after the verdict")
        alive = [host.name for host in self._hosts.values() if self._is_acting(host)]
        if alive:
            self.fail("S2", f"round {seal.round} was sealed while processes of an earlier one live on {alive}")
        if seal.coordinator in job.used_coordinators:
            self.fail("S8", f"round {seal.round} uses the coordinator {seal.coordinator} again")
        root = event.item.key.removesuffix("/ctl/round")
        found = self._storage.store.get(
            records.Keys(root).make_assignments_prefix(seal.round, seal.plan_token), prefix=True
        )
        decoded = {item.key: records.decode(Assignment, item.value, item.key) for item in found.items}
        given = {key.rpartition("/")[2]: assignment.content for key, assignment in decoded.items()}
        now, active = self._timeline.now, set(given)
        is_void = event.item.value in self._void_requests
        if not is_void:
            self._seals.check(seal, job, active)
        if self._has_witnesses and not is_void:
            request = self._seals.requests[event.item.value]
            self._seals.check_request(seal, job, active, request)
            if job.last is not None:
                self._budget.check(seal, job.last, request, job.last.lost - job.leaving)
        job.rounds.append(RoundRecord(seal, given, set(job.present), active & job.departed, now))
        job.rounds[-1].lost |= active - job.present
        job.rounds[-1].known = frozenset(job.members)

    def _is_acting(self, host: Host) -> bool:
        """Whether processes are alive there whose lease or round the store has not lost."""
        job = self._jobs[host.running.job] if host.running is not None else self._job
        lease = job.leases.get(host.processes.running_as, 0)
        if host.running is not None and self._is_held_apart(host, host.running, job):
            return False
        if any(host.running is running for running in self._outlived):
            return False
        return host.processes.may_still_act and not self._storage.leases.is_excused(lease)

    def _is_held_apart(self, host: Host, running: Running, job: JobRecord) -> bool:
        """Whether the processes are an earlier attempt's, whose roster a store outage holds though its keys are gone.

        S7 holds for each attempt: whoever counts them answers for the one before being over.
        """
        is_earlier = self._parse_attempt(running.job) < self._parse_attempt(self._storage.read_current_job())
        is_held = host.state is not None and self._timeline.now < host.to_timeline(host.state.lease.held_until)
        return is_earlier and is_held and host.processes.running_as not in job.present

    # --- the agents ---

    def check_start(self, host: Host, started: Running) -> None:
        job = self._jobs[started.job]
        if host.running is not None:
            self.fail("S2", f"{host.name} starts round {started.round} while round {host.running.round} lives")
        for other in self._hosts.values():
            running = other.running
            if running is None or other is host or not self._is_acting(other):
                continue
            if running.job != started.job and not self.is_removed:
                self.fail("S7", f"{host.name} and {other.name} run two jobs at once")
            if running.round != started.round:
                self.fail("S2", f"rounds {started.round} and {running.round} live at once")
            if running.rank == started.rank:
                self.fail("S1", f"rank {started.rank} of round {started.round} lives on {other.name} and {host.name}")
        if self.is_removed or self._is_outdated(host):
            return
        if started.rank == 0:
            job.used_coordinators.add(started.coordinator)
        world = (started.coordinator, started.world_size, started.restart_count)
        if job.worlds.setdefault(started.round, world) != world:
            self.fail("S1", f"two views of round {started.round}: {world}, {job.worlds[started.round]}")
        if started.rank not in range(started.world_size):
            self.fail("S1", f"rank {started.rank} of {started.world_size}")
        if started.round > len(job.rounds):
            self.fail("S10", f"{host.name} starts round {started.round}, which nobody has sealed")
        if job.rounds[started.round - 1].seal.restart_count != started.restart_count:
            self.fail("S5", f"{host.name} runs round {started.round} with another restart count than was sealed")

    def check_request(self, host: Host, store_request: StoreRequest) -> None:
        """Every write must compare the basis of its decision, so that it does nothing once that has changed."""
        if not isinstance(store_request.request, Txn) or host.state is None:
            return
        witness = self._get_witness(host)
        if not self.is_removed and self._has_witnesses:
            is_outdated, known = self._is_outdated(host), self._seals.requests.keys() | ()
            self._seals.note(host.name, witness, self._find_job(host), store_request.request)
            if is_outdated:
                self._void_requests |= self._seals.requests.keys() - known
            else:
                self._permissions.check(host, witness, self._find_job(host), store_request)
        self._timeline.count(f"asked: {store_request.kind}")
        # A step may end the membership for which it has just written; that one is then the last registered.
        ids = (host.state.member_id, *host.member_ids[-1:])
        missing = min(
            (find_missing_guards(store_request.request, each, host.running is not None) for each in ids), key=len
        )
        if missing:
            self.fail("S10", f"{host.name} wants to {store_request.kind} without naming {sorted(missing)}")
        count = max(
            len(store_request.request.compares),
            sum(not isinstance(each, Get) for each in store_request.request.success),
        )
        if count > self._settings.operations_per_txn:
            self.fail("S10", f"{host.name} wants to {store_request.kind} with {count} operations or comparisons")
        if not all(isinstance(operation, Get) for operation in store_request.request.failure):
            self.fail("S10", f"{host.name} writes where its guards do not hold: {store_request.kind}")

    def check_step(self, host: Host, events: Sequence[events.Event], actions: Sequence[Action]) -> None:
        """No agent may ask to be woken in the past, nor after its end."""
        if host.state is not None and self._has_witnesses:
            witness = self._get_witness(host)
            witness.take(events, self._timeline.now)
            witness.note(actions, self._timeline.now)
            self._seals.confirmed_gone |= {event.member_id for event in events if isinstance(event, PeerGone)}
            self._deadlines.check_always(host, witness, actions)
            if self._is_outdated(host):
                self._deadlines.note_membership(host.state, witness)
            elif not self.is_removed:
                self._deadlines.check(host, witness, self._find_job(host), actions)
                self._permissions.check_departure(host, witness, actions)
        if any(isinstance(action, Exit) for action in actions[:-1]):
            self.fail("L1", f"{host.name} acts after its end: {actions}")
        has_ended = bool(actions) and isinstance(actions[-1], Exit)
        wake_at = host.state.requests.wake_at if host.state is not None else math.inf
        if wake_at < math.inf and (has_ended or wake_at <= host.read_clock()):
            self.fail("L1", f"{host.name} wants to be woken at {wake_at:.3f}, ended: {has_ended}")
        for action in actions:
            if isinstance(action, Log) and action.rule:
                self._timeline.count(action.rule)
        if any(isinstance(event, PeerGone) for event in events):
            self._timeline.count("presence proof")
        if self._timeline.now - self._storage.away_since > 2.0 and any(
            isinstance(action, ExtendWatchdog) for action in actions
        ):
            self._timeline.count("watchdog extended in an outage")

    def _get_witness(self, host: Host) -> Witness:
        assert host.state is not None
        return self._witnesses[host.state]

    def _find_job(self, host: Host) -> JobRecord:
        job = host.state.membership.job if host.state is not None else None
        return self._jobs[job.name if job is not None else ""]

    def _has_outlived_store(self, host: Host) -> bool:
        """Whether a served store is gone, and all workers here have succeeded in a round that was not stopped.

        A spare has none, so it may follow another node.
        """
        last = self._job.last
        if self._cluster.config.store_owner is None or last is None or last.stop is not None:
            return False
        is_ranked = any(member_id in last.active for member_id in host.member_ids)
        hosts = [host] if is_ranked else list(self._hosts.values())
        return any(each.processes.ended_as.get(last.seal.round, ("", 0))[0] == "succeeded" for each in hosts)

    def check_end(self, host: Host, watched: Sequence[str]) -> None:
        """An agent must end with the verdict of the job, or as it was told, and then never with success."""
        assert host.ended is not None
        verdict, exit_code = host.ended.verdict, host.ended.exit_code
        if watched:
            self.fail("S6", f"{host.name} ends and still watches {watched}")
        if exit_code == 0 and self._has_outlived_store(host):
            return
        if verdict is not None:
            known = [job.verdict for job in self._jobs.values()]
            is_known = verdict in known or self.is_removed or self._is_outdated(host)
            is_drained = host.name in self._cluster.operator.drained
            is_asked = verdict.kind == "stopped" and (host.is_told_to_leave or is_drained) and exit_code == 143
            if not is_known or (exit_code != verdict.exit_code and not is_asked):
                self.fail("S3", f"{host.name} ends with {exit_code}, {verdict}; the store says {known}")
            return
        if self._has_witnesses and not self._is_outdated(host):
            self._permissions.check_end(host, self._get_witness(host), self._find_job(host))
        allowed = {*self._exit_codes, *((143,) if host.is_told_to_leave else ())}
        if host.name in self._cluster.operator.drained:
            allowed |= {75, 143}
        if self._is_outdated(host):
            allowed |= {75}
        own = host.state.setup.attempt or 0 if host.state is not None else 0
        if self._parse_attempt(self._storage.read_current_job()) > own:
            allowed |= {76} if host.state is not None and host.state.membership.joined_root else {2}
        if exit_code not in allowed:
            self.fail("S3", f"{host.name} ends with {exit_code} and without a verdict: {host.ended.reason}")
