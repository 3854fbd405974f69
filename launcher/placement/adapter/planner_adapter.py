"""The adapter between agreement and placement: members' texts in, nodes to the planner, assignments' texts out.

The agreement asks two questions about some members: how large a world could they form, and which ranks does each get?
The planner answers both, once their texts have become nodes. A member whose text cannot be read, or which others could
not reach, is left out with a reason and delays no other. Members have random ids; the planner knows nodes by their
names, which determine its order and appear in its sentences; where the user has numbered the nodes, the order follows
the numbers (`numbering`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.topology import sort_nodes
from launcher.placement.adapter.description import (
    Description,
    NodeAssignment,
    decode_assignment,
    decode_description,
    encode_assignment,
)
from launcher.placement.capacity import assess_feasibility
from launcher.placement.limits import Costs, Limits, NoWorldError, Plan, name_some
from launcher.placement.planner import plan
from rendezvous.errors import RecordError
from rendezvous.events import MakePlan, PlanReady, PlanRefused
from rendezvous.policy.view import MemberView, Size
from rendezvous.reasons import Reason
from rendezvous.stores.addresses import is_local_only

SUCCESSORS = 4  # three, and one more in case the leader is among them: agreement knows who leads
_CACHED_MAX = 20_000  # decoded texts that are kept, far more than members


class _NodeSet(Struct, frozen=True):
    """Members as nodes of the planner."""

    nodes: list[Node]
    members: dict[str, str]
    """Member id by the name of its node."""
    descriptions: dict[str, Description]
    refused: dict[str, Reason]
    """By member id."""
    missing: Reason | None
    """The numbers that no node has, if nodes are numbered and some are missing."""
    limits: Limits
    """The job's, with the levels of these nodes."""
    remarks: tuple[Reason, ...]
    error: Reason | None
    """Why the numbers cannot be kept, if they cannot."""


class PlannerAdapter(Struct, eq=False):
    """The planner for the agreement. `mesh`, `limits` and `costs` are the job's, the same on every node."""

    mesh: Mesh
    limits: Limits
    costs: Costs
    node_count: int = 0
    """How many nodes the user has numbered; 0: none."""
    _last_size: tuple[tuple[MemberView, ...], Size] | None = None
    """The last query, and its answer."""
    _descriptions: dict[str, Description | str] = field(default_factory=dict)
    """Text -> its description, or what is wrong with it."""
    _logged_remarks: dict[str, int] = field(default_factory=dict)
    """Kind and values of a remark -> the first round that made it."""

    def compute_size(self, members: Sequence[MemberView]) -> Size:
        """Return how large a world these members could form. Called again and again, mostly for the same ones."""
        asked = tuple(members)
        if self._last_size is None or self._last_size[0] != asked:
            self._last_size = (asked, self._compute_size(asked))
        return self._last_size[1]

    def _compute_size(self, members: Sequence[MemberView]) -> Size:
        sifted = self._read_members(
            (view.member.member_id, view.member.description, view.create_revision, view.member.node_name)
            for view in members
        )
        if reason := sifted.missing or sifted.error:
            return Size(0, False, _add_names(reason, sifted))
        found = assess_feasibility(sifted.nodes, self.mesh, sifted.limits)
        if not found.world_size and (len(members) > 1 or _is_cluster(sifted)):
            found = replace(found, reason=_add_names(found.reason, sifted))
        return replace(found, is_complete=bool(self.node_count))

    def plan(self, order: MakePlan) -> PlanReady | PlanRefused:
        """Plan the ranks, as one text per active member."""
        sifted = self._read_members((one.member_id, one.description, one.order, "") for one in order.roster)
        members = sifted.members
        # A node that returns as another member is the same node, and keeps its ranks.
        names = {**order.names, **{member_id: name for name, member_id in members.items()}}
        previous, remarks = _read_previous(order.previous, names)
        if sifted.error:
            return PlanRefused(order.id, sifted.error)
        try:
            planned = plan(sifted.nodes, self.mesh, sifted.limits, self.costs, previous)
        except NoWorldError as error:
            return PlanRefused(order.id, error.reason)
        stays = self._explain_locality(planned, sifted)
        is_told = len(order.roster) > 1 or _is_cluster(sifted)
        summary = self._summarize(planned, len(order.roster)).add(*stays) if is_told else None
        shares = make_assignments(planned, sifted.descriptions, summary)
        first_name, first = next(iter(shares.items()))
        sizes, unusable = self._list_elastic_size(planned), planned.unusable
        why = Reason.of("placement/spare", ranks=planned.world_size, sizes=sizes, nodes=len(planned.ranks))
        return PlanReady(
            order.id,
            {members[name]: encode_assignment(share) for name, share in shares.items()},
            planned.world_size,
            # Port 0 if none is set: offered by launcher/ranks/ports.py, chosen in rendezvous/leader/commit.py.
            f"{first.master_addr}:{first.master_port}",
            members[first_name],
            reasons=(*planned.reasons, *stays),
            spare_reasons={**{members[name]: unusable.get(name, why) for name in planned.spares}, **sifted.refused},
            successors=tuple(members[name] for name in _choose_successors(sifted.nodes, sifted.descriptions)),
            remarks=(
                *remarks,
                *sifted.refused.values(),
                *self._list_new_remarks((*_list_clashes(sifted), *sifted.remarks, *unusable.values()), order.round),
                *self._explain_split_groups(planned, sifted, order.round),
            ),
        )

    def _summarize(self, planned: Plan, node_count: int) -> Reason:
        summary = Reason.of(
            "placement/summary",
            nodes=len(planned.ranks),
            present=node_count,
            ranks=planned.world_size,
            sizes=self._list_elastic_size(planned),
        )
        if not planned.spares:
            return summary
        return summary.add(Reason.of("placement/spares", nodes=name_some(planned.spares)))

    def _list_elastic_size(self, planned: Plan) -> tuple[str, ...]:
        """("dp=7",), or nothing: none is elastic, or nobody has named one"""
        axes = zip(self.mesh.axes, planned.shape, strict=True) if self.mesh.given_name else ()
        return tuple(f"{axis.name}={size}" for axis, size in axes if axis.size is None)

    def _read_members(self, found: Iterable[tuple[str, str, int, str]]) -> _NodeSet:
        """`found`: member id, text, create revision, and the name if it is known from elsewhere."""
        read: dict[str, tuple[Description, int]] = {}
        refused: dict[str, Reason] = {}
        for member_id, text, order, name in found:
            description = self._decode_description(text)
            if isinstance(description, Description):
                read[member_id] = (description, order)
            else:
                refused[member_id] = Reason.of("placement/unreadable-node", node=name or member_id, error=description)
        if len({description.machine for description, _ in read.values()}) > 1:
            for member_id, (description, _) in list(read.items()):
                if is_local_only(description.address):
                    refused[member_id] = Reason.of(
                        "placement/loopback-address",
                        node=description.name or member_id,
                        address=description.address,
                    )
                    del read[member_id]
        missing = error = None
        if self.node_count:
            from launcher.placement.adapter.numbering import resolve_numbering

            numbered = resolve_numbering(read, self.node_count)
            refused.update(numbered.others)
            missing, error = numbered.missing, numbered.error
            read = {member_id: read[member_id] for member_id in numbered.nodes}
        if any(description.slice_hosts for description, _ in read.values()):
            from launcher.placement.adapter.numbering import find_standby_hosts

            others = find_standby_hosts(read)
            refused.update(others)
            read = {member_id: each for member_id, each in read.items() if member_id not in others}
        counts = Counter(description.name for description, _ in read.values())
        members: dict[str, str] = {}
        known: dict[str, Description] = {}
        for member_id, (description, _) in read.items():
            is_called = description.name and counts[description.name] == 1
            name = description.name if is_called else f"{description.name} {member_id}".lstrip()
            members[name], known[name] = member_id, description
        paths, limits, remarks = self._resolve_topology(known)
        nodes = [_make_node(name, paths.get(name, ()), known[name], read[members[name]][1]) for name in members]
        return _NodeSet(nodes, members, known, refused, missing, limits, remarks, error)

    def _resolve_topology(
        self, known: Mapping[str, Description]
    ) -> tuple[Mapping[str, tuple[str | None, ...]], Limits, tuple[Reason, ...]]:
        """Return these nodes' paths, the limits with their levels, and remarks."""
        limits = self.limits
        if not any(description.machine or description.locality for description in known.values()):
            return {}, limits, ()  # one machine has no locality
        from launcher.placement.adapter import topology as standing

        named = {
            *limits.within.values(),
            *self.costs.level_costs,
            *(link.level for link in (self.costs.rates.links if self.costs.rates else ())),
            *([limits.all_or_nothing.level] if limits.all_or_nothing else []),
        }
        found = standing.build_topology(known, named)
        limits, remarks = standing.resolve_limits(limits, found, known.values())
        remarks = (*found.remarks, *remarks, *standing.check_level_costs(self.costs, found))
        return found.paths, limits, remarks

    def _list_new_remarks(self, remarks: Iterable[Reason], round: int) -> list[Reason]:
        """Return the remarks that no earlier round has made, each once: localities rarely change."""
        told = {str(remark): remark for remark in remarks}
        return [remark for text, remark in told.items() if self._logged_remarks.setdefault(text, round) == round]

    def _explain_split_groups(self, planned: Plan, node_set: _NodeSet, round: int) -> tuple[Reason, ...]:
        """Explain the groups that would fit a node and are split; once in a job, as nothing changes it but options."""
        if len(planned.ranks) < 2:
            return ()
        from launcher.placement.split_groups import explain_split_groups

        split = explain_split_groups(planned, node_set.nodes, self.mesh, node_set.limits)
        if split is None or self._logged_remarks.setdefault(str(split.values["axes"]), round) != round:
            return ()
        return (split,)

    def _explain_locality(self, planned: Plan, node_set: _NodeSet) -> list[Reason]:
        """Explain how the levels of the network have affected the plan, if at all."""
        if not node_set.limits.levels or len(planned.ranks) < 2:
            return []
        from launcher.placement.explain import explain_locality

        return explain_locality(planned, node_set.nodes, self.mesh, node_set.limits)

    def _decode_description(self, text: str) -> Description | str:
        """Return the decoded text, or what is wrong with it; each is decoded once."""
        if text not in self._descriptions:
            if len(self._descriptions) >= _CACHED_MAX:
                self._descriptions.clear()
            try:
                self._descriptions[text] = decode_description(text)
            except RecordError as error:
                self._descriptions[text] = str(error)
        return self._descriptions[text]


def _make_node(name: str, path: tuple[str | None, ...], description: Description, order: int) -> Node:
    return Node(
        id=name,
        slot_count=description.slot_count,
        path=path,
        address=description.address,
        order=order,
        index=description.index,
        host_pattern=description.host_pattern,
        rank=description.node_rank,
    )


def _add_names(reason: Reason, node_set: _NodeSet) -> Reason:
    """Return why there is no world, with the present nodes and those that cannot take part."""
    nodes = node_set.nodes if node_set.missing else sort_nodes(node_set.nodes)
    names = [node.id if node.rank is None else f"{node.id} ({node.rank})" for node in nodes]
    joined = Reason.of("placement/joined", nodes=name_some(names))
    return reason.add(joined if names else Reason.of("placement/none-joined"), *node_set.refused.values())


def _is_cluster(node_set: _NodeSet) -> bool:
    """Whether other nodes may join: only then does a node's description name its machine."""
    return any(description.machine for description in node_set.descriptions.values())


def _list_clashes(node_set: _NodeSet) -> Iterator[Reason]:
    """List what several nodes have that only one can: a name, or an address where they are not of one machine."""
    counts = Counter(description.name for description in node_set.descriptions.values() if description.name)
    for name, count in counts.items():
        if count > 1:
            yield Reason.of("placement/duplicate-name", name=name, count=count)
    sharers: dict[str, dict[str, str]] = {}  # address -> a node of each machine that publishes it
    for name, description in node_set.descriptions.items():
        sharers.setdefault(description.address, {}).setdefault(description.machine, name)
    for address, nodes in sharers.items():
        if len(nodes.keys() - {""}) > 1:
            yield Reason.of("placement/shared-address", address=address, nodes=name_some(sorted(nodes.values())))


def _choose_successors(nodes: Sequence[Node], known: Mapping[str, Description]) -> tuple[str, ...]:
    """Choose the leader's successors: of different domains first, else of different names, by time of joining."""
    joined = sorted(nodes, key=lambda node: node.order)
    by_domain = {node.path: node.id for node in reversed(joined)}
    by_name = {known[node.id].name: node.id for node in reversed(joined)}
    apart = [node.id for node in joined if by_domain[node.path] == node.id]
    others = [node.id for node in joined if by_name[known[node.id].name] == node.id]
    return tuple(dict.fromkeys((*apart, *others)))[:SUCCESSORS]


def _read_previous(texts: Mapping[str, str], names: Mapping[str, str]) -> tuple[Plan | None, list[Reason]]:
    """Return the previous plan, from each member's assignment, and remarks on it. `names`: of members, if known."""
    called = {member_id: names.get(member_id, member_id) for member_id in texts}
    counts = Counter(called.values())
    try:
        shares = {
            name if counts[name] == 1 else member_id: decode_assignment(texts[member_id])
            for member_id, name in called.items()
        }
    except RecordError as error:
        return None, [Reason.of("placement/previous-unreadable", error=str(error))]
    if not shares:
        return None, []
    shape = next(iter(shares.values())).shape
    ranks = {name: share.ranks for name, share in shares.items()}
    return Plan(shape=shape, ranks=ranks, spares=(), moved=0, reasons=()), []


def make_assignments(
    planned: Plan, known: Mapping[str, Description], summary: Reason | None
) -> dict[str, NodeAssignment]:
    """Return each node's assignment, by name, in order.

    Nodes are numbered by first rank, ranks within a role by node and slot, like torchrun.
    """
    numbered = sorted(planned.ranks, key=lambda name: planned.ranks[name])
    host, world_size = known[numbered[0]], planned.world_size  # a sum over all nodes
    slices: Mapping[str, tuple[int, int]] = {}
    if host.slice_hosts:
        from launcher.placement.adapter.numbering import number_slices

        slices = number_slices(planned.ranks, known)
    sizes: Counter[str] = Counter()
    for name in numbered:
        sizes[known[name].role] += len(planned.ranks[name])
    shares: dict[str, NodeAssignment] = {}
    taken: Counter[str] = Counter()
    for group_rank, name in enumerate(numbered):
        role, ranks = known[name].role, planned.ranks[name]
        slice_index, slice_count = slices.get(name, (0, 0))
        shares[name] = NodeAssignment(
            ranks=ranks,
            world_size=world_size,
            shape=planned.shape,
            group_rank=group_rank,
            group_world_size=len(numbered),
            role_ranks=tuple(range(taken[role], taken[role] + len(ranks))),
            role_world_size=sizes[role],
            master_addr=known[name].master_addr or host.address,
            master_port=host.master_port,
            summary=summary,
            slice_index=slice_index,
            slice_count=slice_count,
        )
        taken[role] += len(ranks)
    return shares
