"""Which members can run the next round: all that stay, without quarantined nodes if a world is possible without them.

This module also decides when a running round grows: members that joined later are used once no other has joined for
long enough, or the workers have saved a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decisions import EndRound, Wait
from rendezvous.policy.quarantine import Quarantine
from rendezvous.policy.view import MemberView, Size, Sizer, View
from rendezvous.reasons import Reason
from rendezvous.records import Seal
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
    usable = [member for member in staying if member.member.member_id not in quarantined]
    size = sizer(usable)
    if not quarantined or size.world_size:
        return MemberChoice(usable, size, quarantined)
    for member_id in sorted(quarantined, key=lambda member_id: (quarantined[member_id].until, member_id)):
        del quarantined[member_id]
        usable = [member for member in staying if member.member.member_id not in quarantined]
        size = sizer(usable)
        if size.world_size:
            break
    return MemberChoice(usable, size, quarantined)


def decide_growth(view: View, seal: Seal, now: float, settings: Settings, sizer: Sizer) -> EndRound | Wait:
    """Decide whether a round that runs well is ended to use members that joined later."""
    reason = Reason.of("running", round=seal.round, ranks=seal.world_size, is_spare=view.own_id not in view.active)
    if settings.grow == "never" or any(view.get_outcome(m) == "succeeded" for m in view.active):
        return Wait(math.inf, reason)  # a restart would make void what has succeeded
    chosen = choose_members(view, view.budget, now, settings, sizer)
    free_at = min((quarantine.until for quarantine in chosen.quarantined.values()), default=math.inf)
    if chosen.size.world_size <= seal.world_size:
        return Wait(free_at, reason)
    # When each of the others could first have enlarged the round; a node in quarantine, at its end.
    quarantines = view.budget.find_quarantines(settings)
    others = [member for member in chosen.members if member.member.member_id not in view.active]
    ended_at = [quarantines[member.node].until for member in others if member.node in quarantines]
    arrived_at = max([*(member.seen_at for member in others), *ended_at], default=-math.inf)
    growing = Reason.of("growing", round=seal.round, size=chosen.size.reason)
    if settings.grow == "checkpoint":  # then a restart loses no work
        if view.saved_at > arrived_at:
            return EndRound("grace", growing, "growth")
        return Wait(free_at, reason.add(Reason.of("could-grow-at-checkpoint", size=chosen.size.reason)), setting="grow")
    until = max(view.sealed_at, arrived_at) + settings.grow_delay_s  # more may arrive: one restart for all
    if now >= until:
        return EndRound("grace", growing, "growth")
    reason = reason.add(Reason.of("could-grow", size=chosen.size.reason))
    return Wait(min(until, free_at), reason, setting="grow_delay_s", limit_at=until if free_at < until else 0.0)
