"""What a simulated cluster is set up with, the same on every node, and a planner for the worlds it can run in.

The production planner knows meshes and devices; the agreement needs neither. Here a world is a number of nodes between
two bounds, in whole groups (the replicas of a mesh), and an assignment is a rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from rendezvous.events import MakePlan, PlanReady, PlanRefused
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason
from rendezvous.records import StoreOwner
from rendezvous.settings import Settings

PREFIX, RUN_ID = "meshrun", "simulated"


class Shape(Struct, frozen=True, kw_only=True):
    """Between `nodes_min` and `nodes_max` nodes, in whole groups of `group`."""

    nodes_min: int = 1
    nodes_max: int = 1
    group: int = 1

    def count_usable(self, present: int) -> int:
        count = min(present, self.nodes_max) // self.group * self.group
        return count if count >= self.nodes_min else 0

    def decide_size(self, members: Sequence[MemberView]) -> Size:
        usable = self.count_usable(len(members))
        few = Reason.of("too-few", joined=len(members), least=self.nodes_min)
        return Size(
            usable, usable == self.count_usable(self.nodes_max), Reason.of("enough", nodes=usable) if usable else few
        )

    def plan(self, request: MakePlan) -> PlanReady | PlanRefused:
        """Members that stay keep their rank if it still exists; others fill the gaps, oldest first."""
        usable = self.count_usable(len(request.roster))
        if not usable:
            return PlanRefused(request.id, Reason.of("no-plan", nodes=len(request.roster)))
        chosen = sorted(request.roster, key=lambda c: (c.member_id not in request.previous, c.order))[:usable]
        held = {
            c.member_id: parse_rank(request.previous[c.member_id]) for c in chosen if c.member_id in request.previous
        }
        ranks = {member_id: rank for member_id, rank in held.items() if rank < usable}
        free = iter(sorted(set(range(usable)) - set(ranks.values())))
        for candidate in chosen:
            if candidate.member_id not in ranks:
                ranks[candidate.member_id] = next(free)
        first = next(candidate for candidate in chosen if ranks[candidate.member_id] == 0)
        enough = Reason.of("no-more-needed", nodes=usable)
        spare_reasons = {c.member_id: enough for c in request.roster if c.member_id not in ranks}
        contents = {member_id: json.dumps({"rank": rank}) for member_id, rank in ranks.items()}
        return PlanReady(
            request.id, contents, usable, f"{first.member_id}:0", first.member_id, spare_reasons=spare_reasons
        )


def parse_rank(assignment: str) -> int:
    rank = json.loads(assignment)["rank"]
    assert isinstance(rank, int)
    return rank


class ClusterConfig(Struct, kw_only=True):
    """Durations in seconds. Whoever builds the cluster may change all but `settings` and `shape` while it runs."""

    settings: Settings
    shape: Shape
    secret: bytes = b""
    """What records are signed with."""
    command: str = "simulated"
    """The command that agents are started with."""
    attempt: int | None = None
    """The number of the attempt to which agents belong that start from now on."""
    store_owner: StoreOwner | None = None
    """Whose the store is, if an agent serves it."""
    plan_s: tuple[float, float] | None = None
    """How long the planner takes, at least and at most; None: as long as a message."""
    stop_s: float | None = None
    """How long processes take to stop; None: a random time within the grace."""
    children_late_s: float = 0.0
    """How much longer the processes that killed workers have started stay alive."""
