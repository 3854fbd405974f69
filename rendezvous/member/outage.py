"""The store is away, and the round goes on: as long as every member of the roster says that it sees the same.

Without the store leases cannot be renewed, and a member whose lease ends may be replaced by somebody who reaches
the store. But if nobody of the roster reaches it, nobody of the roster replaces anybody, and nobody else may (see
`takeover`). So the leader sends each of them a probe now and then, over their presence connections. Each that cannot
reach the store either, and knows no newer round, acknowledges it; from then on, for a lease's time and a little, it
takes nobody's place. Once all have acknowledged within `probe_s`, each may keep its workers for a lease's time, counted
from when it acknowledged. If one acknowledgement is missing, the probe is void: the watchdogs run out.
"""

from __future__ import annotations

from collections.abc import Set

from rendezvous import records
from rendezvous.events import SendToPeer
from rendezvous.peers import messages
from rendezvous.peers.messages import OutageAck, OutageConfirmed, OutageProbe
from rendezvous.records import LeaderRecord, Member, Seal, Spares
from rendezvous.state.intents import HoldLease
from rendezvous.state.state import MemberState

PROBES_REMEMBERED = 4


# docs/internals/decisions/agreement.md#0017-store-outage-by-unanimous-confirmation
def advance(state: MemberState, job: records.Keys, now: float) -> None:
    """Ask, if this member leads; answer, if it can."""
    outage, settings = state.outage, state.settings
    seal = state.cache.read(Seal, job.round)
    if not state.lease.is_store_away:
        outage.has_noticed = False
    if seal is None or not is_endured(state, now):
        return
    acknowledge(state, seal, now)
    leader = state.leader
    if leader is None or not leader.is_loaded or state.requests.is_busy("lead"):
        return  # or something that this leader has written is in doubt
    if now >= outage.probed_at + settings.probe_s:
        send_probe(state, job, seal, leader.active, now)
    state.requests.wake_by(outage.probed_at + settings.probe_s)


def is_endured(state: MemberState, now: float) -> bool:
    """Whether the store is away for this member too, and may be for so long."""
    is_short = now < state.lease.renewed_at + state.settings.outage_limit_s
    return state.settings.continues_without_store and state.lease.is_store_away and is_short


# --- the leader's part ---


def send_probe(state: MemberState, job: records.Keys, seal: Seal, active: Set[str], now: float) -> None:
    """Ask all of the roster, but for those of whom nothing is left.

    Whose key is gone cannot answer, and no probe holds: its agent may be well, come back as another member, and,
    having belonged to the roster, lead (see `election`).
    """
    outage = state.outage
    spares = state.cache.read(Spares, job.spares)
    roster = {*active, *(spares.member_ids if spares else ())} - {state.member_id}
    outage.probed_ids = {m for m in roster if not _is_surely_gone(state, job, m)}
    outage.awaited_ids = set(outage.probed_ids)
    outage.probe_number, outage.probed_at, outage.is_confirmed = outage.probe_number + 1, now, False
    _note_acknowledgement(state, outage.probe_number, now)
    _notice(state, seal)
    question = messages.encode_message(OutageProbe(outage.probe_number, seal.plan_token))
    for member_id in sorted(outage.probed_ids):
        state.requests.emit(SendToPeer(member_id, question))
    count_acknowledgements(state, seal.plan_token)


def _is_surely_gone(state: MemberState, job: records.Keys, member_id: str) -> bool:
    record = state.cache.read(Member, job.make_member_key(member_id))
    return record is not None and state.peers.is_gone(member_id, record.presence_address)


def count_acknowledgements(state: MemberState, plan_token: str) -> None:
    """Tell all that the probe holds, once no acknowledgement is missing."""
    outage = state.outage
    if outage.awaited_ids or outage.is_confirmed:
        return
    outage.is_confirmed = True
    state.ask(HoldLease(outage.probed_at + state.settings.lease_ttl_s))
    confirmed = messages.encode_message(OutageConfirmed(outage.probe_number, plan_token))
    for member_id in sorted(outage.probed_ids):
        state.requests.emit(SendToPeer(member_id, confirmed))


# --- everybody's part ---


def handle(state: MemberState, member_id: str, message: messages.Message, now: float) -> None:
    """A message from another member; from whom it does not concern, it is ignored."""
    if not state.is_member:
        return
    outage, settings = state.outage, state.settings
    leader = state.cache.read(LeaderRecord, state.job.leader)
    seal = state.cache.read(Seal, state.job.round)
    if seal is None or leader is None:
        return
    is_leader = member_id == leader.member_id
    match message:
        case OutageProbe() if is_leader:
            outage.received_probe = (member_id, message, now)
        case OutageAck(probe, plan_token) if plan_token == seal.plan_token and probe == outage.probe_number:
            in_time = now <= outage.probed_at + settings.probe_s
            if in_time and not outage.is_confirmed and is_endured(state, now):
                outage.awaited_ids.discard(member_id)
                count_acknowledgements(state, plan_token)
        case OutageConfirmed(probe, plan_token) if (
            is_leader and plan_token == seal.plan_token and probe in outage.acknowledged_at
        ):
            state.ask(HoldLease(outage.acknowledged_at[probe] + settings.lease_ttl_s))


def acknowledge(state: MemberState, seal: Seal, now: float) -> None:
    """Acknowledge the probe as soon as that is true; nobody waits for it when the time of the probe is over."""
    outage = state.outage
    if outage.received_probe is None:
        return
    member_id, question, asked_at = outage.received_probe
    outage.received_probe = None
    if question.plan_token != seal.plan_token or now > asked_at + state.settings.probe_s:
        return
    _note_acknowledgement(state, question.probe, now)
    _notice(state, seal)
    answer = messages.encode_message(OutageAck(question.probe, question.plan_token))
    state.requests.emit(SendToPeer(member_id, answer))


def _notice(state: MemberState, seal: Seal) -> None:
    """Tell people, whose workers go on, once in each outage."""
    if not state.outage.has_noticed:
        state.outage.has_noticed = True
        same = f"as long as all nodes of round {seal.round} find the same"
        state.requests.log(f"the store does not answer; waiting for it {same}")


def _note_acknowledgement(state: MemberState, probe_number: int, now: float) -> None:
    outage, settings = state.outage, state.settings
    outage.acknowledged_at[probe_number] = now
    for old in sorted(outage.acknowledged_at)[:-PROBES_REMEMBERED]:
        del outage.acknowledged_at[old]
    outage.no_omission_before = now + settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
