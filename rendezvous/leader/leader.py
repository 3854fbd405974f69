"""What the leading member does besides being a member: see everybody, decide, and write.

It looks, decides on one thing, asks for one write, and looks again when that is done or something has changed.
With a thousand members each look takes milliseconds and changes come by the thousand, so what comes close
together is looked at together, and the cost of a round stays linear in members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from rendezvous import events, records
from rendezvous.events import Answer, PlanReady, PlanRefused, Txn
from rendezvous.leader.commit import RoundCommit
from rendezvous.leader.guarded_writer import GuardedWriter
from rendezvous.leader.view_builder import ViewBuilder
from rendezvous.policy import decide
from rendezvous.policy.decide import (
    EXIT_TEMPORARY,
    ApplyCommand,
    EndRound,
    Fence,
    Finish,
    SealRound,
    Sizer,
    StepDown,
    View,
    Wait,
)
from rendezvous.records import Assignment, Command, Drain, RoundHistory, Seal, Stop, Verdict
from rendezvous.stores.contract import Delete, Get, Operation, Put, TxnResult
from rendezvous.values import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

FENCED_PER_TXN = 60


class Leader:
    """`current`: the key that names the job; `revision`: the leader key's mod revision.

    `unaware_until`: who was connected when leases ended before this, and until when their workers may live.
    """

    def __init__(
        self,
        member: MemberMachine,
        job: records.Keys,
        current: str,
        leader_revision: int,
        sizer: Sizer,
        now: float,
        unaware_until: Mapping[str, float],
    ) -> None:
        self._member = member
        self._job = job
        self._current = current
        self.revision = leader_revision
        self._sizer = sizer
        self._is_loaded = False
        self._loaded_at = -math.inf  # when the last read of everybody was sent
        self._has_lost_record = False  # one of those that everything rests on
        self._is_watching = False
        self._observe_at = now
        self._verdict_lease = member.make_lease_id()
        self._verdict_lease_since = now  # when it may have been granted at the earliest
        self._is_verdict_lease_granted = False
        self._waiting = ("", "")  # what is waited for, and the sentence that said it
        self._writer = GuardedWriter(member, job, leader_revision, self._mark_unloaded)
        self._view_builder = ViewBuilder(member, job, now, unaware_until)
        self._round_commit = RoundCommit(member, job, self._writer, self._view_builder, self._fail_job)

    @property
    def is_settled(self) -> bool:
        """Whether nothing this leader has written is in doubt, and all there is has been read."""
        return self._is_loaded and not self._member.is_busy("lead")

    @property
    def is_loaded(self) -> bool:
        """Whether everybody has been read."""
        return self._is_loaded

    @property
    def active(self) -> Set[str]:
        """The members with ranks in the sealed round, as far as this leader knows."""
        return self._view_builder.contents.keys()

    @property
    def unaware_until(self) -> Mapping[str, float]:
        """As in View, as far as this leader knows."""
        return self._view_builder.unaware_until

    def advance(self, now: float) -> None:
        """Look, decide, and ask for one write at most; while one is under way there is nothing to decide."""
        if self._member.is_busy("lead"):
            self._observe_at = now  # its answer is not kept waiting
            return
        if now < self._observe_at:
            self._member.wake_by(self._observe_at)
            return
        seal = self._member.read(Seal, self._job.round)
        is_other_round = seal is not None and seal.plan_token != self._view_builder.round_token
        # Whoever has registered again after an outage is in the store by then, though a watch may not have said so.
        is_before_return = self._loaded_at < self._member.no_omission_before <= now
        if not self._is_loaded or is_other_round or is_before_return:
            self._load(seal, now)
            return
        if self._is_unreadable():
            return
        mirror = self._member.cache
        if self._member.is_removed(mirror.get(self._current), mirror.get(self._job.spec)):
            round = seal.round if seal else 0
            removed = Verdict(kind="stopped", exit_code=EXIT_TEMPORARY, round=round, reason=self._member.removal_reason)
            self._finish_job(Finish(removed), now)
            return
        view = self._view_builder.observe(now)
        self._observe_at = now + self._member.settings.observe_pause_s * len(view.members)
        self._carry_out(decide.decide(view, now, self._member.settings, self._sizer), view, now)

    def lose_verdict_lease(self) -> None:
        """The lease that the verdict was to be written on has ended: ask for it again."""
        self._is_verdict_lease_granted = False

    def take_plan(self, event: PlanReady | PlanRefused) -> None:
        self._observe_at = float("-inf")
        self._round_commit.take_plan(event)

    def _carry_out(self, decision: decide.Decision, view: View, now: float) -> None:
        match decision:
            case Wait():
                self._wait(decision, now)
                self._round_commit.update_spares(view, now)
            case EndRound():
                self._end_round(decision, now)
            case SealRound():
                self._round_commit.commit(view, decision, now)
            case Fence():
                self._fence(decision, now)
            case Finish():
                self._finish_job(decision, now)
            case ApplyCommand():
                self._apply_command(decision, now)
            case StepDown(reason):
                self._member.step_down(reason, now)

    def _wait(self, decision: Wait, now: float) -> None:
        """Say what is waited for when it changes, and how long it may last, as of then."""
        if decision.reason != self._waiting[0]:
            limit = f"; giving up in {decision.until - now:.0f} s" if decision.is_limit else ""
            self._waiting = (decision.reason, decision.reason + limit)
        self._member.log_status(self._waiting[1], decision.rule)
        self._member.wake_by(decision.until)

    def _mark_unloaded(self) -> None:
        self._is_loaded = False

    # --- reading everything ---

    def _load(self, seal: Seal | None, now: float) -> None:
        """Read everybody, and the assignments of the sealed round unless this leader wrote them itself."""
        job, mirror = self._job, self._member.cache
        followed = (self._current, job.spec, job.members, job.statuses)
        names = [*followed, job.control]
        if seal is not None:
            names += [job.make_history_key(seal.round), job.make_assignments_prefix(seal.round, seal.plan_token)]

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            found = dict(zip(names, answer.found, strict=True))
            if seal is not None:
                items = found.pop(names[-1]).items
                decoded = {item.key.rpartition("/")[2]: self._member.decode(Assignment, item) for item in items}
                known = {member_id: record for member_id, record in decoded.items() if record is not None}
                self._view_builder.note_round(seal.plan_token, known)
            for name, items_found in found.items():
                mirror.load(items_found, name, now)
            if not self._is_watching:
                self._is_watching = True
                for name in followed:
                    self._member.watch(name, answer.revision + 1)
            self._is_loaded, self._loaded_at = True, self._member.sent_at

        reads = tuple(Get(name, prefix=name.endswith("/")) for name in names)
        self._member.request("lead", "read everybody", Txn((), reads), on_reply, now)

    def _is_unreadable(self) -> bool:
        """Whether a record that everything rests on is there but cannot be read: then nothing is decided."""
        job, is_readable = self._job, self._member.is_readable
        if is_readable(Seal, job.round) and is_readable(Stop, job.stop) and is_readable(Verdict, job.verdict):
            self._has_lost_record = False
            return False
        if not self._has_lost_record:
            self._has_lost_record = True
            self._member.log("what was decided last cannot be read, so nothing is decided until its key is removed")
        return True

    # --- writing ---

    def _write_history(self, round: int, reason: str, now: float) -> list[Operation]:
        """What is remembered of a round, once it has ended."""
        key = self._job.make_history_key(round)
        past = self._member.read(RoundHistory, key)
        is_sealed = self._member.cache.get(self._job.round) is not None  # not if the job was just removed
        if past is None or past.ended or not is_sealed:
            return []
        ran_s = round_to_ms(now - self._member.cache.get_first_seen_at(self._job.round))
        return [self._writer.make_put(key, replace(past, ended=reason[:1000], ran_s=ran_s))]

    def _end_round(self, decision: EndRound, now: float) -> None:
        seal = self._member.read(Seal, self._job.round)
        assert seal is not None
        ran_s = round_to_ms(now - self._member.cache.get_first_seen_at(self._job.round))
        stop = Stop(round=seal.round, reason=decision.reason, mode=decision.mode, ran_s=ran_s)
        writes = (self._writer.make_put(self._job.stop, stop), *self._write_history(seal.round, decision.reason, now))
        self._member.log_status(decision.reason, decision.rule)
        guards = self._writer.guard_unchanged(self._job.round, self._job.stop)
        self._writer.write(f"stop round {seal.round}", guards, writes, now)

    def _fence(self, decision: Fence, now: float) -> None:
        """Delete members' keys, guarded: each may have registered again or gone by itself.

        Or it has said more than a watch has told yet. A success that the store holds must not be run again, and after
        its key a member writes nothing.
        """
        some = decision.member_ids[:FENCED_PER_TXN]
        names = [self._job.make_member_key(member_id) for member_id in some]
        statuses = [self._job.make_status_key(member_id) for member_id in some]

        def on_done(now: float) -> None:
            self._view_builder.note_fenced(some, is_confirmed_gone=decision.is_confirmed_gone)

        self._member.log_status(decision.reason, decision.rule)
        why = f"fence {', '.join(some)}"
        guards = self._writer.guard_unchanged(*names, *statuses)
        self._writer.write(why, guards, [Delete(name) for name in names], now, on_done)

    def _apply_command(self, decision: ApplyCommand, now: float) -> None:
        """Do what a person asked for and consume the request, or leave the answer in its place."""
        job = self._job
        command_key = job.make_command_key(decision.token)
        command = self._member.read(Command, command_key)
        assert command is not None
        names = [command_key]
        writes: list[Operation]
        if decision.answer:
            writes = [self._writer.make_put(command_key, replace(command, answer=decision.answer))]
        elif decision.drain:
            names.append(job.make_drain_key(decision.drain))
            writes = [Delete(command_key), self._writer.make_put(names[-1], Drain(node_name=decision.drain))]
        else:
            names.append(job.make_drain_key(decision.undrain))
            writes = [Delete(command_key), Delete(names[-1])]
        self._writer.write(f"{command.kind} {command.target}", self._writer.guard_unchanged(*names), writes, now)

    def _finish_job(self, decision: Finish, now: float) -> None:
        """Write the verdict on a lease of its own, if what was decided on is unchanged.

        The key that names the job goes with the verdict: or whoever used the run id after that would find a job that
        has not ended.
        """
        if not self._has_verdict_lease(now):
            return
        verdict, current = decision.verdict, self._member.cache.get(self._current)
        names = [self._job.round, self._job.stop, self._current]
        writes: list[Operation] = [self._writer.make_put(self._job.verdict, verdict, self._verdict_lease)]
        if current is not None and current.value == self._job.name.encode():
            writes.append(Put(self._current, current.value, self._verdict_lease))
        if decision.token:
            names.append(self._job.make_command_key(decision.token))
            writes.append(Delete(names[-1]))
        writes += self._write_history(verdict.round, verdict.reason, now)
        self._writer.write(f"end the job: {verdict.kind}", self._writer.guard_unchanged(*names), writes, now)

    def _has_verdict_lease(self, now: float) -> bool:
        """Whether there is a lease for the verdict; else ask for it.

        What to conclude is decided again when it is there: a slow store takes seconds to grant it, and a node that is
        lost meanwhile may have to be waited for. One that was granted long ago, for a conclusion that came to nothing,
        is replaced.
        """
        settings = self._member.settings
        if now >= self._verdict_lease_since + max(settings.keep_finished_s / 2, settings.write_limit_s):
            self._verdict_lease, self._verdict_lease_since = self._member.make_lease_id(), now
            self._is_verdict_lease_granted = False

        def on_reply(answer: Answer, now: float) -> None:
            self._is_verdict_lease_granted = True

        if not self._is_verdict_lease_granted:
            grant = events.Grant(settings.keep_finished_s, self._verdict_lease)
            self._member.request("lead", "grant the verdict's lease", grant, on_reply, now)
        return self._is_verdict_lease_granted

    def _fail_job(self, round: int, reason: str, now: float) -> None:
        """End the job: the planner finds no plan for a roster that should make a world."""
        self._finish_job(Finish(Verdict(kind="failure", exit_code=1, round=round, reason=reason)), now)


def round_to_ms(duration_s: float) -> float:
    """Milliseconds are enough for a record."""
    return round(duration_s, 3)
