"""Which members can run the next round: all that stay, without quarantined ones if a world is possible without them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.quarantine import Quarantine
from rendezvous.policy.view import MemberView, Size, Sizer, View
from rendezvous.settings import Settings


class MemberChoice(Struct, frozen=True):
    """The members to plan with, in the order in which they joined, their size, and the quarantined ones."""

    members: list[MemberView]
    size: Size
    quarantined: Mapping[str, Quarantine]

    @property
    def roster(self) -> tuple[str, ...]:
        return tuple(view.member.member_id for view in self.members)


def list_staying(view: View) -> list[MemberView]:
    """List the members that do not leave, in the order in which they joined."""
    staying = [member for member_id, member in view.members.items() if not view.is_leaving(member_id)]
    return sorted(staying, key=lambda member: member.create_revision)


def choose_members(view: View, budget: RestartBudget, now: float, settings: Settings, sizer: Sizer) -> MemberChoice:
    """Choose all members that stay; of quarantined ones, only as many as a world needs, shortest quarantine first."""
    staying = list_staying(view)
    by_node = {node: item for node, item in budget.find_quarantines(settings).items() if item.until > now}
    quarantined = {member.member.member_id: by_node[member.node] for member in staying if member.node in by_node}
    while True:
        usable = [member for member in staying if member.member.member_id not in quarantined]
        size = sizer(usable)
        if size.world_size or not quarantined:
            return MemberChoice(usable, size, quarantined)
        del quarantined[min(quarantined, key=lambda member_id: (quarantined[member_id].until, member_id))]
