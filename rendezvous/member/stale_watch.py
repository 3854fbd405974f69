"""A watch may go stale: it does not end, no events arrive, and its member does not notice that it has fallen behind.

Reading everything often would show it, but costs many requests per member for as long as the job runs, while an idle
member sends little more than keep-alives. So the leader sends what it knows: after each change of the control keys, and
to each new connection, one short message with the revision; and to a peer that is not a member any more, that it is
none. A member that is behind reads again.

That is fast but not certain: the connection may be silent too. So every member also reads what it follows every few
leases; its workers live no longer than `view_s` after such a read, and no member is given up before that (see
`Settings.compute_gone_within_s`).
"""

from __future__ import annotations

import math

from rendezvous.events import SendToPeer
from rendezvous.member import lease
from rendezvous.peers import messages
from rendezvous.peers.messages import KnownRevision
from rendezvous.records import LeaderRecord
from rendezvous.state.state import MemberState


def advance(state: MemberState, now: float) -> None:
    """Send known revisions, at most once per renewal, when something is sent anyhow; read again when due."""
    watch_state, leader, renewed_count = state.stale_watch, state.leadership, state.lease.renewed_count
    if state.lease.ends_at == math.inf:
        return  # no other agent reads or writes this store
    if leader is not None and leader.is_loaded and watch_state.renewed_count != renewed_count:
        watch_state.renewed_count = renewed_count
        _send_revisions(state)
    if watch_state.resync_at == math.inf:
        _schedule_resync(state, now)
    if now >= watch_state.resync_at:
        _resync(state, now)
    else:
        state.requests.wake_by(watch_state.resync_at)


def _resync(state: MemberState, now: float) -> None:
    """Read everything, repeatedly until it succeeds: the workers' lives depend on it."""

    def on_done(sent_at: float) -> None:
        lease.note_resync(state, sent_at)
        state.peers.forget_except(_list_present(state))
        _schedule_resync(state, sent_at)

    state.cache.resync(now, on_done)


def _schedule_resync(state: MemberState, after: float) -> None:
    """Schedule the next read; spread, so that a thousand members that joined together do not read together."""
    settings = state.settings
    pause_s = settings.resync_ttls * settings.lease_ttl_s * (1 - state.rng() / 4)
    state.stale_watch.resync_at = after + pause_s


def _list_present(state: MemberState) -> set[str]:
    """List the members whose keys this member knows, and the leader."""
    leader = state.cache.read(LeaderRecord, state.job.leader)
    present = {item.key.rpartition("/")[2] for item in state.cache.keys.list_under(state.job.members)}
    return {*present, leader.member_id} if leader else present


def _send_revisions(state: MemberState) -> None:
    sent, keys, peers = state.stale_watch.sent, state.cache.keys, state.peers
    revision = _find_revision(state)
    for member_id in sorted(peers.connected):
        known = KnownRevision(revision, keys.get(state.job.make_member_key(member_id)) is not None)
        if sent.get(member_id) != known or not known.is_member:
            sent[member_id] = known
            state.requests.emit(SendToPeer(member_id, messages.encode_message(known)))
    for member_id in [member_id for member_id in sent if member_id not in peers.connected]:
        del sent[member_id]  # a member that reconnects gets the message again


def handle(state: MemberState, member_id: str, message: KnownRevision, now: float) -> None:
    """Handle the leader's message; one from another sender is ignored."""
    leader = state.cache.read(LeaderRecord, state.job.leader) if state.is_member else None
    if leader is None or leader.member_id != member_id:
        return
    if message.revision > _find_revision(state) or not message.is_member:
        _resync(state, now)


def _find_revision(state: MemberState) -> int:
    """Return the newest known revision of the control keys that every member acts on."""
    job = state.job
    names = (job.leader, job.round, job.stop, job.spares, job.verdict)
    return max(state.cache.keys.get_revision(name) for name in names)
