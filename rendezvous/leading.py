"""What the leading member does besides being a member: see everybody, decide, and write.

Every write names the leader key by its create revision and the revision of what was decided on, so a leader
that has been replaced, or that decided on something old, writes nothing. When a write is refused by its
guards, or its outcome is unknown, everything is read again before the next decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rendezvous import budget, decide, keys, messages, records
from rendezvous.decide import Conclude, EndRound, Fence, MemberView, Resign, SealRound, Sizer, StatusView, View, Wait
from rendezvous.messages import Answer, Candidate, MakePlan, Planned, PlanRefused, Txn
from rendezvous.records import Assignment, Member, Seal, Status, Stop, Verdict
from rendezvous.store import Compare, Delete, Get, Lease, Operation, Put, TxnResult

if TYPE_CHECKING:
    from rendezvous.protocol import Protocol

ASSIGNMENTS_PER_TXN = 100  # within etcd's 128 operations; requests stay far below 1.5 MiB at 10 kB a record


class Leading:
    def __init__(
        self,
        member: Protocol,
        job: keys.Keys,
        current: str,
        leader_revision: int,
        sizer: Sizer,
        now: float,
    ) -> None:
        self._member = member
        self._job = job
        self._current = current  # the key that names the job
        self.revision = leader_revision
        self._leader_guard = Compare(job.leader, "create", "=", leader_revision)
        self._sizer = sizer
        self._opened_at = now
        self._is_loaded = False
        self._is_following = False
        self._roster_token = ""  # the plan token whose assignments are known
        self._assignments: dict[str, str] = {}  # of the sealed round: member id -> content
        self._names: dict[str, str] = {}  # node names of all members ever seen
        self._lost_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}  # status key and plan token -> when the failure was first seen
        self._leaving_at: dict[str, float] = {}
        self._plan_asked: tuple[int, int, tuple[str, ...]] | None = None  # id, round, roster
        self._plan: Planned | PlanRefused | None = None

    def advance(self, now: float) -> None:
        """Look, decide, and ask for one write at most; while one is under way there is nothing to decide."""
        if self._member.is_busy("lead"):
            return
        seal = self._member.read(Seal, self._job.round)
        if not self._is_loaded or (seal is not None and seal.plan_token != self._roster_token):
            self._load(seal, now)
            return
        if self._member.is_removed(self._member.mirror.get(self._current), self._member.mirror.get(self._job.spec)):
            round = seal.round if seal else 0
            self._conclude(Verdict(kind="stopped", exit_code=1, round=round, reason=self._member.removal), now)
            return
        decision = decide.decide(self._view(seal, now), now, self._member.settings, self._sizer)
        match decision:
            case Wait(until, reason):
                self._member.say(reason)
                self._member.wake(until)
            case EndRound(mode, reason):
                self._end_round(mode, reason, now)
            case SealRound():
                self._seal_round(seal, decision, now)
            case Fence(member_id, reason):
                self._fence(member_id, reason, now)
            case Conclude(verdict):
                self._conclude(verdict, now)
            case Resign(reason):
                self._member.resign(reason, now)

    def take_plan(self, event: Planned | PlanRefused) -> None:
        if self._plan_asked is not None and event.id == self._plan_asked[0]:
            self._plan = event

    # --- seeing ---

    def _load(self, seal: Seal | None, now: float) -> None:
        """Read everybody, and the assignments of the sealed round unless this leader wrote them itself."""
        prefixes = [self._job.control, self._job.members, self._job.statuses]
        singles = [self._current, self._job.spec]
        token = seal.plan_token if seal else ""
        if seal is not None:
            prefixes.append(self._job.assignments(seal.round, token))

        def loaded(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            for key, found in zip([*singles, *prefixes[:3]], answer.found, strict=False):
                self._member.mirror.load(found, key, now)
            if seal is not None:
                items = answer.found[-1].items
                contents = {item.key: records.decode(Assignment, item.value, item.key).content for item in items}
                self._know_round(token, {key.rpartition("/")[2]: content for key, content in contents.items()})
            if not self._is_following:
                self._is_following = True
                for key in (*singles, self._job.members, self._job.statuses):
                    self._member.follow(key, answer.revision + 1)
            self._is_loaded = True

        reads = [*(Get(key) for key in singles), *(Get(prefix, prefix=True) for prefix in prefixes)]
        request = Txn((), tuple(reads))
        self._member.ask("lead", "read everybody", request, loaded, now)

    def _know_round(self, token: str, assignments: dict[str, str]) -> None:
        if token != self._roster_token:
            self._roster_token, self._assignments = token, assignments
            self._lost_at, self._failed_at = {}, {}

    def _view(self, seal: Seal | None, now: float) -> View:
        mirror, read = self._member.mirror, self._member.read
        members: dict[str, MemberView] = {}
        for item in mirror.under(self._job.members):
            member = read(Member, item.key)
            assert member is not None
            self._names[member.member_id] = member.node_name
            members[member.member_id] = MemberView(
                member, item.create_revision, item.mod_revision, mirror.seen_at(item.key)
            )
        statuses = {
            item.key.rpartition("/")[2]: self._status_view(item.key, item.mod_revision, now)
            for item in mirror.under(self._job.statuses)
        }
        for member_id in self._assignments:
            if member_id not in members:
                self._lost_at.setdefault(member_id, now)
        sealed_at = mirror.seen_at(self._job.round) if seal else 0.0
        stop = read(Stop, self._job.stop)
        return View(
            own_id=self._member.member_id,
            members=members,
            statuses=statuses,
            opened_at=self._opened_at,
            seal=seal,
            sealed_at=sealed_at,
            active=tuple(sorted(self._assignments)),
            stop=stop,
            stopped_at=mirror.seen_at(self._job.stop) if stop else 0.0,
            lost_at=self._lost_at,
            names=self._names,
            ledger=budget.from_seal(seal, sealed_at) if seal else budget.Ledger(),
        )

    def _status_view(self, key: str, revision: int, now: float) -> StatusView:
        status = self._member.read(Status, key)
        assert status is not None
        has_failed = status.outcome == "failed"
        failed_at = self._failed_at.setdefault(f"{key} {status.plan_token}", now) if has_failed else math.inf
        leaving_at = self._leaving_at.setdefault(key, now) if status.leaving else math.inf
        return StatusView(status, status.failed_revision or revision, failed_at, leaving_at)

    # --- writing ---

    def _write(
        self,
        why: str,
        guards: tuple[Compare, ...],
        writes: tuple[Operation, ...],
        now: float,
        then: Callable[[float], None],
    ) -> None:
        """One guarded transaction. Anything but a plain success is followed by reading everything again."""

        def written(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if not answer.succeeded:
                self._member.mirror.load(answer.found[0], self._job.control, now)
                self._is_loaded = False
                return
            for write in writes:
                if isinstance(write, Put):
                    self._member.wrote(write, answer.revision, now)
            then(now)

        def perhaps_written(now: float) -> None:
            self._is_loaded = False

        own = Compare(self._job.member(self._member.member_id), "create", "=", self._member.member_revision)
        compares = (self._leader_guard, own, Compare(self._job.verdict, "create", "=", 0), *guards)
        request = Txn(compares, writes, (Get(self._job.control, prefix=True),))
        self._member.ask("lead", why, request, written, now, perhaps_written)

    def _unchanged(self, key: str) -> Compare:
        return Compare(key, "mod", "=", self._member.mirror.revision(key))

    def _end_round(self, mode: str, reason: str, now: float) -> None:
        seal = self._member.read(Seal, self._job.round)
        assert seal is not None
        ran_s = now - self._member.mirror.seen_at(self._job.round)
        put = Put(
            self._job.stop, records.encode(Stop(round=seal.round, reason=reason, mode=mode, ran_s=round(ran_s, 3)))
        )
        guards = (self._unchanged(self._job.round), self._unchanged(self._job.stop))
        self._member.say(reason)
        self._write(f"stop round {seal.round}", guards, (put,), now, _nothing)

    def _fence(self, member_id: str, reason: str, now: float) -> None:
        """Delete a member that does not stop, guarded: it may have re-registered or gone by itself."""
        key = self._job.member(member_id)

        def fenced(now: float) -> None:
            self._is_loaded = False

        self._member.say(reason)
        self._write(f"fence {member_id}", (self._unchanged(key),), (Delete(key),), now, fenced)

    def _conclude(self, verdict: Verdict, now: float) -> None:
        """Grant the verdict a lease of its own, then write it, if what was decided on is unchanged."""
        guards = (self._unchanged(self._job.round), self._unchanged(self._job.stop))

        def granted(answer: Answer, now: float) -> None:
            assert isinstance(answer, Lease)
            put = Put(self._job.verdict, records.encode(verdict), answer.id)
            self._write(f"end the job: {verdict.kind}", guards, (put,), now, _nothing)

        ttl_s = self._member.settings.keep_finished_s
        self._member.ask("lead", "grant the verdict's lease", messages.Grant(ttl_s), granted, now)

    # --- sealing: plan, assignments under a fresh token, then the seal ---

    def _seal_round(self, seal: Seal | None, decision: SealRound, now: float) -> None:
        round = seal.round + 1 if seal else 1
        if self._plan_asked is None or self._plan_asked[1:] != (round, decision.roster):
            self._ask_for_plan(round, decision.roster)
        elif isinstance(self._plan, PlanRefused):
            self._conclude(Verdict(kind="failure", exit_code=1, round=round - 1, reason=self._plan.reason), now)
        elif isinstance(self._plan, Planned):
            self._assign(round, seal, self._plan, decision, now)

    def _ask_for_plan(self, round: int, roster: tuple[str, ...]) -> None:
        plan_id = self._member.take_id()
        self._plan_asked, self._plan = (plan_id, round, roster), None
        candidates = tuple(self._candidate(member_id) for member_id in roster)
        self._member.act(MakePlan(plan_id, round, candidates, dict(self._assignments)))

    def _candidate(self, member_id: str) -> Candidate:
        item = self._member.mirror.get(self._job.member(member_id))
        member = self._member.read(Member, self._job.member(member_id))
        status = self._member.read(Status, self._job.status(member_id))
        assert item is not None
        assert member is not None
        port = (status.worker_port if status is not None else 0) or member.worker_port
        return Candidate(member_id, member.description, port, item.create_revision)

    def _assign(self, round: int, last: Seal | None, plan: Planned, decision: SealRound, now: float) -> None:
        """Write the assignments in batches, one at a time, then the seal that makes them count."""
        token = self._member.token()
        rest = [
            Put(
                self._job.assignment(round, token, member_id),
                records.encode(Assignment(round=round, plan_token=token, content=content)),
            )
            for member_id, content in sorted(plan.assignments.items())
        ]
        still_current = (self._unchanged(self._job.round),)

        def next_batch(now: float) -> None:
            nonlocal rest
            if rest:
                batch, rest = rest[:ASSIGNMENTS_PER_TXN], rest[ASSIGNMENTS_PER_TXN:]
                self._write(f"assign round {round}", still_current, tuple(batch), now, next_batch)
            else:
                seal = Seal(
                    round=round,
                    plan_token=token,
                    world_size=plan.world_size,
                    coordinator=plan.coordinator,
                    unknown=last.unknown if last else {},
                )
                self._put_seal(seal, plan.assignments, decision, still_current, now)

        next_batch(now)

    def _put_seal(
        self,
        seal: Seal,
        assignments: Mapping[str, str],
        decision: SealRound,
        guards: tuple[Compare, ...],
        now: float,
    ) -> None:
        put = Put(self._job.round, records.encode(budget.into_seal(seal, decision.ledger, now)))
        writes: tuple[Operation, ...] = (put, *self._litter(seal.round))

        def sealed(now: float) -> None:
            self._know_round(seal.plan_token, dict(assignments))

        self._member.say(f"round {seal.round}: {decision.reason}")
        self._write(f"seal round {seal.round}", guards, writes, now, sealed)

    def _litter(self, round: int) -> list[Delete]:
        """What nobody will read again once `round` is sealed: old assignments, statuses of members that are gone."""
        mirror = self._member.mirror
        gone = [
            Delete(item.key)
            for item in mirror.under(self._job.statuses)
            if mirror.get(self._job.member(item.key.rpartition("/")[2])) is None
        ]
        old = [Delete(self._job.assignments(round - 2), prefix=True)] if round > 2 else []
        return old + gone[:ASSIGNMENTS_PER_TXN]


def _nothing(now: float) -> None:
    pass
