"""The store is away, and the round goes on: as long as everybody on board says that they see the same.

Without the store leases cannot be renewed, and a member whose lease ends may be replaced by somebody who reaches
the store. But if nobody of the roster reaches it, nobody of the roster replaces anybody, and nobody else may (see
`election`). So the leader asks all of them in beats, over their presence connections. Each that cannot reach the
store either, and knows no newer round, says so; from then on for a lease's time and a little it takes nobody's
place. Once all have said so within `probe_s`, each may keep its workers for a lease's time, counted from when it
sent its own word. One missing word, and the beat is void: the watchdogs run out.
"""

from __future__ import annotations

import math
from collections.abc import Set

from rendezvous import records
from rendezvous.events import SendToPeer
from rendezvous.peers import messages
from rendezvous.peers.messages import OutageAck, OutageConfirmed, OutageProbe
from rendezvous.records import Member, Seal, Spares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

PROBES_REMEMBERED = 4


class Outage:
    def __init__(self, member: MemberMachine) -> None:
        self._member = member
        self.no_omission_before = -math.inf
        """Until then this agent, having given its word, seals no round without a roster member that has not stopped."""
        self._probe_number = 0
        self._probed_at = -math.inf
        self._probed_ids: set[str] = set()
        self._awaited_ids: set[str] = set()  # of those, who have not answered yet
        self._is_confirmed = True  # all have been told that this beat holds, or there is none
        self.begin_membership()

    def begin_membership(self) -> None:
        self._received_probe: tuple[str, OutageProbe, float] | None = None  # who asks, what and when; not answered yet
        self._acknowledged_at: dict[int, float] = {}  # beat -> when this member gave its word
        self._has_noticed = False  # that the round goes on without the store, and said so
        self._is_confirmed = True

    def advance(self, job: records.Keys, now: float) -> None:
        """Ask, if this member leads; answer, if it can."""
        member = self._member
        seal = member.read(Seal, job.round)
        if not member.lease.is_store_away:
            self._has_noticed = False
        if seal is None or not self.is_endured(now):
            return
        self.acknowledge(job, seal, now)
        leading = member.election.leader
        if leading is None or not leading.is_settled:
            return
        if now >= self._probed_at + member.settings.probe_s:
            self.send_probe(job, seal, leading.active, now)
        member.wake_by(self._probed_at + member.settings.probe_s)

    def is_endured(self, now: float) -> bool:
        """Whether the store is away for this member too, and may be for so long."""
        member, settings = self._member, self._member.settings
        is_short = now < member.lease.renewed_at + settings.outage_limit_s
        return settings.continues_without_store and member.lease.is_store_away and is_short

    # --- the leader's part ---

    def send_probe(self, job: records.Keys, seal: Seal, active: Set[str], now: float) -> None:
        """Begin a beat: all of the roster must answer, but for those of whom nothing is left.

        Whose key is gone cannot answer, and no beat holds: its agent may be well, come back as another member, and,
        having belonged to the roster, lead (see `election`).
        """
        member = self._member
        spares = member.read(Spares, job.spares)
        roster = {*active, *(spares.member_ids if spares else ())} - {member.member_id}
        self._probed_ids = {m for m in roster if not self._is_surely_gone(job, m)}
        self._awaited_ids = set(self._probed_ids)
        self._probe_number, self._probed_at, self._is_confirmed = self._probe_number + 1, now, False
        self._note_acknowledgement(self._probe_number, now)
        self._notice(seal)
        question = messages.encode_message(OutageProbe(self._probe_number, seal.plan_token))
        for member_id in sorted(self._probed_ids):
            member.emit(SendToPeer(member_id, question))
        self.count_acknowledgements(seal.plan_token)

    def _is_surely_gone(self, job: records.Keys, member_id: str) -> bool:
        record = self._member.read(Member, job.make_member_key(member_id))
        return record is not None and self._member.peers.is_gone(member_id, record.presence_address)

    def count_acknowledgements(self, plan_token: str) -> None:
        """Tell all that the beat holds, once nobody's word is missing."""
        if self._awaited_ids or self._is_confirmed:
            return
        self._is_confirmed = True
        self._member.lease.hold_until(self._probed_at + self._member.settings.lease_ttl_s)
        for member_id in sorted(self._probed_ids):
            self._member.emit(
                SendToPeer(member_id, messages.encode_message(OutageConfirmed(self._probe_number, plan_token)))
            )

    # --- everybody's part ---

    def take(self, member_id: str, message: messages.Message, now: float) -> None:
        """A word from another member; from whom it does not concern, it is nothing."""
        if not self._member.member_revision:
            return
        job = self._member.job
        leader = self._member.election.read_leader(job)
        seal = self._member.read(Seal, job.round)
        if seal is None or leader is None:
            return
        is_leader = member_id == leader.member_id
        match message:
            case OutageProbe() if is_leader:
                self._received_probe = (member_id, message, now)
            case OutageAck(beat, plan_token) if plan_token == seal.plan_token and beat == self._probe_number:
                in_time = now <= self._probed_at + self._member.settings.probe_s
                if in_time and not self._is_confirmed and self.is_endured(now):
                    self._awaited_ids.discard(member_id)
                    self.count_acknowledgements(plan_token)
            case OutageConfirmed(beat, plan_token) if (
                is_leader and plan_token == seal.plan_token and beat in self._acknowledged_at
            ):
                self._member.lease.hold_until(self._acknowledged_at[beat] + self._member.settings.lease_ttl_s)

    def acknowledge(self, job: records.Keys, seal: Seal, now: float) -> None:
        """Give the word that was asked for, as soon as it is true; nobody waits for it when the beat is over."""
        if self._received_probe is None:
            return
        member_id, question, asked_at = self._received_probe
        self._received_probe = None
        if question.plan_token != seal.plan_token or now > asked_at + self._member.settings.probe_s:
            return
        self._note_acknowledgement(question.probe, now)
        self._notice(seal)
        self._member.emit(
            SendToPeer(member_id, messages.encode_message(OutageAck(question.probe, question.plan_token)))
        )

    def _notice(self, seal: Seal) -> None:
        """Tell people, whose workers go on, once in each outage."""
        if not self._has_noticed:
            self._has_noticed = True
            same = f"as long as all nodes of round {seal.round} find the same"
            self._member.log(f"the store does not answer; waiting for it {same}")

    def _note_acknowledgement(self, probe_number: int, now: float) -> None:
        settings = self._member.settings
        self._acknowledged_at[probe_number] = now
        for old in sorted(self._acknowledged_at)[:-PROBES_REMEMBERED]:
            del self._acknowledged_at[old]
        self.no_omission_before = now + settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
