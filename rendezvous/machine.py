"""The agreement of one member with the others, as a machine without hands.

`steps(events, now)` takes what happened and returns what shall be done; the machine itself reads no clock, opens
no socket and starts no process. So a whole cluster can be simulated on one virtual clock, and a fault is a list of
events. It works by comparing, not by remembering steps: after every batch of events `_advance` looks at what is
known of the store and asks for the next thing that is missing. A lost answer, a late one or one that came twice is
then nothing special: the store is read again and the comparison repeated. Every write is guarded by the revision
of what it replaces and by the member's own key.

Each part of the agreement has its place. In `member`: `join` (find the job, register), `lease` (lease, watchdog,
registering again), `round` (start, stop, status), `outage` (the store is away), `stale_watch`, `leave` (leaving, the
verdict, the end). In `leader`: `election` (who leads) and `leader` (what the leader does). `peers.liveness` is who is
connected; what all of them share is `cache`: the known part of the store, and requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rendezvous import events, records
from rendezvous.errors import LeaseNotFound
from rendezvous.events import (
    Action,
    CheckpointSaved,
    Event,
    LeaveRequest,
    PeerDown,
    PeerGone,
    PeerMessage,
    PeerUp,
    PlanReady,
    PlanRefused,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    SetIdentity,
    Start,
    StoreOutcomeUnknown,
    StoreRejected,
    StoreReply,
    StoreRequest,
    Tick,
    WatchdogExpired,
    WatchLost,
    WatchUpdate,
)
from rendezvous.leader.election import Election
from rendezvous.member.join import Join
from rendezvous.member.lease import LeaseKeeper
from rendezvous.member.leave import Leave
from rendezvous.member.outage import Outage
from rendezvous.member.round import LocalRound
from rendezvous.member.stale_watch import StaleWatchDetector
from rendezvous.peers import messages
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.policy.decide import Sizer
from rendezvous.records import Member, Spec
from rendezvous.settings import Settings
from rendezvous.state.watch_cache import WatchCache
from rendezvous.stores.contract import KeyValue
from rendezvous.values import replace


class MemberMachine(WatchCache):
    """One member. `chance` returns a random number in [0, 1); `sizer` says how large a world some members make.

    `presence_address`: HOST:PORT of this agent's presence listener, empty if it has none. `secret`: what records are
    signed with. `incarnation`: the number of this attempt where something outside counts them. `hosts_store`: the
    store that the others use ends with this agent.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        spec: Spec,
        node_name: str,
        boot_id: str,
        description: str,
        worker_port: int,
        prefix: str,
        run_id: str,
        sizer: Sizer,
        rng: Callable[[], float],
        presence_address: str = "",
        secret: bytes = b"",
        attempt: str = "",
        hosts_store: bool = False,
    ) -> None:
        super().__init__(settings, rng, secret)
        node = Member(
            member_id="",
            node_name=node_name,
            boot_id=boot_id,
            description=description,
            presence_address=presence_address,
        )
        self.member_id = self.make_token()
        self.member_revision = 0  # the create revision of the own key, 0 while this agent is no member
        self.peers = PeerLiveness(settings.presence_proof)
        self.lease = LeaseKeeper(self)
        self.round = LocalRound(self, worker_port)
        spec = replace(spec, has_secret=bool(secret))
        self.join = Join(self, spec=spec, node=node, prefix=prefix, run_id=run_id, attempt=attempt)
        self.election = Election(self, sizer, node_name, presence_address)
        self.outage = Outage(self)
        self.stale_watch = StaleWatchDetector(self)
        self.leave = Leave(self, node_name, hosts_store)

    def become_new_member(self) -> None:
        """Forget the membership. A node that comes back is a new member; until then it is nobody."""
        if self.member_revision:
            self.emit(SetIdentity("", ""))
        self.drop_requests()
        self.clear_cache()
        self.member_id, self.member_revision = self.make_token(), 0
        self._last_status = ""
        self.lease = LeaseKeeper(self)
        self.round.begin_membership()
        self.join.restart()
        self.election.begin_membership()
        self.outage.begin_membership()
        self.stale_watch.begin_membership()
        self.leave.begin_membership()

    # --- what the outside sees ---

    @property
    def alive_round(self) -> int | None:
        """The round whose processes may be alive on this node."""
        return self.round.alive_round

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self.election.leader is not None

    def step(self, event: Event, now: float) -> list[Action]:
        """`steps` of one event."""
        return self.steps((event,), now)

    def steps(self, events: Sequence[Event], now: float) -> list[Action]:
        """Take in what happened, in order, then compare once, and return what shall be done.

        Never raises on anything a peer or the store sent.
        """
        self._actions = []
        if self.leave.has_ended:
            return self._actions
        if self.member_revision and not self.leave.is_final and now >= self.lease.membership_until:
            self.lapse(now)  # before anything that happened while this node was frozen is acted upon
        for event in events:
            self._take(event, now)
        self._wake_at = math.inf
        self._advance(now)
        if self.leave.has_ended:
            self._wake_at = math.inf
        return self._actions

    def _take(self, event: Event, now: float) -> None:
        if self.leave.is_final and not isinstance(event, (StoreReply, StoreRejected, StoreOutcomeUnknown)):
            return
        match event:
            case Start() | Tick():
                pass
            case StoreReply() | StoreRejected() | StoreOutcomeUnknown():
                self._take_outcome(event, now)
            case WatchUpdate() | WatchLost():
                self.handle_watch(event, now)
            case PlanReady() | PlanRefused():
                self.election.take_plan(event)
            case RoundSucceeded() | RoundFailed() | RoundStopped() | CheckpointSaved():
                self.round.take(event)
            case PeerUp() | PeerDown() | PeerGone():
                self.peers.take(event, now)
            case PeerMessage(member_id, text):
                self._take_peer_message(member_id, text, now)
            case WatchdogExpired():
                if self.lease.lease is not None:
                    self.emit(
                        StoreRequest(self.make_request_id(), "give the lease back", events.Revoke(self.lease.lease))
                    )
                self.lapse(now)
            case LeaveRequest():
                self.leave.take_request(event, now)

    def _take_outcome(self, event: StoreReply | StoreRejected | StoreOutcomeUnknown, now: float) -> None:
        lane = self.handle_outcome(event, now)
        if not lane:
            return
        is_lease_gone = isinstance(event, StoreRejected) and isinstance(event.error, LeaseNotFound)
        if lane == "lease":
            self.lease.note_answer() if isinstance(
                event, StoreReply
            ) or is_lease_gone else self.lease.note_failed_renewal()
        if lane == "join" and not isinstance(event, StoreReply):
            self.join.note_problem(
                str(event.error) if isinstance(event, StoreRejected) else "the store does not answer"
            )
        # In the leader's lane it is the verdict's lease.
        if is_lease_gone and lane == "lead" and self.election.leader is not None:
            self.election.leader.lose_verdict_lease()
        if is_lease_gone and lane != "lead" and not self.lease.handle_end(now):
            is_early = now < self.lease.lease_until
            self.lapse(now, "the store has ended its lease early" if is_early else "", is_early=is_early)

    def _take_peer_message(self, member_id: str, text: str, now: float) -> None:
        message = messages.decode_message(text)
        if isinstance(message, messages.KnownRevision):
            self.stale_watch.take(member_id, message, now)
        elif message is not None:
            self.outage.take(member_id, message, now)

    # --- the comparison, made after every batch of events ---

    def _advance(self, now: float) -> None:
        if self.leave.is_final:
            self.leave.advance(now)
        elif not self.member_revision:
            self._advance_outside(now)
        elif now >= self.lease.membership_until:
            self.lapse(now)
            self._advance(now)
        else:
            self._advance_member(self.job, now)

    def _advance_outside(self, now: float) -> None:
        """No member: join as soon as nothing is left of a round of the membership before."""
        if self.round.alive_round is not None and now >= self.round.gone_by:
            self.step_down(f"this node has not stopped round {self.round.alive_round} in time", now)
        elif self.round.alive_round is not None:
            self.wake_by(self.round.gone_by)
        elif not self.leave.leave_before_joining(now):
            self.join.advance(now)

    def _advance_member(self, job: records.Keys, now: float) -> None:
        is_key_there = self.cache.get(job.make_member_key(self.member_id)) is not None
        if not is_key_there and not self.lease.may_have_ended(now):
            self.leave.handle_fenced(job, now)
            return
        self.restore_watches(now)
        self.lease.advance(now)
        if not is_key_there or self.lease.is_over(now):  # the roster holds this member's place; it writes nothing
            self.outage.advance(job, now)
            self.leave.announce_departure(job, now)
            return
        self.stale_watch.advance(job, now)
        if self.leave.follow_verdict(job, now):
            return
        self.round.advance(job, now)
        self.leave.announce_departure(job, now)
        if not self.leave.is_final:
            self.outage.advance(job, now)
            self.round.write_status(job, now)
            self.election.advance(job, now)

    # --- what the parts tell each other ---

    @property
    def job(self) -> records.Keys:
        """The job that this agent is, or is about to be, a member of."""
        assert self.join.job is not None
        return self.join.job

    @property
    def no_omission_before(self) -> float:
        """Until then no seal may leave out a roster member that has not stopped: its watchdog may be held."""
        return self.outage.no_omission_before

    def become_member(self, own: KeyValue, revision: int) -> None:
        """The own key is in the store, and everything under control is known as of `revision`."""
        self.member_revision = own.create_revision
        self.lease.note_resync(self.sent_at)
        self.watch(own.key, revision + 1)
        self.watch(self.job.control, revision + 1)
        self.emit(SetIdentity(self.job.root, self.member_id))

    def lapse(self, now: float, why: str = "", *, is_early: bool = False) -> None:
        """The lease is gone, so others may take this node's place: kill at once, then come back as a new member.

        `is_early`: before its time. Then those who were connected of late may have lost theirs as well.
        """
        if self.member_revision:
            self.log(f"lost the membership: {why or self.lease.loss_reason}; joining again")
        self.round.stop("fence", "the lease has ended", now)
        since = now - self.settings.lease_ttl_s
        self.election.note_unaware(self.peers.list_reached_after(since) if is_early else (), now)
        self.become_new_member()

    def handle_fenced(self, now: float) -> None:
        """The others have gone on without this node."""
        self.leave.handle_fenced(self.job, now)

    def step_down(self, reason: str, now: float) -> None:
        """Let go of the leader's key with the membership: to leave, or since this node cannot stop its workers."""
        self.leave.step_down(reason, now)

    def is_removed(self, current: KeyValue | None, spec: KeyValue | None) -> bool:
        """Whether these two keys say that this member's job is no more: deleted, or another begun in its place."""
        return self.join.is_removed(current, spec)

    @property
    def removal_reason(self) -> str:
        """The sentence that says so."""
        return self.join.removal_reason
