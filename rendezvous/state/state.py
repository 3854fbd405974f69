"""The one state of a member: its setup, its access to the store, and a section for each part.

A part (a module of rendezvous.member or rendezvous.leader) is functions that are given this state and the time. A part
reads whatever it needs, writes its own section only, and asks for anything else by an intent, which the machine carries
out when the part has returned. Most sections start anew with each membership; a docstring names what outlives one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from rendezvous import records
from rendezvous.errors import EXIT_TEMPORARY, EXIT_USELESS, SettingsError
from rendezvous.events import ConnectTo, Exit, LeaveRequest, PlanReady, PlanRefused
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.peers.messages import KnownRevision, OutageProbe
from rendezvous.policy.view import MemberView, Sizer, StatusView
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, LeaderRecord, Member, Seal, Spec, Status, StoreOwner, Verdict
from rendezvous.settings import Settings
from rendezvous.state import life
from rendezvous.state.intents import Finish, Intent
from rendezvous.state.request_queue import RequestQueue
from rendezvous.state.watch_cache import WatchCache
from rendezvous.stores.contract import Compare, KeyValue, Lease, Put


class Setup(Struct, frozen=True, kw_only=True):
    """What an agent is started with; it never changes. Raises SettingsError for an attempt of more than 15 digits."""

    settings: Settings
    spec: Spec
    node: Member
    """This agent's own member record, without member id and worker port."""
    prefix: str
    run_id: str
    attempt: int | None = None
    """The number of this attempt if an external system counts attempts."""
    sizer: Sizer
    """Computes how large a world some members make."""
    hosts_store: bool = False
    """The store that the others use ends with this agent."""
    store_owner: StoreOwner | None = None
    """Whose the store is that an agent serves; None for one that outlives the agents, as an etcd does."""

    def __post_init__(self) -> None:
        if (self.attempt or 0) >= 10**15:
            raise SettingsError(f"the attempt is '{self.attempt}', it must be a number")

    @property
    def current_key(self) -> str:
        """The key that names the job of this run."""
        return records.make_current_key(self.prefix, self.run_id)


class MembershipState:
    """This agent's place in the job; written by `member.join` and `admission`, its phase and ids by the machine."""

    def __init__(self, member_id: str) -> None:
        self.phase = "joining"
        self.member_id = member_id
        self.revision = 0  # the create revision of the own key, 0 while this agent is no member
        self.job: records.Keys | None = None  # that this agent is, or is about to be, a member of
        self.joined_root = ""  # the job that this agent has been a member of
        self.join_since = math.inf
        self.join_problem = Reason.of("nothing-tried")  # why this node has not joined so far
        self.current: KeyValue | None = None  # the key that names the job, once read
        self.is_current_read = False
        self.is_inspected = False  # the job was read
        self.has_warned = False  # that the script's arguments differ from the job's

    def move(self, event: str) -> None:
        """Go to the next phase, by the table."""
        transition = life.MEMBERSHIP.get((self.phase, event))
        if transition is not None:
            self.phase = transition.phase

    @property
    def is_final(self) -> bool:
        """Return whether it is decided with which code the agent exits."""
        return self.phase in ("ending", "ended")

    @property
    def has_ended(self) -> bool:
        return self.phase == "ended"

    def is_removed(self, current: KeyValue | None, spec: KeyValue | None) -> bool:
        """Return whether these keys show that this member's job was removed: deleted, or replaced by another."""
        assert self.current is not None
        return spec is None or current is None or current.value != self.current.value


class LeaseState:
    """The lease that makes this agent a member; written by `member.lease`. All times are on this node's clock."""

    def __init__(self) -> None:
        self.id: int | None = None
        self.ends_at = math.inf
        self.renewed_at = -math.inf  # when the last answered renewal was sent
        self.renewed_count = 0
        self.view_until = math.inf  # when this member's last read of the store becomes too old
        self.keep_alive_at = math.inf
        self.held_until = -math.inf  # until when the roster confirmed the membership, though the lease may be over
        self.held_seal = 0  # the revision of the seal for which this was last confirmed
        self.is_store_away = False  # the last renewal failed, and no reply has come since
        self.has_ended = False  # the store reports it, and the roster's confirmation still holds
        self.missing_since = -math.inf  # when the own key was found to be gone, while the membership is held
        self.requested: tuple[int, float] | None = None  # the id of a lease that is requested, and since when
        self.new_lease: tuple[Lease, float] | None = None  # a lease to register again on, and when it was requested

    @property
    def membership_until(self) -> float:
        """Until when this node counts as a member; workers are killed a margin before."""
        if self.has_ended:  # perhaps early: the roster alone holds the place
            return self.held_until
        return max(min(self.ends_at, self.view_until), self.held_until)

    @property
    def loss_reason(self) -> Reason:
        """What ends this membership first."""
        return Reason.of("view-expired") if self.view_until < self.ends_at else Reason.of("lease-expired")

    def is_held(self, now: float) -> bool:
        """Return whether the roster's confirmation keeps this member beyond its lease, or would."""
        return now < self.held_until

    def is_over(self, now: float) -> bool:
        """Return whether the lease no longer makes this agent a member, though the roster may hold its place."""
        return now >= self.ends_at or self.has_ended


class RoundState:
    """The round on this node; written by `member.local_round`. `worker_port` is offered for the next round.

    The processes of a round, the last plan that gave this agent ranks, and the highest round outlive a membership.
    """

    def __init__(self, worker_port: int) -> None:
        self.worker_port = worker_port
        self.phase = "idle"
        self.alive_round: int | None = None  # whose processes may be alive on this node
        self.gone_by = math.inf  # when a round that is being stopped must be gone
        self.ranked_token = ""  # the last plan that gave this agent ranks, under any of its member ids
        self.seen: tuple[int, bool] = (0, False)  # the highest round that this agent has seen, and whether stopped
        self.begin_membership()

    def begin_membership(self) -> None:
        """Clear the status: what was reported under another member id belongs to another member."""
        self.loss_reason: Reason | None = None  # once the seal of the running round was deleted
        self.answered_token = ""  # the plan token for which this member knows whether it has ranks
        self.status = Status(round=0)
        self.status_written: Status | None = None
        self.failed_revision = 0  # of the write that first reported this round's failure

    def move(self, event: str) -> bool:
        """Go to the next phase, by the table; False if the event changes nothing in this one."""
        transition = life.ROUND.get((self.phase, event))
        if transition is not None:
            self.phase = transition.phase
        return transition is not None

    @property
    def has_succeeded(self) -> bool:
        """Return whether all workers of this node succeeded in the round that runs: one that is stopped runs again."""
        return self.status.outcome == "succeeded" and self.seen == (self.status.round, False)

    @property
    def is_status_written(self) -> bool:
        """Return whether the last status is in the store."""
        return self.status == self.status_written


class StatusReport(Struct, frozen=True):
    """This member's status that the store does not have yet: its write, and what must hold beside the own key."""

    status: Status
    put: Put
    guard: Compare


class OutageState:
    """What is agreed during a store outage; written by `member.outage`.

    The acknowledgements that this agent has given, and the probe that it sent, outlive a membership.
    """

    def __init__(self) -> None:
        self.no_omission_before = -math.inf
        """Until then this agent, having acknowledged, seals no round without a roster member that has not stopped."""
        self.probe_number = 0
        self.probed_at = -math.inf
        self.probed_ids: set[str] = set()
        self.awaited_ids: set[str] = set()  # those of them that have not acknowledged yet
        self.begin_membership()

    def begin_membership(self) -> None:
        self.received_probe: tuple[str, OutageProbe, float] | None = None  # sender, probe, time; not acknowledged yet
        self.acknowledged_at: dict[int, float] = {}  # probe -> when this member acknowledged it
        self.has_noticed = False  # has logged that the round continues without the store
        self.done_ids: set[str] = set()  # of the probed members, those that have no more to do in the round
        self.is_over = False  # no member of the roster has: a served store is not waited for
        self.is_confirmed = True  # the confirmation of the last probe was sent to all, or there is no probe


class StaleWatchState:
    """When everything is read again, and which revisions the leader has sent; written by `member.stale_watch`."""

    def __init__(self) -> None:
        self.sent: dict[str, KnownRevision] = {}  # by this leader: member id -> message
        self.renewed_count = 0
        self.resync_at = math.inf


class LeavingState:
    """How this agent leaves; written by `member.leave`. What happened to this node outlives a membership."""

    def __init__(self) -> None:
        self.request: LeaveRequest | None = None
        self.requested_at = math.inf
        self.exit_action: Exit | None = None  # the last action, once this agent need not stay
        self.exit_by = math.inf
        self.stay_reason: Reason | None = None  # why this agent stays, until it is logged
        self.has_store_ended = False  # the agent that served the store has said that it ends
        self.done_at = math.inf  # when the membership was lost after all workers of this node had succeeded
        self.begin_membership()

    def begin_membership(self) -> None:
        self.verdict: Verdict | None = None  # obeyed even if its key has expired since
        self.is_removal_sure = False  # this node was removed: its key is gone and its lease is not


class TakeoverState:
    """A round without a leader as seen by a member outside its roster; written by `leader.takeover`."""

    def __init__(self, seal: Seal) -> None:
        self.seal = seal
        self.is_in_roster = False  # this member has turned out to belong to the roster
        self.observe_at = -math.inf
        self.is_among_first = False
        self.empty_since = math.inf  # since when no key of the roster's members is in the store
        self.nodes: Mapping[str, str] | None = None  # member id -> node, of all with ranks


class ElectionState:
    """Which member leads, as far as this member knows; written by `leader.election`."""

    def __init__(self) -> None:
        self.connected_to, self.connected_at = ConnectTo("", ""), math.inf
        self.has_warned = False
        self.spare_id = ""  # the last member id under which this agent was listed as a spare
        self.unaware_until: dict[str, float] = {}  # as in View, of leaders and memberships before
        self.begin_membership()

    def begin_membership(self) -> None:
        self.campaign_at = -math.inf
        self.takeover: TakeoverState | None = None  # while there is no leader, and this member is not in the roster


class Observations:
    """What the leader has observed, and when; written by `leader.observe`. `opened_at`: the start of its leadership."""

    def __init__(self, opened_at: float, unaware_until: Mapping[str, float]) -> None:
        self.opened_at = opened_at
        self.round_token = ""  # the plan token whose assignments are known
        self.contents: Mapping[str, str] = {}  # of the sealed round: member id -> the planner's text
        self.ranked: Mapping[str, None] = {}  # the members with ranks in it, in a fixed order
        self.names: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        # By member id: the key, and the view that was made of it.
        self.members: dict[str, tuple[KeyValue, MemberView | None]] = {}
        self.statuses: dict[str, tuple[KeyValue, StatusView | None]] = {}
        self.lost_at: dict[str, float] = {}
        self.failed_at: dict[str, float] = {}
        self.leaving_at: dict[str, float] = {}
        self.confirmed_gone: set[str] = set()
        self.fenced: set[str] = set()
        self.unaware_until = dict(unaware_until)
        self.doubts_until = max(unaware_until.values(), default=-math.inf)
        self.saved_count = -1
        self.saved_at = -math.inf


class Draft(Struct, frozen=True):
    """A plan for round `number` with its token, its assignments, and the writes that store them."""

    number: int

    plan: PlanReady
    token: str
    assignments: Mapping[str, Assignment]
    puts: tuple[Put, ...]


class CommitState:
    """The round that is being committed; written by `leader.commit`."""

    def __init__(self) -> None:
        self.plan_request: tuple[int, int, tuple[str, ...]] | None = None  # id, round, roster
        self.plan: PlanReady | PlanRefused | None = None
        self.draft: Draft | None = None
        self.written_count = 0  # how many of its puts are known to be written
        self.spare_reasons: Mapping[str, Reason] = {}
        self.spares_due_at = -math.inf  # when the next list of spares may be written


class Leadership:
    """One leadership of this member; made by `leader.election`, written by `leader.leader`.

    `revision`: the leader key's mod revision, which identifies this leadership. A reply that arrives after its end
    changes the state of the leadership that made the request, and no other.
    """

    def __init__(
        self, job: records.Keys, revision: int, verdict_lease: int, unaware_until: Mapping[str, float], now: float
    ) -> None:
        self.job = job
        self.revision = revision
        self.is_loaded = False  # all keys of the job have been read
        self.loaded_at = -math.inf  # when the last read of all keys was sent
        self.has_lost_record = False  # seal, stop or verdict cannot be read
        self.is_watching = False
        self.observe_at = now
        self.verdict_lease = verdict_lease
        self.verdict_lease_since = now  # when it may have been granted at the earliest
        self.is_verdict_lease_granted = False
        self.waiting: tuple[Reason, Reason] | None = None
        """The reason of the current wait, and what was logged for it."""
        self.judged_status: Status | None = None
        """The last own failure of which it was judged whether it ends the round: once, however often it is seen."""
        self.carried_status: Status | None = None
        """This member's status, if the leader's request in progress writes it."""
        self.answers: dict[str, str] = {}  # to requests that were passed on, "" as long as there is none
        self.seen = Observations(now, unaware_until)
        self.commit = CommitState()

    @property
    def active(self) -> Set[str]:
        """The members with ranks in the sealed round, as far as this leader knows."""
        return self.seen.ranked.keys()


class MemberState:
    """All that a member knows and has in progress. `rng` returns a random number in [0, 1)."""

    def __init__(self, setup: Setup, worker_port: int, rng: Callable[[], float], secret: bytes) -> None:
        self.setup = setup
        self.settings = setup.settings
        self.rng = rng
        self.requests = RequestQueue(setup.settings, rng)
        self.cache = WatchCache(self.requests, secret)
        self.peers = PeerLiveness(setup.settings.presence_proof)
        self.intents: list[tuple[int, Intent]] = []  # with the number of actions before each
        self.membership = MembershipState(self.requests.make_token())
        self.lease = LeaseState()
        self.round = RoundState(worker_port)
        self.outage = OutageState()
        self.stale_watch = StaleWatchState()
        self.leaving = LeavingState()
        self.election = ElectionState()
        self.leadership: Leadership | None = None
        self.wall_offset_s = 0.0

    def compute_wall_time(self, now: float) -> float:
        """Return `now` in seconds since 1970, for people; 0 where nobody has said which clock time it is."""
        return round(now + self.wall_offset_s, 3) if self.wall_offset_s else 0.0

    def ask(self, intent: Intent) -> None:
        """Queue an intent, which the machine carries out when the asking part has returned."""
        self.intents.append((len(self.requests.actions), intent))

    @property
    def job(self) -> records.Keys:
        """The job that this agent is, or is about to be, a member of."""
        assert self.membership.job is not None
        return self.membership.job

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def is_member(self) -> bool:
        return self.membership.revision > 0

    def make_removal(self, current: KeyValue | None) -> Finish:
        """Return how this agent ends because its job was removed, or because `current` names another by now."""
        attempt = records.Keys("" if current is None else current.value.decode(errors="replace")).attempt
        if attempt > records.Keys(self.membership.joined_root).attempt:
            return Finish(EXIT_USELESS, Reason.of("replaced", attempt=str(attempt), node=""))
        return Finish(EXIT_TEMPORARY, Reason.of("job-removed", run=self.setup.run_id))

    @property
    def is_drained(self) -> bool:
        """Return whether this node is drained. A requested undrain counts: this member may have to lead to apply it."""
        cache, name = self.cache, self.setup.node.node_name
        # The member id is used if another node has the same name.
        if all(cache.read(records.Drain, self.job.make_drain_key(target)) is None for target in (name, self.member_id)):
            return False
        asked = (cache.read(records.Command, item.key) for item in cache.keys.list_under(self.job.commands))
        return not any(r is not None and (r.kind, r.target) == ("undrain", name) and not r.is_answered for r in asked)

    def make_member_record(self) -> Member:
        """Make the record of this agent as the member that it is now."""
        ttl_s = self.settings.lease_ttl_s
        return replace(
            self.setup.node,
            member_id=self.member_id,
            worker_port=self.round.worker_port,
            lease_ttl_s=ttl_s if ttl_s < math.inf else 0.0,
        )

    def make_leader_put(self, job: records.Keys) -> Put:
        """Make the write that names this member as leader, on its own lease."""
        assert self.lease.id is not None
        node = self.setup.node
        leader = LeaderRecord(
            member_id=self.member_id, node_name=node.node_name, presence_address=node.presence_address
        )
        return Put(job.leader, self.cache.encode(leader, job.leader), self.lease.id)

    @property
    def own_key(self) -> str:
        """The key of this agent's member record, whether it is written yet or not."""
        return self.job.make_member_key(self.membership.member_id)
