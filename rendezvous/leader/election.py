"""Who leads: keep a connection to whoever does, and take the place when it is free or its holder is proven gone.

The leader is whoever holds the leader's key, on the same lease as its own. The seal names successors: when it is
proven that nothing of the leader is left, they take over one after the other, without waiting for its lease. When
the key is simply gone, anybody of the round's roster may try. Who does not belong to it must wait (see `outsider`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rendezvous import records
from rendezvous.events import Answer, ConnectTo, PlanReady, PlanRefused, Txn
from rendezvous.leader.leader import Leader
from rendezvous.leader.takeover import Takeover
from rendezvous.policy.decide import Sizer
from rendezvous.records import Command, LeaderRecord, Seal, Spares
from rendezvous.stores.contract import Compare, Delete, Get, KeyValue, Operation, Put, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine


class Election:
    """`node_name` is for people."""

    def __init__(self, member: MemberMachine, sizer: Sizer, node_name: str, presence_address: str) -> None:
        self._member = member
        self._sizer = sizer
        self._node_name = node_name
        self._presence_address = presence_address
        self._connected_to, self._connected_at = ConnectTo("", ""), math.inf
        self._has_warned = False
        self._ranked_token = ""  # the last plan that gave this agent ranks, under whatever member id
        self._spare_id = ""  # the last member id under which this agent was listed as a spare
        self._unaware_until: dict[str, float] = {}  # as in View, of leaders and memberships before
        self.leader: Leader | None = None
        self.begin_membership()

    def begin_membership(self) -> None:
        """Lead no more, and know no leader."""
        self.leader = None
        self._campaign_at = -math.inf
        self._takeover: Takeover | None = None  # while there is no leader, and this member is not of the roster
        self._connect_to(None, math.inf)

    def note_unaware(self, member_ids: Iterable[str], now: float) -> None:
        """The store has ended the leases of these or the own one early, so they may not know of theirs.

        What this member knows of others as a leader is kept, for it may lead again in a moment.
        """
        known = {**self._unaware_until, **(self.leader.unaware_until if self.leader is not None else {})}
        self._unaware_until = {member_id: until for member_id, until in known.items() if now < until}
        until = now + self._member.settings.lease_ttl_s
        self._unaware_until.update((member_id, until) for member_id in member_ids)

    def note_ranks(self, seal: Seal) -> None:
        """This agent has ranks in this round."""
        self._ranked_token = seal.plan_token

    def take_plan(self, event: PlanReady | PlanRefused) -> None:
        if self.leader is not None:
            self.leader.take_plan(event)

    def make_leader_put(self, job: records.Keys) -> Put:
        """What says that this member leads, on its own lease."""
        member = self._member
        assert member.lease.lease is not None
        leader = LeaderRecord(
            member_id=member.member_id, node_name=self._node_name, presence_address=self._presence_address
        )
        return Put(job.leader, member.encode(leader, job.leader), member.lease.lease)

    def read_leader(self, job: records.Keys) -> LeaderRecord | None:
        """Who leads, as far as this member knows."""
        return self._member.read(LeaderRecord, job.leader)

    def advance(self, job: records.Keys, now: float) -> None:
        member = self._member
        held, leader, seal = member.cache.get(job.leader), self.read_leader(job), member.read(Seal, job.round)
        spares = member.read(Spares, job.spares)
        if spares is not None and member.member_id in spares.member_ids:
            self._spare_id = member.member_id
        if self.leader is not None and (held is None or held.mod_revision != self.leader.revision):
            self._stop_leading(job, now)
        if leader is None or held is None:
            self._elect(job, seal, now)
            return
        self._campaign_at, self._takeover = math.inf, None
        if leader.member_id != member.member_id:
            self._connect_to(leader, now)
            self._warn_unreachable(leader, now)
            self._take_over(job, leader, seal, now)
        else:
            self._connect_to(None, now)
            if self.leader is None:
                current = member.join.current_key
                self.leader = Leader(member, job, current, held.mod_revision, self._sizer, now, self._unaware_until)
            if not member.has_lost_watch and not member.lease.is_store_away:  # nothing is decided on what may be old
                self.leader.advance(now)

    def _stop_leading(self, job: records.Keys, now: float) -> None:
        self.note_unaware((), now)
        self._member.unwatch(job.members, job.statuses, job.spec, self._member.join.current_key)
        self.leader = None

    def _connect_to(self, leader: LeaderRecord | None, now: float) -> None:
        """Keep a presence connection to this leader and to nobody else."""
        attended = ConnectTo(leader.member_id, leader.presence_address) if leader else ConnectTo("", "")
        if attended != self._connected_to:
            self._connected_to, self._connected_at = attended, now
            self._member.emit(attended)

    def _warn_unreachable(self, leader: LeaderRecord, now: float) -> None:
        """Say once that the leader has never been reached: somebody may want to open a port."""
        member = self._member
        if self._has_warned or not leader.presence_address or member.peers.was_reached(leader.member_id):
            return
        at = self._connected_at + member.settings.isolation_s
        if now < at:
            member.wake_by(at)
            return
        self._has_warned = True
        member.log(
            f"the leader, {leader.node_name}, cannot be reached at {leader.presence_address}: as long as that port is "
            "closed to this node, its loss is noticed when its lease ends, and a store outage stops its workers"
        )

    # --- the place is free ---

    def _elect(self, job: records.Keys, seal: Seal | None, now: float) -> None:
        """Try to lead when it is this member's turn."""
        if self._campaign_at == math.inf:
            self._campaign_at = now + self._compute_campaign_delay_s(seal)
            former = self._connected_to.member_id
            self.note_unaware([former] if self._member.peers.is_reached(former) else [], now)
        order = self.find_takeover_request(job)
        if now < self._campaign_at:
            self._member.wake_by(self._campaign_at)
        elif order is not None or seal is None or self.may_lead(job, seal, now):
            self._campaign(job, order, now)

    def _compute_campaign_delay_s(self, seal: Seal | None) -> float:
        """How long to wait before trying: successors one after the other, all others a random time behind them.

        So a leader that has left or whose lease has ended is followed at once, and not by all at the same time. Nobody
        knows here whether a successor is still there.
        """
        member, order = self._member, self._list_successors(seal)
        delay_s = member.settings.successor_delay_s
        if member.member_id in order and not member.leave.is_leaving:
            return order.index(member.member_id) * delay_s
        return len(order) * delay_s + member.rng() * member.settings.election_spread_s

    def _list_successors(self, seal: Seal | None) -> list[str]:
        """Whom the seal names, without who led last."""
        return [m for m in seal.successors if m != self._connected_to.member_id] if seal is not None else []

    def find_takeover_request(self, job: records.Keys) -> KeyValue | None:
        """The request of somebody who knows that the roster is dead, if there is one."""
        for item in self._member.cache.list_under(job.commands):
            command = self._member.read(Command, item.key)
            if command is not None and command.kind == "takeover" and not command.answer:
                return item
        return None

    def may_lead(self, job: records.Keys, seal: Seal, now: float) -> bool:
        """Whether this agent belongs to the roster, or nobody of it can be running any more."""
        if not self._member.settings.continues_without_store or self._is_in_roster(job, seal):
            return True
        if self._takeover is None or self._takeover.seal.plan_token != seal.plan_token:
            self._takeover = Takeover(self._member, seal)
        return self._takeover.is_in_roster or self._takeover.may_lead(job, now)

    def _is_in_roster(self, job: records.Keys, seal: Seal) -> bool:
        """Whether no outage is held out without this agent's word, whatever member it was when it was counted in.

        A spare that was lost is taken from the list, and from then on nobody waits for its word.
        """
        spares = self._member.read(Spares, job.spares)
        return seal.plan_token == self._ranked_token or (spares is not None and self._spare_id in spares.member_ids)

    def _campaign(self, job: records.Keys, order: KeyValue | None, now: float) -> None:
        consumed: tuple[Operation, ...] = ()
        guards: tuple[Compare, ...] = (Compare(job.leader, "mod", "=", self._member.cache.get_revision(job.leader)),)
        if order is not None:
            consumed = (Delete(order.key),)
            guards += (Compare(order.key, "mod", "=", order.mod_revision),)
        self._write_leader(job, "ask to lead", guards, consumed, now)

    # --- the holder is proven gone ---

    def _take_over(self, job: records.Keys, leader: LeaderRecord, seal: Seal | None, now: float) -> None:
        """Take over from a leader of which nothing is left, in the order that the seal names."""
        member = self._member
        gone_since = member.peers.get_gone_since(leader.member_id, leader.presence_address)
        order = self._list_successors(seal)
        if gone_since == math.inf or member.member_id not in order or member.leave.is_leaving:
            return
        at = gone_since + order.index(member.member_id) * member.settings.successor_delay_s
        if now < at:
            member.wake_by(at)
            return
        former, revision = job.make_member_key(leader.member_id), member.cache.get_revision(job.leader)

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            old = answer.found[0].first
            guards = (
                Compare(job.leader, "mod", "=", revision),
                Compare(former, "mod", "=", old.mod_revision if old else 0),
            )
            why = f"take over from {leader.node_name}"
            self._write_leader(job, why, guards, (Delete(former),) if old else (), now)

        member.request("campaign", "read the lost leader's key", Txn((), (Get(former),)), on_reply, now)

    def _write_leader(
        self, job: records.Keys, why: str, guards: tuple[Compare, ...], besides: tuple[Operation, ...], now: float
    ) -> None:
        """Put the leader's key on the own lease, if nothing has changed that this was decided on."""
        member = self._member
        own = job.make_member_key(member.member_id)
        compares = (
            *guards,
            Compare(own, "create", "=", member.member_revision),
            Compare(job.verdict, "create", "=", 0),
            # Who belongs to the roster may have changed under leaders that have come and gone unseen.
            Compare(job.round, "mod", "=", member.cache.get_revision(job.round)),
            Compare(job.spares, "mod", "=", member.cache.get_revision(job.spares)),
        )
        put = self.make_leader_put(job)
        reads = (Get(job.control, prefix=True), Get(own))

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            for found, key in zip(answer.found, (job.control, own), strict=True):
                member.cache.load(found, key, now)
            if not answer.succeeded:
                member.pause("campaign", now)

        member.request("campaign", why, Txn(compares, (put, *besides, *reads), reads), on_reply, now)
