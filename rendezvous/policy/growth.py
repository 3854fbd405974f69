"""When a round that runs well is ended to use members that joined later: not at all, once no other has joined for long
enough, or when the workers have saved a checkpoint (--grow).
"""

from __future__ import annotations

import math

from rendezvous.policy.candidates import choose_members
from rendezvous.policy.decisions import EndRound, Wait
from rendezvous.policy.view import Sizer, View
from rendezvous.reasons import Reason
from rendezvous.records import Seal
from rendezvous.settings import Settings


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
