"""Between agreement and placement: members' texts in, nodes to the planner, assignments' texts out.

Agreement asks two things about some members: how large a world could they form, and who gets which ranks? The planner
answers both, once their texts have become nodes. A member whose text cannot be read, or which others could not
reach, is left out with a reason and holds nobody up. Members have random ids; the planner knows
nodes by their names, which its order follows and its sentences repeat; where the user has numbered the nodes, the
order follows the numbers (`numbering`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from launcher.errors import UsageError
from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.placement.capacity import feasibility
from launcher.placement.planner import plan
from launcher.roster.description import (
    Description,
    Share,
    describe,
    read_description,
    read_share,
    shares_of,
    write_share,
)
from launcher.topology import in_order
from rendezvous.errors import RecordError
from rendezvous.events import MakePlan, PlanReady, PlanRefused
from rendezvous.leader.decide import MemberView, Size
from rendezvous.stores.addresses import is_local_only
from rendezvous.values import NamedTuple

__all__ = ["Description", "RosterPlanner", "Share", "describe", "read_share"]

NAMES_MAX = 12  # a sentence with more names of nodes is not read
SUCCESSORS = 4  # three, and one more in case the leader is among them: agreement knows who leads
_KNOWN_MAX = 20_000  # texts that are kept read, far more than members


class _Sifted(NamedTuple):
    """Members as nodes, which are called as people call them; `members`: by that name. `refused`: member id -> why.

    `missing`: the numbers that none of them has, where nodes are numbered. `limits`: the job's, with the levels that
    these nodes have; `trouble`: why those cannot be kept, or empty.
    """

    nodes: list[Node]
    members: dict[str, str]
    known: dict[str, Description]
    refused: dict[str, str]
    missing: tuple[int, ...]
    limits: Limits
    remarks: tuple[str, ...]
    trouble: str


class RosterPlanner:
    """The planner as agreement sees it. `mesh`, `limits` and `costs` are the job's, the same on every node.

    `node_count`: how many nodes the user has numbered; 0: none.
    """

    def __init__(self, mesh: Mesh, limits: Limits, costs: Costs, node_count: int = 0) -> None:
        self._mesh = mesh
        self._limits = limits
        self._costs = costs
        self._node_count = node_count
        self._sized: tuple[tuple[MemberView, ...], Size] | None = None  # what was asked last, and the answer
        self._read: dict[str, Description | str] = {}  # text -> what it says, or what is amiss with it
        self._said: dict[str, int] = {}  # remark on where nodes stand -> the first round that made it

    def size(self, members: Sequence[MemberView]) -> Size:
        """How large a world these members could form. Asked again and again, mostly about the same ones."""
        asked = tuple(members)
        if self._sized is None or self._sized[0] != asked:
            self._sized = (asked, self._size(asked))
        return self._sized[1]

    def _size(self, members: Sequence[MemberView]) -> Size:
        sifted = self._sift(
            (view.member.member_id, view.member.description, view.create_revision, view.member.node_name)
            for view in members
        )
        if sifted.missing:
            from launcher.roster.numbering import missing_words

            return Size(0, False, _with_names(missing_words(sifted.missing, self._node_count), sifted))
        if sifted.trouble:
            return Size(0, False, _with_names(sifted.trouble, sifted))
        found = feasibility(sifted.nodes, self._mesh, sifted.limits)
        is_told = found.world_size or not (len(members) > 1 or _is_many(sifted))
        reason = found.reason if is_told else _with_names(found.reason, sifted)
        return Size(found.world_size, found.is_full, reason, is_complete=bool(self._node_count))

    def plan(self, order: MakePlan) -> PlanReady | PlanRefused:
        """Who gets which ranks, as one text per active member."""
        sifted = self._sift((one.member_id, one.description, one.order, "") for one in order.roster)
        members = sifted.members
        # A node that comes back as another member is the same node, and keeps its ranks.
        names = {**order.names, **{member_id: name for name, member_id in members.items()}}
        previous, remarks = _previous(order.previous, names)
        if sifted.trouble:
            return PlanRefused(order.id, sifted.trouble)
        try:
            planned = plan(sifted.nodes, self._mesh, sifted.limits, self._costs, previous)
        except UsageError as error:
            return PlanRefused(order.id, str(error))
        ports = {candidate.member_id: candidate.worker_port for candidate in order.roster}
        stays = self._stays(planned, sifted)
        is_told = len(order.roster) > 1 or _is_many(sifted)
        summary = "; ".join((self._summary(planned, len(order.roster)), *stays)) if is_told else ""
        shares = shares_of(
            planned, {name: ports[member_id] for name, member_id in members.items()}, sifted.known, summary
        )
        first = next(iter(shares.values()))
        why, broken = self._why_spare(planned), planned.unusable
        return PlanReady(
            order.id,
            {members[name]: write_share(share) for name, share in shares.items()},
            planned.world_size,
            f"{first.master_addr}:{first.master_port}",
            reasons=(*planned.reasons, *stays),
            spare_reasons={**{members[name]: broken.get(name, why) for name in planned.spares}, **sifted.refused},
            successors=tuple(members[name] for name in _successors(sifted.nodes, sifted.known)),
            remarks=(*remarks, *sifted.refused.values(), *_namesakes(sifted),
                     *self._unsaid((*sifted.remarks, *broken.values()), order.round)),
        )  # fmt: skip

    def _summary(self, planned: Plan, node_count: int) -> str:
        """ "28 of 31 nodes, 224 ranks, dp=7; spares h4, h9, h11" """
        nodes = f"{len(planned.ranks)} of {node_count} node{'' if node_count == 1 else 's'}"
        words = f"{nodes}, {self._world(planned)}"
        spares = planned.spares
        return words + (f"; spare{'s' * (len(spares) > 1)} {_listed(spares)}" if spares else "")

    def _why_spare(self, planned: Plan) -> str:
        count = len(planned.ranks)
        return f"the largest world is {self._world(planned)} on {count} node{'' if count == 1 else 's'}"

    def _world(self, planned: Plan) -> str:
        """ "224 ranks, dp=7" """
        ranks = f"{planned.world_size} rank{'' if planned.world_size == 1 else 's'}"
        axes = zip(self._mesh.axes, planned.shape, strict=True)
        return ", ".join((ranks, *(f"{axis.name}={size}" for axis, size in axes if axis.size is None)))

    def _sift(self, found: Iterable[tuple[str, str, int, str]]) -> _Sifted:
        """`found`: member id, text, create revision, and the name if it is known from elsewhere."""
        read: dict[str, tuple[Description, int]] = {}
        refused: dict[str, str] = {}
        for member_id, text, order, name in found:
            description = self._description(text)
            if isinstance(description, Description):
                read[member_id] = (description, order)
            else:
                refused[member_id] = f"{name or member_id} cannot take part: {description}"
        if len({description.machine for description, _ in read.values()}) > 1:
            for member_id, (description, _) in list(read.items()):
                if is_local_only(description.address):
                    refused[member_id] = _unreachable(description.name or member_id, description.address)
                    del read[member_id]
        missing: tuple[int, ...] = ()
        amiss = ""
        if self._node_count:
            from launcher.roster.numbering import numbering

            numbered = numbering(read, self._node_count)
            refused.update(numbered.others)
            amiss = numbered.amiss
            read, missing = {member_id: read[member_id] for member_id in numbered.nodes}, numbered.missing
        if any(description.slice_hosts for description, _ in read.values()):
            from launcher.roster.joined import standing_by

            others = standing_by(read)
            refused.update(others)
            read = {member_id: each for member_id, each in read.items() if member_id not in others}
        counts = Counter(description.name for description, _ in read.values())
        members: dict[str, str] = {}
        known: dict[str, Description] = {}
        for member_id, (description, _) in read.items():
            is_called = description.name and counts[description.name] == 1
            name = description.name if is_called else f"{description.name} {member_id}".lstrip()
            members[name], known[name] = member_id, description
        paths, limits, remarks, trouble = self._stand(known)
        nodes = [_node(name, paths.get(name, ()), known[name], read[members[name]][1]) for name in members]
        return _Sifted(nodes, members, known, refused, missing, limits, remarks, amiss or trouble)

    def _stand(
        self, known: Mapping[str, Description]
    ) -> tuple[Mapping[str, tuple[str | None, ...]], Limits, tuple[str, ...], str]:
        """Where these nodes stand: their paths, the limits with the levels of these, remarks, and what is amiss."""
        limits = self._limits
        if not any(description.machine or description.locality for description in known.values()):
            return {}, limits, (), ""  # one machine stands nowhere
        from launcher.roster import ground as standing

        named = {*limits.within.values(), *self._costs.tolls, *([limits.whole.level] if limits.whole else [])}
        found = standing.ground(known, named)
        limits, remarks = standing.limits_on(limits, found, known.values())
        remarks = (*found.remarks, *remarks, *standing.unpaid(self._costs, found))
        return found.paths, limits, remarks, standing.unknown_level(limits)

    def _unsaid(self, remarks: Iterable[str], round: int) -> list[str]:
        """Of the remarks those that no earlier round has made: where nodes stand seldom changes."""
        return [remark for remark in dict.fromkeys(remarks) if self._said.setdefault(remark, round) == round]

    def _stays(self, planned: Plan, sifted: _Sifted) -> tuple[str, ...]:
        """What the levels of the network have done to the plan, in a sentence, if anything."""
        if not sifted.limits.levels or len(planned.ranks) < 2:
            return ()
        from launcher.placement.explain import stays

        sentence = stays(planned, sifted.nodes, self._mesh, sifted.limits)
        return (sentence,) if sentence else ()

    def _description(self, text: str) -> Description | str:
        """What the text says, or what is amiss with it; each is read once."""
        if text not in self._read:
            if len(self._read) >= _KNOWN_MAX:
                self._read.clear()
            try:
                self._read[text] = read_description(text)
            except RecordError as error:
                self._read[text] = str(error)
        return self._read[text]


def _node(name: str, path: tuple[str | None, ...], description: Description, order: int) -> Node:
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


def _with_names(reason: str, sifted: _Sifted) -> str:
    """Why there is no world, with who is here and who cannot take part."""
    nodes = sifted.nodes if sifted.missing else in_order(sifted.nodes)
    here = [node.id if node.rank is None else f"{node.id} ({node.rank})" for node in nodes]
    return "; ".join((reason, f"here: {_listed(here)}" if here else "nobody is here", *sifted.refused.values()))


def _unreachable(name: str, address: str) -> str:
    return f"{name} says that it is reached at {address}, where other machines find themselves: give it --local-addr"


def _is_many(sifted: _Sifted) -> bool:
    """Whether others may join: a node says what machine it is only then."""
    return any(description.machine for description in sifted.known.values())


def _namesakes(sifted: _Sifted) -> list[str]:
    counts = Counter(description.name for description in sifted.known.values() if description.name)
    return [
        f"{count} nodes are called {name}: give each its own --node-name" for name, count in counts.items() if count > 1
    ]


def _successors(nodes: Sequence[Node], known: Mapping[str, Description]) -> tuple[str, ...]:
    """Who should lead when the leader is lost: of different domains first, else of different names, by joining."""
    joined = sorted(nodes, key=lambda node: node.order)
    by_domain = {node.path: node.id for node in reversed(joined)}
    by_name = {known[node.id].name: node.id for node in reversed(joined)}
    apart = [node.id for node in joined if by_domain[node.path] == node.id]
    others = [node.id for node in joined if by_name[known[node.id].name] == node.id]
    return tuple(dict.fromkeys((*apart, *others)))[:SUCCESSORS]


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMES_MAX} more" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + more


def _previous(texts: Mapping[str, str], names: Mapping[str, str]) -> tuple[Plan | None, list[str]]:
    """The plan before, from what it gave each member, and what is to be said of it. `names`: of members, if known."""
    called = {member_id: names.get(member_id, member_id) for member_id in texts}
    counts = Counter(called.values())
    try:
        shares = {
            name if counts[name] == 1 else member_id: read_share(texts[member_id]) for member_id, name in called.items()
        }
    except RecordError as error:
        return None, [f"the assignments of the round before cannot be read, so no rank has a place to keep: {error}"]
    if not shares:
        return None, []
    shape = next(iter(shares.values())).shape
    ranks = {name: share.ranks for name, share in shares.items()}
    return Plan(shape=shape, ranks=ranks, spares=(), moved=0, reasons=()), []
