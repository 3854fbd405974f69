"""How this agent's part ends: told to leave, drained, the job over, or put out of it.

A departure is announced and acknowledged by the store before the first worker is signalled, so that whatever it
breaks is not charged to the job. A verdict is obeyed by all. Whoever serves the store to the others goes last, or
they would never read the verdict.
"""

from __future__ import annotations

import math

from rendezvous import events, records
from rendezvous.events import Answer, Exit, LeaveRequest, StoreRequest, Txn
from rendezvous.member.join import EXIT_TEMPORARY
from rendezvous.records import Verdict
from rendezvous.stores.contract import Get, Put, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

EXIT_FENCED = 137
EXIT_LEFT = 143  # this agent was told to leave: as after SIGTERM, never 0


class Leave:
    """`hosts_store`: the store that all others use ends with this agent."""

    def __init__(self, member: MemberMachine, node_name: str, hosts_store: bool) -> None:
        self._member = member
        self._node_name = node_name
        self._hosts_store = hosts_store
        self._request: LeaveRequest | None = None
        self._requested_at = math.inf
        self._exit_action: Exit | None = None  # what this agent will end with, once the others have gone
        self._exit_by = math.inf
        self.has_ended = False
        self.begin_membership()

    def begin_membership(self) -> None:
        self._verdict: Verdict | None = None  # obeyed even when its key has expired meanwhile
        self._is_sure = False  # that this node was removed, under a lease that lives

    @property
    def is_leaving(self) -> bool:
        return self._request is not None

    @property
    def is_final(self) -> bool:
        """Whether it is decided what this agent ends with."""
        return self._exit_action is not None

    def take_request(self, event: LeaveRequest, now: float) -> None:
        if self._request is None:
            self._request, self._requested_at = event, now

    def leave_before_joining(self, now: float) -> bool:
        """Go at once if told to: nobody counts on this node. Whether it does."""
        if self._request is not None:
            self.finish(self._request.exit_code, self._request.reason, None, now)
        return self._request is not None

    # --- leaving ---

    def announce_departure(self, job: records.Keys, now: float) -> None:
        """Leave in good order, if told to: by a signal, or by a drain of this node."""
        if self._request is None and self._member.join.is_drained(job):
            self.take_request(LeaveRequest(f"node {self._node_name} was drained", EXIT_LEFT), now)
        if self._request is None or self.is_final:
            return
        member, here, settings = self._member, self._member.round, self._member.settings
        here.announce(self._request.reason, self._request.exit_code or EXIT_TEMPORARY)
        announce_by = self._requested_at + settings.announce_limit_s
        gone_by = announce_by + settings.shutdown_timeout_s + settings.stop_limit_s
        # Written means that whoever leads will know of it before it charges what the departure breaks.
        is_announced = now >= announce_by or (here.status_written is not None and bool(here.status_written.leaving))
        is_leading = member.is_leader and now < member.lease.lease_until
        if here.alive_round is not None:
            if is_announced:
                here.stop("grace", self._request.reason, now)
            else:
                member.wake_by(announce_by)
        elif now >= gone_by or (not is_leading and (here.is_status_written or now >= announce_by)):
            self.finish(self._request.exit_code, self._request.reason, None, now)
        else:
            member.wake_by(gone_by if is_leading else announce_by)

    def step_down(self, reason: str, now: float) -> None:
        """Let go of the leader's key with the membership: to leave, or since this node cannot stop its workers."""
        self._member.round.stop("fence", reason, now)
        if self._request is not None:
            self.finish(self._request.exit_code, self._request.reason, None, now)
        else:
            self.finish(EXIT_FENCED, reason, None, now)

    # --- the end of the job, or of this node's part in it ---

    def follow_verdict(self, job: records.Keys, now: float) -> bool:
        """Stop what runs and end, if there is a verdict. Whether there is."""
        verdict = self._verdict = self._member.read(Verdict, job.verdict) or self._verdict
        if verdict is None:
            return False
        here = self._member.round
        here.stop("grace" if verdict.kind == "stopped" else "kill", verdict.reason, now)
        if here.alive_round is None or now >= here.gone_by:
            self.finish(verdict.exit_code, verdict.reason, verdict, now)
        else:
            self._member.wake_by(here.gone_by)
        return True

    def handle_fenced(self, job: records.Keys, now: float, loss_reason: str = "") -> None:
        """The own key is gone, or the others went on: kill at once, then see whether somebody has removed this node.

        A store may end a lease before its time, and takes the key with it: that is the end of a membership like any
        other. So something is put under the lease, which no server can answer alone; if the lease is gone, the refusal
        says so (see `protocol`). If nothing is answered, the membership ends with the time of the lease. `lost`: what
        else was deleted, and why nobody can go on.
        """
        member = self._member
        assert member.lease.lease is not None
        member.round.stop("fence", "no longer a member", now)
        if self._is_sure:
            code, why = (
                (EXIT_TEMPORARY, loss_reason) if loss_reason else (EXIT_FENCED, "this node was removed from the job")
            )
            self.finish(code, why, None, now)
            return
        probe = Put(job.make_lease_key(member.member_id), b"", member.lease.lease)
        request = Txn((), (probe, Get(member.join.current_key), Get(job.spec)))
        member.request("farewell", "see whether the lease and the job live", request, self._explain_fenced, now)
        member.wake_by(member.lease.membership_until)

    def _explain_fenced(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        current, spec = answer.found
        self._is_sure = True
        if self._member.join.is_removed(current.first, spec.first):
            self.finish(EXIT_TEMPORARY, self._member.join.removal_reason, None, now)

    def finish(self, exit_code: int, reason: str, verdict: Verdict | None, now: float) -> None:
        """Give the membership up and end, without waiting for the store's word."""
        if self.is_final:
            return
        member = self._member
        self._exit_action = Exit(exit_code, reason, verdict)
        member.unwatch_all()
        if member.lease.lease is not None:
            member.emit(
                StoreRequest(member.make_request_id(), "give the lease back", events.Revoke(member.lease.lease))
            )
        member.drop_requests()
        if self._hosts_store and member.member_revision:
            self._exit_by = now + member.settings.farewell_s
            words = f"{reason}; staying up to {member.settings.farewell_s:g} s, others use this node's store"
            member.log(words, "host stays")
            self.advance(now)
        else:
            self._exit()

    def advance(self, now: float) -> None:
        """Having ended, stay until every member has gone, or for `farewell_s`: this node serves the store."""
        if self.has_ended:
            return
        if now >= self._exit_by:
            self._exit()
            return
        members = self._member.job.members

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            others = [item.key for item in answer.found[0].items if item.key != members + self._member.member_id]
            if others:
                self._member.pause("farewell", now)
            else:
                self._exit()

        self._member.wake_by(self._exit_by)
        request = Txn((), (Get(members, prefix=True),))
        self._member.request("farewell", "see whether all have gone", request, on_reply, now)

    def _exit(self) -> None:
        if not self.has_ended and self._exit_action is not None:
            self.has_ended = True
            self._member.emit(self._exit_action)
