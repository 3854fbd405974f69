"""When somebody may lead who does not belong to the roster of the sealed round.

During a store outage a roster may be well and hold on to its round, where nobody outside can see it: all that shows
in the store is that its keys are gone. So an outsider waits until no outage can have lasted so long; or until new
agents stand on all nodes of the round, since an agent does not join before its predecessor's processes on the same
machine, since the same boot, are gone.

All outsiders of a large job reading all members again and again would be too much for a store. So only those that
joined first look often, and count; the others look now and then whether they are among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from rendezvous import records
from rendezvous.events import Answer, Txn
from rendezvous.records import Assignment, Member, Seal, Spares
from rendezvous.stores.contract import Get, KeyValue, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

OBSERVERS_MAX = 8  # so many look often
OBSERVE_PAUSE_S_PER_MEMBER = (
    0.05  # between two looks of each other one: the rest together reads twenty times per second
)


class Takeover:
    """What this member has seen of the round under `seal`, to whose roster it does not belong, since it has no leader.

    `is_in_roster`: whether it has turned out that this member does belong to it.
    """

    def __init__(self, member: MemberMachine, seal: Seal) -> None:
        self._member = member
        self.seal = seal
        self.is_in_roster = False
        self._observe_at = -math.inf
        self._is_among_first = False
        self._empty_since = math.inf  # since when the store shows nobody of the roster
        self._nodes: Mapping[str, str] | None = None  # member id -> node, of all with ranks

    def may_lead(self, job: records.Keys, now: float) -> bool:
        """Whether nobody of the roster can be running any more; while that is not known, look."""
        settings = self._member.settings
        limit_s = settings.outage_limit_s + settings.lease_ttl_s
        if now >= self._empty_since + limit_s:
            return True
        self._member.log_status(
            f"round {self.seal.round} has no leader, and this node does not belong to it: if none of its nodes is seen "
            f"for {limit_s:g} s, others go on; if they are surely dead, meshctl takeover makes them go on now",
            "stranger does not lead",
        )
        if now >= self._observe_at:
            self._observe(job, now)
        else:
            self._member.wake_by(self._observe_at)
        return False

    def _observe(self, job: records.Keys, now: float) -> None:
        own_id = self._member.member_id
        assigned = job.make_assignments_prefix(self.seal.round, self.seal.plan_token)
        reads = [Get(job.members, prefix=True), Get(assigned + own_id)]
        if self._is_among_first and self._nodes is None:
            reads.append(Get(assigned, prefix=True))

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            members, own, *rest = (found.items for found in answer.found)
            self.is_in_roster = bool(own)  # it has ranks, and the round was stopped before it had read them
            for items in rest:
                self._nodes = {item.key.rpartition("/")[2]: self._read_node(item) for item in items}
            first = sorted(members, key=lambda item: item.create_revision)[:OBSERVERS_MAX]
            self._is_among_first = job.make_member_key(own_id) in {item.key for item in first}
            if not self._is_among_first:
                self._empty_since = math.inf
                rest_s = max(len(members) * OBSERVE_PAUSE_S_PER_MEMBER, self._member.settings.lease_ttl_s)
                self._observe_at = now + rest_s * (1 + self._member.rng())
            elif self._nodes is None:
                self._observe_at = now
            else:
                # Half a lease: a roster that comes back and is lost again cannot do so unseen.
                self._observe_at = now + self._member.settings.lease_ttl_s / 2
                self._take_members(job, members, self._nodes, now)

        self._member.request("campaign", "look for the round's nodes", Txn((), tuple(reads)), on_reply, now)

    def _read_node(self, item: KeyValue) -> str:
        assignment = self._member.decode(Assignment, item)
        return assignment.node if assignment is not None else ""

    def _take_members(
        self, job: records.Keys, members: tuple[KeyValue, ...], nodes: Mapping[str, str], now: float
    ) -> None:
        """Start or stop counting the time; or see that on every node of the round a new agent stands."""
        spares = self._member.read(Spares, job.spares)
        roster = {*nodes, *(spares.member_ids if spares else ())}
        there = {item.key.rpartition("/")[2]: self._member.decode(Member, item) for item in members}
        if roster & there.keys():
            self._empty_since = math.inf
            return
        self._empty_since = min(self._empty_since, now)
        came = Counter(f"{record.node_name} {record.boot_id}" for record in there.values() if record is not None)
        went = Counter(nodes.values())
        if went and went <= came:
            self._empty_since = -math.inf
