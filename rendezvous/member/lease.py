"""The lease that makes this agent a member, and the watchdog that its workers live on.

The store drops a member's keys when its lease ends, and then others may take its place. So the workers here must
be gone a little before: their watchdog ends `kill_margin_s` before the lease does, counted from when the last renewal
was *sent* that is known to have reached the store's leader and to have left the own key in its place. The id of a lease
is chosen here: a grant whose answer was lost is asked for again and leaves no second lease behind.

During a store outage the whole roster may agree that nobody can take anybody's place (see `outage`), and the watchdog
goes on beyond the lease. When the store is back and the lease has ended there meanwhile, the member registers again on
a new one, if nothing has moved on without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rendezvous import events
from rendezvous.events import Answer, ExtendWatchdog, KeepAlive, Txn
from rendezvous.stores.contract import Compare, Get, GetResult, Lease, Put, Renewal, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine


class LeaseKeeper:
    def __init__(self, member: MemberMachine) -> None:
        self._member = member
        self.lease: int | None = None
        self.lease_until = math.inf
        self.renewed_at = -math.inf  # when the last answered renewal was sent
        self.renewed_count = 0
        self._view_until = math.inf  # what this member last read of the store is too old then
        self._keep_alive_at = math.inf
        self._held_until = -math.inf  # by the roster's word, though the lease may be over
        self._held_seal = 0  # the revision of the seal that this was last said for
        self._is_unanswered = False  # the last renewal brought nothing
        self._has_ended = False  # the store says so, and the roster's word still holds
        self._missing_since = -math.inf  # when the own key was seen to be gone, while it was held out
        self._requested: tuple[int, float] | None = None  # the id of a lease that is asked for, and since when
        self._new_lease: tuple[Lease, float] | None = None  # a lease to register again on, and when it was asked for

    @property
    def membership_until(self) -> float:
        """Until then this node counts as a member; workers are killed a margin before."""
        return max(min(self.lease_until, self._view_until), self._held_until)

    @property
    def loss_reason(self) -> str:
        """What ends this membership first, in words."""
        if self._view_until < self.lease_until:
            return "what the store holds could not be read for too long"
        return "the lease could not be renewed in time"

    def is_held(self, now: float) -> bool:
        """Whether the roster's word keeps this member beyond its lease, or would."""
        return now < self._held_until

    def is_over(self, now: float) -> bool:
        """Whether the lease no longer makes this agent a member, though the roster may hold its place."""
        return now >= self.lease_until or self._has_ended

    @property
    def is_store_away(self) -> bool:
        """Whether a renewal brought nothing, and nothing was heard from the store since."""
        return self._is_unanswered

    def request_first_lease(self, now: float) -> None:
        """Ask for the first lease of this membership."""

        def on_lease(lease: Lease, sent_at: float) -> None:
            self.lease = lease.id
            self.extend_lease(sent_at, lease.ttl_s)

        self._request_lease("join", "grant a lease", on_lease, now)

    def _request_lease(self, purpose: str, why: str, on_lease: Callable[[Lease, float], None], now: float) -> None:
        """Ask for one lease until it is there; `on_lease` is told when it was asked for first, which it counts from."""
        if self._requested is None:
            self._requested = (self._member.make_lease_id(), now)
        id, since = self._requested

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, Lease)
            self._requested = None
            on_lease(answer, since)

        self._member.request(purpose, why, events.Grant(self._member.settings.lease_ttl_s, id), on_reply, now)

    def note_resync(self, sent_at: float) -> None:
        """All that this member follows was read, by a request sent then."""
        if self.lease_until < math.inf:
            self._view_until = sent_at + self._member.settings.view_s
            self._extend_watchdog()

    def note_answer(self) -> None:
        """The store is there, whatever it said."""
        if self._is_unanswered:
            self._member.reset_backoff()
        self._is_unanswered = False

    def note_failed_renewal(self) -> None:
        """Refused, or no answer in time."""
        self._is_unanswered = True

    def hold_until(self, until: float) -> None:
        """The roster agrees that nobody takes this member's place before `until`."""
        settings = self._member.settings
        until = min(until, self.renewed_at + settings.outage_limit_s)
        if until > self.membership_until:
            self._member.emit(ExtendWatchdog(until - settings.kill_margin_s))
        self._held_until = max(self._held_until, until)
        self._held_seal = self._member.cache.get_revision(self._member.job.round)

    def handle_end(self, now: float) -> bool:
        """The store says that the lease is gone. Whether the member may still try to register again."""
        self._has_ended = self.is_held(now) and self._member.member_revision > 0
        return self._has_ended

    def advance(self, now: float) -> None:
        """Ask for the next renewal when it is due."""
        if self.lease is None or self.lease_until == math.inf:
            return
        if now < self.membership_until:
            self._member.wake_by(self.membership_until)
        if self._has_ended:
            self._register_again(now)
        elif now >= self._keep_alive_at:
            key = self._choose_own_key()

            def on_reply(answer: Answer, now: float) -> None:
                self._handle_renewal(answer, key, now)

            self._member.request("lease", "keep the lease", KeepAlive(self.lease, key), on_reply, now)
        else:
            self._member.wake_by(self._keep_alive_at)

    def may_have_ended(self, now: float) -> bool:
        """Whether the own key may be gone because its lease has ended in an outage that is being held out.

        It is not if a renewal was answered that was sent after that was seen: then somebody deleted the key.
        """
        if not self.is_held(now):
            return False
        if self._missing_since == -math.inf:
            self._missing_since = now
        self._keep_alive_at = -math.inf
        return self.renewed_at < self._missing_since

    def _choose_own_key(self) -> str:
        """The key that the lease holds; before it is known where that lies, one that can be read as well."""
        joining = self._member.join
        return joining.job.make_member_key(self._member.member_id) if joining.job is not None else joining.current_key

    def _handle_renewal(self, answer: Answer, key: str, now: float) -> None:
        """Extend nothing by what a leader may have said that is none any more, nor for a member that was removed.

        `key` is what was read with the renewal: not the own one, if it was asked for on the way to becoming a member.
        """
        assert isinstance(answer, Renewal)
        member = self._member
        if answer.is_confirmed:
            self.renewed_count += 1
        else:
            member.pause("lease", now)
        is_own = member.member_revision > 0 and key == member.job.make_member_key(member.member_id)
        if is_own and answer.revision >= member.member_revision and answer.create_revision != member.member_revision:
            if answer.is_confirmed:
                self.renewed_at = member.sent_at
            member.cache.load(GetResult(answer.revision, ()), key, now)
        elif answer.is_confirmed:
            self.extend_lease(member.sent_at, answer.ttl_s)

    def extend_lease(self, sent_at: float, ttl_s: float) -> None:
        """The lease lives until the *send* time of the renewal plus its TTL; the watchdog ends a margin before."""
        member = self._member
        self.renewed_at = sent_at
        self.lease_until = sent_at + ttl_s
        self._keep_alive_at = sent_at + member.settings.keep_alive_interval_s if ttl_s < math.inf else math.inf
        self._extend_watchdog()

    def _extend_watchdog(self) -> None:
        # A round of an earlier membership lives on the watchdog it had, until it is gone.
        member = self._member
        if self.lease_until < math.inf and (member.round.alive_round is None or member.member_revision):
            member.emit(ExtendWatchdog(self.membership_until - member.settings.kill_margin_s))

    # --- registering again ---

    def _register_again(self, now: float) -> None:
        if self._new_lease is None or now >= self._new_lease[1] + self._new_lease[0].ttl_s:
            self._new_lease = None
            self._request_lease("lease", "grant a new lease", self._handle_new_lease, now)
            return
        member, job, (lease, _) = self._member, self._member.job, self._new_lease
        own, current, record = job.make_member_key(member.member_id), member.join.current, member.join.make_record()
        assert current is not None
        guards = (
            Compare(own, "create", "=", 0),
            Compare(job.round, "mod", "=", self._held_seal),
            Compare(job.verdict, "create", "=", 0),
            Compare(current.key, "mod", "=", current.mod_revision),
        )
        reads = (Get(own), Get(job.control, prefix=True))
        request = Txn(guards, (Put(own, member.encode(record, own), lease.id), *reads), reads)
        member.request("lease", "register again", request, self._handle_registration, now)

    def _handle_new_lease(self, lease: Lease, sent_at: float) -> None:
        self._new_lease = (lease, sent_at)

    def _handle_registration(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        assert self._new_lease is not None
        member, job, (lease, granted_at) = self._member, self._member.job, self._new_lease
        own = answer.found[0].first
        if own is None or own.lease != lease.id:
            member.lapse(now, "the others went on without this node during the store's outage")
            return
        member.cache.load(answer.found[0], own.key, now)
        member.cache.load(answer.found[1], job.control, now)
        member.member_revision = own.create_revision
        self._has_ended, self._new_lease, self.lease = False, None, lease.id
        self._missing_since = -math.inf
        self.note_resync(member.sent_at)
        self.extend_lease(granted_at, lease.ttl_s)  # registering renews nothing, however long it took
        member.log("the store is back: registered again, the round goes on", "registered again")
