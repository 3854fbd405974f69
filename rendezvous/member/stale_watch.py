"""A watch may fall silent: nothing ends, nothing comes, and its member stays behind without a sign.

To read everything often would show it, at the price of many requests per member for ever, while an idle member
sends hardly more than keep-alives. So whoever leads tells what it knows: after each change of the control keys, and to
each that connects, one short message with the revision; and a connected peer that is no member any more is told
that. Who is behind reads again.

That is quick, and not sure: the connection may be silent too. So every member also reads what it follows every few
leases; its workers live no longer than `view_s` after such a read, and nobody is given up before that (see `watchdog`).
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.events import SendToPeer
from rendezvous.peers import messages
from rendezvous.peers.messages import KnownRevision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine


class StaleWatchDetector:
    def __init__(self, member: MemberMachine) -> None:
        self._member = member
        self.begin_membership()

    def begin_membership(self) -> None:
        self._sent: dict[str, KnownRevision] = {}  # by the leader, to whom
        self._renewed_count = 0
        self._resync_at = math.inf

    def advance(self, job: records.Keys, now: float) -> None:
        """Tell, and look. Only after a renewal: at most once per second or so, when something is sent anyhow."""
        member = self._member
        if member.lease.lease_until == math.inf:
            return  # nobody else reads or writes this store
        leading = member.election.leader
        if leading is not None and leading.is_loaded and self._renewed_count != member.lease.renewed_count:
            self._renewed_count = member.lease.renewed_count
            self._send_revisions(job)
        if self._resync_at == math.inf:
            self._schedule_resync(now)
        if now >= self._resync_at:
            self._resync(now)
        else:
            member.wake_by(self._resync_at)

    def _resync(self, now: float) -> None:
        """Read everything, again and again until it succeeds: the workers' lives depend on it."""
        self._member.resync(now, self._note_resync)

    def _note_resync(self, sent_at: float) -> None:
        member = self._member
        member.lease.note_resync(sent_at)
        self._schedule_resync(sent_at)
        leader = member.election.read_leader(member.job)
        present = {item.key.rpartition("/")[2] for item in member.cache.list_under(member.job.members)}
        member.peers.forget_except({*present, leader.member_id} if leader else present)

    def _schedule_resync(self, after: float) -> None:
        """The next look; spread, so that a thousand members that came together do not look together."""
        settings = self._member.settings
        self._resync_at = after + settings.resync_ttls * settings.lease_ttl_s * (1 - self._member.rng() / 4)

    def _send_revisions(self, job: records.Keys) -> None:
        mirror, presence = self._member.cache, self._member.peers
        revision = _find_revision(self._member, job)
        for member_id in sorted(presence.connected_ids):
            known = KnownRevision(revision, mirror.get(job.make_member_key(member_id)) is not None)
            if self._sent.get(member_id) != known or not known.is_member:
                self._sent[member_id] = known
                self._member.emit(SendToPeer(member_id, messages.encode_message(known)))
        for member_id in [member_id for member_id in self._sent if not presence.is_reached(member_id)]:
            del self._sent[member_id]  # who connects again is told again

    def take(self, member_id: str, message: KnownRevision, now: float) -> None:
        """What the leader knows; whoever else says so is ignored."""
        member = self._member
        leader = member.election.read_leader(member.job) if member.member_revision else None
        if leader is None or leader.member_id != member_id:
            return
        if message.revision > _find_revision(member, member.job) or not message.is_member:
            self._resync(now)


def _find_revision(member: MemberMachine, job: records.Keys) -> int:
    """How far the control keys are known that every member acts on."""
    names = (job.leader, job.round, job.stop, job.spares, job.verdict)
    return max(member.cache.get_revision(name) for name in names)
