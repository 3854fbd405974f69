"""A watch may fall silent: nothing ends, nothing comes, and its member stays behind without a sign.

To read everything often would show it, at the price of many requests per member for ever, while an idle member
sends hardly more than keep-alives. So whoever leads tells what it knows: after each change of the control keys, and to
each that connects, one short message with the revision; and a connected peer that is no member any more is told
that. Who is behind reads again.

That is quick, and not sure: the connection may be silent too. So every member also reads what it follows every few
leases; its workers live no longer than `view_s` after such a read, and nobody is given up before that (see `leash`).
"""

from __future__ import annotations

import math

from rendezvous import keys, told
from rendezvous.messages import Tell
from rendezvous.told import Known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.protocol import Protocol


class Tidings:
    def __init__(self, member: Protocol) -> None:
        self._member = member
        self.begin_membership()

    def begin_membership(self) -> None:
        self._told: dict[str, Known] = {}  # by the leader, to whom
        self._renewed_count = 0
        self._look_at = math.inf

    def advance(self, job: keys.Keys, now: float) -> None:
        """Tell, and look. Only after a renewal: at most once per second or so, when something is sent anyhow."""
        member = self._member
        if member.leash.lease_until == math.inf:
            return  # nobody else reads or writes this store
        leading = member.election.leading
        if leading is not None and leading.is_loaded and self._renewed_count != member.leash.renewed_count:
            self._renewed_count = member.leash.renewed_count
            self._tell(job)
        if self._look_at == math.inf:
            self._plan_look(now)
        if now >= self._look_at:
            self._look(now)
        else:
            member.wake(self._look_at)

    def _look(self, now: float) -> None:
        """Read everything, again and again until it succeeds: the workers' lives depend on it."""
        self._member.look_again(now, self._looked)

    def _looked(self, sent_at: float) -> None:
        member = self._member
        member.leash.looked(sent_at)
        self._plan_look(sent_at)
        leader = member.election.leader(member.job)
        present = {item.key.rpartition("/")[2] for item in member.mirror.under(member.job.members)}
        member.presence.keep({*present, leader.member_id} if leader else present)

    def _plan_look(self, after: float) -> None:
        """The next look; spread, so that a thousand members that came together do not look together."""
        settings = self._member.settings
        self._look_at = after + settings.look_ttls * settings.lease_ttl_s * (1 - self._member.chance() / 4)

    def _tell(self, job: keys.Keys) -> None:
        mirror, presence = self._member.mirror, self._member.presence
        revision = _revision(self._member, job)
        for member_id in sorted(presence.reached):
            known = Known(revision, mirror.get(job.member(member_id)) is not None)
            if self._told.get(member_id) != known or not known.is_member:
                self._told[member_id] = known
                self._member.act(Tell(member_id, told.written(known)))
        for member_id in [member_id for member_id in self._told if not presence.is_reached(member_id)]:
            del self._told[member_id]  # who connects again is told again

    def take(self, member_id: str, message: Known, now: float) -> None:
        """What the leader knows; whoever else says so is ignored."""
        member = self._member
        leader = member.election.leader(member.job) if member.member_revision else None
        if leader is None or leader.member_id != member_id:
            return
        if message.revision > _revision(member, member.job) or not message.is_member:
            self._look(now)


def _revision(member: Protocol, job: keys.Keys) -> int:
    """How far the control keys are known that every member acts on."""
    names = (job.leader, job.round, job.stop, job.spares, job.verdict)
    return max(member.mirror.revision(name) for name in names)
