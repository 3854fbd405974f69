"""What the leader sees, gathered from its copy of the store and from presence into one view.

The store's records say who is there and what each said; what they do not say is when. So the first sight of a
loss, a failure or a departure is noted here, on the leader's own clock. A picture is made anew for every look,
from parts that are kept as long as the key behind them is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from rendezvous import records
from rendezvous.policy import budget
from rendezvous.policy.view import MemberView, StatusView, View
from rendezvous.records import Assignment, Command, Drain, Member, Seal, Spares, Status, Stop
from rendezvous.stores.contract import KeyValue
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine


class _CachedView(NamedTuple):
    """A part of the picture, and the key it was made from."""

    item: KeyValue
    part: MemberView | StatusView | None


class ViewBuilder:
    """`opened_at`: when this member began to lead. `unaware_until`: as in View, of the time before."""

    def __init__(
        self, member: MemberMachine, job: records.Keys, opened_at: float, unaware_until: Mapping[str, float]
    ) -> None:
        self._member = member
        self._job = job
        self._opened_at = opened_at
        self.round_token = ""  # the plan token whose assignments are known
        self.contents: Mapping[str, str] = {}  # of the sealed round: member id -> the planner's text
        self._active: Mapping[str, None] = {}
        self._names: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._members: dict[str, _CachedView] = {}
        self._statuses: dict[str, _CachedView] = {}
        self._lost_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._leaving_at: dict[str, float] = {}
        self._confirmed_gone: set[str] = set()
        self._fenced: set[str] = set()
        self.unaware_until = dict(unaware_until)
        self._doubts_until = max(unaware_until.values(), default=-math.inf)
        self._saved_count = -1
        self._saved_at = -math.inf

    def note_round(self, token: str, assignments: Mapping[str, Assignment]) -> None:
        """The round under this plan token is the sealed one, and these members have ranks in it."""
        if token == self.round_token:
            return
        self.round_token = token
        self.contents = {member_id: record.content for member_id, record in assignments.items()}
        self._active = dict.fromkeys(sorted(assignments))
        self._lost_at, self._failed_at = {}, {}
        self._confirmed_gone, self._fenced = set(), set()
        self._saved_count, self._saved_at = -1, -math.inf
        for known in (self._names, self._nodes, self._leaving_at):
            for member_id in [m for m in known if m not in assignments and m not in self._members]:
                del known[member_id]
        for member_id, record in assignments.items():
            if record.node:
                self._nodes.setdefault(member_id, record.node)
                self._names.setdefault(member_id, record.node.rpartition(" ")[0])

    @property
    def active(self) -> Set[str]:
        """The members with ranks in the round that is known, in a fixed order."""
        return self._active.keys()

    def note_fenced(self, member_ids: tuple[str, ...], *, is_confirmed_gone: bool) -> None:
        """This leader has deleted these members' keys. `is_proven`: nothing of them was left."""
        self._fenced.update(member_ids)
        if is_confirmed_gone:
            self._confirmed_gone.update(member_ids)

    def observe(self, now: float) -> View:
        """Everything, as it is known now."""
        mirror, read, job = self._member.cache, self._member.read, self._job
        members = self._observe_members()
        statuses = self._observe_statuses(now)
        for member_id in self._active:
            if member_id not in members:
                self._note_loss(member_id, now)
            elif member_id in self._lost_at:  # it has registered again after an outage of the store
                del self._lost_at[member_id]
        seal, stop, spares = read(Seal, job.round), read(Stop, job.stop), read(Spares, job.spares)
        sealed_at = mirror.get_first_seen_at(job.round) if seal else 0.0
        if self._member.settings.growth == "checkpoint":
            self._observe_checkpoints(statuses, now)
        presence, own_id = self._member.peers, self._member.member_id
        unreachable_since = {m: at for m, at in presence.unreachable_since.items() if m in members}
        return View(
            own_id=own_id,
            members=members,
            statuses=statuses,
            opened_at=self._opened_at,
            seal=seal,
            sealed_at=sealed_at,
            active=self.active,
            stop=stop,
            stopped_at=mirror.get_first_seen_at(job.stop) if stop else 0.0,
            lost_at=self._lost_at,
            names=self._names,
            nodes=self._nodes,
            budget=budget.restore_budget(seal, sealed_at) if seal else budget.RestartBudget(),
            saved_at=self._saved_at,
            gone=frozenset(m for m in unreachable_since if presence.is_gone(m, members[m].member.presence_address)),
            confirmed_gone=frozenset(self._confirmed_gone),
            unreachable_since=unreachable_since,
            reached_count=sum(1 for m in members if m != own_id and presence.is_reached(m)),
            others_count=len(members) - (own_id in members),
            no_omission_before=self._member.no_omission_before,
            unaware_until={m: at for m, at in self.unaware_until.items() if not presence.is_surely_gone(m)},
            spares=spares.member_ids if spares else (),
            drained=self._list_drained(),
            commands=self._list_commands(),
        )

    def _note_loss(self, member_id: str, now: float) -> None:
        """Who is still connected when its lease has ended does not know of it: its watchdog goes on for a lease yet.

        A store that ends one lease early may end several. When the leader's was among them, the others were connected
        to that one, so nobody knows of them and whoever is missed soon after is taken for such a member.
        """
        if member_id in self._lost_at:
            return
        self._lost_at[member_id] = now
        ttl_s = self._member.settings.lease_ttl_s
        if ttl_s == math.inf or member_id in self._fenced:
            return
        if self._member.peers.is_reached(member_id) or now < self._doubts_until:
            self.unaware_until[member_id] = now + ttl_s  # it may have renewed its lease until now

    def _observe_members(self) -> dict[str, MemberView]:
        seen: dict[str, _CachedView] = {}
        found: dict[str, MemberView] = {}
        for item in self._member.cache.list_under(self._job.members):
            member_id = item.key[len(self._job.members) :]
            last = self._members.get(member_id)
            if last is None or last.item is not item:
                last = _CachedView(item, self._make_member_view(member_id, item))
            seen[member_id] = last
            if isinstance(last.part, MemberView):
                found[member_id] = last.part
        self._members = seen
        return found

    def _make_member_view(self, member_id: str, item: KeyValue) -> MemberView | None:
        member = self._member.read(Member, item.key)
        if member is None:
            return None
        if member.member_id != member_id:
            self._member.log(f"{item.key} tells of member {member.member_id}, which is another; it is ignored")
            return None
        view = MemberView(
            member, item.create_revision, item.mod_revision, self._member.cache.get_first_seen_at(item.key)
        )
        self._names[member_id], self._nodes[member_id] = member.node_name, view.node
        return view

    def _observe_statuses(self, now: float) -> dict[str, StatusView]:
        seen: dict[str, _CachedView] = {}
        found: dict[str, StatusView] = {}
        for item in self._member.cache.list_under(self._job.statuses):
            member_id = item.key[len(self._job.statuses) :]
            last = self._statuses.get(member_id)
            if last is None or last.item is not item:
                last = _CachedView(item, self._make_status_view(member_id, item, now))
            seen[member_id] = last
            if isinstance(last.part, StatusView):
                found[member_id] = last.part
        self._statuses = seen
        return found

    def _make_status_view(self, member_id: str, item: KeyValue, now: float) -> StatusView | None:
        status = self._member.read(Status, item.key)
        if status is None:
            return None
        has_failed = status.outcome == "failed"
        failed_at = self._failed_at.setdefault(f"{member_id} {status.plan_token}", now) if has_failed else math.inf
        leaving_at = self._leaving_at.setdefault(member_id, now) if status.leaving else math.inf
        return StatusView(status, status.failed_revision or item.mod_revision, failed_at, leaving_at)

    def _observe_checkpoints(self, statuses: Mapping[str, StatusView], now: float) -> None:
        """Whether more checkpoints are told of than at the last look; the first look tells nothing."""
        own = (statuses[m].status for m in self._active if m in statuses)
        count = sum(status.saved_count for status in own if status.plan_token == self.round_token)
        if 0 <= self._saved_count < count:
            self._saved_at = now
        self._saved_count = count

    def _list_drained(self) -> dict[str, float]:
        mirror = self._member.cache
        under = mirror.list_under(self._job.drains)
        return {
            item.key[len(self._job.drains) :]: mirror.get_first_seen_at(item.key)
            for item in under
            if self._member.read(Drain, item.key) is not None
        }

    def _list_commands(self) -> dict[str, Command]:
        items = sorted(self._member.cache.list_under(self._job.commands), key=lambda item: item.create_revision)
        read = ((item.key[len(self._job.commands) :], self._member.read(Command, item.key)) for item in items)
        return {token: command for token, command in read if command is not None and not command.answer}
