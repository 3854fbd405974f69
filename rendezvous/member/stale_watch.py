"""A watch may fall silent: nothing ends, nothing comes, and its member stays behind without a sign.

To read everything often would show it, at the price of many requests per member for ever, while an idle member
sends hardly more than keep-alives. So whoever leads tells what it knows: after each change of the control keys, and to
each that connects, one short message with the revision; and a connected peer that is no member any more is told
that. Who is behind reads again.

That is quick, and not sure: the connection may be silent too. So every member also reads what it follows every few
leases; its workers live no longer than `view_s` after such a read, and nobody is given up before that (see `lease`).
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.events import SendToPeer
from rendezvous.peers import messages
from rendezvous.peers.messages import KnownRevision
from rendezvous.records import LeaderRecord
from rendezvous.state.intents import NoteResync
from rendezvous.state.state import MemberState


def advance(state: MemberState, job: records.Keys, now: float) -> None:
    """Tell, and look. Only after a renewal: at most once per second or so, when something is sent anyhow."""
    watching, lease, leader = state.stale_watch, state.lease, state.leader
    if lease.ends_at == math.inf:
        return  # nobody else reads or writes this store
    if leader is not None and leader.is_loaded and watching.renewed_count != lease.renewed_count:
        watching.renewed_count = lease.renewed_count
        _send_revisions(state, job)
    if watching.resync_at == math.inf:
        _schedule_resync(state, now)
    if now >= watching.resync_at:
        _resync(state, now)
    else:
        state.requests.wake_by(watching.resync_at)


def _resync(state: MemberState, now: float) -> None:
    """Read everything, again and again until it succeeds: the workers' lives depend on it."""

    def on_done(sent_at: float) -> None:
        state.ask(NoteResync(sent_at))
        _schedule_resync(state, sent_at)

    state.cache.resync(now, on_done)


def _schedule_resync(state: MemberState, after: float) -> None:
    """The next read; spread, so that a thousand members that came together do not read together."""
    settings = state.settings
    pause_s = settings.resync_ttls * settings.lease_ttl_s * (1 - state.rng() / 4)
    state.stale_watch.resync_at = after + pause_s


def list_present(state: MemberState) -> set[str]:
    """Those whose keys this member knows, and the leader."""
    leader = state.cache.read(LeaderRecord, state.job.leader)
    present = {item.key.rpartition("/")[2] for item in state.cache.keys.list_under(state.job.members)}
    return {*present, leader.member_id} if leader else present


def _send_revisions(state: MemberState, job: records.Keys) -> None:
    sent, keys, peers = state.stale_watch.sent, state.cache.keys, state.peers
    revision = _find_revision(state, job)
    for member_id in sorted(peers.connected_ids):
        known = KnownRevision(revision, keys.get(job.make_member_key(member_id)) is not None)
        if sent.get(member_id) != known or not known.is_member:
            sent[member_id] = known
            state.requests.emit(SendToPeer(member_id, messages.encode_message(known)))
    for member_id in [member_id for member_id in sent if not peers.is_reached(member_id)]:
        del sent[member_id]  # who connects again is told again


def handle(state: MemberState, member_id: str, message: KnownRevision, now: float) -> None:
    """What the leader knows; whoever else says so is ignored."""
    leader = state.cache.read(LeaderRecord, state.job.leader) if state.is_member else None
    if leader is None or leader.member_id != member_id:
        return
    if message.revision > _find_revision(state, state.job) or not message.is_member:
        _resync(state, now)


def _find_revision(state: MemberState, job: records.Keys) -> int:
    """How far the control keys are known that every member acts on."""
    names = (job.leader, job.round, job.stop, job.spares, job.verdict)
    return max(state.cache.keys.get_revision(name) for name in names)
