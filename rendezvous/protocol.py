"""The agreement of one member with the others, as a machine without hands.

`steps(events, now)` takes what happened and returns what shall be done; the machine itself reads no clock, opens
no socket and starts no process. So a whole cluster can be simulated on one virtual clock, and a fault is a list of
events. It works by comparing, not by remembering steps: after every batch of events `_advance` looks at what is
known of the store and asks for the next thing that is missing. A lost answer, a late one or one that came twice is
then nothing special: the store is read again and the comparison repeated. Every write is guarded by the revision
of what it replaces and by the member's own key.

Each part of the agreement has its place: `joining` (find the job, register), `leash` (lease, leash, registering
again), `local_round` (start, stop, status), `election` (who leads) and with it `leading` (what a leader does),
`outage` (the store is away), `tidings` (a silent watch), `farewell` (leaving, the verdict, the end); `attendance`
is who is connected. What they share is `following` (the known part of the store) and `lanes` (requests).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rendezvous import keys, messages, told
from rendezvous.attendance import Attendance
from rendezvous.decide import Sizer
from rendezvous.election import Election
from rendezvous.errors import LeaseNotFound
from rendezvous.farewell import Farewell
from rendezvous.following import Following
from rendezvous.joining import Joining
from rendezvous.leash import Leash
from rendezvous.local_round import LocalRound
from rendezvous.messages import (
    Action,
    Answered,
    Appear,
    Ask,
    Begin,
    CheckpointSaved,
    Event,
    LeashEnded,
    Leave,
    PeerDown,
    PeerGone,
    PeerUp,
    Planned,
    PlanRefused,
    Refused,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    Tick,
    Told,
    Unknown,
    Watched,
    WatchLost,
)
from rendezvous.outage import Outage
from rendezvous.records import Member, Spec
from rendezvous.settings import Settings
from rendezvous.store import KeyValue
from rendezvous.tidings import Tidings
from rendezvous.values import replace


class Protocol(Following):
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
        chance: Callable[[], float],
        presence_address: str = "",
        secret: bytes = b"",
        incarnation: str = "",
        hosts_store: bool = False,
    ) -> None:
        super().__init__(settings, chance, secret)
        node = Member(
            member_id="",
            node_name=node_name,
            boot_id=boot_id,
            description=description,
            presence_address=presence_address,
        )
        self.member_id = self.token()
        self.member_revision = 0  # the create revision of the own key, 0 while this agent is no member
        self.presence = Attendance(settings.presence_proof)
        self.leash = Leash(self)
        self.here = LocalRound(self, worker_port)
        spec = replace(spec, has_secret=bool(secret))
        self.joining = Joining(self, spec=spec, node=node, prefix=prefix, run_id=run_id, attempt=incarnation)
        self.election = Election(self, sizer, node_name, presence_address)
        self.outage = Outage(self)
        self.tidings = Tidings(self)
        self.farewell = Farewell(self, node_name, hosts_store)

    def become_new_member(self) -> None:
        """Forget the membership. A node that comes back is a new member; until then it is nobody."""
        if self.member_revision:
            self.act(Appear("", ""))
        self.forget_requests()
        self.forget_all()
        self.member_id, self.member_revision = self.token(), 0
        self._said = ""
        self.leash = Leash(self)
        self.here.begin_membership()
        self.joining.begin_again()
        self.election.begin_membership()
        self.outage.begin_membership()
        self.tidings.begin_membership()
        self.farewell.begin_membership()

    # --- what the outside sees ---

    @property
    def alive_round(self) -> int | None:
        """The round whose processes may be alive on this node."""
        return self.here.alive_round

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self.election.leading is not None

    def step(self, event: Event, now: float) -> list[Action]:
        """`steps` of one event."""
        return self.steps((event,), now)

    def steps(self, events: Sequence[Event], now: float) -> list[Action]:
        """Take in what happened, in order, then compare once, and return what shall be done.

        Never raises on anything a peer or the store sent.
        """
        self._actions = []
        if self.farewell.has_ended:
            return self._actions
        if self.member_revision and not self.farewell.is_final and now >= self.leash.membership_until:
            self.lapse(now)  # before anything that happened while this node was frozen is acted upon
        for event in events:
            self._take(event, now)
        self._wake_at = math.inf
        self._advance(now)
        if self.farewell.has_ended:
            self._wake_at = math.inf
        return self._actions

    def _take(self, event: Event, now: float) -> None:
        if self.farewell.is_final and not isinstance(event, (Answered, Refused, Unknown)):
            return
        match event:
            case Begin() | Tick():
                pass
            case Answered() | Refused() | Unknown():
                self._take_outcome(event, now)
            case Watched() | WatchLost():
                self.take_watched(event, now)
            case Planned() | PlanRefused():
                self.election.take_plan(event)
            case RoundSucceeded() | RoundFailed() | RoundStopped() | CheckpointSaved():
                self.here.take(event)
            case PeerUp() | PeerDown() | PeerGone():
                self.presence.take(event, now)
            case Told(member_id, text):
                self._take_told(member_id, text, now)
            case LeashEnded():
                if self.leash.lease is not None:
                    self.act(Ask(self.take_id(), "give the lease back", messages.Revoke(self.leash.lease)))
                self.lapse(now)
            case Leave():
                self.farewell.take(event, now)

    def _take_outcome(self, event: Answered | Refused | Unknown, now: float) -> None:
        lane = self.take_outcome(event, now)
        if not lane:
            return
        is_lease_gone = isinstance(event, Refused) and isinstance(event.error, LeaseNotFound)
        if lane == "lease":
            self.leash.store_answered() if isinstance(event, Answered) or is_lease_gone else self.leash.renewal_failed()
        if lane == "join" and not isinstance(event, Answered):
            self.joining.trouble(str(event.error) if isinstance(event, Refused) else "the store does not answer")
        # In the leader's lane it is the verdict's lease.
        if is_lease_gone and lane == "lead" and self.election.leading is not None:
            self.election.leading.lose_verdict_lease()
        if is_lease_gone and lane != "lead" and not self.leash.ended(now):
            is_early = now < self.leash.lease_until
            self.lapse(now, "the store has ended its lease early" if is_early else "", is_early=is_early)

    def _take_told(self, member_id: str, text: str, now: float) -> None:
        message = told.understood(text)
        if isinstance(message, told.Known):
            self.tidings.take(member_id, message, now)
        elif message is not None:
            self.outage.take(member_id, message, now)

    # --- the comparison, made after every batch of events ---

    def _advance(self, now: float) -> None:
        if self.farewell.is_final:
            self.farewell.advance(now)
        elif not self.member_revision:
            self._advance_outside(now)
        elif now >= self.leash.membership_until:
            self.lapse(now)
            self._advance(now)
        else:
            self._advance_member(self.job, now)

    def _advance_outside(self, now: float) -> None:
        """No member: join as soon as nothing is left of a round of the membership before."""
        if self.here.alive_round is not None and now >= self.here.gone_by:
            self.resign(f"this node has not stopped round {self.here.alive_round} in time", now)
        elif self.here.alive_round is not None:
            self.wake(self.here.gone_by)
        elif not self.farewell.leave_before_joining(now):
            self.joining.advance(now)

    def _advance_member(self, job: keys.Keys, now: float) -> None:
        is_key_there = self.mirror.get(job.member(self.member_id)) is not None
        if not is_key_there and not self.leash.may_have_ended(now):
            self.farewell.be_fenced(job, now)
            return
        self.mend_watches(now)
        self.leash.advance(now)
        if not is_key_there or self.leash.is_over(now):  # the roster holds this member's place; it writes nothing
            self.outage.advance(job, now)
            self.farewell.announce_departure(job, now)
            return
        self.tidings.advance(job, now)
        if self.farewell.obey_verdict(job, now):
            return
        self.here.advance(job, now)
        self.farewell.announce_departure(job, now)
        if not self.farewell.is_final:
            self.outage.advance(job, now)
            self.here.write_status(job, now)
            self.election.advance(job, now)

    # --- what the parts tell each other ---

    @property
    def job(self) -> keys.Keys:
        """The job that this agent is, or is about to be, a member of."""
        assert self.joining.job is not None
        return self.joining.job

    @property
    def no_omission_before(self) -> float:
        """Until then no seal may leave out a roster member that has not stopped: its leash may be held."""
        return self.outage.no_omission_before

    def be_member(self, own: KeyValue, revision: int) -> None:
        """The own key is in the store, and everything under control is known as of `revision`."""
        self.member_revision = own.create_revision
        self.leash.looked(self.sent_at)
        self.follow(own.key, revision + 1)
        self.follow(self.job.control, revision + 1)
        self.act(Appear(self.job.root, self.member_id))

    def lapse(self, now: float, why: str = "", *, is_early: bool = False) -> None:
        """The lease is gone, so others may take this node's place: kill at once, then come back as a new member.

        `is_early`: before its time. Then those who were connected of late may have lost theirs as well.
        """
        if self.member_revision:
            self.remark(f"lost the membership: {why or self.leash.why_over}; joining again")
        self.here.stop("fence", "the lease has ended", now)
        since = now - self.settings.lease_ttl_s
        self.election.note_unaware(self.presence.reached_after(since) if is_early else (), now)
        self.become_new_member()

    def be_fenced(self, now: float) -> None:
        """The others have gone on without this node."""
        self.farewell.be_fenced(self.job, now)

    def resign(self, reason: str, now: float) -> None:
        """Let go of the leader's key with the membership: to leave, or since this node cannot stop its workers."""
        self.farewell.resign(reason, now)

    def is_removed(self, current: KeyValue | None, spec: KeyValue | None) -> bool:
        """Whether these two keys say that this member's job is no more: deleted, or another begun in its place."""
        return self.joining.is_removed(current, spec)

    @property
    def removal(self) -> str:
        """The sentence that says so."""
        return self.joining.removal
