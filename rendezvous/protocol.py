"""The agreement of one member with the others, as a machine without hands.

`step(event, now)` takes what happened and returns what shall be done; the machine itself reads no clock,
opens no socket and starts no process. All state of the agreement is here (and, for the member that leads,
in `leading`), so a whole cluster can be simulated on one virtual clock, and a fault is a list of events.

It works by comparing, not by remembering steps: after every event `_advance` looks at what is known of the
store and asks for the next thing that is missing. A lost answer, a late one or one that came twice is then
nothing special: the store is read again and the comparison repeated. Requests run in lanes, one at a time in
each, and every write is guarded by the revision of what it replaces and by the member's own key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from rendezvous import keys, messages, records
from rendezvous.decide import EXIT_TEMPORARY, Sizer
from rendezvous.errors import LeaseNotFound, RecordError, StoreError
from rendezvous.leading import Leading
from rendezvous.messages import (
    Action,
    Answer,
    Answered,
    Ask,
    Begin,
    End,
    Event,
    ExtendLeash,
    Follow,
    LeashEnded,
    Leave,
    Planned,
    PlanRefused,
    Refused,
    Request,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    Say,
    StartRound,
    StopRound,
    Tick,
    Txn,
    Unfollow,
    Unknown,
    Watched,
    WatchLost,
)
from rendezvous.mirror import Mirror
from rendezvous.records import Assignment, Member, Seal, Spec, Status, Stop, Verdict
from rendezvous.settings import Settings
from rendezvous.store import Compare, Get, KeyValue, Lease, Put, TxnResult

EXIT_FENCED = 137
EXIT_REMOVED = 1
EXIT_REFUSED = 2  # another command or another version of meshrun: as for other errors of usage


class _Pending(NamedTuple):
    """A request under way: what to do with its answer, and when it was sent."""

    lane: str
    sent_at: float
    on_answer: Callable[[Answer, float], None]
    on_unknown: Callable[[float], None]


class Protocol:
    """One member. `chance` returns a random number in [0, 1); `sizer` says how large a world some members make."""

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
    ) -> None:
        self.settings = settings
        self._spec = spec
        self._node_name = node_name
        self._boot_id = boot_id
        self._description = description
        self._worker_port = worker_port
        self._prefix, self._run_id = prefix, run_id
        self._sizer = sizer
        self._chance = chance

        self._actions: list[Action] = []
        self._pending: dict[int, _Pending] = {}
        self._retry_at: dict[str, float] = {}
        self._next_id = 1
        self._sent_at = 0.0  # when the request that is being answered was sent
        self._wake_at = math.inf
        self._said = ""
        self._ended = False
        self._leave: Leave | None = None
        self._leave_at = math.inf

        # The round whose processes may live on this node, over all memberships; nothing else starts before it is gone.
        self._alive_round: int | None = None
        self._stop_mode = ""
        self._gone_by = math.inf  # when a round that is being stopped must be gone
        self._joined_root = ""  # the job this node has been a member of
        self._joining_since = math.inf
        self._join_trouble = ""  # what kept this node from joining so far
        self._become_new_member()

    def _become_new_member(self) -> None:
        """Forget the membership. A node that comes back is a new member."""
        self.member_id = self.token()
        self.mirror = Mirror()
        self._decoded: dict[str, tuple[int, object]] = {}
        self._lease: int | None = None
        self._lease_until = math.inf
        self._keep_alive_at = math.inf
        self._current: KeyValue | None = None
        self._current_is_read = False
        self._keys: keys.Keys | None = None
        self._is_inspected = False
        self._is_fenced = False
        self.member_revision = 0
        self._campaign_at = -math.inf
        self._leading: Leading | None = None
        self._answered_token = ""  # the plan token for which this member knows whether it has ranks
        self._status = Status(round=0)
        self._status_written: Status | None = None
        self._failed_revision = 0  # of the write that first told of this round's failure
        self._verdict: Verdict | None = None  # obeyed even when its key has expired meanwhile
        self._followed: set[str] = set()
        self._unwatched: set[str] = set()  # followed keys whose watch has ended
        self._pending = {}
        self._retry_at = {}

    # --- what the outside sees ---

    @property
    def wake_at(self) -> float:
        """When to send Tick if nothing else happens before; infinite if never."""
        return self._wake_at

    @property
    def alive_round(self) -> int | None:
        """The round whose processes may be alive on this node."""
        return self._alive_round

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._leading is not None

    def step(self, event: Event, now: float) -> list[Action]:
        """Take in what happened, and return what shall be done. Never raises on anything a peer or the store sent."""
        self._actions = []
        if not self._ended:
            try:
                if self.member_revision and now >= self._lease_until:
                    self._lapse(now)  # before anything that happened while this node was frozen is acted upon
                self._take(event, now)
                self._wake_at = math.inf
                self._advance(now)
            except RecordError as error:
                self._finish(EXIT_REFUSED, str(error), None, now)
        return self._actions

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Begin() | Tick():
                pass
            case Answered(id, answer):
                pending = self._pending.pop(id, None)
                if pending is not None:
                    self._retry_at.pop(pending.lane, None)
                    self._sent_at = pending.sent_at
                    pending.on_answer(answer, now)
            case Refused(id, error):
                pending = self._pending.pop(id, None)
                if pending is not None:
                    self._take_refusal(pending, error, now)
            case Unknown(id):
                pending = self._pending.pop(id, None)
                if pending is not None:
                    self._pause(pending.lane, "the store does not answer", now)
                    pending.on_unknown(now)
            case Watched(key, batch):
                if key in self._followed:
                    self.mirror.apply(batch, now)
            case WatchLost(key, _):
                if key in self._followed:
                    self._unwatched.add(key)
                    self._retry_at[_follow_lane(key)] = now + self.settings.retry_delay_s
            case Planned() | PlanRefused():
                if self._leading is not None:
                    self._leading.take_plan(event)
            case RoundSucceeded(round):
                if round == self._alive_round and not self._status.outcome and not self._stop_mode:
                    self._status = replace(self._status, outcome="succeeded")
            case RoundFailed(round, exit_code, is_peer_loss, failure):
                if round == self._alive_round and not self._status.outcome and not self._stop_mode:
                    self._status = replace(
                        self._status, outcome="failed", exit_code=exit_code, is_peer_loss=is_peer_loss, failure=failure
                    )
            case RoundStopped(round, worker_port):
                if round == self._alive_round:
                    self._alive_round = None
                    self._worker_port = worker_port
                    self._status = replace(self._status, is_stopped=True, worker_port=worker_port)
            case LeashEnded():
                if self._lease is not None:
                    self.act(Ask(self.take_id(), "give the lease back", messages.Revoke(self._lease)))
                self._lapse(now)
            case Leave():
                if self._leave is None:
                    self._leave, self._leave_at = event, now

    def _take_refusal(self, pending: _Pending, error: StoreError, now: float) -> None:
        self._pause(pending.lane, str(error), now)
        if isinstance(error, LeaseNotFound) and pending.lane != "lead":  # there it is the verdict's lease
            self._lapse(now)

    def _pause(self, lane: str, trouble: str, now: float) -> None:
        self._retry_at[lane] = now + self.settings.retry_delay_s
        if lane == "join":
            self._join_trouble = trouble

    # --- the comparison, made after every event ---

    def _advance(self, now: float) -> None:
        if self._ended:
            return
        if not self.member_revision:
            if self._alive_round is None:
                self._join(now)
            elif now >= self._gone_by:
                self.resign(f"this node has not stopped round {self._alive_round} in time", now)
            else:
                self.wake(self._gone_by)
            return
        if now >= self._lease_until:
            self._lapse(now)
            self._advance(now)
            return
        assert self._keys is not None
        if self.mirror.get(self._keys.member(self.member_id)) is None:
            self._be_fenced(now)
            return
        for key in sorted(self._unwatched):
            self._follow_again(key, now)
        self._renew(now)
        if self._obey_verdict(self._keys, now):
            return
        self._follow_round(self._keys, now)
        self._announce_departure(self._keys, now)
        if not self._ended:
            self._write_status(self._keys, now)
            self._lead(self._keys, now)

    def _join(self, now: float) -> None:
        """Ask for the next thing that is missing to be a member."""
        settings = self.settings
        self._joining_since = min(self._joining_since, now)
        limit_s = settings.rejoin_timeout_s if self._joined_root else settings.start_timeout_s
        if self._leave is not None:
            self._finish(self._leave.exit_code, self._leave.reason, None, now)
            return
        if now >= self._joining_since + limit_s:
            reason = f"could not join run {self._run_id} within {limit_s:g} s: {self._join_trouble}"
            self._finish(EXIT_TEMPORARY, reason, None, now)
            return
        self.wake(self._joining_since + limit_s)
        if now >= self._lease_until:
            self._become_new_member()
        self._renew(now)
        if self._lease is None:
            self.ask("join", "grant a lease", messages.Grant(self.settings.lease_ttl_s), self._granted, now)
        elif not self._current_is_read:
            key = keys.current(self._prefix, self._run_id)
            self.ask("join", "find the job", Txn((), (Get(key),)), self._read_current, now)
        elif self._current is None:
            self._open_job(now)
        elif not self._is_inspected:
            assert self._keys is not None
            reads = (Get(self._keys.spec), Get(self._keys.control, prefix=True), Get(self._keys.members, prefix=True))
            self.ask("join", "read the job", Txn((), reads), self._inspect, now)
        elif not self._finished_before(now):
            self._register(self._current, now)

    def _granted(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, Lease)
        self._lease = answer.id
        self._renewed(self._sent_at, answer.ttl_s)

    def _open_job(self, now: float) -> None:
        """Name a fresh job key, where there is none or where the job before it has ended for good."""
        key = keys.current(self._prefix, self._run_id)
        guard = Compare(key, "mod", "=", self._current.mod_revision if self._current else 0)
        put = Put(key, self.token().encode())
        self.ask("join", "open the job", Txn((guard,), (put,)), self._opened, now, self._opened_perhaps)

    def _opened(self, answer: Answer, now: float) -> None:
        self._opened_perhaps(now)

    def _opened_perhaps(self, now: float) -> None:
        self._current_is_read, self._current = False, None

    def _read_current(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        self._current_is_read = True
        self._current = answer.found[0].first
        self._is_inspected = False
        if self._current is not None:
            self._keys = keys.of_job(self._prefix, self._run_id, self._current.value.decode(errors="replace"))
        if self._joined_root and (self._keys is None or self._keys.root != self._joined_root):
            self._finish(EXIT_REMOVED, self.removal, None, now)

    def _inspect(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        assert self._keys is not None
        spec, control, members = answer.found
        self.mirror.load(spec, self._keys.spec, now)
        self.mirror.load(control, self._keys.control, now)
        self.mirror.load(members, self._keys.members, now)
        self._is_inspected = True
        own = self.mirror.get(self._keys.member(self.member_id))
        if own is not None:  # a registration whose answer was lost
            self._be_member(own, answer.revision)

    def _finished_before(self, now: float) -> bool:
        """Whether the job cannot be joined: it has ended (after a failure the next is opened), or is another one."""
        assert self._keys is not None
        verdict = self.read(Verdict, self._keys.verdict)
        opens_next = self.settings.opens_next_job and self._keys.root != self._joined_root
        if verdict is not None and verdict.kind != "success" and opens_next:
            if any(self.mirror.under(self._keys.members)):
                self._is_inspected = False
                self._pause("join", f"agents of the finished job are still there ({verdict.reason})", now)
                self.wake(self._retry_at["join"])
                self.say(f"waiting for the agents of the finished job to go: {verdict.reason}")
            else:
                self._open_job(now)
            return True
        spec = self.read(Spec, self._keys.spec)
        difference = _difference(self._run_id, spec, self._spec) if spec is not None else ""
        if difference:
            self._finish(EXIT_REFUSED, difference, None, now)
        elif verdict is not None:
            late = "" if self._keys.root == self._joined_root else f"run {self._run_id} has already ended: "
            self._finish(verdict.exit_code, late + verdict.reason, verdict, now)
        return bool(difference) or verdict is not None

    def _register(self, current: KeyValue, now: float) -> None:
        assert self._keys is not None
        assert self._lease is not None
        member = Member(
            member_id=self.member_id,
            node_name=self._node_name,
            boot_id=self._boot_id,
            description=self._description,
            worker_port=self._worker_port,
        )
        own_key = self._keys.member(self.member_id)
        guards = [
            Compare(current.key, "mod", "=", current.mod_revision),
            Compare(self._keys.verdict, "create", "=", 0),
            Compare(own_key, "create", "=", 0),
            Compare(self._keys.spec, "mod", "=", self.mirror.revision(self._keys.spec)),
        ]
        writes: list[Put | Get] = [Put(own_key, records.encode(member), self._lease)]
        if self.mirror.get(self._keys.spec) is None:
            writes.append(Put(self._keys.spec, records.encode(self._spec)))
        reads = (Get(own_key), Get(self._keys.control, prefix=True))
        request = Txn(tuple(guards), (*writes, *reads), reads)
        self.ask("join", "register", request, self._registered, now, self._inspect_again)

    def _registered(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        assert self._keys is not None
        own, control = answer.found
        if own.first is None:
            self._inspect_again(now)
            return
        self.mirror.put(own.first, now)
        self.mirror.load(control, self._keys.control, now)
        self._be_member(own.first, answer.revision)

    def _be_member(self, own: KeyValue, revision: int) -> None:
        """The own key is in the store, and everything under control is known as of `revision`."""
        assert self._keys is not None
        self.member_revision = own.create_revision
        self._joined_root = self._keys.root
        self._joining_since = math.inf
        self.follow(own.key, revision + 1)
        self.follow(self._keys.control, revision + 1)

    def _inspect_again(self, now: float) -> None:
        self._current_is_read = self._is_inspected = False

    # --- the lease and the leash ---

    def _renew(self, now: float) -> None:
        if self._lease is None or self._lease_until == math.inf:
            return
        if now >= self._keep_alive_at:
            self.ask("lease", "keep the lease", messages.KeepAlive(self._lease), self._kept, now)
        else:
            self.wake(self._keep_alive_at)
        self.wake(self._lease_until)

    def _kept(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, (float, int))  # the type float admits both
        self._renewed(self._sent_at, answer)

    def _renewed(self, sent_at: float, ttl_s: float) -> None:
        """The lease lives until the *send* time of the renewal plus its TTL; the leash ends a margin before."""
        self._lease_until = sent_at + ttl_s
        self._keep_alive_at = sent_at + self.settings.keep_alive_interval_s if ttl_s < math.inf else math.inf
        if ttl_s < math.inf and (self._alive_round is None or self.member_revision):
            self._actions.append(ExtendLeash(self._lease_until - self.settings.kill_margin_s))

    def _lapse(self, now: float) -> None:
        """The lease is gone, so others may take this node's place: kill at once, then come back as a new member."""
        if self.member_revision:
            self.say("lost the membership: the lease could not be renewed in time; joining again")
        self._stop_round("fence", "the lease has ended", now)
        self.unfollow(*self._followed)
        self._become_new_member()

    def _be_fenced(self, now: float) -> None:
        """The own key was deleted, under a lease that lives: kill at once, then see whether the job itself is gone."""
        self._stop_round("fence", "removed from the job", now)
        assert self._keys is not None
        if not self._is_fenced:
            self._is_fenced = True
            reads = (Get(keys.current(self._prefix, self._run_id)), Get(self._keys.spec))
            self.ask("farewell", "see whether the job is still there", Txn((), reads), self._tell_why_fenced, now)
        elif not self.is_busy("farewell"):
            self._finish(EXIT_FENCED, "this node was removed from the job", None, now)

    def _tell_why_fenced(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        current, spec = answer.found
        if self.is_removed(current.first, spec.first):
            self._finish(EXIT_REMOVED, self.removal, None, now)

    def is_removed(self, current: KeyValue | None, spec: KeyValue | None) -> bool:
        """Whether these two keys say that this member's job is no more: deleted, or another begun in its place."""
        assert self._current is not None
        return spec is None or current is None or current.value != self._current.value

    @property
    def removal(self) -> str:
        return f"run {self._run_id} was removed from the store, or another job was begun under its name"

    # --- a round on this node ---

    def _follow_round(self, job: keys.Keys, now: float) -> None:
        seal, stop = self.read(Seal, job.round), self.read(Stop, job.stop)
        if seal is None:
            return
        is_stopped = stop is not None and stop.round >= seal.round
        if self._alive_round is not None:
            if seal.round > self._alive_round:
                self._be_fenced(now)  # the others went on without this node
            elif is_stopped and stop is not None:
                self._stop_round(stop.mode, stop.reason, now)
        elif is_stopped:
            if self._status.plan_token != seal.plan_token:
                self._begin_status(seal, is_stopped=True)
        elif seal.plan_token != self._answered_token and self._leave is None:
            key = job.assignment(seal.round, seal.plan_token, self.member_id)

            def take_up(answer: Answer, now: float) -> None:
                self._take_up(job, seal, answer, now)

            self.ask("assignment", f"read the assignment of round {seal.round}", Txn((), (Get(key),)), take_up, now)

    def _take_up(self, job: keys.Keys, sealed: Seal, answer: Answer, now: float) -> None:
        """Act on the record under the sealed token; no record means no ranks. Start nothing beyond the leash."""
        assert isinstance(answer, TxnResult)
        seal, stop = self.read(Seal, job.round), self.read(Stop, job.stop)
        is_stopped = stop is not None and stop.round >= sealed.round
        if seal is None or seal.plan_token != sealed.plan_token or is_stopped or self._alive_round is not None:
            return
        if now >= self._lease_until - self.settings.kill_margin_s:
            self._pause("assignment", "", now)  # read it again when the lease has been renewed
            return
        self._answered_token = seal.plan_token
        found = answer.found[0].first
        if found is None:
            self.say(f"round {seal.round} runs without this node, which stands by as a spare")
            return
        assignment = records.decode(Assignment, found.value, found.key)
        self._alive_round, self._stop_mode = seal.round, ""
        self._begin_status(seal, is_stopped=False)
        self._actions.append(
            StartRound(seal.round, seal.restart_count, seal.world_size, seal.coordinator, assignment.content)
        )

    def _begin_status(self, seal: Seal, is_stopped: bool) -> None:
        self._failed_revision = 0
        self._status = Status(
            round=seal.round, plan_token=seal.plan_token, is_stopped=is_stopped, worker_port=self._worker_port
        )

    def _stop_round(self, mode: str, reason: str, now: float) -> None:
        """Tell the agent once; only "fence" overrules a stop that is under way."""
        if self._alive_round is None or (self._stop_mode and (mode != "fence" or self._stop_mode == "fence")):
            return
        self._stop_mode = mode
        self._gone_by = now + self.settings.gone_within_s(mode)
        self._actions.append(StopRound(self._alive_round, mode, reason))

    def _write_status(self, job: keys.Keys, now: float) -> None:
        status = self._status
        if status == (self._status_written or Status(round=0)):
            return
        key = job.status(self.member_id)
        guards = (
            Compare(job.member(self.member_id), "create", "=", self.member_revision),
            Compare(key, "mod", "=", self.mirror.revision(key)),
        )
        put = Put(key, records.encode(replace(status, failed_revision=self._failed_revision)))
        request = Txn(guards, (put,), (Get(key), Get(job.member(self.member_id))))

        def written(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if answer.succeeded:
                self.wrote(put, answer.revision, now)
            else:  # perhaps it had been written and the answer was lost
                own_status, own_member = answer.found
                self.mirror.load(own_status, key, now)
                self.mirror.load(own_member, job.member(self.member_id), now)
            stored = self.read(Status, key)
            if stored is not None:
                self._status_written = replace(stored, failed_revision=0)
                if stored.outcome == "failed" and stored.plan_token == self._status.plan_token:
                    self._failed_revision = stored.failed_revision or self.mirror.revision(key)

        self.ask("status", f"report on round {status.round}", request, written, now)

    # --- leaving and the end ---

    def _announce_departure(self, job: keys.Keys, now: float) -> None:
        if self._leave is None or self._ended:
            return
        self._status = replace(
            self._status, leaving=self._leave.reason, leaving_exit_code=self._leave.exit_code or EXIT_TEMPORARY
        )
        settings = self.settings
        announce_by = self._leave_at + settings.announce_limit_s
        gone_by = announce_by + settings.shutdown_timeout_s + settings.stop_limit_s
        # Written means that whoever leads will know of it before it charges what the departure breaks.
        is_announced = now >= announce_by or (self._status_written is not None and bool(self._status_written.leaving))
        if self._alive_round is not None:
            if is_announced:
                self._stop_round("grace", self._leave.reason, now)
            else:
                self.wake(announce_by)
        elif now >= gone_by or (self._leading is None and (self._status == self._status_written or now >= announce_by)):
            self._finish(self._leave.exit_code, self._leave.reason, None, now)
        else:
            self.wake(gone_by if self._leading else announce_by)

    def _obey_verdict(self, job: keys.Keys, now: float) -> bool:
        verdict = self._verdict = self.read(Verdict, job.verdict) or self._verdict
        if verdict is None:
            return False
        if self._alive_round is not None:
            self._stop_round("grace" if verdict.kind == "stopped" else "kill", verdict.reason, now)
        if self._alive_round is None or now >= self._gone_by:
            self._finish(verdict.exit_code, verdict.reason, verdict, now)
        else:
            self.wake(self._gone_by)
        return True

    def resign(self, reason: str, now: float) -> None:
        """Let go of the leader's key with the membership: to leave, or since this node cannot stop its workers."""
        if self._leave is not None:
            self._finish(self._leave.exit_code, self._leave.reason, None, now)
        else:
            self._stop_round("fence", reason, now)
            self._finish(EXIT_FENCED, reason, None, now)

    def _finish(self, exit_code: int, reason: str, verdict: Verdict | None, now: float) -> None:
        """Give the membership up and end, without waiting for the store's word."""
        if self._ended:
            return
        self.unfollow(*self._followed)
        self._ended = True
        self._wake_at = math.inf
        if self._lease is not None:
            self._actions.append(Ask(self.take_id(), "give the lease back", messages.Revoke(self._lease)))
        self._actions.append(End(exit_code, reason, verdict))

    # --- leading ---

    def _lead(self, job: keys.Keys, now: float) -> None:
        leader = self.mirror.get(job.leader)
        if self._leading is not None and (leader is None or leader.create_revision != self._leading.revision):
            self.unfollow(job.members, job.statuses, job.spec, keys.current(self._prefix, self._run_id))
            self._leading = None
        if leader is None:
            if self._campaign_at == math.inf:
                self._campaign_at = now + self._chance() * self.settings.election_spread_s
            if now >= self._campaign_at:
                self._campaign(job, now)
            else:
                self.wake(self._campaign_at)
            return
        self._campaign_at = math.inf
        if leader.value != self.member_id.encode():
            return
        if self._leading is None:
            current = keys.current(self._prefix, self._run_id)
            self._leading = Leading(self, job, current, leader.create_revision, self._sizer, now)
        if not self._unwatched:  # nothing is decided on what may be old
            self._leading.advance(now)

    def _campaign(self, job: keys.Keys, now: float) -> None:
        assert self._lease is not None
        own = job.member(self.member_id)
        guards = (
            Compare(job.leader, "create", "=", 0),
            Compare(own, "create", "=", self.member_revision),
            Compare(job.verdict, "create", "=", 0),
        )
        put = Put(job.leader, self.member_id.encode(), self._lease)
        reads = (Get(job.control, prefix=True), Get(own))
        request = Txn(guards, (put, *reads), reads)

        def counted(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            for found, key in zip(answer.found, (job.control, own), strict=True):
                self.mirror.load(found, key, now)

        self.ask("campaign", "ask to lead", request, counted, now)

    # --- requests, shared with `leading` ---

    def ask(
        self,
        lane: str,
        why: str,
        request: Request,
        on_answer: Callable[[Answer, float], None],
        now: float,
        on_unknown: Callable[[float], None] = lambda now: None,
    ) -> None:
        """Send a request, unless its lane is busy or pausing after a refusal."""
        if self.is_busy(lane):
            return
        retry_at = self._retry_at.get(lane, -math.inf)
        if now < retry_at:
            self.wake(retry_at)
            return
        id = self.take_id()
        self._pending[id] = _Pending(lane, now, on_answer, on_unknown)
        self._actions.append(Ask(id, why, request))

    def is_busy(self, lane: str) -> bool:
        return any(pending.lane == lane for pending in self._pending.values())

    def act(self, action: Action) -> None:
        self._actions.append(action)

    def say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._actions.append(Say(sentence))

    def wake(self, at: float) -> None:
        """Ask for a Tick at `at` at the latest."""
        self._wake_at = min(self._wake_at, at)

    def token(self) -> str:
        """A fresh random word of 64 bits."""
        return "".join(f"{int(self._chance() * 2**32):08x}" for _ in range(2))

    def take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def read(self, kind: type[records.Record], key: str) -> records.Record | None:
        """The record under `key` as this member knows it, decoded once per revision."""
        item = self.mirror.get(key)
        if item is None:
            return None
        known = self._decoded.get(key)
        if known is None or known[0] != item.mod_revision:
            known = (item.mod_revision, records.decode(kind, item.value, key))
            self._decoded[key] = known
        record = known[1]
        assert isinstance(record, kind)
        return record

    def wrote(self, put: Put, revision: int, now: float) -> None:
        """Take an own write into the mirror without waiting for the watch."""
        old = self.mirror.get(put.key)
        created = old.create_revision if old else revision
        version = old.version + 1 if old else 1
        self.mirror.put(KeyValue(put.key, put.value, created, revision, version, put.lease), now)

    def follow(self, key: str, start_revision: int) -> None:
        """Watch `key` (a prefix if it ends with "/"), until `unfollow` or the end of this membership."""
        self._followed.add(key)
        self._unwatched.discard(key)
        self._actions.append(Follow(key, start_revision))

    def unfollow(self, *watched: str) -> None:
        for key in sorted(self._followed.intersection(watched)):
            self._followed.remove(key)
            self._unwatched.discard(key)
            self._actions.append(Unfollow(key))

    def _follow_again(self, key: str, now: float) -> None:
        """A watch has ended: read what it covered, and watch from there."""

        def read_again(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if key in self._unwatched:
                self.mirror.load(answer.found[0], key, now)
                self.follow(key, answer.revision + 1)

        request = Txn((), (Get(key, prefix=key.endswith("/")),))
        self.ask(_follow_lane(key), f"read {key} again", request, read_again, now)


def _follow_lane(key: str) -> str:
    return f"follow {key}"


def _difference(run_id: str, theirs: Spec, ours: Spec) -> str:
    """In what this agent's job is another one than the run's; empty if they are the same."""
    for name in ("mesh", "limits", "digest"):
        first, own = getattr(theirs, name), getattr(ours, name)
        if first != own:
            what = "command" if name == "digest" else name
            return f"run {run_id} was started with {what} {first!r}, this agent has {own!r}"
    return ""
