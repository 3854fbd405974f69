"""Store outage: a round continues as long as every member of its roster reports the same outage.

Without the store leases cannot be renewed, and a member whose lease ends may be replaced by a member that reaches the
store. But if no member of the roster reaches it, none of them replaces another, and no other agent may (see
`takeover`). So the leader sends each member a probe at intervals, over their presence connections. A member that cannot
reach the store either, and knows no newer round, acknowledges it; from then on, for a lease's time and a little, it
replaces no member. Once all have acknowledged within `probe_s`, each may keep its workers for a lease's time, counted
from its own acknowledgement. If one acknowledgement is missing, the probe is void: the watchdogs run out.

A store that an agent served does not return once that agent is gone. So each acknowledgement says whether its sender is
done, and when all are, the job ends without the store.
"""

from __future__ import annotations

from collections.abc import Set

from rendezvous.events import SendToPeer
from rendezvous.member import lease
from rendezvous.peers import messages
from rendezvous.peers.messages import OutageAck, OutageConfirmed, OutageProbe
from rendezvous.reasons import Reason
from rendezvous.records import LeaderRecord, Member, Seal, Spares
from rendezvous.state.state import MemberState

PROBES_REMEMBERED = 4


# docs/internals/decisions/agreement.md#0017-store-outage-by-unanimous-confirmation
def advance(state: MemberState, now: float) -> None:
    """Send a probe, if this member leads; acknowledge one, if it can."""
    outage, settings = state.outage, state.settings
    seal = state.cache.read(Seal, state.job.round)
    if not state.lease.is_store_away:
        outage.has_noticed = False
    if seal is None or not is_endured(state, now):
        return
    acknowledge(state, seal, now)
    leader = state.leadership
    if leader is None or not leader.is_loaded or state.requests.is_busy("lead"):
        return  # the outcome of a write of this leader is unknown
    if now >= outage.probed_at + settings.probe_s:
        send_probe(state, seal, leader.active, now)
    state.requests.wake_by(outage.probed_at + settings.probe_s)


def is_endured(state: MemberState, now: float) -> bool:
    """Return whether the store is unavailable for this member too, and the outage is within its limit."""
    is_short = now < state.lease.renewed_at + state.settings.outage_limit_s
    return state.settings.continues_without_store and state.lease.is_store_away and is_short


# --- the leader's part ---


def send_probe(state: MemberState, seal: Seal, active: Set[str], now: float) -> None:
    """Send a probe to all of the roster, except members that are proven gone.

    A member whose key is gone cannot acknowledge, so no probe is confirmed: its agent may be well, rejoin as another
    member, and lead, because it belonged to the roster (see `election`).
    """
    outage = state.outage
    spares = state.cache.read(Spares, state.job.spares)
    roster = {*active, *(spares.member_ids if spares else ())} - {state.member_id}
    outage.probed_ids = {m for m in roster if not _is_surely_gone(state, m)}
    outage.awaited_ids, outage.done_ids = set(outage.probed_ids), set()
    outage.probe_number, outage.probed_at, outage.is_confirmed = outage.probe_number + 1, now, False
    _note_acknowledgement(state, outage.probe_number, now)
    _notice(state, seal)
    probe = messages.encode_message(OutageProbe(outage.probe_number, seal.plan_token))
    for member_id in sorted(outage.probed_ids):
        state.requests.emit(SendToPeer(member_id, probe))
    count_acknowledgements(state, seal)


def _is_surely_gone(state: MemberState, member_id: str) -> bool:
    record = state.cache.read(Member, state.job.make_member_key(member_id))
    return record is not None and state.peers.is_gone(member_id, record.presence_address)


def count_acknowledgements(state: MemberState, seal: Seal) -> None:
    """Send the confirmation to all, once no acknowledgement is missing."""
    outage = state.outage
    if outage.awaited_ids or outage.is_confirmed:
        return
    outage.is_confirmed = True
    lease.hold_until(state, outage.probed_at + state.settings.lease_ttl_s)
    is_served = state.setup.store_owner is not None
    are_done = _is_done(state, seal) and outage.done_ids >= outage.probed_ids
    # Spares that are left alone have nothing to do, but nobody has succeeded.
    active = state.leadership.active if state.leadership is not None else set()
    outage.is_over = is_served and are_done and not active.isdisjoint({*outage.probed_ids, state.member_id})
    confirmed = messages.encode_message(OutageConfirmed(outage.probe_number, seal.plan_token, outage.is_over))
    for member_id in sorted(outage.probed_ids):
        state.requests.emit(SendToPeer(member_id, confirmed))


# --- every member's part ---


def handle(state: MemberState, member_id: str, message: messages.Message, now: float) -> None:
    """Handle a message from another member; ignore it if its sender is not concerned."""
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
                if message.is_done:
                    outage.done_ids.add(member_id)
                count_acknowledgements(state, seal)
        case OutageConfirmed(probe, plan_token) if (
            is_leader and plan_token == seal.plan_token and probe in outage.acknowledged_at
        ):
            lease.hold_until(state, outage.acknowledged_at[probe] + settings.lease_ttl_s)
            outage.is_over = message.is_over


def acknowledge(state: MemberState, seal: Seal, now: float) -> None:
    """Acknowledge the probe once this member can; after the probe's time no leader waits for it."""
    outage = state.outage
    if outage.received_probe is None:
        return
    member_id, probe, asked_at = outage.received_probe
    outage.received_probe = None
    if probe.plan_token != seal.plan_token or now > asked_at + state.settings.probe_s:
        return
    _note_acknowledgement(state, probe.probe, now)
    _notice(state, seal)
    acknowledgement = messages.encode_message(OutageAck(probe.probe, probe.plan_token, _is_done(state, seal)))
    state.requests.emit(SendToPeer(member_id, acknowledgement))


def _is_done(state: MemberState, seal: Seal) -> bool:
    """Return whether this member has nothing left to do: it succeeded in a round that runs, or is a spare of it."""
    round_state = state.round
    if round_state.ranked_token == seal.plan_token:
        return round_state.has_succeeded
    return round_state.answered_token == seal.plan_token  # without an answer it may have ranks


def _notice(state: MemberState, seal: Seal) -> None:
    """Log once in each outage that the workers continue."""
    if not state.outage.has_noticed:
        state.outage.has_noticed = True
        until = state.lease.renewed_at + state.settings.outage_limit_s
        state.requests.log(Reason.of("store-away", round=seal.round), until=until, setting="outage_limit_s")


def _note_acknowledgement(state: MemberState, probe_number: int, now: float) -> None:
    outage, settings = state.outage, state.settings
    outage.acknowledged_at[probe_number] = now
    for old_number in sorted(outage.acknowledged_at)[:-PROBES_REMEMBERED]:
        del outage.acknowledged_at[old_number]
    outage.no_omission_before = now + settings.lease_ttl_s + settings.probe_s + settings.kill_margin_s
