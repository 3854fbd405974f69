"""Between agreement and placement: members' texts in, nodes to the planner, assignments' texts out.

Agreement carries what a node says of itself and what it is given to run without reading either. This module
writes and reads both texts, and answers its two questions with the planner: how large a world some members
could form, and who gets which ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.placement.capacity import feasibility
from launcher.placement.planner import plan
from rendezvous.decide import MemberView, Size
from rendezvous.messages import Candidate, MakePlan, Planned, PlanRefused


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a node says of itself when it joins. `master_port` 0: rank 0 listens on the port offered per round.

    `path` and `index`: where it stands in the network, see `Node`.
    """

    slot_count: int
    address: str
    role: str
    path: tuple[str | None, ...] = ()
    index: int | None = None
    master_port: int = 0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one node runs in one round: one rank per slot, in slot order, and what all nodes must know alike."""

    ranks: tuple[int, ...]
    world_size: int
    shape: tuple[int, ...]
    group_rank: int
    group_world_size: int
    role_ranks: tuple[int, ...]
    role_world_size: int
    master_addr: str
    master_port: int


def describe(description: Description) -> str:
    return json.dumps(vars(description))


def read_share(text: str) -> Share:
    """Read what `RosterPlanner.plan` wrote for a member."""
    content = json.loads(text)
    for name in ("ranks", "shape", "role_ranks"):
        content[name] = tuple(content[name])
    return Share(**content)


class RosterPlanner:
    """The planner as agreement sees it. `mesh`, `limits` and `costs` are the job's, the same on every node."""

    def __init__(self, mesh: Mesh, limits: Limits, costs: Costs) -> None:
        self._mesh = mesh
        self._limits = limits
        self._costs = costs

    def size(self, members: Sequence[MemberView]) -> Size:
        """How large a world these members could form."""
        nodes = [_node(view.member.member_id, view.member.description, view.create_revision) for view in members]
        found = feasibility(nodes, self._mesh, self._limits)
        return Size(found.world_size, found.is_full, found.reason)

    def plan(self, order: MakePlan) -> Planned | PlanRefused:
        """Who gets which ranks, as one text per active member."""
        nodes = [_node(candidate.member_id, candidate.description, candidate.order) for candidate in order.roster]
        try:
            planned = plan(nodes, self._mesh, self._limits, self._costs, _previous(order.previous))
        except UsageError as error:
            return PlanRefused(order.id, str(error))
        shares = _shares(planned, {candidate.member_id: candidate for candidate in order.roster})
        first = next(iter(shares.values()))
        texts = {member_id: json.dumps(vars(share)) for member_id, share in shares.items()}
        return Planned(order.id, texts, planned.world_size, f"{first.master_addr}:{first.master_port}")


def _node(member_id: str, text: str, order: int) -> Node:
    description = json.loads(text)
    return Node(
        id=member_id,
        slot_count=description["slot_count"],
        path=tuple(description["path"]),
        address=description["address"],
        order=order,
        index=description["index"],
    )


def _previous(texts: Mapping[str, str]) -> Plan | None:
    if not texts:
        return None
    shares = {member_id: read_share(text) for member_id, text in texts.items()}
    shape = next(iter(shares.values())).shape
    ranks = {member_id: share.ranks for member_id, share in shares.items()}
    return Plan(shape=shape, ranks=ranks, spares=(), moved=0, reasons=())


def _shares(planned: Plan, candidates: Mapping[str, Candidate]) -> dict[str, Share]:
    """Nodes are numbered by their first rank, and ranks within a role by node and slot, as torchrun does."""
    in_order = sorted(planned.ranks, key=lambda member_id: planned.ranks[member_id])
    roles = {member_id: json.loads(candidates[member_id].description)["role"] for member_id in in_order}
    host = candidates[in_order[0]]
    description = json.loads(host.description)
    shares: dict[str, Share] = {}
    taken: dict[str, int] = {}
    for group_rank, member_id in enumerate(in_order):
        role, ranks = roles[member_id], planned.ranks[member_id]
        start = taken.get(role, 0)
        taken[role] = start + len(ranks)
        shares[member_id] = Share(
            ranks=ranks,
            world_size=planned.world_size,
            shape=planned.shape,
            group_rank=group_rank,
            group_world_size=len(in_order),
            role_ranks=tuple(range(start, start + len(ranks))),
            role_world_size=_role_size(role, roles, planned.ranks),
            master_addr=description["address"],
            master_port=description["master_port"] or host.worker_port,
        )
    return shares


def _role_size(role: str, roles: Mapping[str, str], ranks: Mapping[str, Iterable[int]]) -> int:
    return sum(len(tuple(ranks[member_id])) for member_id, own_role in roles.items() if own_role == role)
