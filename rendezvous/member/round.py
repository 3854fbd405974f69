"""The round on this node: from the seal to this node's ranks, to a status that says how they fare, to the stop.

At most one round lives here at a time, over all memberships of this agent: nothing of the next starts before
nothing of the last is left. What happened is kept as a status and written whenever the store has an older one.
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.events import (
    Answer,
    CheckpointSaved,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    StartRound,
    StopRound,
    Txn,
)
from rendezvous.records import Assignment, Seal, Status, Stop
from rendezvous.stores.contract import Compare, Get, Put, TxnResult
from rendezvous.values import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine


class LocalRound:
    """`worker_port` is what this node offers for the next round."""

    def __init__(self, member: MemberMachine, worker_port: int) -> None:
        self._member = member
        self.worker_port = worker_port
        self.alive_round: int | None = None
        self.gone_by = math.inf  # when a round that is being stopped must be gone
        self._stop_mode = ""
        self.begin_membership()

    def begin_membership(self) -> None:
        """What was told under another member id was told by somebody else."""
        self._lost = ""  # a sentence, once the round's own seal has been taken from under it
        self._answered_token = ""  # the plan token for which this member knows whether it has ranks
        self.status = Status(round=0)
        self.status_written: Status | None = None
        self._failed_revision = 0  # of the write that first told of this round's failure

    # --- what the processes do ---

    def take(self, event: RoundSucceeded | RoundFailed | RoundStopped | CheckpointSaved) -> None:
        """Note what became of the round; what is told of another one is late, and ignored."""
        if event.round != self.alive_round:
            return
        is_final = isinstance(event, RoundFailed) and event.is_final
        # An exit after the stop is no failure, but who will not come back must not be waited for.
        is_open = not self.status.outcome and (not self._stop_mode or is_final)
        match event:
            case RoundSucceeded() if is_open:
                self.status = replace(self.status, outcome="succeeded")
            case RoundFailed(_, exit_code, is_peer_loss, failure, rank, is_port_taken) if is_open:
                self.status = replace(
                    self.status,
                    outcome="failed",
                    exit_code=exit_code,
                    is_peer_loss=is_peer_loss,
                    failure=failure,
                    rank=rank,
                    is_port_taken=is_port_taken,
                    is_final=is_final,
                )
            case CheckpointSaved():
                self.status = replace(self.status, saved_count=self.status.saved_count + 1)
            case RoundStopped(_, worker_port):
                self.alive_round = None
                self.worker_port = worker_port
                self.status = replace(self.status, is_stopped=True, worker_port=worker_port)

    # --- what the job wants ---

    def advance(self, job: records.Keys, now: float) -> None:
        """Start what is sealed, stop what is stopped."""
        member = self._member
        seal, stop = member.read(Seal, job.round), member.read(Stop, job.stop)
        if self.alive_round is not None and self._has_lost_seal(seal):
            self._lost = f"round {self.alive_round} is not in the store any more: somebody has deleted its keys"
        if self._lost:
            member.leave.handle_fenced(job, now, self._lost)
            return
        if seal is None:
            return
        is_stopped = stop is not None and stop.round >= seal.round
        if self.alive_round is not None:
            if seal.round > self.alive_round:
                member.handle_fenced(now)  # the others went on without this node
            elif is_stopped and stop is not None:
                self.stop(stop.mode, stop.reason, now)
        elif is_stopped:
            if self.status.plan_token != seal.plan_token:
                self._begin_status(seal, is_stopped=True)
        elif seal.plan_token != self._answered_token and not member.leave.is_leaving:
            key = job.make_assignment_key(seal.round, seal.plan_token, member.member_id)

            def on_reply(answer: Answer, now: float) -> None:
                self._take_up(job, seal, answer, now)

            member.request(
                "assignment", f"read the assignment of round {seal.round}", Txn((), (Get(key),)), on_reply, now
            )

    def _has_lost_seal(self, seal: Seal | None) -> bool:
        """Whether the round that lives here was sealed in vain. Seals are only replaced, so others have done that."""
        if seal is None or seal.round < (self.alive_round or 0):
            return True
        return seal.round == self.alive_round and seal.plan_token != self.status.plan_token

    def _take_up(self, job: records.Keys, sealed: Seal, answer: Answer, now: float) -> None:
        """Act on the record under the sealed token; no record means no ranks. Start nothing beyond the watchdog."""
        assert isinstance(answer, TxnResult)
        member = self._member
        seal, stop = member.read(Seal, job.round), member.read(Stop, job.stop)
        is_stopped = stop is not None and stop.round >= sealed.round
        if seal is None or seal.plan_token != sealed.plan_token or is_stopped or self.alive_round is not None:
            return
        if now >= member.lease.membership_until - member.settings.kill_margin_s:
            member.pause("assignment", now)  # read it again when the lease has been renewed, or all has been read
            return
        self._answered_token = seal.plan_token
        found = answer.found[0].first
        if found is None:
            member.log_status(f"round {seal.round} runs without this node, which stands by as a spare")
            return
        self.alive_round, self._stop_mode = seal.round, ""
        member.election.note_ranks(seal)
        self._begin_status(seal, is_stopped=False)
        # The others wait for this node's ranks whatever has become of the record, so the agent is to fail without one.
        assignment = member.decode(Assignment, found)
        content = assignment.content if assignment is not None else ""
        member.emit(StartRound(seal.round, seal.restart_count, seal.world_size, seal.coordinator, content))

    def _begin_status(self, seal: Seal, is_stopped: bool) -> None:
        self._failed_revision = 0
        self.status = Status(
            round=seal.round, plan_token=seal.plan_token, is_stopped=is_stopped, worker_port=self.worker_port
        )

    def stop(self, mode: str, reason: str, now: float) -> None:
        """Tell the agent once; only "fence" overrules a stop that is under way."""
        if self.alive_round is None or (self._stop_mode and (mode != "fence" or self._stop_mode == "fence")):
            return
        self._stop_mode = mode
        self.gone_by = now + self._member.settings.compute_gone_within_s(mode)
        self._member.emit(StopRound(self.alive_round, mode, reason))

    # --- what the others are told ---

    def announce(self, reason: str, exit_code: int) -> None:
        """This node is about to go."""
        self.status = replace(self.status, leaving=reason, leaving_exit_code=exit_code)

    @property
    def is_status_written(self) -> bool:
        """Whether the store has the last status."""
        return self.status == self.status_written

    def write_status(self, job: records.Keys, now: float) -> None:
        member, status = self._member, self.status
        if status == self.status_written or _is_empty(status):
            return
        key, own_key = job.make_status_key(member.member_id), job.make_member_key(member.member_id)
        self._recall_failure(key)  # the answer to the write that told of it may have been lost
        guards = (
            Compare(own_key, "create", "=", member.member_revision),
            Compare(key, "mod", "=", member.cache.get_revision(key)),
        )
        put = Put(key, member.encode(replace(status, failed_revision=self._failed_revision), key))
        request = Txn(guards, (put,), (Get(key), Get(own_key)))

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if answer.succeeded:
                member.note_own_write(put, answer.revision, now)
            else:  # perhaps it had been written and the answer was lost
                own_status, own_member = answer.found
                member.cache.load(own_status, key, now)
                member.cache.load(own_member, own_key, now)
            stored = member.read(Status, key)
            if stored is not None:
                self.status_written = replace(stored, failed_revision=0)
                self._recall_failure(key)

        member.request("status", f"report on round {status.round}", request, on_reply, now)

    def _recall_failure(self, key: str) -> None:
        """Note when this round's failure was first told, if what is in the store tells of it."""
        stored = self._member.read(Status, key)
        if stored is not None and stored.outcome == "failed" and stored.plan_token == self.status.plan_token:
            self._failed_revision = stored.failed_revision or self._member.cache.get_revision(key)


def _is_empty(status: Status) -> bool:
    """Whether it is what all take for granted: the sealed round runs. A write of every member would say so."""
    return status == Status(round=status.round, plan_token=status.plan_token, worker_port=status.worker_port)
